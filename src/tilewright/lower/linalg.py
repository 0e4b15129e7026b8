"""GEMM and contractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.bf16x6 import PRODUCTS, left_piece, right_piece
from tilewright.base.dtype import BF16, F32, I8, I32, DType
from tilewright.graph.ops.linalg import HALF, NIBBLE, einsum_terms
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
    """The sum of body(k) over a dimension; zero if empty."""
    if static(dim) == 0:
        return zero
    k = te.reduce_axis((0, dim), name=name)
    return te.sum(body(k), axis=k, where=where(k))


def _product(
    use: Use, a: Tensor, b: Tensor, term: Callable[[Sequence[Expr], Sequence[Expr]], Expr]
) -> Tensor:
    """Sums of term(index into a, index into b), with the shapes of NumPy's matmul."""
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


def _bf16_pieces(use: Use, x: Tensor) -> Tensor:
    zero, k, parts, length = te.const(0, F32), x.shape[-1], use["parts"], use["length"]

    def rounded(value: Expr) -> Expr:
        return te.cast(te.cast(value, BF16), F32)

    def element(*at: Expr) -> Expr:
        *row, piece, r = at
        if parts > 1:
            part, *row = row
            r = part * length + r
        value = x[(*row, r)]
        if parts * length != static(k):
            value = te.if_then_else(r < k, value, zero)
        second = value - rounded(value)
        third = second - rounded(second)
        chosen = te.select(te.eq(piece, 0), value, te.select(te.eq(piece, 1), second, third))
        return te.cast(chosen, BF16)

    return te.compute(use.shape, element, name=use.name)


def _matmul_pieces(use: Use, a: Tensor, b: Tensor) -> Tensor:
    def element(*at: Expr) -> Expr:
        p = te.reduce_axis((0, PRODUCTS), name="p")

        def product(k: Expr) -> Expr:
            left = a[(*at[:-1], left_piece(p), k)]
            right = b[(*at[: b.ndim - 3], right_piece(p), k, at[-1])]
            return wide(left) * wide(right)

        if static(a.shape[-1]) == 0:
            return te.const(0, F32)
        k = te.reduce_axis((0, a.shape[-1]), name="k")
        return te.sum(product(k), axis=[p, k])

    return te.compute(use.shape, element, name=use.name)


def _matmul_packed(
    use: Use,
    a: Tensor,
    b: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    a_scale: Tensor | None,
) -> Tensor:
    packed = _Packed(use, b)
    if a_scale is not None:
        return _integer_sums(packed, a, a_scale, scale, offset)
    if use["scale_sums"]:
        return _float_sums(packed, a, scale, offset)
    size, zero = packed.size, te.const(use["zero"], F32)

    def weight(k: Expr, j: Expr) -> Expr:
        g, at = sym.floordiv(k, size), sym.floormod(k, size)
        half, r = sym.floordiv(at, packed.length), sym.floormod(at, packed.length)
        value = packed.number(g, half, r, j)
        value = (value - zero if use["zero"] else value) * scale[g, j]
        return value if offset is None else value + offset[g, j]

    weights = te.compute(
        (a.shape[-1], b.shape[-1]), weight, name=f"{use.name}_weights", attrs={UNPACKS: True}
    )
    return _product(use, a, weights, lambda i, j: a[tuple(i)] * weights[tuple(j)])


class _Packed:
    """Sub-byte weights: [groups, bytes, n], one or two per byte."""

    def __init__(self, use: Use, b: Tensor):
        self.use, self.b, self.per_byte = use, b, use["per_byte"]
        self.groups, self.length, self.n = b.shape
        self.size = sym.mul(self.length, self.per_byte)  # of a group

    def code(self, g: Expr, half: Expr, r: Expr, j: Expr) -> Expr:
        """A weight as stored."""
        byte, of = self.b[g, r, j], self.b.dtype
        if self.per_byte == 1:
            return byte
        if of is I8:
            up = te.shift_left(byte, te.cast(HALF - half * HALF, of))
            return te.bitwise_and(up, te.const(-NIBBLE, of))
        down = te.shift_right(byte, te.cast(half * HALF, of))
        return te.bitwise_and(down, te.const(NIBBLE - 1, of))

    def number(self, g: Expr, half: Expr, r: Expr, j: Expr) -> Expr:
        """A weight in f32."""
        return te.cast(wide(self.code(g, half, r, j)), F32)

    def step(self, g: Expr, half: Expr, r: Expr) -> Expr:
        """The k index of a weight."""
        return g * self.size + half * self.length + r

    def axes(self) -> tuple[Expr, Expr]:
        """Sum over a group."""
        return (
            te.reduce_axis((0, self.per_byte), name="half"),
            te.reduce_axis((0, self.length), name="r"),
        )


