"""Elements picked by index. Indices from memory are kept inside: nothing else is ever read."""

from __future__ import annotations

from tilewright import te
from tilewright.lower.base import (
    Lowering,
    Use,
    counted,
    front_axis,
    placed,
    read_at,
    static,
)
from tilewright.sym import Expr
from tilewright.te import Tensor


def _gather(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis, rank = front_axis(use["axis"], x.ndim), indices.ndim

    def element(*index: Expr) -> Expr:
        at = counted(indices[tuple(index[axis : axis + rank])], x.shape[axis])
        return read_at(x, (*index[:axis], at, *index[axis + rank :]), axis)

    return te.compute(use.shape, element, name=use.name)


def _gather_elements(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis = front_axis(use["axis"], x.ndim)

    def element(*index: Expr) -> Expr:
        at = counted(indices[tuple(index)], x.shape[axis])
        return read_at(x, placed(index, axis, at), axis)

    return te.compute(use.shape, element, name=use.name)


def _gather_nd(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth, lead = use["batch_dims"], static(indices.shape[-1]), indices.ndim - 1
    assert depth is not None
    named = range(batch, batch + depth)

    def element(*index: Expr) -> Expr:
        row = tuple(index[:lead])
        where = [counted(indices[(*row, at)], x.shape[batch + at]) for at in range(depth)]
        return read_at(x, (*index[:batch], *where, *index[lead:]), *named)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
}
