"""Matrix multiplication by default schedules (rules/), against NumPy (OpenBLAS) and torch.

f32 on vector registers; bf16 and int8 on the tiles of AMX where the processor has them.

    python bench/gemm.py [--json FILE] [--threads 1 2] [--only SUBSTRING]
    python bench/gemm.py --layouts nn nt tn tt [--threads 1] [--rows 8 64] [--sizes 512x512]

The peak is measured in the same run, by kernels generated here that only multiply and add in
registers, or multiply tiles. Contenders take turns, and so do shapes; the least time counts: on a
shared machine only such ratios mean anything. Operands begin with a line of the cache, for
everybody. torch is compared where it is installed.

`--layouts` compares GEMMs of few and many rows with torch instead, the worst first: both operands
change with every call, so nothing is packed in advance. `t` marks an operand that is stored
transposed: A as [k, m], as for gradients of weights, B as [n, k], as weights of linear layers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import report

from tilewright import te, tensor
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.rules import default_schedule
from tilewright.tensor.ir import Function

SQUARES = (512, 1024, 2048)
SKINNY = ((1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096))
LAYOUTS = ("nn", "nt", "tn", "tt")
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 100, 128, 256)
SIZES = [f"{n}x{k}" for n, k in product((256, 512, 768, 1000, 3072), repeat=2)]
LAYOUT_BUDGET_S = 0.005  # of each contender in a round: products are short
PEERS = ("numpy", "torch")
LANES = Target.parse("cpu").vector_bits // 32
ACCUMULATORS = 24  # of the kernel that measures the peak
TILE_BYTES = 1024  # 16 rows of 64


# --------------------------------------------------------------------------- the peak


def peak_kernel(accumulators: int = ACCUMULATORS) -> Function:
    """Independent multiply-adds on registers, `n` rounds of them, on `p` threads at once.

    Each multiplies what the last one gave: a product that stays the same would be computed once,
    and additions alone let the processor run faster than multiply-adds do.
    """
    size = accumulators * LANES
    rows = [f"ramp({at * LANES}, 1, {LANES})" for at in range(accumulators)]
    clear = "\n".join(f"%t[{row}] = broadcast(f32(0.0), {LANES})" for row in rows)
    step = "\n".join(f"%t[{row}] = %y + %t[{row}] * %x" for row in rows)
    out = "\n".join(
        f"%C[ramp(%i * {size} + {at * LANES}, 1, {LANES})] = %t[{row}]"
        for at, row in enumerate(rows)
    )
    return tensor.parse(
        f"""
        func @peak(%A: f32[{2 * LANES}], %N: f32[n], %C: f32[p, {size}]) stage flat {{
          for %i in parallel 0..p {{
            alloc %t: f32[{size}] in local
            let %x: f32x{LANES} = %A[ramp(0, 1, {LANES})]
            let %y: f32x{LANES} = %A[ramp({LANES}, 1, {LANES})]
            {clear}
            for %r in 0..n {{
              {step}
            }}
            {out}
          }}
        }}
        """
    )


def peak_run(threads: int, rounds: int = 500_000) -> tuple[Callable[[], None], float]:
    """The peak kernel ready to run on all threads, and its floating-point operations."""
    kernel = build(peak_kernel())
    a, n = np.full(2 * LANES, 0.7, np.float32), np.zeros(rounds, np.float32)
    c = np.zeros((threads, ACCUMULATORS * LANES), np.float32)
    return lambda: kernel(a, n, c, threads=threads), 2.0 * c.size * rounds


# --------------------------------------------------------------------------- the products


def matmul(m: int, n: int, k: int, layout: str = "nn") -> Function:
    """C = A B, where operands marked `t` are stored transposed."""
    turns_a, turns_b = (each == "t" for each in layout)
    A = te.placeholder((k, m) if turns_a else (m, k), name="A")
    B = te.placeholder((n, k) if turns_b else (k, n), name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        return te.sum((A[r, i] if turns_a else A[i, r]) * (B[j, r] if turns_b else B[r, j]), axis=r)

    C = te.compute((m, n), element, name="C")
    return te.function([A, B, C], name="matmul")


@dataclass(frozen=True)
class Tiles:
    """A type that AMX multiplies, the type of the sums, and that of the result, as in torch."""

    of: str
    sum: str
    result: str

    @property
    def item_bytes(self) -> int:
        return 2 if self.of == "bf16" else 1


TILES = {"bf16": Tiles("bf16", "f32", "bf16"), "i8": Tiles("i8", "i32", "i32")}


def matmul_of(m: int, n: int, k: int, kind: Tiles) -> Function:
    """C = A B, products and sums in the wider type."""
    A = te.placeholder((m, k), kind.of, name="A")
    B = te.placeholder((k, n), kind.of, name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(A[i, r], kind.sum) * te.cast(B[r, j], kind.sum), axis=r),
        name="C",
    )
    if kind.result != kind.sum:
        sums = C
        C = te.compute((m, n), lambda i, j: te.cast(sums[i, j], kind.result), name="D")
    return te.function([A, B, C], name="matmul")


def scheduled(fn: Function, threads: int) -> Function:
    """The product by the default schedule: what anybody gets without tuning."""
    return default_schedule(fn, "cpu", threads=threads).function


# --------------------------------------------------------------------------- the contest


@dataclass
class Case:
    m: int
    n: int
    k: int

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def peak_of(case: Case, threads: int) -> Callable[[], object]:
    """The peak kernel for as many operations as a product has: long runs meet what short do not."""
    return peak_run(threads, round(case.flops / (2 * ACCUMULATORS * LANES * threads)))[0]


def tile_peak_kernel(kind: Tiles) -> Function:
    """Products of tiles that stay in registers, `n` rounds of four, on `p` threads at once."""
    size = TILE_BYTES // kind.item_bytes  # elements of a tile
    dot = {"bf16": "tdpbf16ps", "i8": "tdpbssd"}[kind.of]
    places = range(4)
    clear = "\n".join(f"eval llvm.x86.tilezero:bool(address(%c[{256 * at}]))" for at in places)
    load = "\n".join(
        f"eval llvm.x86.tileloadd64:bool(address(%{to}[{size * at}]), address(%A[{size * at}]), 64)"
        for to in "ab"
        for at in (0, 1)
    )
    step = "\n".join(
        f"eval llvm.x86.{dot}:bool(address(%c[{256 * at}]), address(%a[{size * (at // 2)}]), "
        f"address(%b[{size * (at % 2)}]))"
        for at in places
    )
    out = "\n".join(
        f"eval llvm.x86.tilestored64:bool(address(%c[{256 * at}]), "
        f"address(%C[%i * 1024 + {256 * at}]), 64)"
        for at in places
    )
    return tensor.parse(
        f"""
        func @peak(%A: {kind.of}[{2 * size}], %N: f32[n], %C: {kind.sum}[p, 1024]) stage flat {{
          for %i in parallel 0..p {{
            alloc %c: {kind.sum}[1024] in amx.tile
            alloc %a: {kind.of}[{2 * size}] in amx.tile
            alloc %b: {kind.of}[{2 * size}] in amx.tile
            {clear}
            {load}
            for %r in 0..n {{
              {step}
            }}
            {out}
          }}
        }}
        """
    )


def tile_peak_of(case: Case, kind: Tiles, threads: int) -> Callable[[], object]:
    """Products of tiles, as many as a product of matrices has, of numbers like its own."""
    kernel = build(tile_peak_kernel(kind))
    size = TILE_BYTES // kind.item_bytes
    n = np.zeros(round(case.flops / (2 * 4 * 16 * size * threads)), np.float32)
    a = _numbers(kind, (2 * size,))
    c = np.zeros((threads, 1024), np.float32 if kind.sum == "f32" else np.int32)
    return lambda: kernel(a, n, c, threads=threads)


def _numbers(kind: Tiles, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random operands of a type."""
    random = np.random.default_rng(0)
    if kind.of == "bf16":
        return random.standard_normal(shape).astype(ml_dtypes.bfloat16)
    return random.integers(-128, 128, shape, np.int8)


