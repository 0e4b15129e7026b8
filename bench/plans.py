"""Quality of the plans that schedule rules choose, and comparison of plans between revisions.

    python bench/plans.py [--json FILE] [--rules gemm conv] [--samples 64] [--threads 2]
    python bench/plans.py --jobs 8 --raw FILE        eight kernels at a time, each on its own cores
    python bench/plans.py --diff main [--target "x86_64-linux-gnu -mcpu=cascadelake"]

For three kernels of each rule that leaves something to decide, the default plan and others drawn at
random are built and run: all must give the same answer, that of plain loops. Shown is how far the
default is from the fastest of them, and how well predicted cycles rank what was measured. Before
every call other data passes through L2, as other kernels of a model would: operands come from where
the cost model expects them. Each kernel has a process of its own: a plan that crashes or hangs is
named. Rules for instructions that the processor lacks are left out. `--raw` keeps every plan with
its time and the terms of its cost.

`--diff` builds nothing. It schedules every kernel of the models of the zoo twice, with the package
of a git revision and with this one, and lists those whose rule or plan differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import report
from report import Figure

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[1]
ZOO = Path(__file__).parent / "models"

ROUNDS, ROUND_S = 3, 0.02  # of each plan, in turns
FINALISTS = 3  # the fastest plans, which are measured again beside the default
TOLERANCE = 5e-5  # of the largest result: sums in another order
ROUNDED = 1e-2  # the same, where what is summed is rounded to 8 bits on the way
LIMIT_S = 1800  # of all plans of a kernel
SEED = 15
WEIGHT_SCALE = 1 / 32  # sums stay near 1: a recurrent layer of large ones amplifies every rounding


# --------------------------------------------------------------------------- kernels


def conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1, **more: Any) -> str:
    """A convolution, channels last."""
    groups = more.pop("groups", 1)
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    channels_first = more.pop("channels_first", False)
    shapes = [(1, size, size, cin), (1, out, out, cout)]
    if channels_first:
        shapes = [(n, c, h, w) for n, h, w, c in shapes]
    attributes = {
        "strides": (stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
        "groups": groups,
        **({} if channels_first else {"layout": '"channels_last"'}),
        **more,
    }
    shown = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    x, y = (f"f32{list(shape)}" for shape in shapes)
    w = f"f32{[cout, cin // groups, kernel, kernel]}"
    return f"""graph @main(%x: {x}, %w: {w}) -> ({y}) {{
      %y = conv(%x, %w) {{{shown}}}
      %z = relu(%y)
      return %z
    }}"""


def resize(of: str, height: int, width: int) -> str:
    """An image between whose pixels is interpolated."""
    channels = of.partition(",")[0]
    sizes = f'{{axes = (2, 3), mode = "linear", sizes = ({height}, {width})}}'
    result = f"f32[1, {channels}, {height}, {width}]"
    return f"graph @main(%x: f32[1, {of}]) -> ({result}) {{ %y = resize(%x) {sizes} return %y }}"


def pool(size: int, channels: int, kernel: int, stride: int, layout: str = "channels_last") -> str:
    """The largest of windows."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    is_last = layout == "channels_last"
    x, y = (
        f"f32{[1, each, each, channels] if is_last else [1, channels, each, each]}"
        for each in (size, out)
    )
    attributes = {
        "kernel": (kernel, kernel),
        "strides": (stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
        "layout": f'"{layout}"',
    }
    shown = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return f"""graph @main(%x: {x}) -> ({y}) {{
      %y = max_pool(%x) {{{shown}}}
      return %y
    }}"""


def conv_integer(size: int, cin: int, cout: int, kernel: int, x: str, groups: int = 1) -> str:
    """A convolution of bytes, channels last."""
    pad = kernel // 2
    image, y = [1, size, size, cin], [1, size, size, cout]
    w = [cout, cin // groups, kernel, kernel]
    return f"""graph @main(%x: {x}{image}, %w: i8{w}) -> (i32{y}) {{
      %y = conv_integer(%x, %w) {{strides = (1, 1), pads = {(pad,) * 4}, dilations = (1, 1),
                                  groups = {groups}, layout = "channels_last"}}
      return %y
    }}"""


def product_range(m: int, k: int, n: int) -> str:
    """A GEMM, and the greatest of its results."""
    return f"""graph @main(%x: f32[{m}, {k}], %w: f32[{k}, {n}]) -> (f32[{m}, {n}], f32[]) {{
      %y = matmul(%x, %w)
      %z = relu(%y)
      %h = reduce_max(%z) {{keepdims = false}}
      return %z, %h
    }}"""


def conv_bf16(size: int, cin: int, cout: int, kernel: int) -> str:
    """A convolution of bf16 whose sums are f32, channels last."""
    pad = kernel // 2
    image, w, y = [1, size, size, cin], [cout, cin, kernel, kernel], [1, size, size, cout]
    return f"""graph @main(%x: bf16{image}, %w: bf16{w}) -> (f32{y}) {{
      %y = conv(%x, %w) {{strides = (1, 1), pads = {(pad,) * 4}, dilations = (1, 1),
                          layout = "channels_last", to = dtype f32}}
      return %y
    }}"""


def matmul_of(m: int, n: int, k: int, types: tuple[str, str, str]) -> str:
    """A GEMM of small numbers."""
    a, b, c = types
    operator = "matmul_integer(%x, %w)" if c == "i32" else f"matmul(%x, %w) {{to = dtype {c}}}"
    return f"""graph @main(%x: {a}[{m}, {k}], %w: {b}[{k}, {n}]) -> ({c}[{m}, {n}]) {{
      %y = {operator}
      return %y
    }}"""


def attention(heads: int, queries: int, keys: int, features: int, **more: Any) -> str:
    of = more.pop("of", "f32")
    q, k = (f"{of}{[1, heads, rows, features]}" for rows in (queries, keys))
    shown = ", ".join(f"{name} = {value}" for name, value in more.items())
    return f"""graph @main(%q: {q}, %k: {k}, %v: {k}) -> ({q}) {{
      %y = attention(%q, %k, %v) {{{shown}}}
      return %y
    }}"""


def lstm(steps: int, batch: int, hidden: int) -> str:
    state, gates = f"f32{[batch, hidden]}", 4 * hidden
    functions = '(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))'
    return f"""graph @main(%g: f32{[steps, batch, gates]}, %w: f32{[gates, hidden]}, %h: {state},
                           %c: {state}) -> (f32{[steps, batch, hidden]}, {state}, {state}) {{
      %y, %p, %q = lstm(%g, %w, none, %h, %c) {{activations = {functions}, reverse = false}}
      return %y, %p, %q
    }}"""


def search(rows: int, sorted_columns: int, columns: int) -> str:
    """Binary searches, which go step by step."""
    x, v = f"f32[{rows}, {sorted_columns}]", f"[{rows}, {columns}]"
    return f"""graph @main(%x: {x}, %v: f32{v}) -> (i64{v}) {{
      %y = search_sorted(%x, %v)
      return %y
    }}"""


def clipped(m: int, n: int) -> str:
    """What no rule but the last takes: a choice between statements."""
    return f"""func @clipped(%x: f32[{m}, {n}], %y: f32[{m}, {n}]) stage scheduled {{
      for %i in 0..{m} {{ for %j in 0..{n} {{
        block @y(%v0: spatial {m} = %i, %v1: spatial {n} = %j) {{
          reads %x[%v0, %v1]
          writes %y[%v0, %v1]
          if %x[%v0, %v1] < 0.0 {{ %y[%v0, %v1] = 0.0 }} else {{ %y[%v0, %v1] = %x[%v0, %v1] }}
        }}
      }} }}
    }}"""


def matmul(m: int, n: int, k: int) -> str:
    return f"""graph @main(%x: f32[{m}, {k}], %w: f32[{k}, {n}]) -> (f32[{m}, {n}]) {{
      %y = matmul(%x, %w)
      %z = relu(%y)
      return %z
    }}"""


def linear(m: int, n: int, k: int) -> str:
    """A layer as PyTorch has it: weights of [n, k]."""
    return f"""graph @main(%x: f32[{m}, {k}], %w: f32[{n}, {k}]) -> (f32[{m}, {n}]) {{
      %t = transpose(%w) {{perm = (1, 0)}}
      %y = matmul(%x, %t)
      return %y
    }}"""


def packed(m: int, n: int, k: int, group: int) -> str:
    """A GEMM with weights of four bits, a scale for each group of k."""
    shapes = (
        f"%x: f32[{m}, {k}], %w: u8[{k // group}, {group // 2}, {n}], %s: f32[{k // group}, {n}]"
    )
    return f"""graph @main({shapes}) -> (f32[{m}, {n}]) {{
      %y = matmul_packed(%x, %w, %s) {{per_byte = 2, zero = 8, scale_sums = true}}
      return %y
    }}"""


def packed_integers(m: int, n: int, k: int, group: int, per_byte: int) -> str:
    """The same of rows of bytes, by weights of the sign that this machine multiplies them by."""
    groups, of = k // group, BYTES[0]
    shapes = (
        f"%x: i8[{m}, {k}], %w: {of}[{groups}, {group // per_byte}, {n}], "
        f"%s: f32[{groups}, {n}], %t: f32[{m}, {groups}]"
    )
    return f"""graph @main({shapes}) -> (f32[{m}, {n}]) {{
      %y = matmul_packed(%x, %w, %s, none, %t) {{per_byte = {per_byte}}}
      return %y
    }}"""


def one(x: str, y: str, operator: str) -> str:
    """One operator on one operand."""
    return f"graph @main(%x: {x}) -> ({y}) {{ %y = {operator} return %y }}"


SUM_ROWS = "reduce_sum(%x) {axes = (1,), keepdims = false}"
SOFTMAX = "softmax(%x) {axes = (1,)}"
TRANSPOSE = "transpose(%x) {perm = (1, 0)}"


@dataclass(frozen=True)
class Kernel:
    """A kernel that a rule schedules: a graph or function, and which parameters are weights."""

    rule: str
    name: str
    source: str
    constants: tuple[str, ...] = ("w",)
    tolerance: float = TOLERANCE

    @property
    def title(self) -> str:
        """Of this kernel alone: those of different rules may have the same sizes."""
        return f"{self.rule} {self.name}"

    @property
    def function(self) -> Any:
        """What is scheduled, as lowering makes it."""
        from tilewright import graph, tensor
        from tilewright.lower.graph import lower_graph

        if self.source.startswith("func"):
            return tensor.parse(self.source)
        return lower_graph(graph.parse(self.source).main, "kernel")

    @property
    def target(self) -> str:
        """This machine; for dot products without matrix tiles, which would come before them."""
        from tilewright.base.target import Target

        has_tiles = Target.parse("cpu").has("amx-tile")
        return "cpu -mattr=-amx-tile" if self.rule in DOT_RULES and has_tiles else "cpu"


BYTES = ("u8" if platform.machine() in ("x86_64", "AMD64") else "i8", "i8", "i32")  # of dots
BF16 = ("bf16", "bf16", "f32")
DOT_RULES = ("gemm_dot", "conv_dot", "depthwise_dot", "gemm_packed_dot")
TILE_RULES = ("gemm_amx", "conv_amx", "attention_amx")

KERNELS = (
    Kernel("gemm", "bert 128x768x768", matmul(128, 768, 768)),
    Kernel("gemm", "run-time 384 cubed", matmul(384, 384, 384), ()),
    Kernel("gemm", "narrow 3136x24x144", matmul(3136, 24, 144)),
    Kernel("gemv", "1x1024x2048", matmul(1, 1024, 2048), ()),
    Kernel("gemv", "2x4096x1024", matmul(2, 4096, 1024), ()),
    Kernel("gemv", "8x2048x2048", matmul(8, 2048, 2048), ()),
    Kernel("gemm_packed", "bits 1x4096x4096", packed(1, 4096, 4096, 32), ("w", "s")),
    Kernel("gemm_packed", "bits 4x1024x1024", packed(4, 1024, 1024, 64), ("w", "s")),
    Kernel("gemm_packed", "bits 1x1024x2048", packed(1, 1024, 2048, 128), ("w", "s")),
    *(
        Kernel("gemm_packed_dot", name, packed_integers(*sizes), ("w", "s"))
        for name, sizes in {
            "bytes 1x4096x4096": (1, 4096, 4096, 32, 2),
            "bytes 16x2048x2048": (16, 2048, 2048, 128, 2),
            "bytes 64x1024x1024": (64, 1024, 1024, 32, 1),
        }.items()
    ),
    Kernel("dot_tiles", "8x512x512", linear(8, 512, 512), ()),
    Kernel("dot_tiles", "4x1000x2048", linear(4, 1000, 2048), ()),
    Kernel("dot_tiles", "12x384x1536", linear(12, 384, 1536), ()),
    Kernel("conv", "3x3 28x28x64", conv(28, 64, 64, 3)),
    Kernel("conv", "1x1 28x28x192 to 32", conv(28, 192, 32, 1)),
    Kernel("conv", "7x7/2 112x112x3 to 32", conv(112, 3, 32, 7, 2)),
    Kernel("grouped", "3x3 56x56x128 in 32", conv(56, 128, 128, 3, groups=32)),
    Kernel("grouped", "3x3/2 28x28x256 in 32", conv(28, 256, 256, 3, 2, groups=32)),
    Kernel("grouped", "5x5 14x14x96 in 48", conv(14, 96, 96, 5, groups=48)),
    Kernel("winograd", "F4 28x28x64", conv(28, 64, 64, 3, winograd=4)),
    Kernel("winograd", "F2 14x14x128", conv(14, 128, 128, 3, winograd=2)),
    Kernel("winograd", "F4 14x14x96", conv(14, 96, 96, 3, winograd=4)),
    Kernel("depthwise", "3x3 56x56x144", conv(56, 144, 144, 3, groups=144)),
    Kernel("depthwise", "3x3/2 28x28x192", conv(28, 192, 192, 3, 2, groups=192)),
    Kernel("depthwise", "5x5 14x14x240", conv(14, 240, 240, 5, groups=240)),
    Kernel("depthwise", "u8 3x3 56x56x144", conv_integer(56, 144, 144, 3, "u8", 144)),
    Kernel("depthwise_dot", "3x3 56x56x192", conv_integer(56, 192, 192, 3, BYTES[0], 192)),
    Kernel("depthwise_dot", "3x3 28x28x192", conv_integer(28, 192, 192, 3, BYTES[0], 192)),
    Kernel("depthwise_dot", "5x5 14x14x256", conv_integer(14, 256, 256, 5, BYTES[0], 256)),
    Kernel("depthwise_nchw", "3x3 56x56x64", conv(56, 64, 64, 3, groups=64, channels_first=True)),
    Kernel("depthwise_nchw", "5x5 28x28x96", conv(28, 96, 96, 5, groups=96, channels_first=True)),
    Kernel(
        "depthwise_nchw", "3x3/2 56x56x64", conv(56, 64, 64, 3, 2, groups=64, channels_first=True)
    ),
    Kernel("pooling", "3x3 28x28x192", pool(28, 192, 3, 1)),
    Kernel("pooling", "3x3 14x14x256", pool(14, 256, 3, 1)),
    Kernel("pooling", "5x5 28x28x64", pool(28, 64, 5, 1)),
    Kernel("pooling_rows", "3x3 stride 2 64x112x112", pool(112, 64, 3, 2, "channels_first")),
    Kernel("pooling_rows", "3x3 64x35x35", pool(35, 64, 3, 1, "channels_first")),
    Kernel("pooling_rows", "13x13 64x20x20", pool(20, 64, 13, 1, "channels_first")),
    *(
        Kernel(
            "elementwise", f"sigmoid {size}", one(f"f32[{size}]", f"f32[{size}]", "sigmoid(%x)"), ()
        )
        for size in ("128, 3072", "1, 1000", "56, 56, 64")
    ),
    *(
        Kernel("reduction", f"rows {m}x{n}", one(f"f32[{m}, {n}]", f"f32[{m}]", SUM_ROWS), ())
        for m, n in ((128, 3072), (1, 100_000), (3136, 64))
    ),
    *(
        Kernel("range", f"{m}x{k}x{n}", product_range(m, k, n))
        for m, k, n in ((3136, 24, 144), (196, 96, 576), (128, 384, 384))
    ),
    *(
        Kernel("fused_reductions", f"softmax {m}x{n}", one(*[f"f32[{m}, {n}]"] * 2, SOFTMAX), ())
        for m, n in ((128, 1000), (1536, 128), (384, 384))
    ),
    *(
        Kernel("gathered", f"resize {of} to {height}x{width}", resize(of, height, width), ())
        for of, height, width in (
            ("64, 40, 40", 80, 80),
            ("3, 480, 640", 224, 224),
            ("128, 14, 14", 28, 28),
        )
    ),
    *(
        Kernel("transpose", f"{m}x{n}", one(f"f32[{m}, {n}]", f"f32[{n}, {m}]", TRANSPOSE), ())
        for m, n in ((512, 512), (3136, 64), (100, 1000))
    ),
    *(
        Kernel("attention", f"{heads} heads {queries}x{keys}", attention(heads, queries, keys, 64))
        for heads, queries, keys in ((12, 128, 128), (12, 197, 197), (4, 64, 1024))
    ),
    *(
        Kernel("recurrent", f"lstm {batch}x{hidden}", lstm(8, batch, hidden))
        for batch, hidden in ((1, 650), (4, 256), (16, 128))
    ),
    Kernel("gemm_dot", "bytes 128x768x768", matmul_of(128, 768, 768, BYTES)),
    Kernel("gemm_dot", "bytes 8x1000x2048", matmul_of(8, 1000, 2048, BYTES)),
    Kernel("gemm_dot", "bytes 784x128x256", matmul_of(784, 128, 256, BYTES)),
    Kernel("conv_dot", "bytes 3x3 28x28x64", conv_integer(28, 64, 64, 3, BYTES[0])),
    Kernel("conv_dot", "bytes 1x1 28x28x192 to 64", conv_integer(28, 192, 64, 1, BYTES[0])),
    Kernel("conv_dot", "bytes 3x3 14x14x256", conv_integer(14, 256, 256, 3, BYTES[0])),
    Kernel("gemm_amx", "bf16 197x768x768", matmul_of(197, 768, 768, BF16)),
    Kernel("gemm_amx", "bf16 8x1000x2048", matmul_of(8, 1000, 2048, BF16)),
    Kernel("gemm_amx", "tiles of bytes 784x128x256", matmul_of(784, 128, 256, BYTES)),
    Kernel("conv_amx", "bf16 3x3 28x28x64", conv_bf16(28, 64, 64, 3)),
    Kernel("conv_amx", "bf16 3x3 16x16x512", conv_bf16(16, 512, 512, 3)),
    Kernel("conv_amx", "tiles of bytes 3x3 28x28x128", conv_integer(28, 128, 128, 3, BYTES[0])),
    *(
        Kernel(
            "attention_amx",
            f"bf16 {heads} heads {queries}x{keys}",
            attention(heads, queries, keys, 64, of="bf16", round_weights="true"),
            (),
            ROUNDED,
        )
        for heads, queries, keys in ((12, 128, 128), (12, 384, 384), (4, 64, 1024))
    ),
    *(
        Kernel("steps", f"search {rows}x{columns} in {among}", search(rows, among, columns), ())
        for rows, among, columns in ((64, 512, 512), (1, 4096, 20000), (512, 64, 16))
    ),
    *(
        Kernel("fallback", f"clipped {m}x{n}", clipped(m, n), ())
        for m, n in ((128, 3072), (1, 1000), (3136, 64))
    ),
)


def open_rules(target: Any) -> tuple[str, ...]:
    """The rules for CPUs that leave something to decide, and that a target can run."""
    from tilewright.base.dots import dots_of
    from tilewright.base.tiles import tile_product
    from tilewright.rules.cpu import RULES
    from tilewright.rules.rule import Closed

    missing = () if dots_of(target, *BYTES) else DOT_RULES
    missing += () if tile_product(target, *BF16[:2]) else TILE_RULES
    found = [rule.name for entry in RULES for rule in entry if rule.plan is not Closed]
    return tuple(name for name in found if name not in missing)


# --------------------------------------------------------------------------- plans of one kernel


@dataclass(frozen=True)
class Timed:
    """A plan, what it was expected to take, and what it took; the default stands first."""

    plan: str
    cycles: float
    seconds: float
    error: str = ""  # why there is no time: refused, another answer, crashed
    terms: Mapping[str, float] = field(default_factory=dict)  # of the cost, in cycles


class Runner:
    """One kernel with any plan, on the same operands."""

    def __init__(self, kernel: Kernel, threads: int) -> None:
        from tilewright.base.target import Target

        self.kernel, self.threads = kernel, threads
        self.target, self.function = Target.parse(kernel.target), kernel.function
        random = np.random.default_rng(SEED)
        self.args = [
            report.aligned(_drawn(each, random, each.name in kernel.constants))
            for each in self.function.buffers
        ]
        self.expected = self._results(self.function)

    def schedule(self, choices: Mapping[str, Any] | None = None) -> Any:
        from tilewright.rules import schedule

        return schedule(
            self.function,
            self.target,
            threads=self.threads,
            constants=self.kernel.constants,
            choices=choices,
        )

    def _results(self, function: Any) -> list[Array]:
        from tilewright.codegen.build import build

        made = [array.copy() for array in self.args]
        build(function, self.target)(*made, threads=1)
        return [made[at] for at in self._outputs]

    @property
    def _outputs(self) -> list[int]:
        from tilewright.tensor.visit import written_buffers

        written = written_buffers(self.function.body)
        return [at for at, each in enumerate(self.function.buffers) if each in written]

    def prepare(self, function: Any) -> tuple[Any, str]:
        """A call of a scheduled function, weights packed; and why its answer is wrong, if it is."""
        from tilewright.codegen.build import build
        from tilewright.tensor.constants import Given, split_constant_blocks

        split = split_constant_blocks(function)
        packed = [report.aligned(np.zeros(_shape(each), _numpy(each))) for each in split.results]
        if split.packer is not None:
            build(split.packer, self.target)(*(self.args[at] for at in split.weights), *packed)
        outputs = {at: report.aligned(_unwritten(self.args[at])) for at in self._outputs}
        args = [
            outputs.get(each.position, self.args[each.position])
            if isinstance(each, Given)
            else packed[each.position]
            for each in split.params
        ]
        run = build(split.kernel, self.target)
        run(*args, threads=self.threads)
        wrong = ""
        for got, expected in zip(outputs.values(), self.expected, strict=True):
            wide = expected.astype(np.float64)
            most = float(np.abs(wide).max())
            off = float(np.abs(got.astype(np.float64) - wide).max())
            if not off <= self.kernel.tolerance * most:
                wrong = f"another answer: off by {off:g}, results up to {most:g}"
        return (lambda: run(*args, threads=self.threads)), wrong

    def sweep(self) -> Callable[[], object]:
        """A copy that fills the L2 of every thread with other data."""
        from tilewright import te
        from tilewright.codegen.build import build
        from tilewright.rules import default_schedule

        elements = self.target.machine.l2.size_bytes * self.threads // 4
        A = te.placeholder((elements,), name="A")
        B = te.compute((elements,), lambda i: A[i], name="B")
        copy = te.function([A, B], name="copy")
        run = build(default_schedule(copy, self.target, threads=self.threads).function, self.target)
        source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
        return lambda: run(source, target, threads=self.threads)


def cold_seconds(
    run: Callable[[], object], sweep: Callable[[], object], threads: int
) -> Iterator[float]:
    """Times of single calls, each after a sweep, for about a round. Of one thread it is the time it
    has a core for: what others on the machine take is not counted."""
    now = time.thread_time if threads == 1 else time.perf_counter
    run()
    begun = now()
    while now() - begun < ROUND_S:
        sweep()
        start = now()
        run()
        yield now() - start


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent.value) for extent in buffer.shape)


