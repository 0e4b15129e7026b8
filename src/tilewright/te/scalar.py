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
    """A constant; without a type, f32 for floats, i32 for integers, bool for booleans.

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
    """The least finite value of a type.

    Examples:
        >>> from tilewright import te
        >>> print(te.min_value("int8"))
        -128
    """
    of = _dtype(dtype)
    return sym.const(-_greatest(of) if of.is_float else of.min, of)


def max_value(dtype: DTypeLike) -> Expr:
    """The greatest finite value of a type.

    Examples:
        >>> from tilewright import te
        >>> print(te.max_value("int8"))
        127
    """
    of = _dtype(dtype)
    return sym.const(_greatest(of) if of.is_float else of.max, of)


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
    """Whether a condition does not hold.

    Examples:
        >>> from tilewright import te
        >>> print(te.logical_not(te.var("i") < 8))
        not i < 8
    """
    return sym.logical_not(condition(x, "the operand of te.logical_not"))


def eq(a: Any, b: Any) -> Expr:
    """Whether two values are equal; `==` on expressions compares objects.

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
    """`t` where `cond`, else `f`; only the chosen one is evaluated.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: te.if_then_else(i >= 1, A[i - 1], 0.0), name="B")
        >>> B
        <Tensor B: f32[8]>
    """
    return _choice(condition(cond, "the condition of te.if_then_else"), t, f)


def select(cond: Any, t: Any, f: Any) -> Expr:
    """The same as `if_then_else`.

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


def cast(x: Any, dtype: DTypeLike) -> Expr:
    """`x` converted to another type.

    Examples:
        >>> from tilewright import te
        >>> print(te.cast(te.var("x", "f32"), "i32"))
        i32(%x)
    """
    return sym.cast(x if isinstance(x, (int, float)) else sym.as_expr(x), _dtype(dtype))


def div(a: Any, b: Any) -> Expr:
    """True division of floats; division of integers that rounds towards zero.

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
    """Integer division that rounds towards zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.truncdiv(te.var("x", "i32"), 3))
        truncdiv(%x, i32(3))
    """
    return _call2("truncdiv", a, b)


def truncmod(a: Any, b: Any) -> Expr:
    """The remainder of `truncdiv`; it has the sign of `a`.

    Examples:
        >>> from tilewright import te
        >>> print(te.truncmod(te.var("x", "i32"), 3))
        truncmod(%x, i32(3))
    """
    return _call2("truncmod", a, b)


def floordiv(a: Any, b: Any) -> Expr:
    """Integer division that rounds down.

    Examples:
        >>> from tilewright import te
        >>> print(te.floordiv(te.var("n"), 8))
        n // 8
    """
    return sym.floordiv(a, b)


