"""Quantized int8 layers: exact integer sums, requantized in fixed point.

`requantize` defines that step for the interpreter, CPUs and accelerators:

    clamp((((x + bias) * multiplier + 2**(shift - 1)) >> shift) + zero, low, high)

x + bias wraps as in i32; the product is in 64 bits. Parameters broadcast: they are per channel, or
one for all. `quantized_*` are whole layers; for devices without them they are decomposed
(`decompose_quantized`), with identical results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I8, I32
from tilewright.graph.op import BROADCAST, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.conv import GROUPS, conv_shape, grouped
from tilewright.graph.ops.linalg import exact, to_i32
from tilewright.graph.ops.rules import broadcast_shapes, same_dim
from tilewright.graph.ops.shape import concat_type
from tilewright.graph.ops.windows import DILATIONS, PADS, STRIDES, pad_spatial, taps
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]

_PARAMETERS = tuple(Input(name, INTEGER) for name in ("bias", "multiplier", "shift"))
_LIMITS = (Attr("zero", int, 0), Attr("low", int, -128), Attr("high", int, 127))
_X_ZERO = Attr("x_zero", int, 0)
_OF_OPERANDS = ("biases", "multipliers", "shifts")  # one number for each concatenated tensor


def requantized(call: Call, x: Array, bias: Array, multiplier: Array, shift: Array) -> Array:
    """Requantize i32 to i8, with parameters of a shape that broadcasts."""
    total = (x.astype(np.int64) + bias).astype(np.int32).astype(np.int64)
    by = shift.astype(np.int64) & 63
    half = np.where(by > 0, np.int64(1) << np.maximum(by - 1, 0), np.int64(0))
    with np.errstate(over="ignore"):
        scaled = (total * multiplier.astype(np.int64) + half) >> by
    made: Array = np.clip(scaled + call["zero"], call["low"], call["high"]).astype(np.int8)
    return made


def _spread(array: Array, rank: int, axis: int) -> Array:
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if at == axis else 1 for at in range(rank)])


def _check_parameters(call: Call, first: int, channels: Any) -> None:
    """Check that parameters are i32, and scalar or per channel."""
    for at in range(first, first + 3):
        shape = call.shape(at)
        if call.tensor(at).dtype is not I32 or len(shape) > 1:
            raise call.error("TW1206", f"parameters of {call.op} are vectors of i32")
        if shape and shape[0] is not sym.ONE:
            same_dim(call, shape[0], channels, "parameters and channels")


def _check_bytes(call: Call, *inputs: int) -> None:
    for at in inputs:
        if call.tensor(at).dtype is not I8:
            raise call.error("TW1206", f"{call.op} takes i8, not {call.tensor(at).dtype}")


def _requantize_type(call: Call) -> tuple[Type, ...]:
    if any(call.tensor(at).dtype is not I32 for at in range(4)):
        raise call.error("TW1206", f"{call.op} takes sums and parameters of i32")
    return (TensorType(I8, broadcast_shapes(call, [call.shape(at) for at in range(4)])),)


def _conv_type(call: Call) -> tuple[Type, ...]:
    _check_bytes(call, 0, 1)
    shape = conv_shape(call)
    _check_parameters(call, 2, shape[1])
    return (TensorType(I8, shape),)


def _conv(call: Call, x: Array, w: Array, *given: Array) -> Array:
    sums = to_i32(grouped(exact(x, np.array(call["x_zero"])), exact(w, None), call))
    return requantized(call, sums, *(_spread(one, x.ndim, 1) for one in given))


def _matmul_type(call: Call) -> tuple[Type, ...]:
    _check_bytes(call, 0, 1)
    x, w = call.shape(0), call.shape(1)
    if len(w) != 2 or len(x) < 2:
        raise call.error("TW1204", f"{call.op} has operands of rank {len(x)} and {len(w)}")
    depth = x[1]
    for dim in x[2:]:
        depth = sym.simplify(sym.mul(depth, dim))
    same_dim(call, depth, w[0], "the depth")
    _check_parameters(call, 2, w[1])
    return (TensorType(I8, (x[0], w[1])),)


def _matmul(call: Call, x: Array, w: Array, *given: Array) -> Array:
    rows = exact(x, np.array(call["x_zero"])).reshape(x.shape[0], -1)
    sums = to_i32(np.matmul(rows, exact(w, None)))
    return requantized(call, sums, *(_spread(one, 2, 1) for one in given))


def _batch_matmul_type(call: Call) -> tuple[Type, ...]:
    _check_bytes(call, 0, 1)
    x, y = call.shape(0), call.shape(1)
    if len(x) != 3 or len(y) != 3:
        raise call.error("TW1204", f"{call.op} has operands of rank {len(x)} and {len(y)}, not 3")
    batch = same_dim(call, x[0], y[0], "the batch")
    same_dim(call, x[2], y[1], "the depth")
    return (TensorType(I8, (batch, x[1], y[2])),)


def _batch_matmul(call: Call, x: Array, y: Array) -> Array:
    zeros = [np.array(call[name]) for name in ("x_zero", "y_zero")]
    sums = to_i32(np.matmul(exact(x, zeros[0]), exact(y, zeros[1])))
    scalars = [np.array(number, np.int32) for number in (0, call["multiplier"], call["shift"])]
    return requantized(call, sums, *scalars)


def _add_type(call: Call) -> tuple[Type, ...]:
    _check_bytes(call, 0, 1)
    x, y = call.shape(0), call.shape(1)
    if len(x) != len(y):
        raise call.error("TW1204", f"{call.op} has operands of rank {len(x)} and {len(y)}")
    for a, b in zip(x, y, strict=True):
        same_dim(call, a, b, "both operands")
    return (TensorType(I8, x),)


def _add(call: Call, x: Array, y: Array) -> Array:
    sums = x.astype(np.int32) * call["a"] + y.astype(np.int32) * call["b"]
    scalars = [np.array(call[name], np.int32) for name in ("bias", "multiplier", "shift")]
    return requantized(call, sums, *scalars)


def _pool_type(call: Call) -> tuple[Type, ...]:
    _check_bytes(call, 0)
    x = call.shape(0)
    dims = []
    for axis, size in enumerate(x[2:]):
        pads = call["pads"][axis] + call["pads"][axis + len(x) - 2]
        reach = (call["kernel"][axis] - 1) * call["dilations"][axis] + 1
        dims.append(sym.simplify(sym.floordiv(size + (pads - reach), call["strides"][axis]) + 1))
    return (TensorType(I8, (*x[:2], *dims)),)


def _pool(call: Call, x: Array) -> Array:
    padded = pad_spatial(x, call["pads"], -128)
    counts = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(
            padded.shape[2:], call["kernel"], call["strides"], call["dilations"], strict=True
        )
    ]
    out: Array = np.full((*x.shape[:2], *counts), -128, np.int8)
    for _, where in taps(call["kernel"], counts, call["strides"], call["dilations"]):
        out = np.maximum(out, padded[where])
    return out


def _concat_type(call: Call) -> tuple[Type, ...]:
    count = len(call.types)
    _check_bytes(call, *range(count))
    if any(len(call[name]) != count for name in _OF_OPERANDS):
        raise call.error("TW1206", f"{call.op} of {count} tensors has as many of each parameter")
    return concat_type(call)


def _concat(call: Call, *arrays: Array) -> Array:
    parts = []
    for array, *given in zip(arrays, *(call[name] for name in _OF_OPERANDS), strict=True):
        scalars = [np.array(number, np.int32) for number in given]
        parts.append(requantized(call, array.astype(np.int32), *scalars))
    return np.concatenate(parts, axis=call["axis"])


OPS = (
    Op(
        "requantize",
        "clamp(round((x + bias) * multiplier / 2**shift) + zero, low, high), halves up.",
        (Input("x", INTEGER), *_PARAMETERS),
        _requantize_type,
        requantized,
        BROADCAST,
        _LIMITS,
    ),
    Op(
        "quantized_conv",
        "requantize(conv_integer(x, w, x_zero)), channels along axis 1.",
        (Input("x", INTEGER), Input("w", INTEGER), *_PARAMETERS),
        _conv_type,
        _conv,
        OPAQUE,
        (STRIDES, PADS, DILATIONS, GROUPS, _X_ZERO, *_LIMITS),
        native=False,
    ),
    Op(
        "quantized_matmul",
        "requantize((x - x_zero) @ w), x as a matrix with a row per image.",
        (Input("x", INTEGER), Input("w", INTEGER), *_PARAMETERS),
        _matmul_type,
        _matmul,
        OPAQUE,
        (_X_ZERO, *_LIMITS),
        native=False,
    ),
    Op(
        "quantized_batch_matmul",
        "requantize((x - x_zero) @ (y - y_zero)), for every matrix of a batch.",
        (Input("x", INTEGER), Input("y", INTEGER)),
        _batch_matmul_type,
        _batch_matmul,
        OPAQUE,
        (
            *(Attr(name, int, required=True) for name in ("multiplier", "shift")),
            *(_X_ZERO, Attr("y_zero", int, 0)),
            *_LIMITS,
        ),
        native=False,
    ),
    Op(
        "quantized_add",
        "requantize(x * a + y * b).",
        (Input("x", INTEGER), Input("y", INTEGER)),
        _add_type,
        _add,
        OPAQUE,
        tuple(Attr(name, int, required=True) for name in ("a", "b", "bias", "multiplier", "shift"))
        + _LIMITS,
        native=False,
    ),
    Op(
        "quantized_max_pool",
        "The maximum of each window of bytes.",
        (Input("x", INTEGER),),
        _pool_type,
        _pool,
        OPAQUE,
        (Attr("kernel", tuple, required=True), STRIDES, PADS, DILATIONS),
        native=False,
    ),
    Op(
        "quantized_concat",
        "Concatenation of tensors of bytes, each requantized to another scale.",
        (Input("x", INTEGER, variadic=True),),
        _concat_type,
        _concat,
        OPAQUE,
        (
            Attr("axis", int, required=True),
            *(Attr(name, tuple, required=True) for name in _OF_OPERANDS),
            *_LIMITS,
        ),
        native=False,
    ),
)
