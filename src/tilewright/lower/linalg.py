"""Products of matrices, sums of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import te
from tilewright.base.dtype import I32
from tilewright.graph.ops.linalg import einsum_terms
from tilewright.lower.base import Lowering, Use, broadcast_index, read_broadcast, static, wide
from tilewright.sym import ONE, TRUE, ZERO, Expr
from tilewright.te import Tensor


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

    def term(i: Sequence[Expr], j: Sequence[Expr]) -> Expr:
        left = read(a[tuple(i)])
        return left * read(te.cast(wide(b[tuple(j)]), left.dtype))

    return _product(use, a, b, term)


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
    "matmul_integer": _matmul_integer,
    "einsum": _einsum,
}