def floormod(a: Any, b: Any) -> Expr:
    """The remainder of `floordiv`; it has the sign of `b`.

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


def _call1(op: str, x: Any) -> Expr:
    return call(op, value_of(x))


def _call2(op: str, a: Any, b: Any) -> Expr:
    """A number takes the type of the other operand."""
    if not _is_value(a) and _is_value(b):
        a = sym.as_expr(a, sym.as_expr(b).dtype.scalar)
    return call(op, value_of(a), b)


def exp(x: Any) -> Expr:
    """e to the power of x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp(te.var("x", "f32")))
        exp(%x)
    """
    return _call1("exp", x)


def exp2(x: Any) -> Expr:
    """2 to the power of x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp2(te.var("x", "f32")))
        exp2(%x)
    """
    return _call1("exp2", x)


def exp10(x: Any) -> Expr:
    """10 to the power x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp10(te.var("x", "f32")))
        pow(f32(10.0), %x)
    """
    return _call2("pow", sym.const(10.0, value_of(x).dtype), x)


def expm1(x: Any) -> Expr:
    """exp(x) - 1, exact near zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.expm1(te.var("x", "f32")))
        expm1(%x)
    """
    return _call1("expm1", x)


def log(x: Any) -> Expr:
    """The natural logarithm.

    Examples:
        >>> from tilewright import te
        >>> print(te.log(te.var("x", "f32")))
        log(%x)
    """
    return _call1("log", x)


def log2(x: Any) -> Expr:
    """The logarithm to base 2.

    Examples:
        >>> from tilewright import te
        >>> print(te.log2(te.var("x", "f32")))
        log2(%x)
    """
    return _call1("log2", x)


def log10(x: Any) -> Expr:
    """The logarithm to base 10.

    Examples:
        >>> from tilewright import te
        >>> print(te.log10(te.var("x", "f32")))
        log10(%x)
    """
    return _call1("log10", x)


def log1p(x: Any) -> Expr:
    """log(1 + x), exact near zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.log1p(te.var("x", "f32")))
        log1p(%x)
    """
    return _call1("log1p", x)


def sqrt(x: Any) -> Expr:
    """The square root.

    Examples:
        >>> from tilewright import te
        >>> print(te.sqrt(te.var("x", "f32")))
        sqrt(%x)
    """
    return _call1("sqrt", x)


def rsqrt(x: Any) -> Expr:
    """1 / sqrt(x).

    Examples:
        >>> from tilewright import te
        >>> print(te.rsqrt(te.var("x", "f32")))
        rsqrt(%x)
    """
    return _call1("rsqrt", x)


def sigmoid(x: Any) -> Expr:
    """1 / (1 + exp(-x)).

    Examples:
        >>> from tilewright import te
        >>> print(te.sigmoid(te.var("x", "f32")))
        sigmoid(%x)
    """
    return _call1("sigmoid", x)


def erf(x: Any) -> Expr:
    """The error function.

    Examples:
        >>> from tilewright import te
        >>> print(te.erf(te.var("x", "f32")))
        erf(%x)
    """
    return _call1("erf", x)


def gelu(x: Any, *, tanh: bool = False) -> Expr:
    """x times the normal distribution function of x, by erf or by the usual formula with tanh.

    The error is at most 2 units in the last place of x: below about -4, where the result is much
    smaller than x, it has fewer digits.

    Examples:
        >>> from tilewright import te
        >>> print(te.gelu(te.var("x", "f32")))
        %x * 0.5 * (erf(%x * 0.70710677) + 1.0)
    """
    of = value_of(x)
    if tanh:
        inner = _call1("tanh", (of + of * of * of * 0.044715) * math.sqrt(2 / math.pi))
    else:
        inner = erf(of * math.sqrt(0.5))
    return of * 0.5 * (inner + 1.0)


def sin(x: Any) -> Expr:
    """The sine of radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.sin(te.var("x", "f32")))
        sin(%x)
    """
    return _call1("sin", x)


def cos(x: Any) -> Expr:
    """The cosine of radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.cos(te.var("x", "f32")))
        cos(%x)
    """
    return _call1("cos", x)


def tan(x: Any) -> Expr:
    """The tangent of radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.tan(te.var("x", "f32")))
        tan(%x)
    """
    return _call1("tan", x)


def asin(x: Any) -> Expr:
    """The arc sine, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.asin(te.var("x", "f32")))
        asin(%x)
    """
    return _call1("asin", x)


def acos(x: Any) -> Expr:
    """The arc cosine, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.acos(te.var("x", "f32")))
        acos(%x)
    """
    return _call1("acos", x)


def atan(x: Any) -> Expr:
    """The arc tangent, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.atan(te.var("x", "f32")))
        atan(%x)
    """
    return _call1("atan", x)


def sinh(x: Any) -> Expr:
    """The hyperbolic sine.

    Examples:
        >>> from tilewright import te
        >>> print(te.sinh(te.var("x", "f32")))
        sinh(%x)
    """
    return _call1("sinh", x)


def cosh(x: Any) -> Expr:
    """The hyperbolic cosine.

    Examples:
        >>> from tilewright import te
        >>> print(te.cosh(te.var("x", "f32")))
        cosh(%x)
    """
    return _call1("cosh", x)


def tanh(x: Any) -> Expr:
    """The hyperbolic tangent.

    Examples:
        >>> from tilewright import te
        >>> print(te.tanh(te.var("x", "f32")))
        tanh(%x)
    """
    return _call1("tanh", x)


def asinh(x: Any) -> Expr:
    """The inverse hyperbolic sine.

    Examples:
        >>> from tilewright import te
        >>> print(te.asinh(te.var("x", "f32")))
        asinh(%x)
    """
    return _call1("asinh", x)


def acosh(x: Any) -> Expr:
    """The inverse hyperbolic cosine.

    Examples:
        >>> from tilewright import te
        >>> print(te.acosh(te.var("x", "f32")))
        acosh(%x)
    """
    return _call1("acosh", x)


def atanh(x: Any) -> Expr:
    """The inverse hyperbolic tangent.

    Examples:
        >>> from tilewright import te
        >>> print(te.atanh(te.var("x", "f32")))
        atanh(%x)
    """
    return _call1("atanh", x)


def atan2(x1: Any, x2: Any) -> Expr:
    """The angle of the point (x2, x1), in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.atan2(te.var("x", "f32"), te.var("y", "f32")))
        atan2(%x, %y)
    """
    return _call2("atan2", x1, x2)


def pow(x: Any, y: Any) -> Expr:
    """x to the power of y.

    Examples:
        >>> from tilewright import te
        >>> print(te.pow(te.var("x", "f32"), te.var("y", "f32")))
        pow(%x, %y)
    """
    return _call2("pow", x, y)


power = pow


def fmod(x: Any, y: Any) -> Expr:
    """The remainder of a division that rounds towards zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.fmod(te.var("x", "f32"), te.var("y", "f32")))
        fmod(%x, %y)
    """
    return _call2("fmod", x, y)


def copysign(x1: Any, x2: Any) -> Expr:
    """The size of `x1` with the sign of `x2`.

    Examples:
        >>> from tilewright import te
        >>> print(te.copysign(te.var("x", "f32"), te.var("y", "f32")))
        copysign(%x, %y)
    """
    return _call2("copysign", x1, x2)


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c, rounded once.

    Examples:
        >>> from tilewright import te
        >>> x = te.var("x", "f32")
        >>> print(te.fma(x, x, 1.0))
        fma(%x, %x, f32(1.0))
    """
    return call("fma", value_of(a), b, c)


