"""Operators that work element by element, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, DType
from tilewright.graph.op import (
    ANY,
    BOOLEAN,
    BROADCAST,
    ELEMENTWISE,
    FLOAT,
    INTEGER,
    NUMBER,
    Attr,
    Call,
    Input,
    Known,
    Op,
)
from tilewright.graph.ops.rules import (
    broadcast,
    broadcast_shapes,
    broadcast_to_bool,
    same_type,
)
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr
from tilewright.tensor.calls import CALLS

Array = np.ndarray[Any, Any]


def _in_f32(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Small floats compute in f32 and round once, as native code does."""

    def run(call: Call, *arrays: Array) -> Array:
        of = call.tensor(0).dtype
        if of.is_float and of.bits < 32:
            wide = [array.astype(np.float32) for array in arrays]
            return np.asarray(fn(*wide)).astype(of.numpy)
        return np.asarray(fn(*arrays))

    return run


def _unary(name: str, doc: str, fn: Callable[..., Any], kind: str = FLOAT) -> Op:
    inputs = (Input("x", kind),)
    return Op(name, doc, inputs, same_type, _in_f32(fn), ELEMENTWISE)


def _fold(build: Callable[[Any, Any], Expr]) -> Callable[[Call], Known | None]:
    """Shape arithmetic: apply to known contents, element by element."""

    def run(call: Call) -> Known | None:
        a, b = call.value(0), call.value(1)
        if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
            return None
        count = max(len(a), len(b))
        left, right = (v * count if len(v) == 1 else v for v in (a, b))
        return tuple(sym.simplify(build(x, y)) for x, y in zip(left, right, strict=True))

    return run


def _binary(
    name: str,
    doc: str,
    fn: Callable[..., Any],
    kind: str = NUMBER,
    fold: Callable[[Any, Any], Expr] | None = None,
) -> Op:
    inputs = (Input("a", kind), Input("b", kind))
    evaluate = None if fold is None else _fold(fold)
    return Op(name, doc, inputs, broadcast, _in_f32(fn), BROADCAST, evaluate=evaluate)


def _compare(name: str, doc: str, fn: Callable[..., Any], kind: str = ANY) -> Op:
    inputs = (Input("a", kind), Input("b", kind))
    return Op(
        name, doc, inputs, broadcast_to_bool, lambda call, a, b: np.asarray(fn(a, b)), BROADCAST
    )


def _divide(a: Array, b: Array) -> Array:
    """True division of floats; of integers, division that truncates."""
    if a.dtype.kind in "iu":
        return np.asarray(CALLS["truncdiv"].numpy(a, b))  # type: ignore[misc]
    return np.asarray(a / b)


def _where_type(call: Call) -> tuple[Type, ...]:
    shapes = [call.shape(at) for at in range(3)]
    return (TensorType(call.tensor(1).dtype, broadcast_shapes(call, shapes)),)


def _cast_type(call: Call) -> tuple[Type, ...]:
    to = call["to"]
    assert isinstance(to, DType)
    return (TensorType(to, call.tensor(0).shape),)


def cast_array(array: Array, to: DType, *, saturate: bool = True) -> Array:
    """Conversion by value: floats to integers truncate and saturate, NaN becomes 0."""
    if to.is_bool:
        return np.asarray(array != 0)
    if array.dtype.kind not in "iub" and to.is_int and saturate:
        wide = np.nan_to_num(array.astype(np.float64), nan=0.0)
        clipped = np.clip(np.trunc(wide), float(to.min), float(to.max))
        high = clipped >= float(to.max)
        out = np.where(high, 0, clipped).astype(np.int64 if to.bits < 64 else to.numpy)
        return np.where(high, to.numpy.type(to.max), out.astype(to.numpy)).astype(to.numpy)
    return array.astype(to.numpy)


def _clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    out = x if low is None else np.maximum(x, low)
    return np.asarray(out if high is None else np.minimum(out, high))


