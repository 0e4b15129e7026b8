"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import te
from tilewright.lower.base import Lowering, Use, elementwise
from tilewright.sym import Expr
from tilewright.te import Tensor


def _of(fn: Callable[..., Any]) -> Lowering:
    """A lowering that applies `fn` to elements; small floats compute in f32 and round once."""

    def rule(use: Use, *operands: Tensor | None) -> Tensor:
        def wide(*values: Expr | None) -> Any:
            return fn(*[value if value is None else _widened(value) for value in values])

        return elementwise(use, wide, *operands)

    return rule


def _widened(value: Expr) -> Expr:
    small = value.dtype.is_float and value.dtype.bits < 32
    return te.cast(value, "f32") if small else value


def _zero(x: Expr) -> Expr:
    return te.const(0, x.dtype)


def _sign(x: Expr) -> Expr:
    below = te.select(x < _zero(x), te.const(-1, x.dtype), x)
    return te.select(x > _zero(x), te.const(1, x.dtype), below)


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if a.dtype.is_float else te.truncdiv(a, b)


def _mod(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        return a - b * te.floor(a / b)
    return te.floormod(a, b)


def _clip(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    out = x if low is None else te.max(x, low)
    return out if high is None else te.min(out, high)


def _not_equal(a: Expr, b: Expr) -> Expr:
    return te.ne(a, b)


LOWERINGS: dict[str, Lowering] = {
    "relu": _of(lambda x: te.max(x, _zero(x))),
    "neg": _of(lambda x: -x),
    "abs": _of(te.abs),
    "sign": _of(_sign),
    "reciprocal": _of(lambda x: te.const(1, x.dtype) / x),
    "add": _of(lambda a, b: a + b),
    "sub": _of(lambda a, b: a - b),
    "mul": _of(lambda a, b: a * b),
    "div": _of(_divide),
    "mod": _of(_mod),
    "pow": _of(te.pow),
    "minimum": _of(te.min),
    "maximum": _of(te.max),
    "equal": _of(te.eq),
    "not_equal": _of(_not_equal),
    "less": _of(lambda a, b: a < b),
    "less_equal": _of(lambda a, b: a <= b),
    "greater": _of(lambda a, b: a > b),
    "greater_equal": _of(lambda a, b: a >= b),
    "logical_and": _of(te.all),
    "logical_or": _of(te.any),
    "logical_xor": _of(_not_equal),
    "logical_not": _of(te.logical_not),
    "where": _of(te.select),
    "clip": _of(_clip),
    "cast": _of(lambda x: x),
    "bit_and": _of(te.bitwise_and),
    "bit_or": _of(te.bitwise_or),
    "bit_xor": _of(te.bitwise_xor),
    "bit_not": _of(te.bitwise_not),
    **{
        name: _of(getattr(te, name))
        for name in (
            *("exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "floor", "ceil", "round", "trunc"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"),
            *("acosh", "atanh", "log1p", "expm1", "exp2", "log2", "isnan", "fmod", "atan2"),
        )
    },
}
