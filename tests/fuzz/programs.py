"""Random tensor programs.

All values are small integers, also in float programs, so that every order of summation gives the
very same result: a schedule that keeps the meaning keeps the bits.

    program = random_program(seed)
    program.function                  the tensor function
    program.arguments(shape_seed)     arrays for its parameters, sizes drawn anew
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym, te
from tilewright.lower.statements import loops, seq, store
from tilewright.tensor import Function
from tilewright.tensor.intrin import TensorIntrin, declare
from tilewright.tensor.ir import Buffer, sizes_of
from tilewright.tensor.visit import written_buffers

TILED = (
    (64, 64, 64), (64, 32, 192), (128, 16, 192), (100, 24, 72), (5, 64, 128), (72, 88, 64),
    (192, 8, 64),
)  # fmt: skip
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16)


@dataclass
class Program:
    """A function and the sizes it may be called with."""

    kind: str
    function: Function
    least: dict[str, int] = field(default_factory=dict)  # of symbolic sizes, 0 if not listed

    @property
    def is_symbolic(self) -> bool:
        return bool(sizes_of(self.function))

    def arguments(self, seed: int) -> list[np.ndarray]:
        """Random inputs; outputs hold nonsense."""
        rng = np.random.default_rng(seed)
        sizes = {
            size: self.least.get(size.name, 0) + int(rng.integers(0, 10))
            for size in sizes_of(self.function)
        }
        outputs = written_buffers(self.function.body)
        arrays = []
        for buffer in self.function.buffers:
            shape = tuple(evaluate(dim, sizes) for dim in buffer.shape)
            dtype = buffer.dtype.numpy
            if buffer in outputs:
                arrays.append(np.full(shape, 77, dtype))
            else:
                arrays.append(rng.integers(-3, 4, shape).astype(dtype))
        return arrays

    def outputs(self) -> list[Buffer]:
        written = written_buffers(self.function.body)
        return [buffer for buffer in self.function.buffers if buffer in written]


def evaluate(dim: Any, sizes: dict[Any, int]) -> int:
    """The value of a dimension."""
    found = sym.simplify(
        sym.substitute(dim, {size: sym.const(value) for size, value in sizes.items()})
    )
    assert isinstance(found, sym.Const), dim
    return int(found.value)


def random_program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    make = rng.choice(MAKERS)
    return make(Draw(rng))


class Draw:
    """What the makers draw from."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.symbolic = rng.random() < 0.35
        self.count = 0

    def extent(self, most: int = 16) -> int:
        return self.rng.choice([n for n in EXTENTS if n <= most])

    def dim(self, most: int = 16) -> Any:
        """A dimension: a number, or a variable in some programs."""
        if self.symbolic and self.rng.random() < 0.6:
            self.count += 1
            return te.var(f"n{self.count}")
        return self.extent(most)

    def dtype(self) -> str:
        return self.rng.choice(("f32", "f32", "f32", "i32", "f64"))

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def unary(self, x: Any) -> Any:
        """Something elementwise whose values stay small integers."""
        zero = te.const(0, x.dtype)
        return self.rng.choice(
            (
                lambda: x + te.const(1, x.dtype),
                lambda: x * te.const(2, x.dtype),
                lambda: sym.maximum(x, zero),
                lambda: zero - x,
                lambda: te.if_then_else(x < zero, x + te.const(5, x.dtype), x),
            )
        )()

    def binary(self, x: Any, y: Any) -> Any:
        return self.rng.choice(
            (
                lambda: x + y,
                lambda: x - y,
                lambda: te.if_then_else(x < y, y, x),
                lambda: te.if_then_else(x < y, x, y - x),
            )
        )()


# --------------------------------------------------------------------------- intrinsics


