"""Models of transformers: examples from the config, and text with keys and values as state."""

import copy
import functools
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import Unsupported, UserError
from tilewright.frontends.torch.examples import examples_of, without_cache
from tilewright.frontends.torch.generate import Generator, LanguageModule
from tilewright.frontends.torch.memory import Shape, shapes, tensors_in, with_tensors
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
        self.structure = SimpleNamespace(states=dict(model.named_buffers(recurse=False)))

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
    return LanguageModule.of(model, Eager)


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


class Streamer:
    """The tokens that were told of, in order."""

    def __init__(self):
        self.told, self.is_over = [], False

    def put(self, tokens):
        self.told.append(tokens.tolist())

    def end(self):
        self.is_over = True


LEFT = {
    "bad words": {"bad_words_ids": [[3], [40, 9]], "eos_token_id": 63},
    "a bias": {"sequence_bias": [[[7], 4.0], [[5, 9], -3.0]]},
    "lengths": {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": 63},
    "drawn": {"do_sample": True, "min_p": 0.05, "top_k": 20, "temperature": 0.7},
    "typical": {"do_sample": True, "typical_p": 0.8, "renormalize_logits": True},
    "beams": {"bad_words_ids": [[3]], "num_beams": 3, "eos_token_id": 63},
    "a penalty": {"repetition_penalty": 1.7},
    "only some": {"prefix_allowed_tokens_fn": lambda row, tokens: [3, 4 + row, len(tokens)]},
    "a processor": {"logits_processor": [lambda tokens, logits: -logits]},
}


@pytest.mark.parametrize("asked", LEFT.values(), ids=LEFT)
def test_what_is_left_to_transformers_is_as_in_its_own_loop(model, asked):
    torch.manual_seed(0)
    model = spread(copy.deepcopy(model))
    asked = {"max_new_tokens": 7, "attention_mask": (PROMPTS != 0).long(), "pad_token_id": 0,
             "do_sample": False} | asked  # fmt: skip
    torch.manual_seed(1)
    want = model.generate(PROMPTS, **asked)
    torch.manual_seed(1)
    assert language_module(model).generate(PROMPTS, **asked).tolist() == want.tolist()


def test_texts_end_by_any_criterion_and_are_told_of(model):
    torch.manual_seed(0)
    model = spread(copy.deepcopy(model))
    model.generation_config.eos_token_id = None

    def at_odds(tokens, scores):
        return torch.full((len(tokens),), tokens.shape[1] >= 9)

    told = {}
    for which in (model, language_module(model)):
        told[which] = Streamer()
        asked = {"max_new_tokens": 12, "stopping_criteria": [at_odds], "streamer": told[which]}
        made = which.generate(PROMPTS[1:], do_sample=False, **asked)
        assert made.shape == (1, 9)
    first, second = told.values()
    assert first.told == second.told
    assert first.is_over
    assert second.is_over


def test_a_source_bars_tokens_too():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
                      decoder_start_token_id=1)  # fmt: skip
    model = spread(T5ForConditionalGeneration(config).eval())
    sources = torch.tensor([[5, 9, 13, 6], [7, 1, 2, 4]])
    asked = {"encoder_no_repeat_ngram_size": 1, "max_new_tokens": 5}
    for beams in (1, 2):
        want = model.generate(sources, do_sample=False, num_beams=beams, **asked)
        made = language_module(model).generate(sources, num_beams=beams, **asked)
        assert made.tolist() == want.tolist()


