"""Native code of scheduled programs against the interpreter: lowered, vectorized, parallel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.tensor.schedule import Schedule

Agree = Callable[..., None]


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matmul() -> Any:
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    return te.function([A, B, C], name="matmul")


SHAPES = [(1, 1, 1), (16, 32, 8), (37, 53, 19), (5, 0, 3), (0, 4, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_matmul(agree: Agree, shape: tuple[int, int, int]) -> None:
    n, m, k = shape
    agree(matmul(), values(n, k), values(k, m), values(n, m), reduction=max(1, k) * 16)


@pytest.mark.parametrize("shape", SHAPES)
def test_tiled_vectorized_parallel_matmul(agree: Agree, shape: tuple[int, int, int]) -> None:
    sch = Schedule(matmul())
    block = sch.get_block("C")
    i, j, r = sch.get_loops(block)
    io, ii = sch.split(i, [None, 4])
    jo, ji = sch.split(j, [None, 16])
    ro, ri = sch.split(r, [None, 4])
    sch.reorder(io, jo, ro, ri, ii, ji)
    sch.parallel(io)
    sch.vectorize(ji)
    sch.unroll(ii)
    sch.decompose_reduction(block, ro)
    n, m, k = shape
    agree(sch.function, values(n, k), values(k, m), values(n, m), reduction=max(1, k) * 16)


def test_accumulators_in_registers(agree: Agree) -> None:
    sch = Schedule(matmul())
    block = sch.get_block("C")
    local = sch.cache_write(block, 0, "local")
    i, j = sch.get_loops(local)
    io, ii = sch.split(i, [None, 4])
    jo, ji = sch.split(j, [None, 16])
    sch.reorder(io, jo, ii, ji)
    sch.compute_at(block, jo)
    sch.vectorize(ji)
    sch.unroll(ii)
    agree(sch.function, values(19, 7), values(7, 35), values(19, 35), reduction=200)


def test_a_convolution_with_padding_and_stride(agree: Agree) -> None:
    X, K = te.placeholder((2, 3, 9, 11), name="X"), te.placeholder((4, 3, 3, 3), name="K")
    P = te.compute(
        (2, 3, 11, 13),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= 1, y - 1 < 9, x >= 1, x - 1 < 11), X[n, c, y - 1, x - 1], 0.0
        ),
        name="P",
    )
    c, dy, dx = (te.reduce_axis((0, 3), name=name) for name in ("c", "dy", "dx"))
    Y = te.compute(
        (2, 4, 5, 6),
        lambda n, o, y, x: te.sum(
            P[n, c, y * 2 + dy, x * 2 + dx] * K[o, c, dy, dx], axis=[c, dy, dx]
        ),
        name="Y",
    )
    fn = te.function([X, K, Y], name="conv")
    args = values(2, 3, 9, 11), values(4, 3, 3, 3, seed=1), values(2, 4, 5, 6)
    agree(fn, *args, reduction=27 * 16)
    sch = Schedule(fn)
    sch.compute_inline(sch.get_block("P"))
    loops = sch.get_loops(sch.get_block("Y"))
    sch.vectorize(loops[3])
    sch.parallel(loops[0])
    agree(sch.function, *args, reduction=27 * 16)


def test_softmax(agree: Agree) -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k, l = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="l")
    top = te.compute((n,), lambda i: te.max(A[i, l], axis=l), name="top")
    E = te.compute((n, m), lambda i, j: te.exp(A[i, j] - top[i]), name="E")
    total = te.compute((n,), lambda i: te.sum(E[i, k], axis=k), name="total")
    S = te.compute((n, m), lambda i, j: E[i, j] / total[i], name="S")
    fn = te.function([A, S], name="softmax")
    for shape in ((4, 7), (1, 64), (3, 1), (0, 5)):
        agree(fn, values(*shape), values(*shape), reduction=64)
    sch = Schedule(fn)
    for name in ("E", "S"):
        i, j = sch.get_loops(sch.get_block(name))
        _, inner = sch.split(j, [None, 16])
        sch.vectorize(inner)
        sch.parallel(i)
    agree(sch.function, values(5, 37), values(5, 37), reduction=64)


def test_argmax_gives_two_outputs(agree: Agree) -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), name="k")
    at, top = te.compute((n,), lambda i: te.argmax((te.cast(k, "i64"), A[i, k]), axis=k), name="M")
    fn = te.function([A, at, top], name="argmax")
    agree(fn, values(6, 9), np.zeros(6, np.int64), np.zeros(6, np.float32))


def test_a_tail_under_a_mask_stays_inside(agree: Agree) -> None:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: te.tanh(A[i]) * 2.0, name="B")
    sch = Schedule(te.function([A, B], name="f"))
    (i,) = sch.get_loops(sch.get_block("B"))
    _, inner = sch.split(i, [None, 16])
    sch.vectorize(inner)
    for size in (0, 1, 15, 16, 17, 100):
        agree(sch.function, values(size), values(size))


def test_gather(agree: Agree) -> None:
    n, m = te.var("n"), te.var("m")
    T = te.placeholder((10, m), name="T")
    I = te.placeholder((n,), dtype="i64", name="I")
    G = te.compute((n, m), lambda i, j: T[te.cast(I[i], "index") % 10, j], name="G")
    fn = te.function([T, I, G], name="gather")
    at = np.array([3, 9, 0, 7], np.int64)
    agree(fn, values(10, 20), at, values(4, 20))