def contenders(case: Case, threads: int) -> dict[str, Callable[[], object]]:
    """The same multiplication by everybody, after ours has been checked."""
    random = np.random.default_rng(0)
    a = report.aligned(random.standard_normal((case.m, case.k), dtype=np.float32))
    b = report.aligned(random.standard_normal((case.k, case.n), dtype=np.float32))
    c, d = (report.aligned(np.zeros((case.m, case.n), np.float32)) for _ in range(2))
    ours = build(scheduled(matmul(case.m, case.n, case.k), threads))
    ours(a, b, c, threads=threads)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    runs: dict[str, Callable[[], object]] = {
        "tilewright": lambda: ours(a, b, c, threads=threads),
        "numpy": lambda: np.matmul(a, b, out=d),
    }
    try:
        import torch
    except ImportError:
        return runs
    torch.set_num_threads(threads)
    ta, tb, td = (torch.from_numpy(x) for x in (a, b, d))
    runs["torch"] = lambda: torch.matmul(ta, tb, out=td)
    return runs


def layout_contenders(case: Case, layout: str, threads: int) -> dict[str, Callable[[], object]]:
    """The same multiplication by us and by torch, of operands of which none is constant."""
    import torch

    random = np.random.default_rng(0)
    shapes = [(case.m, case.k), (case.k, case.n)]
    stored = [
        shape[::-1] if each == "t" else shape for shape, each in zip(shapes, layout, strict=True)
    ]
    a, b = (report.aligned(random.standard_normal(shape, dtype=np.float32)) for shape in stored)
    c, d = (report.aligned(np.zeros((case.m, case.n), np.float32)) for _ in range(2))
    ours = build(scheduled(matmul(case.m, case.n, case.k, layout), threads))
    ours(a, b, c, threads=threads)
    torch.set_num_threads(threads)
    ta, tb, td = (torch.from_numpy(x) for x in (a, b, d))
    ta, tb = (x.T if each == "t" else x for x, each in zip((ta, tb), layout, strict=True))
    torch.matmul(ta, tb, out=td)
    np.testing.assert_allclose(c, d, rtol=1e-3, atol=1e-3)
    return {
        "tilewright": lambda: ours(a, b, c, threads=threads),
        "torch": lambda: torch.matmul(ta, tb, out=td),
    }


