"""A cooperative matrix multiplication for a GPU, checked without one.

Each block of threads computes a tile of C. The threads fetch tiles of A and B into shared memory
together, each thread keeps its part of C in registers. The schedule says only who fetches and
computes what; the compiler puts the barriers in, and the interpreter, which runs thread blocks and
detects races, shows that none is missing.

    python examples/gpu_matmul.py
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.tensor.ir import Function
from tilewright.tensor.passes import lower

TILE, THREADS, STEP = 64, 16, 16  # of C per block, threads per side, of k per fetch


def matmul(n: int) -> Function:
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return te.function([A, B, C], name="matmul")


def cooperative(fn: Function) -> tw.Schedule:
    """Tiles to blocks, elements to threads, operands through shared memory."""
    sch = tw.Schedule(fn)
    c = sch.get_block("C")
    a_shared = sch.cache_read(c, 0, "shared")
    b_shared = sch.cache_read(c, 1, "shared")
    c_local = sch.cache_write(c, 0, "local")

    i, j, k = sch.get_loops(c)
    by, ty, yi = sch.split(i, [None, THREADS, TILE // THREADS])
    bx, tx, xi = sch.split(j, [None, THREADS, TILE // THREADS])
    ko, ki = sch.split(k, [None, STEP])
    sch.reorder(by, bx, ty, tx, ko, ki, yi, xi)
    sch.bind(by, "blockIdx.y")
    sch.bind(bx, "blockIdx.x")
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    sch.reverse_compute_at(c_local, tx)
    for shared in (a_shared, b_shared):
        sch.compute_at(shared, ko)
        fetch_together(sch, shared)
    sch.decompose_reduction(c, ko)
    return sch


def fetch_together(sch: tw.Schedule, block: tw.tensor.BlockRef) -> None:
    """All threads of a block share the copy."""
    *_, y, x = sch.get_loops(block)
    _, ty, tx = sch.split(sch.fuse(y, x), [None, THREADS, THREADS])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")


def main(n: int = 128) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((n, n), dtype=np.float32)
    b = random.standard_normal((n, n), dtype=np.float32)
    c = np.empty((n, n), np.float32)

    schedule = cooperative(matmul(n))
    device = lower(schedule.function, "gpu")
    assert str(device).count("barrier.shared") >= 2
    tw.interpret(device, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    print(f"{n} x {n} x {n}: the device program agrees with NumPy")


if __name__ == "__main__":
    main()
