"""Conversion between element types, by value or by bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dtype import DType, from_numpy
from tilewright.graph.op import ELEMENTWISE, Attr, Call, Input, Known, Op
from tilewright.graph.ops.strings import numbers_of_text, text_of
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]


def _converted_type(call: Call) -> tuple[Type, ...]:
    to = call["to"]
    assert isinstance(to, DType)
    return (TensorType(to, call.tensor(0).shape),)


def _same_contents(call: Call) -> Known | None:
    """Integers keep their value unless the target type is too narrow for a size."""
    to = call["to"]
    return call.value(0) if to.is_int and to.bits >= 32 else None


def cast_array(array: Array, to: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Convert by value.

    Floats to integers truncate and saturate, NaN becomes 0; integers to integers wrap; floats to
    floats round half to even and overflow to infinity. The 8-bit floats saturate if requested, and
    otherwise overflow as their format defines.
    """
    array = np.asarray(array)
    have = from_numpy(array.dtype)
    if have is to:
        return array
    if to.is_str:
        return text_of(array)
    if have.is_str:
        return numbers_of_text(array, to)
    if to.is_bool:
        return np.asarray(array != 0)
    if to.is_int:
        return _saturated(array, to) if have.is_float else _wrapped(array, to)
    if to.scalar_name == "f8e8m0":
        return _power_of_two(array.astype(np.float64), to, saturate=saturate, mode=round_mode)
    if have.bits < 8 or (have.is_float and have.bits < 32):
        array = array.astype(np.float32)
    out = array.astype(to.numpy)
    if to.bits == 8 and saturate:
        lost = ~np.isfinite(out) & ~np.isnan(array)
        most = np.copysign(to.max_finite, array).astype(to.numpy)
        out = np.where(lost, most, out)
    return out


def _wrapped(array: Array, to: DType) -> Array:
    """Integer conversion, which wraps."""
    if to.bits >= 8 and array.dtype.kind in "iub":
        return array.astype(to.numpy)
    low = array.astype(np.int64) & ((1 << to.bits) - 1) if to.bits < 64 else array.astype(np.int64)
    if to.kind == "int" and to.bits < 64:
        half = 1 << (to.bits - 1)
        low = (low ^ half) - half
    return low.astype(to.numpy)


def _saturated(array: Array, to: DType) -> Array:
    """Float to integer conversion: truncates and saturates."""
    if to.bits < 32 and array.dtype.itemsize >= 4:  # the type's limits are exact in f32
        number = np.where(np.isnan(array), 0, np.clip(array, to.min, to.max))
        return number.astype(np.int32).astype(to.numpy)
    wide = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0))
    high = wide >= float(to.max)
    inside = np.where(high, 0, np.maximum(wide, float(to.min)))
    out = inside.astype(np.uint64 if to.kind == "uint" else np.int64)
    return np.where(high, np.array(to.max, out.dtype), out).astype(to.numpy)


def _power_of_two(x: Array, to: DType, *, saturate: bool, mode: str) -> Array:
    """The exponent of x, rounded: `up`, `down`, or `nearest` with ties up."""
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2**exponent, mantissa in [0.5, 1)
    limit = {"up": 0.5, "down": 1.0, "nearest": 0.75}[mode]
    above = mantissa > limit if mode == "up" else mantissa >= limit
    power = exponent - 1 + above
    power = np.where(x == np.inf, 128, np.where(x > 0, power, -128))
    out = np.ldexp(1.0, np.clip(power, -127, 127))
    lost = np.isnan(x) if saturate else np.isnan(x) | (power < -127) | (power > 127)
    return np.where(lost, np.nan, out).astype(to.numpy)


def _cast(call: Call, x: Array) -> Array:
    return cast_array(x, call["to"], saturate=call["saturate"], round_mode=call["round_mode"])


def _cast_text(call: Call, x: Array) -> Array:
    """Format or parse numbers: eight digits, integers without a fraction, NaN, INF and -INF."""
    to, items = call["to"], x.ravel().tolist()
    if to.is_str:
        made = [_written(item) for item in items]
        return np.array(made, object).reshape(x.shape)
    read = [float(text) if to.is_float else _whole(text) for text in items]
    return cast_array(np.array(read, np.float64 if to.is_float else np.int64), to).reshape(x.shape)


def _written(item: Any) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, float):
        return str(int(item))
    if math.isnan(item):
        return "NaN"
    return f"{item:.8g}" if math.isfinite(item) else "INF" if item > 0 else "-INF"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _bitcast_type(call: Call) -> tuple[Type, ...]:
    have, to = call.tensor(0).dtype, call["to"]
    if have.bits != to.bits:
        raise call.error(
            "TW1201",
            f"bitcast takes {have} of {have.bits} bits to {to} of {to.bits}",
            help="choose a type of the same width",
        )
    return _converted_type(call)


def _bitcast(call: Call, x: Array) -> Array:
    return np.asarray(np.ascontiguousarray(x).view(call["to"].numpy).reshape(x.shape))


OPS = (
    Op(
        "cast",
        "x converted to another element type.",
        (Input("x"),),
        _converted_type,
        _cast,
        ELEMENTWISE,
        (
            Attr("to", DType, required=True),
            Attr("saturate", bool, True),  # f8 only: overflow gives the largest value
            Attr("round_mode", str, "up"),  # f8e8m0 only: up, down, nearest
        ),
        evaluate=_same_contents,
    ),
    Op(
        "cast_text",
        "Numbers as text, or text as numbers.",
        (Input("x"),),
        _converted_type,
        _cast_text,
        ELEMENTWISE,
        (Attr("to", DType, required=True),),
        native=False,
    ),
    Op(
        "bitcast",
        "The bits of x read as another element type of the same width.",
        (Input("x"),),
        _bitcast_type,
        _bitcast,
        ELEMENTWISE,
        (Attr("to", DType, required=True),),
    ),
)
