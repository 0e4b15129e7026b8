"""Attention on an NVIDIA GPU against cuDNN and torch's flash attention, device times in one run.

    python bench/gpu_attention.py [--json FILE] [--only NAME ...] [--search N]

bf16, queries, keys and values [batch, heads, length, features]. Launches are captured in graphs
of 20, over operands that rotate so that none is warm in L2, and take turns; medians of several.
With --search the plans that are priced lowest are timed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import report
import torch
from gpu_turns import Run, captured, cheapest, copies_of, print_plans, recorded, seconds_of
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import Scheduled, schedule
from tilewright.rules.rule import Choice
from tilewright.tensor.ir import Function

TARGET = "cuda -arch=sm_90a"
ERROR = 8e-3  # of the largest result: weights are rounded to bf16
RIVALS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Case:
    """Sizes, and what is wanted against each rival, or against the better one."""

    shape: tuple[int, int, int, int]
    causal: bool
    want: dict[str, float]


CASES = {
    "long128": Case((4, 16, 4096, 128), False, {"cuDNN": 0.9, "flash": 1.6}),
    "long64": Case((4, 16, 4096, 64), False, {"cuDNN": 0.9, "flash": 1.6}),
    "causal128": Case((4, 16, 4096, 128), True, {"cuDNN": 0.9, "flash": 1.6}),
    "causal64": Case((4, 16, 4096, 64), True, {"cuDNN": 0.9, "flash": 1.6}),
    "bert": Case((32, 12, 128, 64), False, {"best": 2.0}),
    "edge": Case((8, 12, 197, 64), False, {}),
}


def attention(case: Case, keys: int = 128) -> Function:
    shape = ", ".join(str(size) for size in case.shape)
    causal = "true" if case.causal else "false"
    text = f"""graph @main(%q: bf16[{shape}], %k: bf16[{shape}], %v: bf16[{shape}]) {{
      %y = attention(%q, %k, %v) {{causal = {causal}, keys = {keys}}}
      return %y
    }}"""
    return lower_graph(graph.parse(text).main, "attention")


class Operands:
    """Queries, keys and values that take turns, so that none is warm, and results beside them."""

    def __init__(self, case: Case) -> None:
        batch, heads, length, features = case.shape
        count = copies_of(4 * batch * heads * length * features * torch.bfloat16.itemsize)
        self.given = [[self._like(case) for _ in range(3)] for _ in range(count)]
        self.results = [self._like(case) for _ in range(count)]

    @staticmethod
    def _like(case: Case) -> torch.Tensor:
        return torch.randn(case.shape, device="cuda").bfloat16()

    def at(self, turn: int) -> list[torch.Tensor]:
        return self.given[turn % len(self.given)]

    def result(self, turn: int) -> torch.Tensor:
        return self.results[turn % len(self.results)]


def ours_of(made: Scheduled, operands: Operands) -> Run:
    run = tw.build(made.schedule.function, TARGET)
    operands.result(0).fill_(float("nan"))
    torch.cuda.synchronize()
    return recorded(
        lambda turn, stream: run(*operands.at(turn), operands.result(turn), stream=stream)
    )


def theirs_of(backend: SDPBackend, case: Case, operands: Operands) -> Run | None:
    """A rival's launches as a graph; None where it does not take the case."""
    attend = torch.nn.functional.scaled_dot_product_attention
    try:
        with sdpa_kernel(backend):
            return captured(lambda turn: attend(*operands.at(turn), is_causal=case.causal))
    except RuntimeError as error:
        print(backend, str(error)[:200])
        return None


def relative_error(case: Case, operands: Operands) -> float:
    """Against products in f32, of one sequence."""
    wide, out = [x[:1].float() for x in operands.at(0)], operands.result(0)
    with sdpa_kernel(SDPBackend.MATH):
        exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=case.causal)
    return float((out[:1].float() - exact).abs().max() / exact.abs().max())


def figures_of(name: str, case: Case, search: int) -> list[report.Figure]:
    fn = attention(case)
    made = schedule(fn, TARGET)
    for decision in made.decisions:
        print(name, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us")
    operands = Operands(case)
    runs = {"ours": ours_of(made, operands)}
    error = relative_error(case, operands)
    for rival, backend in RIVALS.items():
        theirs = theirs_of(backend, case, operands)
        if theirs is not None:
            runs[rival] = theirs
    median = seconds_of(runs)
    batch, heads, length, features = case.shape
    work = 4 * batch * heads * length * length * features / (2 if case.causal else 1)
    shown = [report.at_most(f"{name}: error", error, "", ERROR)]
    for key, taken in median.items():
        shown.append(report.Figure(f"{name}: {key}", 1e6 * taken, "us"))
        shown.append(report.Figure(f"{name}: {key}", work / taken / 1e12, "TFLOP/s"))
    others = {key: taken for key, taken in median.items() if key != "ours"}
    if others:
        others["best"] = min(others.values())
    for rival, want in case.want.items():
        if rival in others:
            ratio = others[rival] / median["ours"]
            shown.append(report.at_least(f"{name}: against {rival}", ratio, "x", want))

    def other(choice: Choice) -> tuple[Run, float]:
        keys = int(dict(part.split("=") for part in choice.plan.split())["keys"])
        fn, block = attention(case, max(keys, 128)), made.decisions[0].block
        return (
            ours_of(schedule(fn, TARGET, choices={block: choice}), operands),
            relative_error(case, operands),
        )

    print_plans(name, cheapest(made, search), other)
    return shown


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for name in options.only or CASES:
        figures += figures_of(name, CASES[name], options.search)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--search", type=int, default=0, help="plans to time besides")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
