"""Products of matrices, sums of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import F32, I32
from tilewright.graph.ops.linalg import einsum_terms
from tilewright.lower.base import Lowering, Use, broadcast_index, read_broadcast, static, wide
from tilewright.sym import ONE, TRUE, ZERO, Expr
from tilewright.te import Tensor
from tilewright.tensor.constants import UNPACKS


def summed(
    dim: Expr,
    body: Callable[[Expr], Expr],
    zero: Expr,
    name: str = "k",
    where: Callable[[Expr], Expr] = lambda k: TRUE,
) -> Expr:
    """The sum of body(k) for k along a dimension; of none, zero."""
    if static(dim) == 0:
        return zero
    k = te.reduce_axis((0, dim), name=name)
    return te.sum(body(k), axis=k, where=where(k))


def _product(
    use: Use, a: Tensor, b: Tensor, term: Callable[[Sequence[Expr], Sequence[Expr]], Expr]
) -> Tensor:
    """Sums of term(index into a, index into b), as NumPy's matmul has it."""
    lead = len(use.shape) - (a.ndim > 1) - (b.ndim > 1)
    stack = use.shape[:lead]

    def element(*index: Expr) -> Expr:
        row = [index[lead]] if a.ndim > 1 else []
        column = [index[-1]] if b.ndim > 1 else []
        left = broadcast_index(a.shape[:-2], stack, index[:lead])
        right = broadcast_index(b.shape[:-2], stack, index[:lead])
        probe = term((*left, *row, ZERO), (*right, ZERO, *column))
        total = summed(
            a.shape[-1],
            lambda k: term((*left, *row, k), (*right, k, *column)),
            te.const(0, probe.dtype),
        )
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _matmul(use: Use, a: Tensor, b: Tensor) -> Tensor:
    read = te.round_tf32 if use["tf32"] else wide
    return _product(use, a, b, lambda i, j: read(a[tuple(i)]) * read(b[tuple(j)]))


def _matmul_packed(use: Use, a: Tensor, b: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    per_byte, zero = use["per_byte"], te.const(use["zero"], F32)
    groups, length, n = b.shape
    size = sym.mul(length, per_byte)

    def code(g: Expr, r: Expr, half: Expr, j: Expr) -> Expr:
        """A weight as it is stored, in f32."""
        byte = b[g, r, j]
        if per_byte > 1:
            byte = te.bitwise_and(te.shift_right(byte, te.cast(half * 4, b.dtype)), 15)
        return te.cast(wide(byte), F32)

    if not use["scale_sums"]:

        def weight(k: Expr, j: Expr) -> Expr:
            g, r = sym.floordiv(k, size), sym.floormod(k, size)
            value = code(g, sym.floordiv(r, per_byte), sym.floormod(r, per_byte), j)
            value = (value - zero if use["zero"] else value) * scale[g, j]
            return value if offset is None else value + offset[g, j]

        weights = te.compute(
            (a.shape[-1], n), weight, name=f"{use.name}_weights", attrs={UNPACKS: True}
        )
        return _product(use, a, weights, lambda i, j: a[tuple(i)] * weights[tuple(j)])

    rows = a.shape[:-1]
    r, half = te.reduce_axis((0, length), name="r"), te.reduce_axis((0, per_byte), name="half")
    sums = te.compute(
        (*rows, groups, n),
        lambda *at: te.sum(
            a[(*at[:-2], at[-2] * size + r * per_byte + half)] * code(at[-2], r, half, at[-1]),
            axis=[r, half],
        ),
        name=f"{use.name}_sums",
    )
    all_of = te.reduce_axis((0, size), name="k")
    moved = use["zero"] or offset is not None
    totals = (
        te.compute(
            (*rows, groups),
            lambda *at: te.sum(a[(*at[:-1], at[-1] * size + all_of)], axis=all_of),
            name=f"{use.name}_totals",
        )
        if moved
        else None
    )
    g = te.reduce_axis((0, groups), name="g")

    def scaled(*at: Expr) -> Expr:
        row, j = at[:-1], at[-1]
        value = sums[(*row, g, j)]
        if totals is not None and use["zero"]:
            value = value - zero * totals[(*row, g)]
        value = value * scale[g, j]
        if totals is not None and offset is not None:
            value = value + offset[g, j] * totals[(*row, g)]
        return te.sum(value, axis=g)

    return te.compute(use.shape, scaled, name=use.name)


def less_zero(value: Expr, zero: Expr | None) -> Expr:
    """An eight-bit integer less its zero point, in i32."""
    out = te.cast(value, I32)
    return out if zero is None else out - te.cast(zero, I32)


def _matmul_integer(
    use: Use, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None
) -> Tensor:
    def read(tensor: Tensor, zero: Tensor | None, index: Sequence[Expr]) -> Expr:
        point = None if zero is None else read_broadcast(zero, tensor.shape, tuple(index))
        return less_zero(tensor[tuple(index)], point)

    return _product(use, a, b, lambda i, j: read(a, a_zero, i) * read(b, b_zero, j))


def _einsum(use: Use, *operands: Tensor) -> Tensor:
    terms, result = einsum_terms(use["equation"])
    dims: dict[str, Expr] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, dim in zip(term, operand.shape, strict=True):
            if letter not in dims or dims[letter] is ONE:
                dims[letter] = dim
    inner = [letter for letter in dims if letter not in result]

    def element(*index: Expr) -> Expr:
        axes = {x: te.reduce_axis((0, dims[x]), name=x) for x in inner}
        at: dict[str, Expr] = {**dict(zip(result, index, strict=True)), **axes}
        value: Expr | None = None
        for term, operand in zip(terms, operands, strict=True):
            shape = [dims[letter] for letter in term]
            read = wide(read_broadcast(operand, shape, [at[letter] for letter in term]))
            value = read if value is None else value * read
        assert value is not None
        if any(static(dims[x]) == 0 for x in inner):
            return te.const(0, use.dtype)
        total = te.sum(value, axis=list(axes.values())) if axes else value
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {
    "matmul": _matmul,
    "matmul_packed": _matmul_packed,
    "matmul_integer": _matmul_integer,
    "einsum": _einsum,
}
