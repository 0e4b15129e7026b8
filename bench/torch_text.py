"""Text by our loop: what small models of several architectures write is what eager writes.

    python bench/torch_text.py [--filter REGEX] [--tokens 12] [--all]

Decoders (GPT-2, Llama with grouped heads, Gemma with windows, experts, biases by distance ...),
encoders with decoders (T5, BART, Marian, Whisper), made-up weights. Each is compiled whole by
`tilewright.compile(model)` and generates, in a process of its own; eager takes the likeliest token
of a whole run each time.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
import torch
import torch_shrunk
import torch_zoo
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from workers import Lost, run_jobs

from tilewright.base.errors import TilewrightError
from tilewright.frontends.torch.generate import LanguageModule

SECONDS = 900.0  # for one model
SPREAD = 0.3  # of weights: those that models begin with prefer no token to others
WORDS, END = 64, 63
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**WIDTHS, "num_key_value_heads": 2, "intermediate_size": 64}
BOTH = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "forced_eos_token_id": None}  # fmt: skip
KINDS = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
SAME, DIFFERS, REFUSED, FAILED = "same", "differs", "refused", "failed"
NO_EAGER, UNBUILT = "eager fails", "not made small"
# Fields that end a text, or speak of words that a small model has not.
NOWHERE = ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "suppress_tokens",
           "begin_suppress_tokens", "bad_words_ids", "max_length")  # fmt: skip
TIE = 1e-4  # of the spread of logits
MOST = 300  # characters of a message
# (the class, fields of its config)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("AutoModelForCausalLM", {"n_layer": 2, "n_head": 2, "n_embd": 16}),
    "llama": ("AutoModelForCausalLM", GROUPED),
    "mistral": ("AutoModelForCausalLM", {**GROUPED, "sliding_window": 8}),
    "gemma3_text": ("AutoModelForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 8}),
    "opt": ("AutoModelForCausalLM", {**WIDTHS, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "gpt_neox": ("AutoModelForCausalLM", {**WIDTHS, "intermediate_size": 64}),
    "qwen3": ("AutoModelForCausalLM", {**GROUPED, "head_dim": 8}),
    "mixtral": ("AutoModelForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "falcon": ("AutoModelForCausalLM", {**WIDTHS, "alibi": False}),
    "bloom": ("AutoModelForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "t5": ("AutoModelForSeq2SeqLM", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                                     "num_heads": 4}),
    "bart": ("AutoModelForSeq2SeqLM", BOTH),
    "marian": ("AutoModelForSeq2SeqLM", BOTH),
    "whisper": ("AutoModelForSpeechSeq2Seq", {**BOTH, "max_source_positions": 50,
                                              "num_mel_bins": 16}),
}  # fmt: skip


def run_text(job: tuple[str, int]) -> tuple[int, str]:
    """How many tokens are eager's, and what was written."""
    torch_zoo.prepare()  # transformers loads torchvision where it finds it
    import transformers

    import tilewright as tw

    name, count = job
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kind, fields = MODELS[name]
    config = transformers.AutoConfig.for_model(
        *(name,), vocab_size=WORDS, bos_token_id=0, eos_token_id=END, pad_token_id=0,
        decoder_start_token_id=1, **fields)  # fmt: skip
    model = getattr(transformers, kind).from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=SPREAD)
    compiled: Any = tw.compile(model, threads=1)
    given = torch.tensor([[5, 9, 33, 7, 8]])
    if model.main_input_name == "input_features":
        given = torch.randn(1, 16, 100)
    made = compiled.generate(given, max_new_tokens=count)
    want = torch.tensor([[1]]) if config.is_encoder_decoder else given
    with torch.no_grad():
        for _ in range(made.shape[1] - want.shape[1]):
            run = model(given, decoder_input_ids=want) if config.is_encoder_decoder else model(want)
            want = torch.cat([want, run.logits[:, -1:].argmax(-1)], 1)
    same = int((made == want).sum()) - (made.shape[1] - count)
    ended = int(made[0, -1]) == END
    return (count if ended and torch.equal(made, want) else same), str(made[0].tolist())


@dataclass(frozen=True)
class Found:
    """What became of a type."""

    status: str  # SAME, or what is wrong
    message: str = ""
    seconds: float = 0.0  # to compile and to write


def run_type(job: tuple[str, str, int]) -> Found:
    """Texts of one type, ours and eager's."""
    torch_zoo.prepare()
    import transformers

    name, kind, count = job
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model: Any = torch_shrunk.generative(name, kind)
    except Exception as error:
        return Found(UNBUILT, _said(error))
    if not model.can_generate():
        return Found(UNBUILT, "cannot generate")
    _prepare(model)
    begun = time.perf_counter()
    notes: list[str] = []
    for is_padded in (False, True):
        given = _given(model, is_padded)
        if given is None:
            continue
        inputs, mask = given
        try:
            want = _eager(model, inputs, mask, count)
        except Exception as error:
            return Found(NO_EAGER, _said(error))
        try:
            how, made = _ours(model, inputs, mask, count)
        except TilewrightError as error:
            return Found(REFUSED, f"{'padded: ' * is_padded}{_said(error)}")
        except Exception as error:
            return Found(FAILED, f"{'padded: ' * is_padded}{_said(error)}")
        notes.append(how)
        problem = _difference(made, want, inputs, model.config.is_encoder_decoder)
        if problem:
            return Found(DIFFERS, f"{'padded: ' * is_padded}{how}: {problem}")
    return Found(SAME, ", ".join(notes), time.perf_counter() - begun)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST]