def measure_layouts(options: argparse.Namespace) -> list[report.Figure]:
    """GEMMs of two operands that change, in all layouts, against torch: the worst first."""
    figures = []
    for threads in options.threads:
        for layout, size, m in product(options.layouts, options.sizes, options.rows):
            n, k = (int(each) for each in size.split("x"))
            case = Case(m, n, k)
            label = f"{_label('f32', case, threads)}, {layout}"
            if options.only not in label:
                continue
            runs = layout_contenders(case, layout, threads)
            best = report.interleaved(runs, rounds=options.rounds, budget_s=LAYOUT_BUDGET_S)
            ratio = best["torch"] / best["tilewright"]
            figures.append(report.at_least(f"{label}: against torch", ratio, "x", 1.0))
    return sorted(figures, key=lambda figure: figure.value)


def tile_contenders(case: Case, kind: Tiles, threads: int) -> dict[str, Callable[[], object]]:
    """The same multiplication of small types by us and by torch."""
    import torch

    a, b = _numbers(kind, (case.m, case.k)), _numbers(kind, (case.k, case.n))
    wide, result = (np.float32, a.dtype) if kind.of == "bf16" else (np.int32, np.int32)
    a, b, c = (report.aligned(x) for x in (a, b, np.zeros((case.m, case.n), result)))
    ours = build(scheduled(matmul_of(case.m, case.n, case.k, kind), threads))
    ours(a, b, c, threads=threads)
    rounded = (a.astype(wide) @ b.astype(wide)).astype(result)
    np.testing.assert_allclose(c.astype(wide), rounded.astype(wide), rtol=1e-2, atol=1e-2)
    torch.set_num_threads(threads)
    if kind.of == "bf16":
        ta, tb = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (a, b))
        td = torch.empty(case.m, case.n, dtype=torch.bfloat16)
        theirs = lambda: torch.matmul(ta, tb, out=td)  # noqa: E731
    else:
        ta, tb = torch.from_numpy(a), torch.from_numpy(b)
        td = torch.empty(case.m, case.n, dtype=torch.int32)
        theirs = lambda: torch._int_mm(ta, tb, out=td)  # noqa: E731
    return {"tilewright": lambda: ours(a, b, c, threads=threads), "torch": theirs}


