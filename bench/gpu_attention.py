"""Attention on an NVIDIA GPU against cuDNN and torch's flash attention, device times in one run.

    python bench/gpu_attention.py [--json FILE] [--only NAME ...] [--search N]

bf16, queries, keys and values [batch, heads, length, features]. Launches are captured in graphs
of 20, over operands that rotate so that none is warm in L2, and take turns; medians of several.
"dynamic" is the kernel that is told the numbers of sequences, queries and keys by each call.
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
    queries: int = 0  # of a sequence, where they are fewer than its keys
    shared: int = 0  # heads of keys, where several of the queries' look at one

    @property
    def queried(self) -> tuple[int, int, int, int]:
        batch, heads, length, features = self.shape
        return batch, heads, self.queries or length, features

    @property
    def keyed(self) -> tuple[int, int, int, int]:
        batch, heads, length, features = self.shape
        return batch, self.shared or heads, length, features

    @property
    def merged(self) -> tuple[int, int, int, int]:
        """Queries as `merge_query_heads` leaves them to our kernel."""
        batch, heads, rows, features = self.queried
        shared = self.shared or heads
        return batch, shared, heads // shared * rows, features


CASES = {
    "long128": Case((4, 16, 4096, 128), False, {"cuDNN": 0.9, "flash": 1.6}),
    "long64": Case((4, 16, 4096, 64), False, {"cuDNN": 0.9, "flash": 1.6}),
    "causal128": Case((4, 16, 4096, 128), True, {"cuDNN": 0.9, "flash": 1.6}),
    "causal64": Case((4, 16, 4096, 64), True, {"cuDNN": 0.9, "flash": 1.6}),
    "bert": Case((32, 12, 128, 64), False, {"best": 2.0}),
    "edge": Case((8, 12, 197, 64), False, {}),
    "decode": Case((32, 12, 4096, 64), False, {}, queries=1),
    "decode1": Case((1, 32, 4096, 128), False, {"best": 1.0}, queries=1),
    "decode16": Case((1, 16, 4096, 128), False, {"best": 1.0}, queries=1),
    "decode_grouped": Case((1, 32, 8192, 128), False, {"best": 1.0}, queries=1, shared=8),
    "speculative": Case((1, 16, 4096, 128), False, {"best": 1.0}, queries=16),
}
DYNAMIC = 0.9  # of the speed of the kernel for these sizes alone, at least


def attention(case: Case, keys: int = 128, *, is_dynamic: bool = False) -> Function:
    _, heads, rows, features = case.merged
    batch, _, length, _ = case.keyed
    q, k = f"{batch}, {heads}, {rows}, {features}", f"{batch}, {heads}, {length}, {features}"
    if is_dynamic:
        # Who decodes knows how many sequences there are, but not how long they are.
        many, some = (batch, rows) if case.queries else ("b", "n")
        q, k = f"{many}, {heads}, {some}, {features}", f"{many}, {heads}, n, {features}"
    causal = "true" if case.causal else "false"
    text = f"""graph @main(%q: bf16[{q}], %k: bf16[{k}], %v: bf16[{k}]) {{
      %y = attention(%q, %k, %v) {{causal = {causal}, keys = {keys}}}
      return %y
    }}"""
    return lower_graph(graph.parse(text).main, "attention")


class Operands:
    """Queries, keys and values that take turns, so that none is warm, and results beside them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        batch, heads, length, features = case.keyed
        count = copies_of(4 * batch * heads * length * features * torch.bfloat16.itemsize)
        shapes = case.queried, case.keyed, case.keyed
        self.given = [[self._of(shape) for shape in shapes] for _ in range(count)]
        self.results = [self._of(case.queried) for _ in range(count)]

    @staticmethod
    def _of(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device="cuda").bfloat16()

    def at(self, turn: int) -> list[torch.Tensor]:
        return self.given[turn % len(self.given)]

    def result(self, turn: int) -> torch.Tensor:
        return self.results[turn % len(self.results)]


def ours_of(made: Scheduled, operands: Operands) -> Run:
    run = tw.build(made.schedule.function, TARGET)
    operands.result(0).fill_(float("nan"))
    torch.cuda.synchronize()
    batch, _, length, _ = operands.case.shape
    sizes = {"b": batch, "n": length}
    told = [sizes[each.name] for each in made.schedule.function.params if each.name in sizes]
    shape = operands.case.merged

    def start(turn: int, stream: int) -> None:
        q, *keys = operands.at(turn)
        run(q.view(shape), *keys, operands.result(turn).view(shape), *told, stream=stream)

    return recorded(start)


def theirs_of(backend: SDPBackend, case: Case, operands: Operands) -> Run | None:
    """A rival's launches as a graph; None where it does not take the case."""
    attend = torch.nn.functional.scaled_dot_product_attention
    try:
        with sdpa_kernel(backend):
            return captured(
                lambda turn: attend(
                    *operands.at(turn), is_causal=case.causal, enable_gqa=bool(case.shared)
                )
            )
    except RuntimeError as error:
        print(backend, str(error)[:200])
        return None


def relative_error(case: Case, operands: Operands) -> float:
    """Against products in f32, of one sequence."""
    wide, out = [x[:1].float() for x in operands.at(0)], operands.result(0)
    with sdpa_kernel(SDPBackend.MATH):
        exact = torch.nn.functional.scaled_dot_product_attention(
            *wide, is_causal=case.causal, enable_gqa=bool(case.shared)
        )
    return float((out[:1].float() - exact).abs().max() / exact.abs().max())


def figures_of(name: str, case: Case, search: int) -> list[report.Figure]:
    fn = attention(case)
    made = schedule(fn, TARGET)
    for decision in made.decisions:
        print(name, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us")
    operands = Operands(case)
    runs = {"dynamic": ours_of(schedule(attention(case, is_dynamic=True), TARGET), operands)}
    dynamic_error = relative_error(case, operands)
    runs["ours"] = ours_of(made, operands)
    error = relative_error(case, operands)
    for rival, backend in RIVALS.items():
        theirs = theirs_of(backend, case, operands)
        if theirs is not None:
            runs[rival] = theirs
    median = seconds_of(runs)
    batch, heads, length, features = case.shape
    rows = case.queries or length
    work = 4 * batch * heads * rows * length * features / (2 if case.causal else 1)
    shown = [
        report.at_most(f"{name}: error", error, "", ERROR),
        report.at_most(f"{name}: error, dynamic", dynamic_error, "", ERROR),
        report.at_least(
            f"{name}: dynamic against known sizes", median["ours"] / median["dynamic"], "x", DYNAMIC
        ),
    ]
    for key, taken in median.items():
        shown.append(report.Figure(f"{name}: {key}", 1e6 * taken, "us"))
        shown.append(report.Figure(f"{name}: {key}", work / taken / 1e12, "TFLOP/s"))
    others = {key: taken for key, taken in median.items() if key in RIVALS}
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
