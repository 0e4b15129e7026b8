"""Softmax, normalizations, an element-wise function on an NVIDIA GPU against the speed of a copy.

    python bench/gpu_memory.py [--json FILE] [--only NAME ...] [--rows N] [--columns N] [--search N]

The copy is torch's, of the same run and type. Launches are captured in graphs of 20, over operands
that rotate so that none is warm in L2, and take turns; medians of several. With --search the N
plans that are priced lowest are timed, and each is printed beside its price.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import report
import torch
from gpu_turns import Run, captured, cheapest, copies_of, print_plans, recorded, seconds_of

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import Scheduled, schedule
from tilewright.runtime import cuda
from tilewright.tensor.ir import Function

TARGET = "cuda -arch=sm_90a"
WANT = 0.9  # of the copy's bandwidth
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
ERRORS = {"bf16": 2**-6, "f32": 1e-5}  # of results, and of 1 for those that are less
SPARE = 1.25  # times torch's own error: an element may be rounded the other way
# GELU as torch has it: computed in f32, rounded once.
GELU = """
  %half = constant() {data = f32[](0.5)}
  %root = constant() {data = f32[](0.70710678)}
  %one = constant() {data = f32[](1.0)}
  %wide = cast(%x) {to = dtype f32}
  %scaled = mul(%wide, %root)
  %erf = erf(%scaled)
  %above = add(%erf, %one)
  %below = mul(%wide, %half)
  %product = mul(%below, %above)
  %gelu = cast(%product) {to = dtype DTYPE}
"""


@dataclass(frozen=True)
class Case:
    """A function of a matrix and two rows, as a graph and as torch has it, in f32; and where it is
    rounded on the way, as torch has it then."""

    body: str
    reference: Callable[..., torch.Tensor]
    dtypes: tuple[str, ...] = ("bf16", "f32")
    rounded: Callable[..., torch.Tensor] | None = None


def normalized(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x.float(), x.shape[1:], s, b)


CASES = {
    "softmax": Case("%y = softmax(%x) {axes = (1,)}", lambda x, s, b: x.float().softmax(1)),
    "layer_norm": Case("%y = layer_norm(%x, %s, %b) {axis = 1}", normalized),
    "gelu_layer_norm": Case(
        GELU + "%y = layer_norm(%gelu, %s, %b) {axis = 1}",
        lambda x, s, b: normalized(torch.nn.functional.gelu(x.float()), s, b),
        rounded=lambda x, s, b: normalized(torch.nn.functional.gelu(x), s, b),
    ),
    "tanh": Case("%y = tanh(%x)", lambda x, s, b: x.tanh(), ("f32",)),
}


def function_of(case: Case, dtype: str, rows: int, columns: int) -> Function:
    shape, row = f"{dtype}[{rows}, {columns}]", f"{dtype}[{columns}]"
    body = case.body.replace("DTYPE", dtype)
    text = f"graph @main(%x: {shape}, %s: {row}, %b: {row}) {{ {body} return %y }}"
    module = graph.parse(text)
    return lower_graph(module.main, "f", module.constants)


class Operands:
    """Matrices that take turns, so that none is warm."""

    def __init__(self, dtype: str, rows: int, columns: int) -> None:
        kind = TYPES[dtype]
        self.moved_bytes = 2 * rows * columns * kind.itemsize
        self.count = copies_of(self.moved_bytes)
        self.inputs = [self._like(rows, columns).to(kind) for _ in range(self.count)]
        self.outputs = [torch.empty_like(x) for x in self.inputs]
        self.rows = [self._like(columns).to(kind) for _ in "sb"]

    @staticmethod
    def _like(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    def at(self, turn: int) -> tuple[torch.Tensor, ...]:
        turn %= self.count
        return (self.inputs[turn], *self.rows, self.outputs[turn])

    def copy(self, turn: int) -> None:
        x, *_, y = self.at(turn)
        y.copy_(x)


def ours_of(made: Scheduled, operands: Operands) -> Run:
    run = tw.build(made.schedule.function, TARGET)
    operands.outputs[0].fill_(float("nan"))
    torch.cuda.synchronize()
    return recorded(lambda turn, stream: run(*operands.at(turn), stream=stream))


def error_of(case: Case, operands: Operands) -> float:
    """Of the first result, against torch in f32."""
    *_, y = operands.at(0)
    return _greatest(y, _values(case.reference, operands))


def allowed_of(case: Case, dtype: str, operands: Operands) -> float:
    """The error that a result may have: also what torch's own has that is rounded on the way."""
    if case.rounded is None:
        return ERRORS[dtype]
    exact = _values(case.reference, operands)
    rounded = _values(case.rounded, operands).to(TYPES[dtype])
    return max(ERRORS[dtype], SPARE * _greatest(rounded, exact))


def _values(of: Callable[..., torch.Tensor], operands: Operands) -> torch.Tensor:
    x, s, b, _ = operands.at(0)
    return of(x, s.float(), b.float())


def _greatest(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((found.float() - exact).abs() / exact.abs().clamp(min=1)).max())


def figures_of(
    name: str, dtype: str, operands: Operands, options: argparse.Namespace
) -> list[report.Figure]:
    case, title = CASES[name], f"{name} {dtype}"
    fn = function_of(case, dtype, options.rows, options.columns)
    made = schedule(fn, TARGET)
    for decision in made.decisions:
        print(
            title, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us"
        )
    ours = ours_of(made, operands)
    ours()
    cuda.synchronize()
    error = error_of(case, operands)
    taken = seconds_of({"ours": ours, "copy": captured(operands.copy)})
    print_plans(
        title,
        cheapest(made, options.search),
        lambda choice: (
            ours_of(schedule(fn, TARGET, choices={"y": choice}), operands),
            error_of(case, operands),
        ),
    )
    return [
        report.at_most(f"{title}: error", error, "", allowed_of(case, dtype, operands)),
        report.Figure(f"{title}: copy", operands.moved_bytes / taken["copy"] / 1e12, "TB/s"),
        report.Figure(f"{title}: ours", operands.moved_bytes / taken["ours"] / 1e12, "TB/s"),
        report.at_least(f"{title}: of a copy", taken["copy"] / taken["ours"], "", WANT),
    ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for dtype in TYPES:
        operands = Operands(dtype, options.rows, options.columns)
        for name in options.only or CASES:
            if dtype in CASES[name].dtypes:
                figures += figures_of(name, dtype, operands, options)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=8192)
    parser.add_argument("--search", type=int, default=0, help="plans to time besides")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
