"""Text by our loop: what small models of several architectures write is what eager writes.

    python bench/torch_text.py [--filter REGEX] [--tokens 12]

Decoders (GPT-2, Llama with grouped heads, Gemma with windows, experts, biases by distance ...),
encoders with decoders (T5, BART, Marian, Whisper), made-up weights. Each is compiled whole by
`tilewright.compile(model)` and generates, in a process of its own; eager takes the likeliest token
of a whole run each time.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import report
import torch
import torch_zoo
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from workers import Lost, run_jobs

SECONDS = 900.0  # for one model
SPREAD = 0.3  # of weights: those that models begin with prefer no token to others
WORDS, END = 64, 63
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**WIDTHS, "num_key_value_heads": 2, "intermediate_size": 64}
BOTH = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "forced_eos_token_id": None}  # fmt: skip
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


def measure(options: argparse.Namespace) -> list[Figure]:
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
    parser.add_argument("--tokens", type=int, default=12, help="to generate")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