def declare_intrinsics() -> None:
    """What `tensorize` may find: small products, a sum, an elementwise step."""
    if DECLARED:
        return
    for m, n, k, swapped in ((4, 4, 4, False), (2, 8, 4, False), (4, 4, 2, True)):
        name = f"fuzz_gemm_{m}x{n}x{k}{'_t' if swapped else ''}"
        te.decl_tensor_intrin(_product(m, n, k, swapped).op, _no_phases, name=name)
        DECLARED.append((name, (m, n, k)))
    a = te.placeholder((4,), name="a")
    r = te.reduce_axis((0, 4), name="r")
    s = te.compute((1,), lambda i: te.sum(a[r], axis=r), name="s")
    te.decl_tensor_intrin(s.op, _no_phases, name="fuzz_sum4")
    DECLARED.append(("fuzz_sum4", (4,)))
    c = te.compute((4,), lambda i: a[i], name="c")
    declare(TensorIntrin("fuzz_copy4", te.function([a, c], name="fuzz_copy4")))
    DECLARED.append(("fuzz_copy4", (4,)))


DECLARED: list[tuple[str, tuple[int, ...]]] = []  # names and tiles


def _product(m: int, n: int, k: int, swapped: bool) -> Any:
    w = te.placeholder((m, k), name="w")
    x = te.placeholder((n, k) if swapped else (k, n), name="x")
    r = te.reduce_axis((0, k), name="r")
    return te.compute(
        (m, n), lambda i, j: te.sum(w[i, r] * (x[j, r] if swapped else x[r, j]), axis=r), name="y"
    )


def _no_phases(inputs: Any, outputs: Any) -> Any:
    """Every phase runs the behaviour itself."""
    return None, None, None


# --------------------------------------------------------------------------- makers


def elementwise(draw: Draw) -> Program:
    """A chain of elementwise stages, with broadcasts and a stage used twice."""
    rank = draw.rng.randint(1, 3)
    shape = tuple(draw.dim(8 if rank == 3 else 16) for _ in range(rank))
    dtype = draw.dtype()
    A = te.placeholder(shape, dtype, name="A")
    B = te.placeholder(shape[-1:], dtype, name="B")
    stages = [A]
    for at in range(draw.rng.randint(1, 4)):
        value = _stage(draw, draw.rng.choice(stages), draw.rng.choice(stages), B)
        stages.append(te.compute(shape, value, name=f"S{at}"))
    outputs = [stages[-1]]
    if len(stages) > 2 and draw.flip(0.3):
        outputs.insert(0, stages[-2])
    return Program("elementwise", te.function([A, B, *outputs], name="elementwise"))


def _stage(draw: Draw, source: Any, other: Any, B: Any) -> Callable[..., Any]:
    which = draw.rng.randint(0, 3)

    def value(*i: Any) -> Any:
        if which == 0:
            return draw.unary(source[i])
        if which == 1:
            return draw.binary(source[i], other[i])
        if which == 2:
            return source[i] + B[i[-1]]
        return te.if_then_else(i[0] < 3, source[i], other[i] + te.const(1, B.dtype))

    return value


def reduction(draw: Draw) -> Program:
    """One reduction over some axes, something before it, something after it."""
    rank = draw.rng.randint(1, 3)
    shape = tuple(draw.dim(8 if rank == 3 else 16) for _ in range(rank))
    dtype = draw.dtype()
    A = te.placeholder(shape, dtype, name="A")
    X = A
    if draw.flip():
        X = te.compute(shape, lambda *i: draw.unary(A[i]), name="X")
    reduced = draw.rng.sample(range(rank), draw.rng.randint(1, rank))
    axes = {d: te.reduce_axis((0, shape[d]), name=f"r{d}") for d in reduced}
    kept = [d for d in range(rank) if d not in axes]
    by = draw.rng.choice((te.sum, te.sum, te.max, te.min))

    def value(*i: Any) -> Any:
        at = dict(zip(kept, i, strict=True))
        return by(X[tuple(axes.get(d, at.get(d)) for d in range(rank))], axis=list(axes.values()))

    out_shape = tuple(shape[d] for d in kept) or draw.rng.choice(((1,), ()))
    R = te.compute(out_shape, value if kept else lambda *_: value(), name="R")
    result = [R]
    if draw.flip():
        result = [te.compute(out_shape, lambda *i: draw.unary(R[i]), name="Y")]
    if kept and draw.flip(0.25):  # normalize: the reduction is used by the whole again
        result = [
            te.compute(shape, lambda *i: X[i] - R[tuple(i[d] for d in kept)], name="Y"),
        ]
    return Program("reduction", te.function([A, *result], name="reduction"))


