"""Selection, sorting, gather, scatter and scans on an NVIDIA GPU against torch.

    python bench/gpu_index.py [--json FILE] [--only NAME ...] [--kernels]

Each is a model of one operator, whose kernels run as in its own graph: side by side, and early.
Device times of graphs of 20 runs, ours and torch's in turns; results are compared with torch's
first. Open sizes are those that only a call tells.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gpu_turns
import numpy as np
import report
import torch

import tilewright as tw
from tilewright import graph
from tilewright.driver.device_launch import in_order
from tilewright.driver.device_module import DeviceModule
from tilewright.runtime import cuda, cuda_graphs

TOLERANCE = 1e-5  # of the largest output: sums in another order


@dataclass(frozen=True)
class Case:
    """A graph, and what torch does in its place."""

    text: str
    reference: Callable[..., Any]
    inputs: Callable[[torch.Generator], tuple[torch.Tensor, ...]]
    numbers: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    want: float | None = None


def normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda random: torch.randn(shape, generator=random)


def places(shape: tuple[int, ...], below: int) -> Callable[[torch.Generator], torch.Tensor]:
    """Indices, none twice where they are all of one line."""

    def made(random: torch.Generator) -> torch.Tensor:
        lines = [torch.randperm(below, generator=random)[: shape[-1]] for _ in range(shape[0])]
        return torch.stack(lines).reshape(shape)

    return made


def all_of(*makers: Callable[[torch.Generator], torch.Tensor]) -> Any:
    return lambda random: tuple(make(random) for make in makers)


def top(lines: int, length: int, count: int, is_open: bool = False) -> Case:
    rows = "n" if is_open else str(lines)
    text = f"""graph @main(%x: f32[{rows}, {length}]) {{ %k = constant() {{data = "k"}}
    %y, %at = top_k(%x, %k) {{axis = 1}} return %y, %at }}"""
    numbers = {"k": np.array([count])}
    return Case(
        text, lambda x: torch.topk(x, count, 1), all_of(normal(lines, length)), numbers, 1.0
    )


def gathered(rows: int, width: int, count: int) -> Case:
    text = f"""graph @main(%x: f32[{rows}, {width}], %at: i64[{count}])
    {{ %y = gather(%x, %at) {{axis = 0}} return %y }}"""
    given = all_of(normal(rows, width), lambda random: places((1, count), rows)(random)[0])
    return Case(text, lambda x, at: x.index_select(0, at), given, want=1.0)


def scattered(rows: int, width: int, count: int, reduction: str, is_open: bool = False) -> Case:
    """Rows of a matrix are replaced, or added to."""
    many = "n" if is_open else str(count)
    text = f"""graph @main(%x: f32[{rows}, {width}], %at: i64[{many}, 1], %u: f32[{many}, {width}])
    {{ %y = scatter_nd(%x, %at, %u) {{reduction = "{reduction}"}} return %y }}"""

    def reference(x: torch.Tensor, at: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        copied = x.clone()
        if reduction == "add":
            return copied.index_add_(0, at[:, 0], u)
        return copied.index_copy_(0, at[:, 0], u)

    index = lambda random: places((1, count), rows)(random).reshape(count, 1)  # noqa: E731
    return Case(text, reference, all_of(normal(rows, width), index, normal(count, width)), want=1.0)


def scattered_along(lines: int, length: int, count: int, reduction: str) -> Case:
    """Elements of lines are replaced, or added to."""
    text = f"""graph @main(%x: f32[{lines}, {length}], %at: i64[{lines}, {count}],
    %u: f32[{lines}, {count}])
    {{ %y = scatter_elements(%x, %at, %u) {{axis = 1, reduction = "{reduction}"}} return %y }}"""

    def reference(x: torch.Tensor, at: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return x.scatter_add(1, at, u) if reduction == "add" else x.scatter(1, at, u)

    given = all_of(normal(lines, length), places((lines, count), length), normal(lines, count))
    return Case(text, reference, given, want=1.0)


def along(op: str, lines: int, length: int, reference: Callable[..., Any]) -> Case:
    text = f"graph @main(%x: f32[{lines}, {length}]) {{ %y = {op} return %y }}"
    return Case(text, reference, all_of(normal(lines, length)), want=1.0)


CASES = {
    "top 5 of 32 x 1000": top(32, 1000, 5),
    "top 50 of 4 x 50257": top(4, 50257, 50),
    "top 300 of 1 x 76725": top(1, 76725, 300),
    "top 1000 of 2 x 120000": top(2, 120_000, 1000),
    "top 40 of 512 x 32000": top(512, 32_000, 40),
    "top 100 of n x 8400, 4 of them": top(4, 8400, 100, is_open=True),
    "all of 16 x 4096 in order": top(16, 4096, 4096),
    "all of 1 x 100000 in order": top(1, 100_000, 100_000),
    "all of 1 x 1048576 in order": top(1, 1 << 20, 1 << 20),
    "8192 rows of 50257 x 768 taken": gathered(50257, 768, 8192),
    "1024 rows of 32768 x 256 replaced": scattered(32768, 256, 1024, "none"),
    "1024 rows of 32768 x 256 added to": scattered(32768, 256, 1024, "add"),
    "n rows of 4096 x 256 replaced, 16": scattered(4096, 256, 16, "none", is_open=True),
    "64 of 8192 in 256 lines replaced": scattered_along(256, 8192, 64, "none"),
    "1024 of 8192 in 64 lines added to": scattered_along(64, 8192, 1024, "add"),
    "sums along 64 x 8192": along("cumsum(%x) {axis = 1}", 64, 8192, lambda x: x.cumsum(1)),
    "greatest of 4 x 50257": along(
        "arg_max(%x) {axis = 1, keepdims = true}", 4, 50257, lambda x: x.argmax(1, keepdim=True)
    ),
}


def outputs_of(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def figures_of(name: str, options: argparse.Namespace) -> list[report.Figure]:
    case = CASES[name]
    module = tw.compile(graph.parse(case.text, dict(case.numbers)), target="cuda")
    assert isinstance(module, DeviceModule)
    inputs = [each.cuda() for each in case.inputs(torch.Generator().manual_seed(0))]
    outputs = module(*inputs)
    found = list(map(cuda.to_host, outputs))
    exact = [each.cpu().numpy() for each in outputs_of(case.reference(*inputs))]
    shaped = [want.reshape(got.shape) for got, want in zip(found, exact, strict=True)]
    error = report.error_of(found, shaped)
    if options.kernels:
        for event in module.profile(*inputs).events:
            print(f"  {name}: {event.kernel} {event.duration_ns / 1e3:.1f} us")
    record = cuda_graphs.branched(*in_order(module.walk(*inputs).launches))
    runs = {
        "ours": gpu_turns.recorded(lambda _, stream: record(stream)),
        "torch": gpu_turns.captured(lambda _: case.reference(*inputs)),
    }
    taken = gpu_turns.seconds_of(runs)
    ratio, speed = taken["torch"] / taken["ours"], f"{name}: faster than torch"
    return [
        report.at_most(f"{name}: error", error, "", TOLERANCE),
        *(report.Figure(f"{name}: {who}", 1e6 * took, "us") for who, took in taken.items()),
        report.Figure(speed, ratio, "x")
        if case.want is None
        else report.at_least(speed, ratio, "x", case.want),
    ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for name in options.only or CASES:
        try:
            found = figures_of(name, options)
        except Exception:  # one operator's trouble is a figure of its own
            print(f"{name}: {traceback.format_exc(limit=-3)[-600:]}")
            found = [report.Figure(f"{name}: ran", 0.0, "", ">= 1", False)]
        for each in found:
            print(f"  {each.name}: {each.value:.4g} {each.unit}", flush=True)
        figures += found
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--kernels", action="store_true", help="show what each kernel takes")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
