"""Slices with starts given by a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.op import ANY, INJECTIVE, INTEGER, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axes
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, as_expr

Array = np.ndarray[Any, Any]


def check_starts(call: Call, rank: int) -> None:
    """Check that the last axis of the second input has an element for each of the axes."""
    axes, starts = call["axes"], call.shape(1)
    check_axes(call, axes, rank)
    if not starts or not isinstance(starts[-1], Const) or starts[-1].value != len(axes):
        shown = starts[-1] if starts else "none"
        raise call.error("TW1307", f"{call.op} along {len(axes)} axes has starts of {shown}")


def kept_axes(call: Call, attribute: str, rank: int) -> list[int]:
    """The axes of the slices: all except those of an attribute."""
    left_out = check_axes(call, call[attribute], rank)
    return [axis for axis in range(rank) if axis not in left_out]


def _gather_slices_type(call: Call) -> tuple[Type, ...]:
    of, shape, sizes = call.tensor(0), call.shape(0), call["sizes"]
    check_starts(call, len(shape))
    if len(sizes) != len(shape):
        raise call.error("TW1307", f"gather_slices of {len(shape)} axes has {len(sizes)} sizes")
    kept = kept_axes(call, "collapsed", len(shape))
    for axis, (size, dim) in enumerate(zip(sizes, shape, strict=True)):
        if isinstance(dim, Const) and isinstance(size, int) and not 0 <= size <= dim.value:
            raise call.error("TW1307", f"slices of {size} along axis {axis} of {dim}")
        if axis not in kept and size != 1:
            raise call.error("TW1307", f"axis {axis} of gather_slices is left out, but not one")
    dims = (*call.shape(1)[:-1], *(as_expr(sizes[axis]) for axis in kept))
    return (TensorType(of.dtype, dims),)


def _gather_slices(call: Call, x: Array, starts: Array) -> Array:
    sizes, kept = call["sizes"], kept_axes(call, "collapsed", x.ndim)
    out = np.empty((*starts.shape[:-1], *(sizes[axis] for axis in kept)), x.dtype)
    for index in np.ndindex(*starts.shape[:-1]):
        begins = [0] * x.ndim
        for axis, start in zip(call["axes"], starts[index], strict=True):
            begins[axis] = min(max(int(start), 0), x.shape[axis] - sizes[axis])
        part = x[tuple(slice(b, b + size) for b, size in zip(begins, sizes, strict=True))]
        out[index] = part.reshape([sizes[axis] for axis in kept])
    return out


OPS = (
    Op(
        "gather_slices",
        "Slices of x, of `sizes` along all axes. The last axis of `starts` gives the start of "
        "each along `axes`, clamped so that the slice is inside of x; the axes `collapsed`, of "
        "one element, are removed.",
        (Input("x", ANY), Input("starts", INTEGER)),
        _gather_slices_type,
        _gather_slices,
        INJECTIVE,
        (
            Attr("sizes", tuple, required=True),
            Attr("axes", tuple, required=True),
            Attr("collapsed", tuple, ()),
        ),
    ),
)
