"""Element-wise operators, with NumPy's broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.graph.op import (
    ANY,
    BOOLEAN,
    BROADCAST,
    ELEMENTWISE,
    FLOAT,
    INTEGER,
    NUMBER,
    Call,
    Input,
    Known,
    Op,
)
from tilewright.graph.ops.rules import (
    EMPTY,
    broadcast,
    broadcast_shapes,
    broadcast_to_bool,
    check_one_dtype,
    same_type,
)
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr, const
from tilewright.tensor.calls import CALLS

Array = np.ndarray[Any, Any]


def _in_f32(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compute low-precision floats in f32 and round once, as native code does."""

    def run(call: Call, *arrays: Array) -> Array:
        of = call.tensor(0).dtype
        if of.is_float and of.bits < 32:
            wide = [array.astype(np.float32) for array in arrays]
            return np.asarray(fn(*wide)).astype(of.numpy)
        return np.asarray(fn(*arrays))

    return run


def _unary(
    name: str,
    doc: str,
    fn: Callable[..., Any],
    kind: str = FLOAT,
    fold: Callable[[Any], Expr] | None = None,
) -> Op:
    evaluate = None if fold is None else _fold(fold)
    return Op(
        name, doc, (Input("x", kind),), same_type, _in_f32(fn), ELEMENTWISE, evaluate=evaluate
    )


def _fold(build: Callable[..., Expr | None]) -> Callable[[Call], Known | None]:
    """Apply a function to known contents, element by element with broadcasting: shape
    arithmetic."""

    def run(call: Call) -> Known | None:
        columns = []
        for at in range(len(call.types)):
            contents, shape = call.value(at), call.tensor(at).static_shape
            if contents is None or shape is None:
                return None
            column = np.empty(len(contents), object)
            column[:] = contents
            columns.append(column.reshape(shape))
        rows = zip(*map(np.ravel, np.broadcast_arrays(*columns)), strict=True)
        made = [build(*row) for row in rows]
        found = tuple(sym.simplify(expr) for expr in made if expr is not None)
        return found if len(found) == len(made) else None

    return run


def _known_truncdiv(a: Expr, b: Expr) -> Expr | None:
    """ONNX's integer division, which equals floor division for nonnegative operands."""
    if isinstance(a, Const) and isinstance(b, Const) and b.value:
        quotient = abs(int(a.value)) // abs(int(b.value))
        return const(quotient if (a.value < 0) == (b.value < 0) else -quotient)
    if sym.prove(sym.le(0, a), EMPTY) and sym.prove(sym.lt(0, b), EMPTY):
        return sym.floordiv(a, b)
    return None


def _decide(build: Callable[[Any, Any], Expr]) -> Callable[[Expr, Expr], Expr | None]:
    """Compare known contents: 1, 0, or None if it depends on sizes."""

    def run(a: Expr, b: Expr) -> Expr | None:
        test = build(a, b)
        if sym.prove(test, EMPTY):
            return const(1)
        return const(0) if sym.prove(sym.logical_not(test), EMPTY) else None

    return run


def _choose(cond: Expr, a: Expr, b: Expr) -> Expr | None:
    if isinstance(cond, Const):
        return a if cond.value else b
    return None


def _binary(
    name: str,
    doc: str,
    fn: Callable[..., Any],
    kind: str = NUMBER,
    fold: Callable[[Any, Any], Expr | None] | None = None,
) -> Op:
    inputs = (Input("a", kind), Input("b", kind))
    evaluate = None if fold is None else _fold(fold)
    return Op(name, doc, inputs, broadcast, _in_f32(fn), BROADCAST, evaluate=evaluate)


def _compare(
    name: str,
    doc: str,
    fn: Callable[..., Any],
    kind: str = ANY,
    fold: Callable[[Any, Any], Expr | None] | None = None,
) -> Op:
    return Op(
        name,
        doc,
        (Input("a", kind), Input("b", kind)),
        broadcast_to_bool,
        lambda call, a, b: np.asarray(fn(a, b)),
        BROADCAST,
        evaluate=None if fold is None else _fold(fold),
    )


