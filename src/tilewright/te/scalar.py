"""Constants, conditions and division in tensor expressions, with TVM's names.

    te.if_then_else(te.all(i >= 1, i <= n), A[i - 1], 0.0)

Division: `/` and `te.div` of floats is true division; `//`, `floordiv` and `indexdiv` round down;
`te.div` and `truncdiv` of integers truncate, as in C. Only the selected operand of `select` and
`if_then_else` is evaluated: a guarded read is safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, I32, DType, dtype
from tilewright.sym import Expr
from tilewright.te.source import type_error, value_error
from tilewright.tensor.calls import call

DTypeLike = str | DType | np.dtype[Any] | type


# --------------------------------------------------------------------------- constants


def const(value: Any, dtype: DTypeLike | None = None) -> Expr:
    """Make a constant; without a type, f32 for floats, i32 for integers, bool for booleans.

    Examples:
        >>> from tilewright import te
        >>> te.const(3).dtype
        dtype('i32')
        >>> te.const(3, "f16").dtype
        dtype('f16')
    """
    if dtype is None:
        return value_of(value)
    of = _dtype(dtype)
    try:
        fits = not of.is_int or of.min <= int(value) <= of.max
        if fits:
            return sym.const(value, of)
    except OverflowError:  # infinity converted to an integer
        pass
    except (TypeError, ValueError) as error:
        raise type_error("TW2408", f"cannot use {value!r} as a constant of {of}") from error
    raise value_error(
        "TW2426",
        f"{value} is not a value of {of}",
        help=f"{of} holds {of.min} to {of.max}",
    )


def value_of(value: Any) -> Expr:
    """Convert a value to an expression; a number becomes a constant of the type TVM gives it."""
    if isinstance(value, Expr) or hasattr(value, "as_expr"):
        return sym.as_expr(value)
    if isinstance(value, np.generic):
        return sym.const(value.item(), dtype(value.dtype))
    if isinstance(value, bool):
        return sym.const(value, BOOL)
    if isinstance(value, int):
        return sym.const(value, I32)
    if isinstance(value, float):
        return sym.const(value, F32)
    raise type_error("TW2408", f"cannot use {type(value).__name__} as a value")


def min_value(dtype: DTypeLike) -> Expr:
    """The minimum finite value of a type.

    Examples:
        >>> from tilewright import te
        >>> print(te.min_value("int8"))
        -128
    """
    of = _dtype(dtype)
    return sym.const(of.min_finite if of.is_float else of.min, of)


def max_value(dtype: DTypeLike) -> Expr:
    """The maximum finite value of a type.

    Examples:
        >>> from tilewright import te
        >>> print(te.max_value("int8"))
        127
    """
    of = _dtype(dtype)
    return sym.const(of.max_finite if of.is_float else of.max, of)


def infinity(dtype: DTypeLike) -> Expr:
    """Positive infinity of a float type.

    Examples:
        >>> from tilewright import te
        >>> print(te.infinity("f32"))
        inf
    """
    of = _dtype(dtype)
    if not of.is_float:
        raise type_error("TW2408", f"{of} has no infinity")
    return sym.const(float("inf"), of)


def _dtype(value: DTypeLike) -> DType:
    return dtype(value)


# --------------------------------------------------------------------------- conditions


def condition(value: Any, what: str) -> Expr:
    """Convert to a boolean expression. A Python bool is rejected: it is likely a `==` of
    objects."""
    if isinstance(value, (bool, np.bool_)):
        raise type_error(
            "TW2409",
            f"{what} is the Python value {value}, not an expression",
            help="`==` and `!=` compare objects: write te.eq(a, b) or te.ne(a, b)",
        )
    expr = sym.as_expr(value)
    if not expr.dtype.is_bool:
        raise type_error(
            "TW2409",
            f"{what} has type {expr.dtype}, not bool",
            help="compare it: te.ne(x, 0), x > 0",
        )
    return expr


def all(*args: Any) -> Expr:
    """The conjunction of conditions.

    Examples:
        >>> from tilewright import te
        >>> i = te.var("i")
        >>> print(te.all(i >= 1, i < 8))
        1 <= i and i < 8
    """
    if not args:
        raise value_error("TW2409", "te.all needs at least one condition")
    return sym.all_of(*(condition(arg, "a condition of te.all") for arg in args))


def any(*args: Any) -> Expr:
    """The disjunction of conditions.

    Examples:
        >>> from tilewright import te
        >>> i = te.var("i")
        >>> print(te.any(i < 1, i >= 8))
        i < 1 or 8 <= i
    """
    if not args:
        raise value_error("TW2409", "te.any needs at least one condition")
    return sym.any_of(*(condition(arg, "a condition of te.any") for arg in args))


def logical_not(x: Any) -> Expr:
    """The negation of a condition.

    Examples:
        >>> from tilewright import te
        >>> print(te.logical_not(te.var("i") < 8))
        not i < 8
    """
    return sym.logical_not(condition(x, "the operand of te.logical_not"))


def eq(a: Any, b: Any) -> Expr:
    """Whether two values are equal; `==` on expressions compares identity.

    Examples:
        >>> from tilewright import te
        >>> print(te.eq(te.var("i"), 0))
        i == 0
    """
    return sym.eq(a, b)


def ne(a: Any, b: Any) -> Expr:
    """Whether two values differ.

    Examples:
        >>> from tilewright import te
        >>> print(te.ne(te.var("i"), 0))
        i != 0
    """
    return sym.ne(a, b)


def if_then_else(cond: Any, t: Any, f: Any) -> Expr:
    """`t` if `cond`, else `f`; only the selected one is evaluated.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: te.if_then_else(i >= 1, A[i - 1], 0.0), name="B")
        >>> B
        <Tensor B: f32[8]>
    """
    return _choice(condition(cond, "the condition of te.if_then_else"), t, f)


def select(cond: Any, t: Any, f: Any) -> Expr:
    """An alias of `if_then_else`.

    Examples:
        >>> from tilewright import te
        >>> x = te.var("x", "f32")
        >>> print(te.select(x > 0.0, x, 0.0))
        select(0.0 < %x, %x, 0.0)
    """
    return _choice(condition(cond, "the condition of te.select"), t, f)


def _choice(cond: Expr, t: Any, f: Any) -> Expr:
    if not isinstance(t, Expr) and not hasattr(t, "as_expr"):
        t = sym.as_expr(t, sym.as_expr(f).dtype) if _is_value(f) else value_of(t)
    return sym.select(cond, sym.as_expr(t), f)


def _is_value(x: Any) -> bool:
    return isinstance(x, Expr) or hasattr(x, "as_expr")


# --------------------------------------------------------------------------- arithmetic


def unary(op: str, x: Any) -> Expr:
    """Call a function of one scalar, by its name in `tensor/calls.py`."""
    return call(op, value_of(x))


def binary(op: str, a: Any, b: Any) -> Expr:
    """Call a function of two scalars; a number takes the type of the other operand."""
    if not _is_value(a) and _is_value(b):
        a = sym.as_expr(a, sym.as_expr(b).dtype.scalar)
    return call(op, value_of(a), b)


def cast(x: Any, dtype: DTypeLike) -> Expr:
    """`x` converted to another type.

    Examples:
        >>> from tilewright import te
        >>> print(te.cast(te.var("x", "f32"), "i32"))
        i32(%x)
    """
    return sym.cast(x if isinstance(x, (int, float)) else sym.as_expr(x), _dtype(dtype))


def div(a: Any, b: Any) -> Expr:
    """True division of floats; truncating division of integers.

    Examples:
        >>> from tilewright import te
        >>> print(te.div(te.var("x", "f32"), 2.0))
        %x / 2.0
        >>> print(te.div(te.var("i", "i32"), 2))
        truncdiv(%i, i32(2))
    """
    kind = (sym.as_expr(a) if _is_value(a) else sym.as_expr(b)).dtype
    return sym.div(a, b) if kind.is_float else truncdiv(a, b)


def truncdiv(a: Any, b: Any) -> Expr:
    """Integer division that truncates.

    Examples:
        >>> from tilewright import te
        >>> print(te.truncdiv(te.var("x", "i32"), 3))
        truncdiv(%x, i32(3))
    """
    return binary("truncdiv", a, b)


def truncmod(a: Any, b: Any) -> Expr:
    """The remainder of `truncdiv`, with the sign of `a`.

    Examples:
        >>> from tilewright import te
        >>> print(te.truncmod(te.var("x", "i32"), 3))
        truncmod(%x, i32(3))
    """
    return binary("truncmod", a, b)


def floordiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds down.

    Examples:
        >>> from tilewright import te
        >>> print(te.floordiv(te.var("n"), 8))
        n // 8
    """
    return sym.floordiv(a, b)


def floormod(a: Any, b: Any) -> Expr:
    """The remainder of `floordiv`, with the sign of `b`.

    Examples:
        >>> from tilewright import te
        >>> print(te.floormod(te.var("n"), 8))
        n % 8
    """
    return sym.floormod(a, b)


indexdiv, indexmod = floordiv, floormod


def ceildiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds up, for b > 0.

    Examples:
        >>> from tilewright import te
        >>> print(te.ceildiv(te.var("n"), 8))
        (n + 7) // 8
    """
    return sym.ceildiv(a, b)