def measure_tiles(options: argparse.Namespace) -> list[report.Figure]:
    """bf16 and int8, where the processor has tiles and torch is there to compare with."""
    if not Target.parse("cpu").has("amx-bf16") or find_spec("torch") is None:
        return []
    figures = []
    for threads in options.threads:
        rows = {
            _label(kind.of, case, threads): (
                case,
                {
                    "peak": tile_peak_of(case, kind, threads),
                    **tile_contenders(case, kind, threads),
                },
            )
            for kind in TILES.values()
            for case in (Case(n, n, n) for n in SQUARES)
            if options.only in _label(kind.of, case, threads)
        }
        best = _in_turns({label: runs for label, (_, runs) in rows.items()}, options.rounds)
        for label, (case, _) in rows.items():
            ours = case.flops / best[label, "tilewright"] / 1e9
            figures.append(report.Figure(label, ours, "GOP/s"))
            share = best[label, "peak"] / best[label, "tilewright"]
            figures.append(report.Figure(f"{label}: of the peak", share, ""))
            ratio = best[label, "torch"] / best[label, "tilewright"]
            figures.append(report.at_least(f"{label}: against torch", ratio, "x", 1.0))
    return figures


def _label(of: str, case: Case, threads: int) -> str:
    return f"{of} {case.name}, {threads} thread{'s' if threads > 1 else ''}"


def _in_turns(
    rows: dict[str, dict[str, Callable[[], object]]], rounds: int
) -> dict[tuple[str, str], float]:
    """The least time of every contender in every row. All rows take turns too.

    A machine that others use is slow for seconds at a time: what is measured in one such phase
    alone says nothing.
    """
    runs = {(label, name): run for label, row in rows.items() for name, run in row.items()}
    return report.interleaved(runs, rounds=rounds)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if options.layouts:
        return measure_layouts(options)
    return measure_f32(options) + measure_tiles(options)


def measure_f32(options: argparse.Namespace) -> list[report.Figure]:
    figures = []
    cases = [Case(n, n, n) for n in SQUARES] + [Case(*shape) for shape in SKINNY]
    for threads in options.threads:
        chosen = {_label("f32", case, threads): case for case in cases}
        chosen = {label: case for label, case in chosen.items() if options.only in label}
        limit_numpy(threads)
        # The peak comes first: peers' threads that still wait for work shall not meet ours.
        rows = {
            label: {"peak": peak_of(case, threads), **contenders(case, threads)}
            for label, case in chosen.items()
        }
        best = _in_turns(rows, options.rounds)
        for label, case in chosen.items():
            ours = case.flops / best[label, "tilewright"] / 1e9
            others = {name: best[label, name] for name in rows[label] if name in PEERS}
            rival = min(others, key=lambda name: others[name])
            figures.append(report.Figure(label, ours, "GFLOP/s"))
            share = best[label, "peak"] / best[label, "tilewright"]
            if case.m == case.n:
                figures.append(report.at_least(f"{label}: of the peak", share, "", 0.88))
            else:
                figures.append(report.Figure(f"{label}: of the peak", share, ""))
            ratio = others[rival] / best[label, "tilewright"]
            figures.append(report.at_least(f"{label}: against {rival}", ratio, "x", 1.0))
    return figures


def limit_numpy(threads: int) -> None:
    """NumPy's BLAS on as many threads as ours."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        if os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
            print(f"threadpoolctl is missing: set OPENBLAS_NUM_THREADS={threads}")
        return
    threadpool_limits(threads, user_api="blas")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=[], help="see above")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="m, of --layouts")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="NxK, of --layouts")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
