"""Attention on an NVIDIA GPU against cuDNN and torch's flash attention, device times in one run.

    python bench/gpu_attention.py [--json FILE] [--only NAME ...] [--search N]

bf16, queries, keys and values [batch, heads, length, features]. Launches are captured in graphs
of 20 and take turns; medians of several. With --search the plans that are priced lowest are timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import report
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.lower.graph import lower_graph
from tilewright.rules import Scheduled, schedule
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.runtime import cuda
from tilewright.tensor.ir import Function

LAUNCHES, ROUNDS = 20, 5
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


def seconds(run: Callable[[], object]) -> float:
    timer = cuda.Timer()
    timer.start()
    run()
    return timer.stop() / 1e3 / LAUNCHES


def ours_of(made: Scheduled, operands: list[torch.Tensor], out: torch.Tensor) -> cuda.Graph:
    run = tw.build(made.schedule.function, TARGET)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    run(*operands, out)
    torch.cuda.synchronize()

    def ours(stream: int) -> None:
        for _ in range(LAUNCHES):
            run(*operands, out, stream=stream)

    return cuda.Graph(ours)


def theirs_of(
    backend: SDPBackend, case: Case, operands: list[torch.Tensor]
) -> Callable[[], object] | None:
    """A rival's launches as a graph; None where it does not take the case."""
    attend = torch.nn.functional.scaled_dot_product_attention
    try:
        with sdpa_kernel(backend):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                attend(*operands, is_causal=case.causal)
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                for _ in range(LAUNCHES):
                    attend(*operands, is_causal=case.causal)
    except RuntimeError as error:
        print(backend, str(error)[:200])
        return None
    return captured.replay


def relative_error(case: Case, operands: list[torch.Tensor], out: torch.Tensor) -> float:
    """Against products in f32, one sequence at a time."""
    wide = [x[:1].float() for x in operands]
    with sdpa_kernel(SDPBackend.MATH):
        exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=case.causal)
    return float((out[:1].float() - exact).abs().max() / exact.abs().max())


def figures_of(name: str, case: Case, search: int) -> list[report.Figure]:
    fn = attention(case)
    made = schedule(fn, TARGET)
    for decision in made.decisions:
        print(name, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us")
    operands = [torch.randn(case.shape, device="cuda").bfloat16() for _ in range(3)]
    out = torch.empty_like(operands[0])
    graph_ = ours_of(made, operands, out)
    error = relative_error(case, operands, out)
    runs: dict[str, Callable[[], object]] = {"ours": lambda: graph_.launch(0)}
    for rival, backend in RIVALS.items():
        replay = theirs_of(backend, case, operands)
        if replay is not None:
            runs[rival] = replay
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            times[key].append(seconds(run))
    median = {key: statistics.median(found) for key, found in times.items()}
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
    for choice in cheapest(made, search):
        keys = int(dict(part.split("=") for part in choice.plan.split())["keys"])
        block = made.decisions[0].block
        try:
            tried = ours_of(
                schedule(attention(case, max(keys, 128)), TARGET, choices={block: choice}),
                operands,
                out,
            )
        except UserError as problem:
            print(name, choice.plan, problem.message)
            continue
        wrong = relative_error(case, operands, out)
        best = min(seconds(lambda tried=tried: tried.launch(0)) for _ in range(3))  # type: ignore[misc]
        print(f"{name} {choice.plan}: {best * 1e6:.1f} us, error {wrong:.1e}")
    return shown


def cheapest(made: Scheduled, count: int) -> list[Choice]:
    """The plans of attention that are priced lowest."""
    offer = made.offers[0]
    if not count or not offer.is_open:
        return []
    columns = offer.space.columns()
    order = np.argsort(offer.cost(columns).cycles, kind="stable")[:count]
    return [
        Choice(offer.rule.name, plan_text(offer.space.plan_at(columns, int(row)))) for row in order
    ]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    figures: list[report.Figure] = []
    for name in options.only or CASES:
        figures += figures_of(name, CASES[name], options.search)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--search", type=int, default=0, help="plans to time besides")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
