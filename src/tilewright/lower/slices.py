"""Slices with starts given by a tensor."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import INDEX
from tilewright.graph.ops.slices import kept_axes
from tilewright.lower.base import Lowering, Use, read_at
from tilewright.sym import ZERO, Const, Expr
from tilewright.te import Tensor


def _gather_slices(use: Use, x: Tensor, starts: Tensor) -> Tensor:
    axes, sizes, lead = use["axes"], use["sizes"], starts.ndim - 1
    kept = kept_axes(use.call, "collapsed", x.ndim)

    def element(*index: Expr) -> Expr:
        at: list[Expr] = [ZERO] * x.ndim
        for number, axis in enumerate(axes):
            start = te.cast(starts[(*index[:lead], number)], INDEX)
            last = sym.sub(x.shape[axis], sizes[axis])
            at[axis] = sym.maximum(sym.minimum(start, last), 0)
        for axis, offset in zip(kept, index[lead:], strict=True):
            place = sym.add(at[axis], offset)
            is_known = isinstance(x.shape[axis], Const)  # otherwise bounds cannot be proved
            at[axis] = place if is_known else sym.minimum(place, sym.sub(x.shape[axis], 1))
        return read_at(x, at, *axes)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {"gather_slices": _gather_slices}