def arg_reduction(draw: Draw) -> Program:
    """The position of the greatest or least element of each row."""
    n, k = draw.dim(), draw.dim()
    A = te.placeholder((n, k), "f32", name="A")
    r = te.reduce_axis((0, k), name="r")
    by = draw.rng.choice((te.argmax, te.argmin))
    where, best = te.compute((n,), lambda i: by((te.cast(r, "i32"), A[i, r]), axis=r), name="best")
    outputs = [where, best]
    if draw.flip():
        outputs = [where, te.compute((n,), lambda i: draw.unary(best[i]), name="Y")]
    return Program("arg_reduction", te.function([A, *outputs], name="arg"))


def own_reduction(draw: Draw) -> Program:
    """A reduction of the program's own: a sum and a sum of squares at once."""
    n, k = draw.dim(), draw.dim()
    A = te.placeholder((n, k), "f32", name="A")
    r = te.reduce_axis((0, k), name="r")
    moments = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + y[1]),
        lambda a, b: (te.const(0, a), te.const(0, b)),
        name="moments",
    )
    S, Q = te.compute((n,), lambda i: moments((A[i, r], A[i, r] * A[i, r]), axis=r), name="moments")
    Y = te.compute((n,), lambda i: Q[i] - S[i], name="Y")
    return Program("own_reduction", te.function([A, Y], name="own"))


def matmul(draw: Draw) -> Program:
    """A product, possibly of something computed, with something done to the result."""
    n, m, k = draw.dim(), draw.dim(), draw.dim(13)
    swapped, dtype = draw.flip(0.3), draw.dtype()
    if draw.flip(0.4):  # tiles that intrinsics fit
        n, m, k = (draw.rng.choice((4, 8, 16)) for _ in range(3))
        dtype = "f32"
    A = te.placeholder((n, k), dtype, name="A")
    B = te.placeholder((m, k) if swapped else (k, m), dtype, name="B")
    left = A
    if draw.flip(0.4):
        left = te.compute((n, k), lambda i, j: draw.unary(A[i, j]), name="L")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (n, m),
        lambda i, j: te.sum(left[i, r] * (B[j, r] if swapped else B[r, j]), axis=r),
        name="C",
    )
    args = [A, B]
    result = C
    if draw.flip(0.5):
        bias = te.placeholder((m,), dtype, name="bias")
        args.append(bias)
        added = te.compute((n, m), lambda i, j: C[i, j] + bias[j], name="D")
        zero = te.const(0, dtype)
        result = te.compute((n, m), lambda i, j: sym.maximum(added[i, j], zero), name="Y")
    return Program("matmul", te.function([*args, result], name="matmul"))


