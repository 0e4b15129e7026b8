"""Quantization by scales and zero points.

A scale (and a zero point of its shape) is a scalar, or a vector along `axis`, or, with
`block_size`, a tensor like x with one element per block of this length along `axis`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, U8, DType, dtype
from tilewright.graph.op import ANY, ELEMENTWISE, FLOAT, INTEGER, NUMBER, Attr, Call, Input, Op
from tilewright.graph.ops.cast import cast_array
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]

TABLE = 256  # number of byte values
_GRANULARITY = (Attr("axis", int, 1), Attr("block_size", int, 0))


def _check_scale(call: Call) -> None:
    """Check that the shapes of scale and zero point match the tensor."""
    x = call.shape(0)
    axis, block = call["axis"], call["block_size"]
    for at in (1, 2):
        shape = call.shape(at) if call.has(at) else ()
        if all(dim is sym.ONE for dim in shape):  # per tensor
            continue
        if not -len(x) <= axis < len(x):
            raise call.error("TW1206", f"axis {axis} of {call.op} is not one of {len(x)}")
        if block:
            if len(shape) != len(x):
                raise call.error("TW1206", f"blocks of {call.op} need a scale of rank {len(x)}")
        elif len(shape) == 1:
            same_dim(call, shape[0], x[axis], "scale and axis")
        else:
            raise call.error("TW1206", f"a scale of rank {len(shape)} needs a block size")


def _broadcastable(array: Array, x: Array, axis: int, block: int) -> Array:
    """A scale or zero point in a shape that broadcasts with x."""
    if array.size == 1:
        return array.reshape(())
    if block:
        repeated = np.repeat(array, block, axis=axis)
        return np.take(repeated, range(x.shape[axis]), axis=axis)
    shape = [1] * x.ndim
    shape[axis] = array.size
    return array.reshape(shape)


def _quantize_type(call: Call) -> tuple[Type, ...]:
    _check_scale(call)
    if call.has(2) and call.tensor(2).dtype is not call["to"]:
        raise call.error(
            "TW1206", f"quantize to {call['to']} has a zero point of {call.tensor(2).dtype}"
        )
    return (TensorType(call["to"], call.tensor(0).shape),)


def _quantize(call: Call, x: Array, scale: Array | None = None, zero: Array | None = None) -> Array:
    axis, block, to = call["axis"], call["block_size"], call["to"]
    precision = call["precision"] or call.tensor(0 if scale is None else 1).dtype
    of = precision.numpy if precision.bits >= 16 else F32.numpy
    steps = None if scale is None else _broadcastable(scale, x, axis, block).astype(of)
    divided = x.astype(of)
    if steps is not None:
        divided = divided * (of.type(1) / steps) if call["reciprocal"] else divided / steps
    if divided.dtype != np.float64:
        divided = divided.astype(np.float32)
    moved = np.rint(divided) if to.is_int else divided
    if zero is not None:
        moved = moved + _broadcastable(zero, x, axis, block).astype(moved.dtype)
    return cast_array(moved, to, saturate=call["saturate"])


def _dequantize_type(call: Call) -> tuple[Type, ...]:
    _check_scale(call)
    return (TensorType(call["to"], call.tensor(0).shape),)


def _dequantize(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    axis, block, to = call["axis"], call["block_size"], call["to"]
    of = np.float64 if to is dtype("f64") else np.float32
    moved = x.astype(np.int32) if call.tensor(0).dtype.is_int else x.astype(of)
    if zero is not None:
        moved = moved - _broadcastable(zero, x, axis, block).astype(moved.dtype)
    return cast_array(moved.astype(of) * _broadcastable(scale, x, axis, block).astype(of), to)


def _lookup_type(call: Call) -> tuple[Type, ...]:
    if call.tensor(0).dtype is not U8:
        raise call.error("TW1007", f"lookup_bytes takes u8, not {call.tensor(0).dtype}")
    if call.shape(1) != (sym.const(TABLE),):
        raise call.error("TW1015", f"the table of lookup_bytes has not {TABLE} elements")
    return (TensorType(call.tensor(1).dtype, call.tensor(0).shape),)


OPS = (
    Op(
        "lookup_bytes",
        "table[x], with an entry for each of 256 bytes.",
        (Input("x", INTEGER), Input("table", ANY)),
        _lookup_type,
        lambda call, x, table: table[x],
        ELEMENTWISE,
    ),
    Op(
        "quantize",
        "x / scale (default 1), rounded half to even, plus the zero point, saturated.",
        (
            Input("x", NUMBER),
            Input("scale", FLOAT, optional=True),
            Input("zero", ANY, optional=True),
        ),
        _quantize_type,
        _quantize,
        ELEMENTWISE,
        (
            Attr("to", DType, required=True),
            *_GRANULARITY,
            Attr("saturate", bool, True),
            Attr("precision", DType, None),  # of the division; default: the scale's type
            Attr("reciprocal", bool, False),  # multiply by 1 / scale: ties may round differently
            Attr("ranged", bool, False),  # the scale is derived from the range of x
        ),
    ),
    Op(
        "dequantize",
        "(x - zero) * scale.",
        (Input("x", NUMBER), Input("scale", FLOAT), Input("zero", ANY, optional=True)),
        _dequantize_type,
        _dequantize,
        ELEMENTWISE,
        (Attr("to", DType, required=True), *_GRANULARITY),
    ),
)