def _numpy(buffer: Any) -> Any:
    return buffer.dtype.numpy


def _drawn(buffer: Any, random: np.random.Generator, is_weight: bool) -> Array:
    """Values of a buffer's type; integers of all sizes, weights as small as those of layers."""
    shape, of = _shape(buffer), buffer.dtype
    if of.is_int:
        limits = np.iinfo(of.numpy)
        drawn: Array = random.integers(limits.min, limits.max + 1, shape).astype(of.numpy)
        return drawn
    scale = WEIGHT_SCALE if is_weight else 1.0
    return (scale * random.standard_normal(shape)).astype(of.numpy)


def _unwritten(like: Array) -> Array:
    """What no kernel computes by chance."""
    return np.full_like(like, np.iinfo(like.dtype).min if like.dtype.kind in "iu" else np.nan)


def measure_kernel(kernel: Kernel, samples: int, threads: int) -> Iterator[Timed | str]:
    """The default plan and others, each announced by its text before it is tried."""
    from tilewright.base.errors import TilewrightError
    from tilewright.rules.rule import Choice
    from tilewright.rules.space import plan_text

    runner = Runner(kernel, threads)
    made = runner.schedule()
    offers = [each for each in made.offers if each.rule.name == kernel.rule]
    if not offers:
        others = ", ".join(dict.fromkeys(each.rule for each in made.decisions))
        raise SystemExit(f"{kernel.name} is scheduled by {others}, not by {kernel.rule}")
    offer = offers[0]
    default = next(each.plan for each in made.decisions if each.block == offer.block)
    space = offer.space
    drawn = space.sample(samples, np.random.default_rng(SEED))
    total = len(next(iter(drawn.values())))
    texts = dict.fromkeys([default, *(plan_text(space.plan_at(drawn, at)) for at in range(total))])
    runs: dict[str, Any] = {}
    for text in texts:
        yield text
        try:
            choice = {offer.block: Choice(offer.rule.name, text)}
            scheduled = runner.schedule(choice)
            run, wrong = runner.prepare(scheduled.schedule.function)
        except TilewrightError as error:
            yield Timed(text, 0.0, 0.0, f"refused: {error.message}")
            continue
        if wrong:
            yield Timed(text, 0.0, 0.0, wrong)
            continue
        decided = next(d for d in scheduled.decisions if d.block == offer.block)
        runs[text] = (run, decided)
    best, sweep = dict.fromkeys(runs, float("inf")), runner.sweep()

    def measured(texts: Iterable[str], rounds: int) -> Iterator[str]:
        for text in (text for _ in range(rounds) for text in texts):
            yield text
            best[text] = min(best[text], *cold_seconds(runs[text][0], sweep, threads))

    yield from measured(runs, ROUNDS)
    # The fastest of many plans that are equally fast was lucky: the default gets as many chances.
    fastest = sorted(runs, key=best.__getitem__)[:FINALISTS]
    yield from measured([text for text in runs if text in (*fastest, default)], ROUNDS)
    for text, (_, decided) in runs.items():
        yield Timed(text, decided.predicted_ns, best[text], "", dict(decided.terms))


