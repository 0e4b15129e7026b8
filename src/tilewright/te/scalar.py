"""Scalar functions of tensor expressions, under TVM's names. `tensor/calls.py` is the list.

    te.if_then_else(te.all(i >= 1, i <= n), A[i - 1], 0.0)

Division: `/` and `te.div` of floats is true division; `//`, `floordiv` and `indexdiv` round down;
`te.div` and `truncdiv` of integers round towards zero, as C does. Only the chosen operand of
`select` and `if_then_else` is evaluated: a guarded read is safe.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, I32, DType, dtype
from tilewright.sym import Expr
from tilewright.te.source import type_error, value_error
from tilewright.tensor.calls import call

DTypeLike = str | DType | np.dtype[Any] | type


# --------------------------------------------------------------------------- constants


def const(value: Any, dtype: DTypeLike | None = None) -> Expr:
    """A constant; without a type, f32 for floats, i32 for integers, bool for booleans."""
    if dtype is None:
        return value_of(value)
    of = _dtype(dtype)
    try:
        fits = not of.is_int or of.min <= int(value) <= of.max
        if fits:
            return sym.const(value, of)
    except OverflowError:  # infinity as an integer
        pass
    except (TypeError, ValueError) as error:
        raise type_error("TW2408", f"cannot use {value!r} as a constant of {of}") from error
    raise value_error(
        "TW2426",
        f"{value} is not a value of {of}",
        help=f"{of} holds {of.min} to {of.max}",
    )


def value_of(value: Any) -> Expr:
    """A value as an expression, a number as a constant of the type TVM gives it."""
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
    """The least finite value of a type."""
    of = _dtype(dtype)
    return sym.const(-_greatest(of) if of.is_float else of.min, of)


def max_value(dtype: DTypeLike) -> Expr:
    """The greatest finite value of a type."""
    of = _dtype(dtype)
    return sym.const(_greatest(of) if of.is_float else of.max, of)


def infinity(dtype: DTypeLike) -> Expr:
    """Positive infinity of a float type."""
    of = _dtype(dtype)
    if not of.is_float:
        raise type_error("TW2408", f"{of} has no infinity")
    return sym.const(float("inf"), of)


def _greatest(of: DType) -> float:
    return float(ml_dtypes.finfo(of.numpy).max)  # type: ignore[no-untyped-call]  # it has no types


def _dtype(value: DTypeLike) -> DType:
    return dtype(value)


# --------------------------------------------------------------------------- conditions


def condition(value: Any, what: str) -> Expr:
    """A boolean expression. A Python bool is refused: it hides a `==` that compared objects."""
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
    """The conjunction of conditions."""
    if not args:
        raise value_error("TW2409", "te.all needs at least one condition")
    return sym.all_of(*(condition(arg, "a condition of te.all") for arg in args))


def any(*args: Any) -> Expr:
    """The disjunction of conditions."""
    if not args:
        raise value_error("TW2409", "te.any needs at least one condition")
    return sym.any_of(*(condition(arg, "a condition of te.any") for arg in args))


def logical_not(x: Any) -> Expr:
    """Whether a condition does not hold."""
    return sym.logical_not(condition(x, "the operand of te.logical_not"))


def eq(a: Any, b: Any) -> Expr:
    """Whether two values are equal; `==` on expressions compares objects."""
    return sym.eq(a, b)


def ne(a: Any, b: Any) -> Expr:
    """Whether two values differ."""
    return sym.ne(a, b)


def if_then_else(cond: Any, t: Any, f: Any) -> Expr:
    """`t` where `cond`, else `f`; only the chosen one is evaluated."""
    return _choice(condition(cond, "the condition of te.if_then_else"), t, f)


def select(cond: Any, t: Any, f: Any) -> Expr:
    """The same as `if_then_else`."""
    return _choice(condition(cond, "the condition of te.select"), t, f)


def _choice(cond: Expr, t: Any, f: Any) -> Expr:
    if not isinstance(t, Expr) and not hasattr(t, "as_expr"):
        t = sym.as_expr(t, sym.as_expr(f).dtype) if _is_value(f) else value_of(t)
    return sym.select(cond, sym.as_expr(t), f)


def _is_value(x: Any) -> bool:
    return isinstance(x, Expr) or hasattr(x, "as_expr")


# --------------------------------------------------------------------------- arithmetic


def cast(x: Any, dtype: DTypeLike) -> Expr:
    """`x` converted to another type."""
    return sym.cast(x if isinstance(x, (int, float)) else sym.as_expr(x), _dtype(dtype))


def div(a: Any, b: Any) -> Expr:
    """True division of floats; division of integers that rounds towards zero."""
    kind = (sym.as_expr(a) if _is_value(a) else sym.as_expr(b)).dtype
    return sym.div(a, b) if kind.is_float else truncdiv(a, b)


def truncdiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds towards zero."""
    return _call2("truncdiv", a, b)