def _divide(a: Array, b: Array) -> Array:
    """True division of floats; truncating division of integers."""
    if a.dtype.kind in "iu":
        return np.asarray(CALLS["truncdiv"].numpy(a, b))  # type: ignore[misc]
    return np.asarray(a / b)


def _power(a: Array, b: Array) -> Array:
    """Integers to negative powers truncate to -1, 0 or 1; NumPy rejects them."""
    if a.dtype.kind not in "iu" or b.dtype.kind != "i" or not np.any(b < 0):
        return np.asarray(np.power(a, b))
    unit = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)
    return np.where(b < 0, unit, np.power(a, np.maximum(b, 0)))


def _where_type(call: Call) -> tuple[Type, ...]:
    shapes = [call.shape(at) for at in range(3)]
    check_one_dtype(call, 1)
    return (TensorType(call.tensor(1).dtype, broadcast_shapes(call, shapes)),)


def _clip_type(call: Call) -> Sequence[Type]:
    """The type of x: bounds are broadcast to it, not conversely."""
    check_one_dtype(call)
    shapes = [call.tensor(at).shape for at in range(len(call.types)) if call.has(at)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        whole = broadcast_shapes(call, known)
        pairs = zip(whole, known[0], strict=False)
        grows = any(isinstance(a, Const) and isinstance(b, Const) and a is not b for a, b in pairs)
        if grows or len(whole) > len(known[0]):
            raise call.error("TW1011", "clip has bounds that are larger than its input")
    return same_type(call)


def _clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    out = x if low is None else np.maximum(x, low)
    return np.asarray(out if high is None else np.minimum(out, high))


_UNARY = (
    _unary("relu", "max(x, 0).", lambda x: np.maximum(x, np.zeros((), x.dtype)), NUMBER),
    _unary("neg", "-x.", np.negative, NUMBER, fold=lambda x: sym.mul(x, -1)),
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
    _binary("div", "a / b; integers truncate.", _divide, fold=_known_truncdiv),
    _binary("floordiv", "a // b, rounded down.", np.floor_divide, fold=_known_truncdiv),
    _binary("mod", "a - b * floor(a / b).", np.mod, fold=sym.floormod),
    _binary("fmod", "The remainder with the sign of a.", np.fmod),
    _binary("pow", "a to the power b.", _power),
    _binary("minimum", "The minimum; NaN propagates.", np.minimum, fold=sym.minimum),
    _binary("maximum", "The maximum; NaN propagates.", np.maximum, fold=sym.maximum),
    _binary("atan2", "The angle of (b, a).", np.arctan2, FLOAT),
    _binary("bit_and", "Bitwise and.", np.bitwise_and, INTEGER),
    _binary("bit_or", "Bitwise or.", np.bitwise_or, INTEGER),
    _binary("bit_xor", "Bitwise exclusive or.", np.bitwise_xor, INTEGER),
    # A negative count, or one beyond the width, shifts out all bits.
    _binary("shift_left", "a << b.", np.left_shift, INTEGER),
    _binary("shift_right", "a >> b, the sign bit repeated.", np.right_shift, INTEGER),
)
_COMPARE = (
    _compare("equal", "a == b.", np.equal, fold=_decide(sym.eq)),
    _compare("not_equal", "a != b.", np.not_equal, fold=_decide(sym.ne)),
    _compare("less", "a < b.", np.less, NUMBER, _decide(sym.lt)),
    _compare("less_equal", "a <= b.", np.less_equal, NUMBER, _decide(sym.le)),
    _compare("greater", "a > b.", np.greater, NUMBER, _decide(operator.gt)),
    _compare("greater_equal", "a >= b.", np.greater_equal, NUMBER, _decide(operator.ge)),
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
        evaluate=_fold(_choose),
    ),
    Op(
        "clip",
        "x limited to [low, high]; either bound may be absent.",
        (Input("x", NUMBER), Input("low", NUMBER, True), Input("high", NUMBER, True)),
        _clip_type,
        _clip,
        ELEMENTWISE,
    ),
)
OPS = (*_UNARY, *_BINARY, *_COMPARE, *_OTHERS)