def serve(title: str, samples: int, threads: int, cores: Sequence[int]) -> None:
    """Measure one kernel in this process; a line of JSON for each thing that happens."""
    if cores:
        os.sched_setaffinity(0, cores)
    kernel = next(each for each in KERNELS if each.title == title)
    for event in measure_kernel(kernel, samples, threads):
        told = event if isinstance(event, str) else event.__dict__
        print(json.dumps(told), flush=True)


def in_a_process(
    kernel: Kernel, options: argparse.Namespace, cores: Sequence[int]
) -> tuple[list[Timed], str]:
    """What came of all plans of a kernel; and why there is nothing, if so."""
    command = [sys.executable, __file__, "--serve", kernel.title]
    command += ["--samples", str(options.samples), "--threads", str(options.threads)]
    command += ["--cores", *map(str, cores)] if cores else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=options.limit
        )
        lines, code, told = done.stdout, done.returncode, done.stderr.strip()
    except subprocess.TimeoutExpired as late:
        lines = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        code, told = -1, f"all plans together took over {options.limit:g} s, this was the last"
    return parse_events(lines, code, told)


def parse_events(lines: str, code: int, told: str) -> tuple[list[Timed], str]:
    """Plans and their times from what a process wrote; one that ended it is the last announced."""
    found: list[Timed] = []
    at = ""
    for line in lines.splitlines():
        event = json.loads(line)
        if isinstance(event, str):
            at = event
        else:
            found.append(Timed(**event))
    if code and at:
        last = told.splitlines()[-1] if told else f"exit status {code}"
        found.append(Timed(at, 0.0, 0.0, f"ended the process: {last}"))
    return found, "" if found else told