def truncmod(a: Any, b: Any) -> Expr:
    """The remainder of `truncdiv`; it has the sign of `a`."""
    return _call2("truncmod", a, b)


def floordiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds down."""
    return sym.floordiv(a, b)


def floormod(a: Any, b: Any) -> Expr:
    """The remainder of `floordiv`; it has the sign of `b`."""
    return sym.floormod(a, b)


indexdiv, indexmod = floordiv, floormod


def ceildiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds up, for b > 0."""
    return sym.ceildiv(a, b)


def _call1(op: str, x: Any) -> Expr:
    return call(op, value_of(x))


def _call2(op: str, a: Any, b: Any) -> Expr:
    """A number takes the type of the other operand."""
    if not _is_value(a) and _is_value(b):
        a = sym.as_expr(a, sym.as_expr(b).dtype.scalar)
    return call(op, value_of(a), b)


def exp(x: Any) -> Expr:
    """e to the power of x."""
    return _call1("exp", x)


def exp2(x: Any) -> Expr:
    """2 to the power of x."""
    return _call1("exp2", x)


def exp10(x: Any) -> Expr:
    """10 to the power x."""
    return _call2("pow", sym.const(10.0, value_of(x).dtype), x)


def expm1(x: Any) -> Expr:
    """exp(x) - 1, exact near zero."""
    return _call1("expm1", x)


def log(x: Any) -> Expr:
    """The natural logarithm."""
    return _call1("log", x)


def log2(x: Any) -> Expr:
    """The logarithm to base 2."""
    return _call1("log2", x)


def log10(x: Any) -> Expr:
    """The logarithm to base 10."""
    return _call1("log10", x)


def log1p(x: Any) -> Expr:
    """log(1 + x), exact near zero."""
    return _call1("log1p", x)


def sqrt(x: Any) -> Expr:
    """The square root."""
    return _call1("sqrt", x)


def rsqrt(x: Any) -> Expr:
    """1 / sqrt(x)."""
    return _call1("rsqrt", x)


def sigmoid(x: Any) -> Expr:
    """1 / (1 + exp(-x))."""
    return _call1("sigmoid", x)


def erf(x: Any) -> Expr:
    """The error function."""
    return _call1("erf", x)


def gelu(x: Any, *, tanh: bool = False) -> Expr:
    """x times the normal distribution function of x, by erf or by the usual formula with tanh.

    The error is at most 2 units in the last place of x: below about -4, where the result is much
    smaller than x, it has fewer digits.
    """
    of = value_of(x)
    if tanh:
        inner = _call1("tanh", (of + of * of * of * 0.044715) * math.sqrt(2 / math.pi))
    else:
        inner = erf(of * math.sqrt(0.5))
    return of * 0.5 * (inner + 1.0)


def sin(x: Any) -> Expr:
    """The sine of radians."""
    return _call1("sin", x)


def cos(x: Any) -> Expr:
    """The cosine of radians."""
    return _call1("cos", x)