def test_a_generation_config_goes_before_the_model_s(model):
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=4, eos_token_id=63)
    want = model.generate(PROMPTS[1:], generation_config=config, do_sample=False)
    made = language_module(model).generate(PROMPTS[1:], generation_config=config)
    assert made.tolist() == want.tolist()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"num_beams": 2, "max_time": 5.0}, "max_time of beams"),
        ({"stop_strings": ["."]}, "stop_strings need a tokenizer"),
        ({"assistant_model": 1}, "no option assistant_model"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate=True"),
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


REMEMBERED = {
    # Keys and values of fixed length, or states that hold all that was read, or both.
    "mamba": ("Mamba", {**SMALL, "state_size": 4}, "Fixed"),
    "mamba2": ("Mamba2", {**SMALL, "num_heads": 2, "head_dim": 16, "state_size": 4,
                          "n_groups": 1, "chunk_size": 4}, "Fixed"),
    "attention and states": ("Jamba", {
        **SMALL, "num_key_value_heads": 1, "intermediate_size": 32, "mamba_d_state": 4,
        "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
        "use_mamba_kernels": False}, "Fixed"),
    "windows": ("Gemma3", {
        **SMALL, "num_key_value_heads": 1, "intermediate_size": 32, "head_dim": 8,
        "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}, "Fixed"),
    # Biases by distance, of the mask.
    "alibi": ("Falcon", {**SMALL, "alibi": True}, "Fixed"),
    # Local attention takes the length of the keys for the number of tokens so far.
    "local attention": ("GPTNeo", {
        "vocab_size": 64, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 8,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64}, "Growing"),
    "a list of states": ("Rwkv", {**SMALL, "attention_hidden_size": 16}, "Growing"),
    "nothing": ("OpenAIGPT", {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}, "Whole"),
}  # fmt: skip
KINDS = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
         "OpenAIGPT": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel")}  # fmt: skip


def small(name, fields):
    import transformers

    torch.manual_seed(0)
    config, model = KINDS.get(name, (f"{name}Config", f"{name}ForCausalLM"))
    made = getattr(transformers, config)(**fields, bos_token_id=0, eos_token_id=63, pad_token_id=0)
    return spread(getattr(transformers, model)(made).eval())


@pytest.mark.parametrize("is_padded", [False, True], ids=["one", "padded"])
@pytest.mark.parametrize(("name", "fields", "how"), REMEMBERED.values(), ids=REMEMBERED)
def test_what_a_model_remembers_decides_how_it_is_called(name, fields, how, is_padded):
    model = small(name, fields)
    prompts = PROMPTS if is_padded else PROMPTS[1:]
    asked = {"max_new_tokens": 8, "attention_mask": (prompts != 0).long(), "eos_token_id": None}
    if name == "Rwkv" and is_padded:
        del asked["attention_mask"]  # it takes what pads for text
    model.generation_config.eos_token_id = None
    want = model.generate(prompts, do_sample=False, **asked)
    text = language_module(model)
    assert text.generate(prompts, **asked).tolist() == want.tolist()
    (generator,) = text.generators.values()
    assert type(generator.decoder).__name__ == how
    assert text.generate(prompts, **asked).tolist() == want.tolist()


def untraceable(which):
    """A compiler that has no graph for several tokens."""

    def compile(model, args, **named):
        if args[0].shape[1] > 1:
            raise Unsupported("TW1125", "it loops over tokens")
        return Eager(model, args, **named)

    return LanguageModule.of(which, compile)


@pytest.mark.parametrize("of", ["mamba", "attention and states", "local attention", "windows"])
def test_prompts_are_read_token_by_token_where_a_graph_is_of_one(of):
    """A state of a text that is padded begins behind that."""
    name, fields, how = REMEMBERED[of]
    model = small(name, fields)
    model.generation_config.eos_token_id = None
    for mask in (torch.ones_like(PROMPTS), (PROMPTS != 0).long()):
        asked = {"max_new_tokens": 6, "attention_mask": mask, "num_beams": 2}
        want = model.generate(PROMPTS, do_sample=False, **asked)
        text = untraceable(model)
        assert text.generate(PROMPTS, **asked).tolist() == want.tolist()
        (generator,) = text.generators.values()
        assert not generator.reader.has_prompt
        assert type(generator.decoder).__name__ == how


@pytest.mark.parametrize("of", ["mamba", "local attention"])
def test_states_and_growing_keys_are_compiled(of):
    name, fields, _ = REMEMBERED[of]
    model = small(name, fields)
    want = model.generate(PROMPTS[1:], do_sample=False, max_new_tokens=6, eos_token_id=None)
    text = Generator(model, functools.partial(tw.compile, threads=1), length=16)
    assert text.generate(PROMPTS[1:], 6).tolist() == want.tolist()
    text.reset()
    with torch.no_grad():
        told = model(PROMPTS[1:]).logits[:, -1:]
    torch.testing.assert_close(text.read(PROMPTS[1:]), told, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="TW4046"):
        text.read(torch.zeros(1, 12, dtype=torch.int64))


def test_a_model_that_runs_in_no_way_tells_all_reasons():
    from transformers import XLNetConfig, XLNetLMHeadModel

    config = XLNetConfig(vocab_size=64, d_model=16, n_layer=2, n_head=2, d_inner=32)
    model = spread(XLNetLMHeadModel(config).eval())
    with pytest.raises(Unsupported, match=r"(?s)TW4035.*fixed length: .*growing.*: .*without"):
        Generator(model, Eager, length=8)


def test_a_cache_is_taken_apart_and_put_together():
    from transformers import DynamicCache

    def kept(batch, count):
        cache = DynamicCache()
        cache.update(torch.zeros(batch, 2, count, 4), torch.ones(batch, 2, count, 4), 0)
        return {"cache": cache, "states": [(torch.zeros(batch, 3), 5)]}

    held = kept(2, 4)
    tensors = tensors_in(held)
    layer = {f"cache.layers.0.{name}" for name in ("keys", "values")}
    assert tensors.keys() == layer | {"states.0.0"}
    other = with_tensors(held, {"states.0.0": torch.ones(2, 3)})
    assert other["states"][0][0].sum() == 6
    assert other["states"][0][1] == 5
    assert other["cache"] is not held["cache"]
    assert held["states"][0][0].sum() == 0
    found = shapes(kept, 2, 4)
    assert found == dict.fromkeys(layer, Shape(0, 2)) | {"states.0.0": Shape(0, None)}
    assert shapes(lambda batch, count: [torch.zeros(batch, 2), count], 2, 4) is None
    assert shapes(lambda batch, count: [torch.zeros(batch, count, count)], 2, 4) is None


def test_positions_are_those_of_transformers_own_generate():
    """RoBERTa's own begin behind the number of the token that pads."""
    from transformers import RobertaConfig, RobertaForCausalLM

    torch.manual_seed(0)
    config = RobertaConfig(**SMALL, intermediate_size=32, is_decoder=True, pad_token_id=0)
    model = spread(RobertaForCausalLM(config).eval())
    asked = {"max_new_tokens": 6, "eos_token_id": 63, "attention_mask": torch.ones_like(PROMPTS)}
    want = model.generate(PROMPTS, do_sample=False, **asked)
    assert language_module(model).generate(PROMPTS, **asked).tolist() == want.tolist()


def test_other_modules_have_no_examples():
    assert examples_of(torch.nn.Linear(2, 2)) is None