# --------------------------------------------------------------------------- figures


def ranks(values: Sequence[float]) -> Array:
    """Places in ascending order; equal values share the mean of theirs."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Array = (ends - (counts - 1) / 2.0)[inverse]
    return means


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of ranks; nan where one side does not vary."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / norm if norm else float("nan")


@dataclass(frozen=True)
class Outcome:
    """All plans of a kernel; the default is the first of them that ran."""

    kernel: Kernel
    timed: tuple[Timed, ...]
    note: str = ""

    @property
    def good(self) -> list[Timed]:
        return [each for each in self.timed if not each.error]

    @property
    def bad(self) -> list[Timed]:
        return [each for each in self.timed if each.error]

    @property
    def best(self) -> Timed:
        return min(self.good, key=lambda each: each.seconds)

    @property
    def slower(self) -> float:
        """The default's time by that of the fastest."""
        return self.good[0].seconds / self.best.seconds

    @property
    def correlation(self) -> float:
        return spearman([t.cycles for t in self.good], [t.seconds for t in self.good])


def figures_of(outcomes: Sequence[Outcome], rules: Sequence[str]) -> list[Figure]:
    """What is asked of all kernels together, and what came of each."""
    told = [each for each in outcomes if each.good]
    found = [
        Figure(f"{each.kernel.rule} {each.kernel.name}: default against the best", each.slower, "x")
        for each in told
    ]
    for rule in rules:
        count = sum(each.kernel.rule == rule for each in told)
        found.append(report.at_least(f"kernels of {rule}", count, "", 3))
    wrong = sum(len(each.bad) for each in outcomes)
    found.append(report.at_most("plans that fail or give another answer", wrong, "", 0))
    if told:
        ratios = np.array([each.slower for each in told])
        correlations = [c for each in told if (c := each.correlation) == c]
        found += [
            report.at_least("default within 1.10x of the best", (ratios <= 1.10).mean(), "", 0.9),
            report.at_least("default within 1.25x of the best", (ratios <= 1.25).mean(), "", 1.0),
        ]
        if correlations:
            middle = statistics.median(correlations)
            found.append(report.at_least("rank correlation, median", middle, "", 0.7))
    return found