def tan(x: Any) -> Expr:
    """The tangent of radians."""
    return _call1("tan", x)


def asin(x: Any) -> Expr:
    """The arc sine, in radians."""
    return _call1("asin", x)


def acos(x: Any) -> Expr:
    """The arc cosine, in radians."""
    return _call1("acos", x)


def atan(x: Any) -> Expr:
    """The arc tangent, in radians."""
    return _call1("atan", x)


def sinh(x: Any) -> Expr:
    """The hyperbolic sine."""
    return _call1("sinh", x)


def cosh(x: Any) -> Expr:
    """The hyperbolic cosine."""
    return _call1("cosh", x)


def tanh(x: Any) -> Expr:
    """The hyperbolic tangent."""
    return _call1("tanh", x)


def asinh(x: Any) -> Expr:
    """The inverse hyperbolic sine."""
    return _call1("asinh", x)


def acosh(x: Any) -> Expr:
    """The inverse hyperbolic cosine."""
    return _call1("acosh", x)


def atanh(x: Any) -> Expr:
    """The inverse hyperbolic tangent."""
    return _call1("atanh", x)


def atan2(x1: Any, x2: Any) -> Expr:
    """The angle of the point (x2, x1), in radians."""
    return _call2("atan2", x1, x2)


def pow(x: Any, y: Any) -> Expr:
    """x to the power of y."""
    return _call2("pow", x, y)


power = pow


def fmod(x: Any, y: Any) -> Expr:
    """The remainder of a division that rounds towards zero."""
    return _call2("fmod", x, y)


def copysign(x1: Any, x2: Any) -> Expr:
    """The size of `x1` with the sign of `x2`."""
    return _call2("copysign", x1, x2)


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", value_of(a), b, c)


def floor(x: Any) -> Expr:
    """The greatest integer that is not above."""
    return _call1("floor", x)


def ceil(x: Any) -> Expr:
    """The least integer that is not below."""
    return _call1("ceil", x)


def trunc(x: Any) -> Expr:
    """The integer part."""
    return _call1("trunc", x)


def round(x: Any) -> Expr:
    """To the nearest integer, halves to the even one, as NumPy and ONNX do."""
    return _call1("round", x)


nearbyint = round


def abs(x: Any) -> Expr:
    """The absolute value."""
    return _call1("abs", x)


def isnan(x: Any) -> Expr:
    """Whether a number is NaN."""
    return _call1("isnan", x)


def isinf(x: Any) -> Expr:
    """Whether a number is infinite."""
    return _call1("isinf", x)


def isfinite(x: Any) -> Expr:
    """Whether a number is neither infinite nor NaN."""
    return sym.logical_not(sym.logical_or(isnan(x), isinf(x)))


def bitwise_and(x: Any, y: Any) -> Expr:
    """The bits that both integers have."""
    return _call2("bit_and", x, y)


def bitwise_or(x: Any, y: Any) -> Expr:
    """The bits that either integer has."""
    return _call2("bit_or", x, y)


def bitwise_xor(x: Any, y: Any) -> Expr:
    """The bits that one integer has and the other has not."""
    return _call2("bit_xor", x, y)


def bitwise_not(x: Any) -> Expr:
    """The bits that an integer has not."""
    return _call1("bit_not", x)


def shift_left(x: Any, y: Any) -> Expr:
    """The bits of x moved to higher places."""
    return _call2("shift_left", x, y)


def shift_right(x: Any, y: Any) -> Expr:
    """The bits of x moved to lower places; the sign stays."""
    return _call2("shift_right", x, y)


def popcount(x: Any) -> Expr:
    """How many bits of an integer are set."""
    return _call1("popcount", x)


def bits_of(x: Any) -> Expr:
    """The bits of a float as a signed integer of the same width."""
    return _call1("bits_of", x)


def from_bits(x: Any) -> Expr:
    """The float that has the bits of an integer of the same width."""
    return _call1("from_bits", x)
