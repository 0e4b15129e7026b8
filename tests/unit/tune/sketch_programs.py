"""Functions that sketches are tried on: small, with sizes that no tile divides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.tensor.ir import Function


def noisy_or(b: int = 7, i: int = 5, j: int = 6, o: int = 9) -> Function:
    """A bilinear form with a reducer of its own."""
    x, z = te.placeholder((b, i), name="x"), te.placeholder((b, j), name="z")
    w = te.placeholder((i, j, o), name="w")
    either = te.comm_reducer(lambda p, q: p + q - p * q, lambda t: te.const(0, t), name="either")
    p, q = te.reduce_axis((0, i), name="p"), te.reduce_axis((0, j), name="q")
    y = te.compute(
        (b, o), lambda m, n: either(x[m, p] * w[p, q, n] * z[m, q], axis=(p, q)), name="y"
    )
    return te.function([x, z, w, y], name="noisy_or")


def bit_convolution(h: int = 5, w: int = 7, c: int = 2, o: int = 9) -> Function:
    """Planes of 2-bit activations against 1-bit weights."""
    x = te.placeholder((2, h + 2, w + 2, c), "u32", name="x")
    k = te.placeholder((3, 3, c, o), "u32", name="k")
    plane, word = te.reduce_axis((0, 2), name="plane"), te.reduce_axis((0, c), name="word")
    dy, dx = te.reduce_axis((0, 3), name="dy"), te.reduce_axis((0, 3), name="dx")

    def element(row: te.Expr, column: te.Expr, out: te.Expr) -> te.Expr:
        both = te.bitwise_and(x[plane, row + dy, column + dx, word], k[dy, dx, word, out])
        count = te.cast(te.popcount(both), "i32")
        return te.sum(te.shift_left(count, te.cast(plane, "i32")), axis=(plane, dy, dx, word))

    y = te.compute((h, w, o), element, name="y")
    return te.function([x, k, y], name="bit_convolution")


def stencil(h: int = 11, w: int = 13, steps: int = 3) -> Function:
    """Steps of a five-point stencil, each on what the one before left."""
    start = now = te.placeholder((h + 2 * steps, w + 2 * steps), name="start")
    for left in range(steps - 1, -1, -1):
        before = now

        def element(y: te.Expr, x: te.Expr, at: te.Tensor = before) -> te.Expr:
            around = at[y, x + 1] + at[y + 2, x + 1] + at[y + 1, x] + at[y + 1, x + 2]
            return at[y + 1, x + 1] * 0.5 + around * 0.125

        now = te.compute((h + 2 * left, w + 2 * left), element, name=f"step{steps - left}")
    return te.function([start, now], name="stencil")


def gemm(m: int = 13, n: int = 11, k: int = 9) -> Function:
    """A product, what follows it."""
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    bias = te.placeholder((n,), name="bias")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((m, n), lambda i, j: te.max(c[i, j] + bias[j], 0.0), name="d")
    return te.function([a, b, bias, d], name="gemm")


def squares(n: int = 3, k: int = 37) -> Function:
    """Few results of a long sum."""
    a, r = te.placeholder((n, k), name="a"), te.reduce_axis((0, k), name="r")
    s = te.compute((n,), lambda i: te.sum(a[i, r] * a[i, r], axis=r), name="s")
    return te.function([a, s], name="squares")


def convolution(c: int = 3, o: int = 5, h: int = 5, w: int = 7, step: int = 2) -> Function:
    """Windows of an image, channels first."""
    x = te.placeholder((1, c, (h - 1) * step + 3, (w - 1) * step + 3), name="x")
    k = te.placeholder((o, c, 3, 3), name="k")
    i = te.reduce_axis((0, c), name="i")
    dy, dx = te.reduce_axis((0, 3), name="dy"), te.reduce_axis((0, 3), name="dx")
    y = te.compute(
        (1, o, h, w),
        lambda b, out, row, column: te.sum(
            x[b, i, row * step + dy, column * step + dx] * k[out, i, dy, dx], axis=(i, dy, dx)
        ),
        name="y",
    )
    return te.function([x, k, y], name="convolution")


def spread(n: int = 6, k: int = 10) -> Function:
    """A reduction over pairs."""
    a, r = te.placeholder((n, k, 5), name="a"), te.reduce_axis((0, k), name="r")
    both = te.comm_reducer(
        lambda x, y: (te.min(x[0], y[0]), te.max(x[1], y[1])),
        lambda s, t: (te.max_value(s), te.min_value(t)),
        name="both",
    )
    low, high = te.compute(
        (n, 5), lambda i, j: both((a[i, r, j], a[i, r, j]), axis=r), name="range"
    )
    return te.function([a, low, high], name="spread")


def colours(h: int = 6, w: int = 7) -> Function:
    """A stencil on an image of three colours, which are too few for lanes."""
    x, k = te.placeholder((h + 2, w + 2, 3), name="x"), te.placeholder((3, 3), name="k")
    dy, dx = te.reduce_axis((0, 3), name="dy"), te.reduce_axis((0, 3), name="dx")
    y = te.compute(
        (h, w, 3),
        lambda row, column, c: te.sum(k[dy, dx] * x[row + dy, column + dx, c], axis=(dy, dx)),
        name="y",
    )
    return te.function([x, k, y], name="colours")


def bytes_gemm(m: int = 13, n: int = 11, k: int = 21) -> Function:
    """A product of bytes, for which processors have instructions."""
    a, b = te.placeholder((m, k), "i8", name="a"), te.placeholder((k, n), "i8", name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(a[i, r], "i32") * te.cast(b[r, j], "i32"), axis=r),
        name="c",
    )
    return te.function([a, b, c], name="bytes_gemm")


def dynamic_gemm() -> Function:
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, 9), name="a"), te.placeholder((9, m), name="b")
    r = te.reduce_axis((0, 9), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    return te.function([a, b, c], name="dynamic_gemm")


PROGRAMS: dict[str, Callable[..., Function]] = {
    each.__name__: each
    for each in (
        noisy_or,
        bit_convolution,
        stencil,
        gemm,
        squares,
        convolution,
        spread,
        bytes_gemm,
        colours,
    )
}
OUTPUTS = {"spread": 2}


def arguments(fn: Function, seed: int = 0, sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    """Inputs at random and outputs of rubbish, for a function without scalars."""
    random, found = np.random.default_rng(seed), []
    for buffer in fn.buffers:
        shape = [int((sizes or {}).get(str(dim)) or dim.value) for dim in buffer.shape]
        if buffer.dtype.name == "u32":
            found.append(random.integers(0, 1 << 32, shape, np.uint32))
        elif buffer.dtype.name == "i8":
            found.append(random.integers(-128, 128, shape, np.int8))
        elif buffer.dtype.name == "i32":
            found.append(np.full(shape, -7, np.int32))
        else:
            found.append(random.random(shape, np.float32) * np.float32(0.5))
    return found


def answers(fn: Function, args: list[np.ndarray], outputs: int = 1) -> list[np.ndarray]:
    """What the interpreter makes of it."""
    own = [each.copy() for each in args]
    tw.interpret(fn, *own)
    return own[-outputs:]