def show(outcomes: Sequence[Outcome]) -> None:
    """A line for each kernel, and for each plan that failed."""
    for each in outcomes:
        name = each.kernel.title
        if each.good:
            default_us, best_us = (t.seconds * 1e6 for t in (each.good[0], each.best))
            print(
                f"{name:50} {len(each.good):3} plans, default {default_us:8.1f} us, best "
                f"{best_us:8.1f}: {each.slower:.2f} x, rank correlation {each.correlation:.2f}"
            )
            if each.best is not each.good[0]:
                print(f"    default {each.good[0].plan}\n    best    {each.best.plan}")
        else:
            print(f"{name:50} nothing ran: {each.note}")
        for bad in each.bad:
            print(f"    {bad.plan}: {bad.error}")


def as_rows(kernel: Kernel, timed: Sequence[Timed]) -> list[dict[str, Any]]:
    """Every plan of a kernel, as JSON holds it."""
    return [{"rule": kernel.rule, "kernel": kernel.name, **each.__dict__} for each in timed]


# --------------------------------------------------------------------------- plans that changed


def plans_of(model: Path, target: str, threads: int, precision: str) -> dict[str, dict[str, str]]:
    """Rules and plans of every kernel of a model, by what the kernel computes."""
    from tilewright.base.target import Target
    from tilewright.driver.kernel_code import function_of, schedule_job
    from tilewright.driver.kernels import KernelSetting
    from tilewright.driver.lowering import planned_calls
    from tilewright.driver.optimize import load_graph, optimize
    from tilewright.driver.options import Options

    chosen = Target.parse(target)
    settings = Options(threads=threads, precision=precision)
    graph = optimize(load_graph(model), chosen, settings)
    found = {}
    for job in planned_calls(graph, KernelSetting(chosen, threads))[1].values():
        made = schedule_job(job, function_of(job))
        text = f"{sorted(job.constants)} {job.key.partition(chr(10))[2]}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        plans = [f"{each.block}: {each.rule} {each.plan}" for each in made.decisions]
        found[digest] = {"label": job.label, "plans": "\n".join(plans)}
    return found


