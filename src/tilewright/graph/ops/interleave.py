"""Interleave tensors along axes, as for the phases of a transposed convolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.op import INJECTIVE, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axes
from tilewright.graph.ops.rules import check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]


def _interleave_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    shape, axes = list(call.shape(0)), call["axes"]
    if not len(axes) == len(call["factors"]) == len(call["sizes"]):
        raise call.error("TW1217", "interleave needs a factor and a size for each of its axes")
    if len(call.types) != math.prod(call["factors"]):
        raise call.error(
            "TW1217",
            f"interleave by {call['factors']} takes {math.prod(call['factors'])} tensors, "
            f"not {len(call.types)}",
        )
    for at in range(1, len(call.types)):
        for axis, (a, b) in enumerate(zip(shape, call.shape(at), strict=False)):
            same_dim(call, a, b, f"dimensions {axis}")
    for axis, size in zip(check_axes(call, axes, len(shape)), call["sizes"], strict=True):
        shape[axis] = sym.as_expr(size)
    return (TensorType(call.tensor(0).dtype, tuple(shape)),)


def _interleave(call: Call, *parts: Array) -> Array:
    shape, axes = list(parts[0].shape), call["axes"]
    for axis, size in zip(axes, call["sizes"], strict=True):
        shape[axis] = int(size)
    out = np.zeros(shape, parts[0].dtype)
    for part, place in zip(parts, np.ndindex(*call["factors"]), strict=True):
        where = [slice(None)] * out.ndim
        for axis, start, factor in zip(axes, place, call["factors"], strict=True):
            where[axis] = slice(start, None, factor)
        hole = out[tuple(where)]
        hole[...] = part[tuple(slice(n) for n in hole.shape)]
    return out


OPS = (
    Op(
        "interleave",
        "Tensors of one shape interleaved along axes: element i along an axis is element i // "
        "factor of tensor i % factor, with the last of several axes running fastest. Elements "
        "beyond the sizes are dropped.",
        (Input("parts", variadic=True),),
        _interleave_type,
        _interleave,
        INJECTIVE,
        (
            Attr("axes", tuple, required=True),
            Attr("factors", tuple, required=True),
            Attr("sizes", tuple, required=True),
        ),
    ),
)