def _prepare(model: Any) -> None:
    """Weights that prefer some tokens to others, and a text that nothing ends."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=SPREAD)
    known = model.generation_config
    for held in (known, model.config, model.config.get_text_config(decoder=True)):
        for field in NOWHERE:
            if hasattr(held, field):
                setattr(held, field, None)
    known.pad_token_id = 0
    if model.config.is_encoder_decoder and known.decoder_start_token_id is None:
        known.decoder_start_token_id = 1


def _given(model: Any, is_padded: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """What a text is written behind, or made from, and its mask."""
    if model.main_input_name != "input_ids":
        return None if is_padded else (torch_shrunk.source(model), None)
    if not is_padded:
        return torch.tensor([[5, 9, 33, 7, 8, 2, 17, 21, 9, 3]]), None
    short = [5, 9, 33, 0, 0] if model.config.is_encoder_decoder else [0, 0, 5, 9, 33]
    tokens = torch.tensor([short, [4, 8, 12, 7, 8]])
    return tokens, (tokens != 0).long()


def _eager(model: Any, inputs: torch.Tensor, mask: torch.Tensor | None, count: int) -> Any:
    """Tokens and logits of the model's own generate."""
    from transformers.generation import GenerationMixin

    named = {} if inputs.is_floating_point() else {"attention_mask": torch.ones_like(inputs)}
    named |= {} if mask is None else {"attention_mask": mask}
    return GenerationMixin.generate(
        model, inputs, do_sample=False, num_beams=1, max_new_tokens=count, output_logits=True,
        return_dict_in_generate=True, **named)  # fmt: skip


def _ours(
    model: Any, inputs: torch.Tensor, mask: torch.Tensor | None, count: int
) -> tuple[str, torch.Tensor]:
    """How our loop remembers, and the tokens that it writes."""
    import tilewright as tw

    compile = functools.partial(tw.compile, threads=1)
    text = LanguageModule.of(model, compile)
    asked = {"do_sample": False, "num_beams": 1, "max_new_tokens": count}
    made = text.generate(inputs, attention_mask=mask, **asked)
    (generator,) = text.generators.values()
    kind = type(generator.decoder).__name__.lower()
    notes = [kind]
    if not generator.reader.has_prompt:
        notes.append("by single tokens")
    return " ".join(notes), made


def _difference(made: torch.Tensor, want: Any, inputs: torch.Tensor, has_source: bool) -> str:
    """What is wrong with a text; nothing, where it is eager's but for ties."""
    sequences = want.sequences
    if made.shape != sequences.shape:
        return f"{tuple(made.shape)} where eager has {tuple(sequences.shape)}"
    begin = sequences.shape[1] - len(want.logits)
    for row in range(len(made)):
        wrong = (made[row] != sequences[row]).nonzero()
        if not len(wrong):
            continue
        at = int(wrong[0])
        logits = want.logits[at - begin][row]
        gap = float(logits.max() - logits[made[row, at]])
        if not gap <= TIE * float(logits.max() - logits.min()):
            return f"token {at - begin} of text {row}, whose logit is {gap:.2g} below the greatest"
    return ""


def measure_all(options: argparse.Namespace) -> list[Figure]:
    from transformers.models.auto import modeling_auto

    names = {kind: getattr(modeling_auto, table) for kind, table in KINDS.items()}
    jobs = [(name, kind, options.tokens) for kind, some in names.items() for name in some
            if re.search(options.filter, name)]  # fmt: skip
    found: dict[str, list[str]] = {}
    ends = run_jobs("torch_text", "run_type", jobs, workers=1, seconds=SECONDS, most=1)
    for (name, kind, _), end in report.tracked(ends, "text", len(jobs)):
        one = Found(FAILED, end.why) if isinstance(end, Lost) else end
        found.setdefault(one.status, []).append(name)
        what = f"{kind.removeprefix('AutoModelFor')} {name}: {one.status}"
        print(f"{what} ({one.seconds:.0f} s) {one.message}", flush=True)
    for status, names in found.items():
        print(f"{status}: {len(names)}" + ("" if status == SAME else f": {' '.join(names)}"))
    tried = sum(len(found.get(status, ())) for status in (SAME, DIFFERS, REFUSED, FAILED))
    same = len(found.get(SAME, ()))
    return [
        report.at_least("types whose text is eager's", same, "types", 0.97 * tried),
        report.at_most("types whose text differs", len(found.get(DIFFERS, ())), "types", 0),
        Figure("types refused by name", len(found.get(REFUSED, ())), "types"),
        report.at_most("types that fail", len(found.get(FAILED, ())), "types", 0),
        Figure("types that eager does not generate", len(found.get(NO_EAGER, ())), "types"),
        Figure("types that are not made small", len(found.get(UNBUILT, ())), "types"),
    ]


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.all:
        return measure_all(options)
    jobs = [(name, options.tokens) for name in MODELS if re.search(options.filter, name)]
    ends = run_jobs("torch_text", "run_text", jobs, workers=1, seconds=SECONDS, most=1)
    right = 0
    for (name, count), end in report.tracked(ends, "text", len(jobs)):
        same, text = (0, end.why) if isinstance(end, Lost) else end
        right += same == count
        print(f"{name}: {same} of {count} tokens: {text}", flush=True)
    return [report.at_least("models whose text is eager's", right, "models", len(jobs))]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on names of models")
    parser.add_argument("--all", action="store_true", help="every type of transformers")
    parser.add_argument("--tokens", type=int, default=12, help="to generate")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