def list_plans(options: argparse.Namespace) -> None:
    """All of them as JSON: what `--diff` asks of both revisions."""
    try:
        from tilewright.driver.kernel_code import schedule_job  # noqa: F401
        from tilewright.driver.lowering import planned_calls  # noqa: F401
        from tilewright.rules import schedule  # noqa: F401
    except ImportError:
        sys.exit(
            "this revision does not tell rules and plans: it has no rules.schedule or planned_calls"
        )
    models = sorted(options.zoo.glob("*.onnx"))
    chosen = [path for path in models if not options.only or path.stem in options.only]
    given = options.target, options.threads, options.precision
    json.dump({path.stem: plans_of(path, *given) for path in chosen}, sys.stdout)


# An editable installation finds its own package before any path is searched.
FROM_SOURCE = """
import runpy, sys
source, bench, *sys.argv = sys.argv[1:]
sys.meta_path = [each for each in sys.meta_path if "editable" not in type(each).__module__]
sys.path[:0] = [source, bench]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def plans_with(source: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The plans that a copy of the package makes; `name` is what people call it."""
    bench = Path(__file__).parent
    command = [sys.executable, "-c", FROM_SOURCE, str(source), str(bench), __file__]
    command += ["--list", "--zoo", str(options.zoo.resolve())]
    command += ["--target", options.target, "--threads", str(options.threads)]
    command += ["--precision", options.precision]
    command += ["--only", *options.only] if options.only else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def diff(options: argparse.Namespace) -> list[Figure]:
    """Kernels whose rule or plan is another than in a revision."""
    import tilewright

    here = Path(tilewright.__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run(
            [*git, "add", "--detach", str(tree), options.diff],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            sys.exit(f"no revision {options.diff}: {made.stderr.strip().splitlines()[-1]}")
        try:
            for built in (here / "tilewright/runtime").glob("_native*.so"):
                shutil.copy(built, tree / "src/tilewright/runtime")
            before = plans_with(tree / "src", options.diff, options)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)
    changes, total = compare(before, plans_with(here, "this tree", options))
    for line in changes:
        print(line)
    print(f"{len(changes)} of {total} kernels differ from {options.diff} for {options.target}")
    return [Figure(f"plans that differ from {options.diff}", len(changes), f"of {total}")]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], int]:
    """What changed, in words, and how many kernels there are."""
    lines: list[str] = []
    total = 0
    for model in after:
        old, new = before.get(model, {}), after[model]
        total += len(new)
        for digest, kernel in new.items():
            name = f"{model} {kernel['label']} {digest}"
            if digest not in old:
                lines.append(f"{name}: new kernel\n  + {_indented(kernel['plans'], '+')}")
            elif old[digest]["plans"] != kernel["plans"]:
                was, now = (
                    _indented(each["plans"], mark)
                    for each, mark in ((old[digest], "-"), (kernel, "+"))
                )
                lines.append(f"{name}:\n  - {was}\n  + {now}")
        lines += [
            f"{model} {kernel['label']} {digest}: gone"
            for digest, kernel in old.items()
            if digest not in new
        ]
    return lines, total


