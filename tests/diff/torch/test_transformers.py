"""Models of transformers: examples from the config, and text with keys and values as state."""

from importlib.util import find_spec

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.frontends.torch.examples import examples_of, without_cache

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


@pytest.fixture(scope="module")
def model():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=64,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def test_a_model_alone_is_traced_with_batch_and_sequence_open(model):
    compiled = tw.compile(model, threads=1)
    for shape in ((1, 3), (3, 7)):
        words = torch.randint(0, 64, shape)
        with torch.no_grad(), without_cache(model):
            want = model(words).logits
        torch.testing.assert_close(compiled(input_ids=words).logits, want, rtol=1e-4, atol=1e-5)
    assert model.config.use_cache


def test_text_is_what_the_model_generates(model):
    from tilewright.plugins.torch import Generator, Sampling

    text = Generator(model, length=16, threads=1)
    for prompt in (torch.tensor([[5, 9, 33]]), torch.tensor([[7, 7, 1, 2, 60]])):
        made = text.generate(prompt, 6)
        want = prompt
        with torch.no_grad():
            for _ in range(6):
                best = model(want).logits[:, -1:].argmax(-1)
                want = torch.cat([want, best], 1)
        assert made.tolist() == want.tolist()
    greedy = made[0, 5:].tolist()
    assert text.generate(prompt, 6, sampling=Sampling(top_k=1)).tolist() == want.tolist()
    drawn = [text.generate(prompt, 6, sampling=Sampling(2.0, seed=3)).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1] != want.tolist()
    shortened = text.generate(prompt, 6, end=greedy[2])[0, 5:].tolist()
    assert shortened == greedy[: greedy.index(greedy[2]) + 1]
    with pytest.raises(UserError, match="TW4046"):
        text.read(torch.zeros(1, 17, dtype=torch.int64))


def test_other_modules_have_no_examples():
    assert examples_of(torch.nn.Linear(2, 2)) is None