def floor(x: Any) -> Expr:
    """The greatest integer that is not above.

    Examples:
        >>> from tilewright import te
        >>> print(te.floor(te.var("x", "f32")))
        floor(%x)
    """
    return _call1("floor", x)


def ceil(x: Any) -> Expr:
    """The least integer that is not below.

    Examples:
        >>> from tilewright import te
        >>> print(te.ceil(te.var("x", "f32")))
        ceil(%x)
    """
    return _call1("ceil", x)


def trunc(x: Any) -> Expr:
    """The integer part.

    Examples:
        >>> from tilewright import te
        >>> print(te.trunc(te.var("x", "f32")))
        trunc(%x)
    """
    return _call1("trunc", x)


def round(x: Any) -> Expr:
    """To the nearest integer, halves to the even one, as NumPy and ONNX do.

    Examples:
        >>> from tilewright import te
        >>> print(te.round(te.var("x", "f32")))
        round(%x)
    """
    return _call1("round", x)


nearbyint = round


def abs(x: Any) -> Expr:
    """The absolute value.

    Examples:
        >>> from tilewright import te
        >>> print(te.abs(te.var("x", "f32")))
        abs(%x)
    """
    return _call1("abs", x)


def isnan(x: Any) -> Expr:
    """Whether a number is NaN.

    Examples:
        >>> from tilewright import te
        >>> print(te.isnan(te.var("x", "f32")))
        isnan(%x)
    """
    return _call1("isnan", x)


def isinf(x: Any) -> Expr:
    """Whether a number is infinite.

    Examples:
        >>> from tilewright import te
        >>> print(te.isinf(te.var("x", "f32")))
        isinf(%x)
    """
    return _call1("isinf", x)


def isfinite(x: Any) -> Expr:
    """Whether a number is neither infinite nor NaN.

    Examples:
        >>> from tilewright import te
        >>> print(te.isfinite(te.var("x", "f32")))
        not (isnan(%x) or isinf(%x))
    """
    return sym.logical_not(sym.logical_or(isnan(x), isinf(x)))


def bitwise_and(x: Any, y: Any) -> Expr:
    """The bits that both integers have.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_and(te.var("x", "i32"), 3))
        bit_and(%x, i32(3))
    """
    return _call2("bit_and", x, y)


def bitwise_or(x: Any, y: Any) -> Expr:
    """The bits that either integer has.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_or(te.var("x", "i32"), 3))
        bit_or(%x, i32(3))
    """
    return _call2("bit_or", x, y)


def bitwise_xor(x: Any, y: Any) -> Expr:
    """The bits that one integer has and the other has not.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_xor(te.var("x", "i32"), 3))
        bit_xor(%x, i32(3))
    """
    return _call2("bit_xor", x, y)


def bitwise_not(x: Any) -> Expr:
    """The bits that an integer has not.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_not(te.var("x", "i32")))
        bit_not(%x)
    """
    return _call1("bit_not", x)


def shift_left(x: Any, y: Any) -> Expr:
    """The bits of x moved to higher places.

    Examples:
        >>> from tilewright import te
        >>> print(te.shift_left(te.var("x", "i32"), 3))
        shift_left(%x, i32(3))
    """
    return _call2("shift_left", x, y)


def shift_right(x: Any, y: Any) -> Expr:
    """The bits of x moved to lower places; the sign stays.

    Examples:
        >>> from tilewright import te
        >>> print(te.shift_right(te.var("x", "i32"), 3))
        shift_right(%x, i32(3))
    """
    return _call2("shift_right", x, y)


def popcount(x: Any) -> Expr:
    """How many bits of an integer are set.

    Examples:
        >>> from tilewright import te
        >>> print(te.popcount(te.var("x", "i32")))
        popcount(%x)
    """
    return _call1("popcount", x)


def bits_of(x: Any) -> Expr:
    """The bits of a float as a signed integer of the same width.

    Examples:
        >>> from tilewright import te
        >>> print(te.bits_of(te.var("x", "f32")))
        bits_of(%x)
    """
    return _call1("bits_of", x)


def from_bits(x: Any) -> Expr:
    """The float that has the bits of an integer of the same width.

    Examples:
        >>> from tilewright import te
        >>> print(te.from_bits(te.var("x", "i32")))
        from_bits(%x)
    """
    return _call1("from_bits", x)
