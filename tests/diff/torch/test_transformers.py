"""Models of transformers: examples from the config, and text with keys and values as state."""

import copy
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import Unsupported, UserError
from tilewright.frontends.torch.examples import examples_of, without_cache
from tilewright.frontends.torch.generate import STATE, Generator, LanguageModule
from tilewright.frontends.torch.options import Options
from tilewright.frontends.torch.sampling import Sampling

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
    from tilewright.plugins import torch as plugin

    text = plugin.Generator(model, length=16, threads=1)
    for prompt in (torch.tensor([[5, 9, 33]]), torch.tensor([[7, 7, 1, 2, 60]])):
        made = text.generate(prompt, 6)
        want = prompt
        with torch.no_grad():
            for _ in range(6):
                best = model(want).logits[:, -1:].argmax(-1)
                want = torch.cat([want, best], 1)
        assert made.tolist() == want.tolist()
    greedy = made[0, 5:].tolist()
    assert text.generate(prompt, 6, sampling=plugin.Sampling(top_k=1)).tolist() == want.tolist()
    drawn = [
        text.generate(prompt, 6, sampling=plugin.Sampling(2.0, seed=3)).tolist() for _ in range(2)
    ]
    assert drawn[0] == drawn[1] != want.tolist()
    shortened = text.generate(prompt, 6, end=greedy[2])[0, 5:].tolist()
    assert shortened == greedy[: greedy.index(greedy[2]) + 1]
    with pytest.raises(UserError, match="TW4046"):
        text.read(torch.zeros(1, 17, dtype=torch.int64))