def _float_sums(packed: _Packed, a: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """Sum stored values over groups, then scale."""
    use, rows = packed.use, a.shape[:-1]
    half, r = packed.axes()
    sums = te.compute(
        (*rows, packed.groups, packed.n),
        lambda *at: te.sum(
            a[(*at[:-2], packed.step(at[-2], half, r))] * packed.number(at[-2], half, r, at[-1]),
            axis=[r, half],
        ),
        name=f"{use.name}_sums",
    )
    totals = _group_totals(packed, a, F32) if use["zero"] or offset is not None else None
    g = te.reduce_axis((0, packed.groups), name="g")

    def scaled(*at: Expr) -> Expr:
        row, j = at[:-1], at[-1]
        value = sums[(*row, g, j)]
        if totals is not None and use["zero"]:
            value = value - te.const(use["zero"], F32) * totals[(*row, g)]
        value = value * scale[g, j]
        if totals is not None and offset is not None:
            value = value + offset[g, j] * totals[(*row, g)]
        return te.sum(value, axis=g)

    return te.compute(use.shape, scaled, name=use.name)


def _group_totals(packed: _Packed, a: Tensor, of: DType) -> Tensor:
    """Sums of a row's values per group."""
    k = te.reduce_axis((0, packed.size), name="k")
    return te.compute(
        (*a.shape[:-1], packed.groups),
        lambda *at: te.sum(te.cast(a[(*at[:-1], at[-1] * packed.size + k)], of), axis=k),
        name=f"{packed.use.name}_totals",
    )


def _integer_sums(
    packed: _Packed, a: Tensor, a_scale: Tensor, scale: Tensor, offset: Tensor | None
) -> Tensor:
    """Integer sums over groups, then scaled."""
    use, rows = packed.use, a.shape[:-1]
    codes = (
        te.compute(
            (packed.groups, packed.per_byte, packed.length, packed.n),
            packed.code,
            name=f"{use.name}_codes",
            attrs={UNPACKS: True},
        )
        if packed.per_byte > 1
        else None
    )
    half, r = packed.axes()

    def term(*at: Expr) -> Expr:
        *row, g, j = at
        code = packed.b[g, r, j] if codes is None else codes[g, half, r, j]
        product = te.cast(a[(*row, packed.step(g, half, r))], I32) * te.cast(code, I32)
        return te.sum(product, axis=[half, r])

    sums = te.compute((*rows, packed.groups, packed.n), term, name=f"{use.name}_sums")
    totals = _group_totals(packed, a, I32) if use["zero"] or offset is not None else None
    g = te.reduce_axis((0, packed.groups), name="g")

    def scaled(*at: Expr) -> Expr:
        *row, j = at
        value = sums[(*row, g, j)]
        if totals is not None and use["zero"]:
            value = value - te.const(use["zero"], I32) * totals[(*row, g)]
        by = a_scale[(*row, g)]
        value = te.cast(value, F32) * scale[g, j] * by
        if totals is not None and offset is not None:
            value = value + offset[g, j] * (te.cast(totals[(*row, g)], F32) * by)
        return te.sum(value, axis=g)

    return te.compute(use.shape, scaled, name=use.name)


def less_zero(value: Expr, zero: Expr | None) -> Expr:
    """An 8-bit integer less its zero point, in i32."""
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
    "bf16_pieces": _bf16_pieces,
    "matmul_pieces": _matmul_pieces,
    "matmul_packed": _matmul_packed,
    "matmul_integer": _matmul_integer,
    "einsum": _einsum,
}