def _indented(plans: str, mark: str) -> str:
    return plans.replace("\n", f"\n  {mark} ")


# --------------------------------------------------------------------------- the script


def place_in_core(cpu: int, cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Which of the hardware threads of its core a CPU is, as far as the system tells: second ones
    have half a core beside one that is busy."""
    try:
        told = (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    siblings: list[int] = []
    for part in told.strip().split(","):  # 0-1, or 0,8
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return sorted(siblings).index(cpu)


def cores_of_jobs(jobs: int, threads: int) -> list[Sequence[int]]:
    """Cores of its own for each job; a job alone has all of them."""
    if jobs == 1:
        return [()]
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (place_in_core(core), core))
    if jobs * threads > len(cores):
        sys.exit(f"{jobs} jobs of {threads} threads need more than {len(cores)} cores")
    return [cores[at * threads : (at + 1) * threads] for at in range(jobs)]


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.diff:
        import zoo

        zoo.ensure_models(options.zoo, options.only)
        return diff(options)
    from tilewright.base.target import Target

    found = open_rules(Target.parse("cpu"))
    rules = [name for name in found if not options.rules or name in options.rules]
    chosen = [each for each in KERNELS if each.rule in rules]
    free: SimpleQueue[Sequence[int]] = SimpleQueue()
    for cores in cores_of_jobs(options.jobs, options.threads):
        free.put(cores)

    def measured(kernel: Kernel) -> Outcome:
        cores = free.get()
        timed, note = in_a_process(kernel, options, cores)
        free.put(cores)
        if options.raw:
            with options.raw.open("a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in as_rows(kernel, timed))
        return Outcome(kernel, tuple(timed), note.splitlines()[-1] if note else "")

    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(report.tracked(pool.map(measured, chosen), "measuring", len(chosen)))
    show(outcomes)
    return figures_of(outcomes, rules)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rules", nargs="*", help="names of rules; all that are open otherwise")
    parser.add_argument("--samples", type=int, default=64, help="plans drawn for each kernel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="kernels measured at a time")
    parser.add_argument("--raw", type=Path, help="a file to add a line to for every plan")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each kernel")
    parser.add_argument("--diff", metavar="REF", help="list plans that differ from a git revision")
    parser.add_argument("--target", default="cpu", help="with --diff: for which plans are made")
    parser.add_argument("--precision", default="f32", help="with --diff: of models")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="with --diff: a folder of models")
    parser.add_argument("--only", nargs="*", help="with --diff: names of models")


def main() -> None:
    inner = argparse.ArgumentParser(add_help=False)
    inner.add_argument("--serve")
    inner.add_argument("--cores", nargs="*", type=int, default=())
    inner.add_argument("--list", action="store_true")
    arguments(inner)
    options, _ = inner.parse_known_args()
    if options.serve:
        serve(options.serve, options.samples, options.threads, options.cores)
    elif options.list:
        list_plans(options)
    else:
        report.run(__doc__, measure, arguments)


if __name__ == "__main__":
    main()
