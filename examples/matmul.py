"""A tensor program in one screen: describe, schedule, check, compile, run, time.

    python examples/matmul.py

A matrix multiplication is described as a tensor expression and scheduled: panels of B are packed,
a tile of C stays in registers, work is spread over the cores. The interpreter checks the schedule
on a small size; native code is checked against NumPy and timed against its BLAS.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright as tw
from tilewright import te
from tilewright.tensor.ir import Function

LANES = tw.Target.parse("cpu").vector_bits // 32
ROWS, VECTORS = 6, 4  # of C in registers: 24 vectors and room for operands


def matmul(n: int) -> Function:
    """What to compute."""
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return te.function([A, B, C], name="matmul")


def scheduled(fn: Function) -> Function:
    """How to compute it; no step can change the answer."""
    sch = tw.Schedule(fn)
    c = sch.get_block("C")
    panel = sch.cache_read(c, 1, "global")
    store = sch.cache_write(c, 0, "local")
    i, j, k = sch.get_loops(c)
    io, ii = sch.split(i, [None, ROWS])
    jo, ji, lane = sch.split(j, [None, VECTORS, LANES])
    sch.reorder(jo, io, k, ii, ji, lane)
    sch.unroll(ii)
    sch.unroll(ji)
    sch.vectorize(lane)
    sch.reverse_compute_at(store, io)
    sch.decompose_reduction(c, k)
    sch.compute_at(panel, jo)
    width = VECTORS * LANES
    sch.transform_layout(panel, ("write", 0), f"(k, j) -> (j // {width}, k, j % {width})")
    for block in (store, panel):
        vectors, lane = sch.split(sch.get_loops(block)[-1], [None, LANES])
        sch.unroll(vectors)
        sch.vectorize(lane)
    sch.parallel(jo)
    return sch.function


def milliseconds(run: Callable[[], object], times: int = 15) -> float:
    """The least time of several runs."""
    run()
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
    return best * 1e3


def main(n: int = 1024) -> None:
    random = np.random.default_rng(0)
    small = VECTORS * LANES
    a, b = (random.standard_normal((small, small), dtype=np.float32) for _ in range(2))
    c = np.empty_like(a)
    tw.interpret(scheduled(matmul(small)), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)

    begun = time.perf_counter()
    run = tw.build(scheduled(matmul(n)), target="cpu")
    compiled = (time.perf_counter() - begun) * 1e3
    a, b = (random.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c, d = np.empty_like(a), np.empty_like(a)
    run(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)

    ours = milliseconds(lambda: run(a, b, c))
    numpy = milliseconds(lambda: np.matmul(a, b, out=d))
    table = Table("matmul, f32", "time", "speed")
    for name, ms in (("tilewright", ours), ("numpy", numpy)):
        table.add_row(name, f"{ms:.2f} ms", f"{2 * n**3 / ms / 1e6:.0f} GFLOP/s")
    console = Console()
    console.print(f"{n} x {n} x {n}: scheduled, compiled in {compiled:.0f} ms, right.")
    console.print(table)


if __name__ == "__main__":
    main()