def tiles(draw: Draw) -> Program:
    """A product large enough for tiles that warpgroups multiply, of numbers of 16 bits."""
    rng, dtype = draw.rng, draw.rng.choice(("bf16", "f16"))
    m, n, k = rng.choice(TILED)
    batch, along_n = rng.choice(((), (), (2,))), draw.flip(0.3)
    A = te.placeholder((*batch, m, k), dtype, name="A")
    B = te.placeholder((*batch, k, n) if along_n else (n, k), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(*at: Any) -> Any:
        *outer, i, j = at
        right = B[(*outer, r, j)] if along_n else B[j, r]
        return te.sum(te.cast(A[(*outer, i, r)], "f32") * te.cast(right, "f32"), axis=r)

    C = te.compute((*batch, m, n), product, name="C")
    args, result = [A, B], C
    if draw.flip():
        bias = te.placeholder((n,), "f32", name="bias")
        args.append(bias)
        result = te.compute((*batch, m, n), lambda *at: draw.unary(C[at] + bias[at[-1]]), name="D")
    if draw.flip():
        last = result
        result = te.compute((*batch, m, n), lambda *at: te.cast(last[at], dtype), name="Y")
    return Program("tiles", te.function([*args, result], name="tiles"))


def batch_matmul(draw: Draw) -> Program:
    """Products of matrices, one per batch."""
    b, n, m, k = draw.dim(3), draw.dim(6), draw.dim(6), draw.dim(8)
    A = te.placeholder((b, n, k), name="A")
    B = te.placeholder((b, k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((b, n, m), lambda h, i, j: te.sum(A[h, i, r] * B[h, r, j], axis=r), name="C")
    return Program("batch_matmul", te.function([A, B, C], name="batch_matmul"))


def conv1d(draw: Draw) -> Program:
    """A convolution with stride and padding."""
    channels, filters = draw.extent(4), draw.extent(4)
    width, kernel = draw.extent(13) + 3, draw.rng.choice((1, 2, 3))
    stride, padding = draw.rng.choice((1, 2)), draw.rng.choice((0, 1))
    X = te.placeholder((channels, width), name="X")
    W = te.placeholder((filters, channels, kernel), name="W")
    padded = X
    if padding:
        padded = te.compute(
            (channels, width + 2 * padding),
            lambda c, x: te.if_then_else(
                te.all(x >= padding, x < width + padding), X[c, x - padding], te.const(0.0, "f32")
            ),
            name="P",
        )
    out = (width + 2 * padding - kernel) // stride + 1
    c, s = te.reduce_axis((0, channels), name="c"), te.reduce_axis((0, kernel), name="s")
    Y = te.compute(
        (filters, out),
        lambda f, x: te.sum(padded[c, x * stride + s] * W[f, c, s], axis=[c, s]),
        name="Y",
    )
    return Program("conv1d", te.function([X, W, Y], name="conv1d"))


def conv2d(draw: Draw) -> Program:
    """The same in two dimensions, small."""
    channels, filters = draw.rng.choice((1, 2, 4)), draw.rng.choice((1, 2, 4))
    size, kernel = draw.rng.choice((4, 5, 6)), draw.rng.choice((1, 2, 3))
    stride, padding = draw.rng.choice((1, 2)), draw.rng.choice((0, 1))
    X = te.placeholder((channels, size, size), name="X")
    W = te.placeholder((filters, channels, kernel, kernel), name="W")
    wide = size + 2 * padding
    padded = te.compute(
        (channels, wide, wide),
        lambda c, y, x: te.if_then_else(
            te.all(y >= padding, y < size + padding, x >= padding, x < size + padding),
            X[c, y - padding, x - padding],
            te.const(0.0, "f32"),
        ),
        name="P",
    )
    out = (wide - kernel) // stride + 1
    c = te.reduce_axis((0, channels), name="c")
    p, q = te.reduce_axis((0, kernel), name="p"), te.reduce_axis((0, kernel), name="q")
    Y = te.compute(
        (filters, out, out),
        lambda f, y, x: te.sum(
            padded[c, y * stride + p, x * stride + q] * W[f, c, p, q], axis=[c, p, q]
        ),
        name="Y",
    )
    zero = te.const(0.0, "f32")
    Z = te.compute((filters, out, out), lambda f, y, x: sym.maximum(Y[f, y, x], zero), name="Z")
    return Program("conv2d", te.function([X, W, Z], name="conv2d"))


def depthwise(draw: Draw) -> Program:
    """Each channel by itself, then a sum over channels."""
    channels, width, kernel = draw.extent(6), draw.extent(13) + 2, draw.rng.choice((2, 3))
    X = te.placeholder((channels, width), name="X")
    W = te.placeholder((channels, kernel), name="W")
    s = te.reduce_axis((0, kernel), name="s")
    out = width - kernel + 1
    D = te.compute((channels, out), lambda c, x: te.sum(X[c, x + s] * W[c, s], axis=s), name="D")
    c = te.reduce_axis((0, channels), name="c")
    Y = te.compute((out,), lambda x: te.sum(D[c, x], axis=c), name="Y")
    return Program("depthwise", te.function([X, W, Y], name="depthwise"))


def pool(draw: Draw) -> Program:
    """Windows that share what they see."""
    channels, kernels = draw.extent(4), [draw.rng.choice((2, 3)) for _ in range(2)]
    stride, out = draw.rng.choice((1, 1, 2)), (draw.extent(6), draw.extent(6))
    sides = [(o - 1) * stride + k for o, k in zip(out, kernels, strict=True)]
    X = te.placeholder((channels, *sides), name="X")
    r, s = (te.reduce_axis((0, k), name=name) for k, name in zip(kernels, "rs", strict=True))
    by = draw.rng.choice((te.sum, te.max))
    Y = te.compute(
        (channels, *out),
        lambda c, i, j: by(X[c, i * stride + r, j * stride + s], axis=[r, s]),
        name="Y",
    )
    return Program("pool", te.function([X, Y], name="pool"))


def stencil(draw: Draw) -> Program:
    """Two stages that each look at their neighbours."""
    n, m = draw.extent(13) + 2, draw.dim(12)
    A = te.placeholder((n, m), name="A")
    X = te.compute((n - 1, m), lambda i, j: A[i, j] + A[i + 1, j], name="X")
    Y = te.compute((n - 2, m), lambda i, j: X[i, j] - X[i + 1, j], name="Y")
    return Program("stencil", te.function([A, Y], name="stencil"))


def multi_output(draw: Draw) -> Program:
    """One computation that gives two results at once."""
    n, m = draw.dim(), draw.dim(12)
    A = te.placeholder((n, m), name="A")
    B = te.placeholder((n, m), name="B")
    S, D = te.compute((n, m), lambda i, j: (A[i, j] + B[i, j], A[i, j] - B[i, j]), name="both")
    Y = te.compute((n, m), lambda i, j: S[i, j] * D[i, j], name="Y")
    outputs = [S, Y] if draw.flip() else [Y]
    return Program("multi_output", te.function([A, B, *outputs], name="multi"))


def siblings(draw: Draw) -> Program:
    """Two computations that have nothing to do with each other, one after the other."""
    n, m, k = draw.dim(), draw.extent(8), draw.extent(13)
    A, B = te.placeholder((n, m), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, m), name="r")
    Y = te.compute((n, m), lambda i, j: draw.unary(A[i, j]), name="Y")
    Z = te.compute((k,), lambda i: te.sum(B[i, r], axis=r), name="Z")
    outputs = [Y, Z] if draw.flip() else [Z, Y]
    return Program("siblings", te.function([A, B, *outputs], name="siblings"))


def transpose(draw: Draw) -> Program:
    """Places change: a transposition, a reversal, a strided read."""
    n, m = draw.extent(12) + 1, draw.dim(12)
    A = te.placeholder((n, m), name="A")
    T = te.compute((m, n), lambda i, j: A[j, i], name="T")
    V = te.compute((m, n), lambda i, j: T[i, n - 1 - j], name="V")
    Y = te.compute((m, (n + 1) // 2), lambda i, j: V[i, j * 2 - j], name="Y")
    return Program("transpose", te.function([A, Y], name="transpose"))


def scan(draw: Draw) -> Program:
    """A running sum along the first dimension."""
    m, n = draw.extent(8) + 1, draw.dim(10)
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: X[0, i], name="first")
    step = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    total = te.scan(first, step, state, inputs=[X], name="total")
    Y = te.compute((m, n), lambda t, i: draw.unary(total[t, i]), name="Y")
    return Program("scan", te.function([X, Y], name="scan"))


def softmax_like(draw: Draw) -> Program:
    """Two reductions over rows, each used by the next stage."""
    n, m = draw.dim(10), draw.dim(10)
    A = te.placeholder((n, m), name="A")
    r, s = te.reduce_axis((0, m), name="r"), te.reduce_axis((0, m), name="s")
    top = te.compute((n,), lambda i: te.max(A[i, r], axis=r), name="top")
    low = te.compute((n, m), lambda i, j: A[i, j] - top[i], name="low")
    total = te.compute((n,), lambda i: te.sum(low[i, s], axis=s), name="total")
    Y = te.compute((n, m), lambda i, j: low[i, j] + total[i], name="Y")
    return Program("softmax_like", te.function([A, Y], name="softmax_like"))


def pieces(draw: Draw) -> Program:
    """Pieces of work in any order, each with elements of its own, then others on the same rows."""
    n, m = draw.extent(12), draw.dim(12)
    A = te.placeholder((n, m), name="A")
    at = te.placeholder((m,), "i64", name="at")
    is_turned, sums = draw.flip(), draw.flip()

    def rows(ins: Any, outs: Any, i: Any) -> Any:
        row = n - 1 - i if is_turned else i
        copied = loops([sym.as_expr(m)], lambda j: store(outs[0], (row, j), ins[0][i, j]), "j")
        if not sums:
            return copied
        total = store(outs[0], (row, 0), outs[0][row, 0] + te.const(1.0, "f32"))
        return seq(copied, loops([sym.as_expr(m)], lambda j: total, "k"))

    def columns(ins: Any, outs: Any, j: Any) -> Any:
        row = sym.maximum(0, sym.minimum(te.cast(ins[1][j], "index"), n - 1))  # as the data say
        return store(outs[0], (row, j), outs[0][row, j] * te.const(2.0, "f32"))

    then = [((m,), columns)] if draw.flip(0.7) else []
    S = te.extern((n, m), [A, at], rows, name="S", dtype="f32", over=(n,), then=then)
    Y = te.compute((n, m), lambda i, j: draw.unary(S[i, j]), name="Y")
    return Program("pieces", te.function([A, at, Y if draw.flip() else S], name="pieces"))


def narrow(draw: Draw) -> Program:
    """Numbers of 16 bits that are kept, and computed with in 32."""
    n, m = draw.dim(10), draw.rng.choice((1, 2, draw.dim(10)))
    A = te.placeholder((n, m), name="A")
    dtype = draw.rng.choice(("bf16", "f16"))
    X = te.compute((n, m), lambda i, j: te.cast(draw.unary(A[i, j]), dtype), name="X")
    r = te.reduce_axis((0, m), name="r")
    total = te.compute((n,), lambda i: te.sum(te.cast(X[i, r], "f32"), axis=r), name="total")
    low = te.compute((n, m), lambda i, j: te.cast(X[i, j], "f32") - total[i], name="low")
    Y = te.compute((n, m), lambda i, j: te.cast(draw.unary(low[i, j]), dtype), name="Y")
    return Program("narrow", te.function([A, Y if draw.flip() else low], name="narrow"))


MAKERS: tuple[Callable[[Draw], Program], ...] = (
    elementwise,
    elementwise,
    reduction,
    reduction,
    arg_reduction,
    own_reduction,
    matmul,
    matmul,
    matmul,
    tiles,
    batch_matmul,
    conv1d,
    conv2d,
    depthwise,
    pool,
    stencil,
    multi_output,
    siblings,
    transpose,
    scan,
    softmax_like,
    pieces,
    narrow,
)