_UNARY = (
    _unary("relu", "max(x, 0).", lambda x: np.maximum(x, np.zeros((), x.dtype)), NUMBER),
    _unary("neg", "-x.", np.negative, NUMBER),
    _unary("abs", "|x|.", np.abs, NUMBER),
    _unary("sign", "-1, 0 or 1.", np.sign, NUMBER),
    _unary("reciprocal", "1 / x.", np.reciprocal),
    _unary("bit_not", "All bits flipped.", np.bitwise_not, INTEGER),
    *(
        _unary(name, f"{name}(x).", CALLS[name].numpy or np.abs)
        for name in (
            *("exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "floor", "ceil", "round", "trunc"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"),
            *("acosh", "atanh", "log1p", "expm1", "exp2", "log2"),
        )
    ),
)
_BINARY = (
    _binary("add", "a + b.", np.add, fold=sym.add),
    _binary("sub", "a - b.", np.subtract, fold=sym.sub),
    _binary("mul", "a * b.", np.multiply, fold=sym.mul),
    _binary("div", "a / b; integers truncate.", _divide, fold=sym.floordiv),
    _binary("floordiv", "a // b, rounded down.", np.floor_divide, fold=sym.floordiv),
    _binary("mod", "a - b * floor(a / b).", np.mod, fold=sym.floormod),
    _binary("fmod", "The remainder with the sign of a.", np.fmod),
    _binary("pow", "a to the power b.", np.power),
    _binary("minimum", "The lesser; NaN wins.", np.minimum, fold=sym.minimum),
    _binary("maximum", "The greater; NaN wins.", np.maximum, fold=sym.maximum),
    _binary("atan2", "The angle of (b, a).", np.arctan2, FLOAT),
    _binary("bit_and", "Bitwise and.", np.bitwise_and, INTEGER),
    _binary("bit_or", "Bitwise or.", np.bitwise_or, INTEGER),
    _binary("bit_xor", "Bitwise exclusive or.", np.bitwise_xor, INTEGER),
    _binary("shift_left", "a << b.", np.left_shift, INTEGER),
    _binary("shift_right", "a >> b.", np.right_shift, INTEGER),
)
_COMPARE = (
    _compare("equal", "a == b.", np.equal),
    _compare("not_equal", "a != b.", np.not_equal),
    _compare("less", "a < b.", np.less, NUMBER),
    _compare("less_equal", "a <= b.", np.less_equal, NUMBER),
    _compare("greater", "a > b.", np.greater, NUMBER),
    _compare("greater_equal", "a >= b.", np.greater_equal, NUMBER),
    _compare("logical_and", "a and b.", np.logical_and, BOOLEAN),
    _compare("logical_or", "a or b.", np.logical_or, BOOLEAN),
    _compare("logical_xor", "a xor b.", np.logical_xor, BOOLEAN),
)
_OTHERS = (
    Op(
        "logical_not",
        "not x.",
        (Input("x", BOOLEAN),),
        same_type,
        lambda call, x: np.logical_not(x),
        ELEMENTWISE,
    ),
    Op(
        "isnan",
        "Whether x is NaN.",
        (Input("x", FLOAT),),
        lambda call: (TensorType(BOOL, call.tensor(0).shape),),
        lambda call, x: np.isnan(x),
        ELEMENTWISE,
    ),
    Op(
        "where",
        "a where the condition holds, else b.",
        (Input("cond", BOOLEAN), Input("a"), Input("b")),
        _where_type,
        lambda call, cond, a, b: np.where(cond, a, b),
        BROADCAST,
    ),
    Op(
        "cast",
        "x converted to another element type.",
        (Input("x"),),
        _cast_type,
        lambda call, x: cast_array(x, call["to"]),
        ELEMENTWISE,
        (Attr("to", DType, required=True),),
        evaluate=lambda call: call.value(0) if call["to"].is_int else None,
    ),
    Op(
        "clip",
        "x kept within [low, high]; an absent bound is none.",
        (Input("x", NUMBER), Input("low", NUMBER, True), Input("high", NUMBER, True)),
        same_type,
        _clip,
        ELEMENTWISE,
    ),
)
OPS = (*_UNARY, *_BINARY, *_COMPARE, *_OTHERS)