def test_reading_tells_the_logits_behind_the_last_token(model):
    from tilewright.plugins import torch as plugin

    text = plugin.Generator(model, length=16, threads=1)
    words = torch.tensor([[5, 9, 33, 7]])
    with torch.no_grad():
        want = model(words).logits
    torch.testing.assert_close(text.read(words[:, :3]), want[:, 2:3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(text.read(words[:, 3:]), want[:, 3:], rtol=1e-4, atol=1e-5)


def test_a_compiled_model_generates(model):
    compiled = tw.compile(model, threads=1)
    prompt = torch.tensor([[5, 9, 33], [7, 1, 2]])
    want = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    made = compiled.generate(prompt, max_new_tokens=6)
    assert made.tolist() == want.tolist()
    (text,) = compiled.generators.values()
    assert (text.batch, text.length) == (2, 64)
    compiled.generate(prompt, max_new_tokens=1)
    assert compiled.generators == {(2, False): text}


class Eager:
    """What the graphs of a generator are made of, as PyTorch runs it."""

    def __init__(self, model, args, dynamic, kwargs=None):
        self.model = model
        states = {name: x for name, x in model.named_buffers() if name.startswith(STATE)}
        self.structure = SimpleNamespace(states=states)

    def __call__(self, *args, **kwargs):
        with torch.no_grad():
            return self.model(*args, **kwargs)


SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
PROMPTS = torch.tensor([[0, 0, 5, 9, 33], [4, 8, 12, 7, 8]])  # the first is padded
SETTINGS = {
    "padded": {"attention_mask": (PROMPTS != 0).long()},
    "beams": {"num_beams": 3, "attention_mask": (PROMPTS != 0).long()},
    "the best of beams": {
        "num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "num_return_sequences": 2,
        "eos_token_id": [63, 40]},
    "beams of any length": {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5},
    "beams of no length": {"num_beams": 2, "length_penalty": 0.0},
    "a first token that is not the first": {"forced_bos_token_id": 3, "num_beams": 2,
                                            "begin_suppress_tokens": [*range(0, 63, 2)]},
    "limits": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 4,
               "suppress_tokens": [3, 4], "begin_suppress_tokens": [7], "max_length": 12,
               "forced_eos_token_id": 63},
}  # fmt: skip


def language_module(model):
    """One whose graphs PyTorch runs."""
    made = object.__new__(LanguageModule)
    made.model, made.compile, made.generators = model, Eager, {}
    return made


def spread(model):
    """With weights that prefer some tokens to others."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_text_follows_what_transformers_lets_one_ask_for(model, settings):
    torch.manual_seed(0)
    model = spread(copy.deepcopy(model))
    asked = {"max_new_tokens": 7, "eos_token_id": 63, "pad_token_id": 0} | settings
    if "max_length" in settings:
        del asked["max_new_tokens"]
    whole = {"attention_mask": torch.ones_like(PROMPTS)}
    want = model.generate(PROMPTS, do_sample=False, **(whole | asked))
    assert language_module(model).generate(PROMPTS, **asked).tolist() == want.tolist()


def test_sources_of_several_lengths_are_read():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
                      decoder_start_token_id=1)  # fmt: skip
    model = spread(T5ForConditionalGeneration(config).eval())
    sources = torch.tensor([[5, 9, 13, 0], [7, 1, 2, 4]])
    asked = {"attention_mask": (sources != 0).long(), "num_beams": 2, "max_new_tokens": 5}
    want = model.generate(sources, do_sample=False, **asked)
    assert language_module(model).generate(sources, **asked).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"bad_words_ids": [[3]]}, "bad_words_ids"),
        ({"num_beams": 2, "do_sample": True}, "beams that are drawn"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"maximum": 2}, "no option maximum"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"num_return_sequences": 0}, "num_return_sequences=0"),
        ({"max_length": 5}, "max_length leaves no room behind 5 tokens"),
        ({"num_beams": 2, "max_length": 5}, "max_length leaves no room behind 5 tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens.* must be greater than 0"),
        ({"attention_mask": torch.ones(2, 4)}, "attention_mask is .2, 4. where"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask is .1, 5. where"),
        ({"attention_mask": (PROMPTS.flip(1) != 0).long()}, "padded on the right"),
    ],
)
def test_what_generate_does_not_follow_is_named(model, asked, named):
    with pytest.raises(UserError, match=f"TW4036.*{named}"):
        language_module(model).generate(PROMPTS, **asked)


@pytest.mark.parametrize("asked", [{"temperature": 0.0}, {"top_p": 0.0}], ids=str)
def test_a_draw_that_leaves_no_token_is_refused(model, asked):
    with pytest.raises(UserError, match="TW4099"):
        language_module(model).generate(PROMPTS, do_sample=True, **asked)


def test_a_drawn_text_may_take_all_tokens_into_account(model):
    options = Options.of(model.generation_config, {"do_sample": True, "top_k": 0}, 5)
    assert options.sampling == Sampling(top_k=0)


def test_a_decoder_reads_what_the_encoder_made_once():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    model = T5ForConditionalGeneration(config).eval()
    text = Generator(model, Eager, length=8)
    for source in (torch.tensor([[5, 9, 13]]), torch.tensor([[7, 1, 2, 4, 4]])):
        text.encode(source)
        begin = want = torch.tensor([[3]])
        with torch.no_grad():
            for _ in range(4):
                best = model(source, decoder_input_ids=want).logits[:, -1:].argmax(-1)
                want = torch.cat([want, best], 1)
        assert text.generate(begin, 4).tolist() == want.tolist()


def test_a_model_without_keys_and_values_does_not_generate():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(Unsupported, match="TW4035"):
        Generator(model, tw.compile, length=8)


def test_a_model_that_a_static_cache_changes_does_not_generate():
    """Its local attention takes the length of the keys for the number of tokens so far."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=32,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        window_size=8,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    with pytest.raises(Unsupported, match=r"TW4035.*cache of fixed length"):
        Generator(GPTNeoForCausalLM(config), tw.compile, length=64)


def test_positions_are_those_of_transformers_own_generate():
    """RoBERTa's own begin behind the number of the token that pads."""
    from transformers import RobertaConfig, RobertaForCausalLM

    torch.manual_seed(0)
    config = RobertaConfig(**SMALL, intermediate_size=32, is_decoder=True, pad_token_id=0)
    model = spread(RobertaForCausalLM(config).eval())
    asked = {"max_new_tokens": 6, "eos_token_id": 63, "attention_mask": torch.ones_like(PROMPTS)}
    want = model.generate(PROMPTS, do_sample=False, **asked)
    assert language_module(model).generate(PROMPTS, **asked).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("OpenAIGPT", {"n_embd": 16, "n_layer": 2, "n_head": 2}),  # does not remember
        (
            "Falcon",
            {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "alibi": True},
        ),
    ],
)
def test_models_that_no_static_cache_serves_are_refused(name, fields):
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=64, **fields)
    kind = {"OpenAIGPT": "OpenAIGPTLMHeadModel"}.get(name, f"{name}ForCausalLM")
    with pytest.raises(Unsupported, match="TW4035"):
        Generator(getattr(transformers, kind)(config).eval(), Eager, length=64)


def test_other_modules_have_no_examples():
    assert examples_of(torch.nn.Linear(2, 2)) is None
