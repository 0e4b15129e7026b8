"""Deformable convolution: sample the kernel positions first, then sum as in other convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tilewright import sym, te
from tilewright.base.dtype import INDEX
from tilewright.lower.base import Lowering, Use, flat_index, product, static, wide, wide_type
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor


def _deform_conv(
    use: Use, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None, mask: Tensor | None
) -> Tensor:
    seen = _sampled(use, x, w, offset, mask)
    rank, groups, inner = x.ndim - 2, use["groups"], w.shape[1]
    of = wide_type(x.dtype)

    def element(n: Expr, m: Expr, *places: Expr) -> Expr:
        per_group = sym.simplify(sym.floordiv(w.shape[0], groups))
        first = ZERO if groups == 1 else sym.mul(sym.floordiv(m, per_group), inner)
        c = te.reduce_axis((0, inner), name="c")
        taps = [te.reduce_axis((0, w.shape[axis + 2]), name=f"k{axis}") for axis in range(rank)]
        product_ = seen[(n, first + c, *taps, *places)] * te.cast(w[(m, c, *taps)], of)
        total = te.sum(product_, axis=[c, *taps])
        if bias is not None:
            total = total + te.cast(bias[m], of)
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _sampled(use: Use, x: Tensor, w: Tensor, offset: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, channel, *kernel, *position]: x sampled at the offsets."""
    rank, kernel, counts = x.ndim - 2, w.shape[2:], use.shape[2:]
    of, size = wide_type(x.dtype), product(kernel)
    share = sym.simplify(sym.floordiv(x.shape[1], use["offset_groups"]))

    def element(n: Expr, c: Expr, *index: Expr) -> Expr:
        taps, places = index[:rank], index[rank:]
        group = ZERO if use["offset_groups"] == 1 else sym.floordiv(c, share)
        tap = sym.add(sym.mul(group, size), flat_index(taps, kernel))
        at = [
            wide(offset[(n, sym.add(sym.mul(tap, rank), axis), *places)])
            + te.cast(
                places[axis] * use["strides"][axis]
                + taps[axis] * use["dilations"][axis]
                - use["pads"][axis],
                of,
            )
            for axis in range(rank)
        ]
        value = _between(x, (n, c), at)
        return value if mask is None else value * te.cast(mask[(n, tap, *places)], of)

    shape = (x.shape[0], x.shape[1], *kernel, *counts)
    return te.compute(shape, element, name=f"{use.name}_seen")


def _between(x: Tensor, lead: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """Linear interpolation at a position; zero outside of the image."""
    of = at[0].dtype
    total: Expr = te.const(0, of)
    if any(static(dim) == 0 for dim in x.shape[2:]):
        return total
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight: Expr = te.const(1, of)
        index: list[Expr] = []
        tests: list[Expr] = []
        for step, place, size in zip(corner, at, x.shape[2:], strict=True):
            low = te.floor(place)
            weight = weight * (place - low if step else low + te.const(1, of) - place)
            near = te.max(te.min(low, te.cast(size, of)), te.const(-2, of))
            here = te.cast(near, INDEX) + step
            tests += [here >= 0, here < size, low >= te.const(-2, of)]
            index.append(sym.maximum(sym.minimum(here, sym.sub(size, 1)), 0))
            if static(size) is None:
                tests.append(sym.lt(0, size))
        value = wide(x[(*lead, *index)])
        total = total + te.if_then_else(te.all(*tests), value * weight, te.const(0, of))
    return total


LOWERINGS: dict[str, Lowering] = {"deform_conv": _deform_conv}
