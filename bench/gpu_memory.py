"""Softmax, layer-norm, an element-wise function on an NVIDIA GPU against the speed of a copy.

python bench/gpu_memory.py [--json FILE] [--rows N] [--columns N]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import report
import torch

import tilewright as tw
from tilewright import graph
from tilewright.runtime import cuda

LAUNCHES, ROUNDS = 20, 5
WANT = 0.9  # of the copy's bandwidth
BODIES = {
    "softmax": "%y = softmax(%x) {axes = (1,)}",
    "layer_norm": "%y = layer_norm(%x, %s, %b) {axis = 1}",
    "tanh": "%y = tanh(%x)",
}
REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x, s, b: x.softmax(1),
    "layer_norm": lambda x, s, b: torch.nn.functional.layer_norm(x, x.shape[1:], s, b),
    "tanh": lambda x, s, b: x.tanh(),
}


def seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        timer = cuda.Timer()
        timer.start()
        for _ in range(LAUNCHES):
            run()
        times.append(timer.stop() / 1e3 / LAUNCHES)
    return statistics.median(times)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    rows, columns = options.rows, options.columns
    x = torch.randn(rows, columns, device="cuda")
    s, b = (torch.randn(columns, device="cuda") for _ in "sb")
    out = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    copy = moved / seconds(lambda: out.copy_(x)) / 1e12
    figures = [report.Figure("copy", copy, "TB/s")]
    for name, body in BODIES.items():
        shape, row = f"f32[{rows}, {columns}]", f"f32[{columns}]"
        text = f"graph @main(%x: {shape}, %s: {row}, %b: {row}) {{ {body} return %y }}"
        module = tw.compile(graph.parse(text), target="cuda")
        for _ in range(2):
            module(x, s, b, out=[out])
        error = float((out - REFERENCES[name](x, s, b)).abs().max())
        (recorded,) = list(module._kept.values())[-1:]
        speed = moved / seconds(lambda recorded=recorded: recorded.start(0)) / 1e12  # type: ignore[misc]
        figures.append(report.at_most(f"{name}: error", error, "", 1e-4))
        figures.append(report.Figure(f"{name}: bandwidth", speed, "TB/s"))
        figures.append(report.at_least(f"{name}: of a copy", speed / copy, "", WANT))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=8192)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
