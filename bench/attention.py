"""Attention within a band on the CPU: against the kernel without a mask, and against PyTorch.

    python bench/attention.py [--json FILE] [--only REGEX] [--seconds S] [--threads N]

Causal attention and sliding windows, in f32 and bf16, static and dynamic. For each, in turns:

- the share of what visible blocks of 32 queries would take, by the time of the kernel without a
  mask: 1.0 if hidden blocks cost nothing and visible ones no more than elsewhere;
- the speedup over PyTorch's flex_attention under inductor, where a C++ compiler is, and over
  scaled_dot_product_attention, with `is_causal` or all keys, whichever is faster.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would slow down the next

import numpy as np
import report
import torch
from report import Figure
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tilewright as tw
from tilewright import graph
from tilewright.graph.ops.attention import QUERY_BLOCK

HEADS = 12
CALLS = 5  # at least
LEAST_SHARE = 0.85
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2}
Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    tokens: int
    features: int
    window: int | None = None  # keys before a query that it sees; None: all
    precision: str = "f32"
    is_dynamic: bool = False

    @property
    def name(self) -> str:
        seen = "causal" if self.window is None else f"window {self.window}"
        kind = "dynamic" if self.is_dynamic else "static"
        return f"{seen}, {self.tokens} x {self.features}, {self.precision}, {kind}"

    @property
    def visible_share(self) -> float:
        """The share of keys in blocks that some query of a block of queries sees."""
        first = np.arange(0, self.tokens, QUERY_BLOCK)
        start = np.zeros_like(first) if self.window is None else first - self.window
        start = np.maximum(0, start) // QUERY_BLOCK * QUERY_BLOCK
        return float(np.sum(first + QUERY_BLOCK - start)) / (self.tokens * len(first))

    def model(self, attributes: str) -> graph.Module:
        rows = "n" if self.is_dynamic else str(self.tokens)
        of = f"f32[1, {HEADS}, {rows}, {self.features}]"
        return graph.parse(
            f"graph @main(%q: {of}, %k: {of}, %v: {of}) -> ({of}) {{"
            f" %y = attention(%q, %k, %v) {{{attributes}}} return %y }}"
        )

    def ours(self, arrays: list[np.ndarray], threads: int, *, masked: bool = True) -> Run:
        band = "causal = true" if self.window is None else f"window = ({self.window}, 0)"
        model = self.model(band if masked else "")
        compiled = tw.compile(model, threads=threads, precision=self.precision)
        return lambda: compiled(*arrays)

    def flex(self, tensors: list[torch.Tensor]) -> Run:
        def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q >= k) if self.window is None else (q >= k) & (q - k <= self.window)

        mask = create_block_mask(seen, None, None, self.tokens, self.tokens, device="cpu")
        compiled = torch.compile(flex_attention, dynamic=self.is_dynamic)
        return lambda: compiled(*tensors, block_mask=mask)

    def dense(self, tensors: list[torch.Tensor]) -> list[Run]:
        attend = torch.nn.functional.scaled_dot_product_attention
        return [lambda: attend(*tensors, is_causal=True), lambda: attend(*tensors)]

    def exact(self, tensors: list[torch.Tensor]) -> np.ndarray:
        at = torch.arange(self.tokens)
        gap = at[:, None] - at
        seen = gap >= 0 if self.window is None else (gap >= 0) & (gap <= self.window)
        attend = torch.nn.functional.scaled_dot_product_attention
        return np.asarray(attend(*tensors, attn_mask=seen))


CASES = [
    *[Case(n, f, None, p) for p in ("f32", "bf16") for n in (512, 2048) for f in (64, 128)],
    *[
        Case(n, f, w, p)
        for p in ("f32", "bf16")
        for n in (2048, 4096)
        for w in (128, 512)
        for f in (64, 128)
    ],
    *[Case(n, 64, None, "f32", True) for n in (512, 2048)],
    *[Case(2048, 64, w, "f32", True) for w in (128, 512)],
]


def measure(options: argparse.Namespace) -> list[Figure]:
    torch.set_num_threads(options.threads)
    figures = []
    for case in CASES:
        if re.search(options.only, case.name):
            figures += compared(case, options)
    return figures


def least_s(runs: list[Run], seconds: float, threads: int) -> list[float]:
    """The least time of each, in turns: of a single thread what it computes for."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best, end, calls = [float("inf")] * len(runs), time.perf_counter() + seconds, 0
    order = list(range(len(runs)))
    while calls < CALLS or time.perf_counter() < end:
        random.shuffle(order)
        for at in order:
            begun = clock()
            runs[at]()
            best[at] = min(best[at], clock() - begun)
        calls += 1
    return best


def compared(case: Case, options: argparse.Namespace) -> list[Figure]:
    rng = np.random.default_rng(0)
    shape = (1, HEADS, case.tokens, case.features)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(3)]
    tensors = [torch.from_numpy(array) for array in arrays]
    small = tensors if case.precision == "f32" else [each.bfloat16() for each in tensors]
    mine = case.ours(arrays, options.threads)
    runs = [mine, case.ours(arrays, options.threads, masked=False), *case.dense(small)]
    if shutil.which("g++") and not options.no_flex:
        runs.append(case.flex(small))
    error = report.error_of([np.asarray(mine()[0])], [case.exact(tensors)])
    best = least_s(runs, options.seconds, options.threads)
    share = case.visible_share * best[1] / best[0]
    print(
        f"{case.name}: {best[0] * 1e6:.0f} us, share {share:.2f}",
        *[f"{t / best[0]:.2f}" for t in best[1:]],
        flush=True,
    )
    figures = [
        report.at_most(f"{case.name}: difference", error, "", TOLERANCE[case.precision]),
        report.at_least(f"{case.name}: visible share", share, "x", LEAST_SHARE),
        report.at_least(f"{case.name}: speedup over SDPA", min(best[2:4]) / best[0], "x", 1.0),
    ]
    if len(best) > 4:
        figures.append(
            report.at_least(f"{case.name}: speedup over flex", best[4] / best[0], "x", 1.0)
        )
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="a regular expression on names")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-flex", action="store_true", help="leave out what inductor compiles")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
