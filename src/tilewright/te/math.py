"""Scalar functions of tensor expressions, with TVM's names; listed in `tensor/calls.py`.

    te.exp(A[i]) / (1 + te.exp(A[i]))

Accuracy: docs/internals/math.md.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright import sym
from tilewright.sym import Expr
from tilewright.te.scalar import binary, unary, value_of
from tilewright.tensor.calls import call


def exp(x: Any) -> Expr:
    """e to the power of x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp(te.var("x", "f32")))
        exp(%x)
    """
    return unary("exp", x)


def exp_nonpositive(x: Any) -> Expr:
    """exp(min(x, 0)), with results below the normal range flushed to zero.

    It takes fewer instructions than `exp`; used by softmax.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp_nonpositive(te.var("x", "f32")))
        exp_nonpositive(%x)
    """
    return unary("exp_nonpositive", x)


def exp2(x: Any) -> Expr:
    """2 to the power of x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp2(te.var("x", "f32")))
        exp2(%x)
    """
    return unary("exp2", x)


def exp10(x: Any) -> Expr:
    """10 to the power x.

    Examples:
        >>> from tilewright import te
        >>> print(te.exp10(te.var("x", "f32")))
        pow(f32(10.0), %x)
    """
    return binary("pow", sym.const(10.0, value_of(x).dtype), x)


def expm1(x: Any) -> Expr:
    """exp(x) - 1, accurate near zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.expm1(te.var("x", "f32")))
        expm1(%x)
    """
    return unary("expm1", x)


def log(x: Any) -> Expr:
    """The natural logarithm.

    Examples:
        >>> from tilewright import te
        >>> print(te.log(te.var("x", "f32")))
        log(%x)
    """
    return unary("log", x)


def log2(x: Any) -> Expr:
    """The logarithm to base 2.

    Examples:
        >>> from tilewright import te
        >>> print(te.log2(te.var("x", "f32")))
        log2(%x)
    """
    return unary("log2", x)


def log10(x: Any) -> Expr:
    """The logarithm to base 10.

    Examples:
        >>> from tilewright import te
        >>> print(te.log10(te.var("x", "f32")))
        log10(%x)
    """
    return unary("log10", x)


def log1p(x: Any) -> Expr:
    """log(1 + x), accurate near zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.log1p(te.var("x", "f32")))
        log1p(%x)
    """
    return unary("log1p", x)


def sqrt(x: Any) -> Expr:
    """The square root.

    Examples:
        >>> from tilewright import te
        >>> print(te.sqrt(te.var("x", "f32")))
        sqrt(%x)
    """
    return unary("sqrt", x)


def rsqrt(x: Any) -> Expr:
    """1 / sqrt(x).

    Examples:
        >>> from tilewright import te
        >>> print(te.rsqrt(te.var("x", "f32")))
        rsqrt(%x)
    """
    return unary("rsqrt", x)


def round_tf32(x: Any) -> Expr:
    """x rounded to tf32: ten bits of mantissa, half to even.

    Examples:
        >>> from tilewright import te
        >>> print(te.round_tf32(te.var("x", "f32")))
        round_tf32(%x)
    """
    return unary("round_tf32", x)


def sigmoid(x: Any) -> Expr:
    """1 / (1 + exp(-x)).

    Examples:
        >>> from tilewright import te
        >>> print(te.sigmoid(te.var("x", "f32")))
        sigmoid(%x)
    """
    return unary("sigmoid", x)


def erf(x: Any) -> Expr:
    """The error function.

    Examples:
        >>> from tilewright import te
        >>> print(te.erf(te.var("x", "f32")))
        erf(%x)
    """
    return unary("erf", x)


def gelu(x: Any, *, tanh: bool = False) -> Expr:
    """GELU: x times the normal distribution function of x, by erf or by the usual tanh
    approximation.

    The error is at most 2 ULP of x; below about -4, where the result is much smaller than x, its
    relative error is larger.

    Examples:
        >>> from tilewright import te
        >>> print(te.gelu(te.var("x", "f32")))
        %x * 0.5 * (erf(%x * 0.70710677) + 1.0)
    """
    of = value_of(x)
    if tanh:
        inner = unary("tanh", (of + of * of * of * 0.044715) * math.sqrt(2 / math.pi))
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
    return unary("sin", x)


def cos(x: Any) -> Expr:
    """The cosine of radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.cos(te.var("x", "f32")))
        cos(%x)
    """
    return unary("cos", x)


def tan(x: Any) -> Expr:
    """The tangent of radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.tan(te.var("x", "f32")))
        tan(%x)
    """
    return unary("tan", x)


def asin(x: Any) -> Expr:
    """The arc sine, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.asin(te.var("x", "f32")))
        asin(%x)
    """
    return unary("asin", x)


def acos(x: Any) -> Expr:
    """The arc cosine, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.acos(te.var("x", "f32")))
        acos(%x)
    """
    return unary("acos", x)


def atan(x: Any) -> Expr:
    """The arc tangent, in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.atan(te.var("x", "f32")))
        atan(%x)
    """
    return unary("atan", x)


def sinh(x: Any) -> Expr:
    """The hyperbolic sine.

    Examples:
        >>> from tilewright import te
        >>> print(te.sinh(te.var("x", "f32")))
        sinh(%x)
    """
    return unary("sinh", x)


def cosh(x: Any) -> Expr:
    """The hyperbolic cosine.

    Examples:
        >>> from tilewright import te
        >>> print(te.cosh(te.var("x", "f32")))
        cosh(%x)
    """
    return unary("cosh", x)


def tanh(x: Any) -> Expr:
    """The hyperbolic tangent.

    Examples:
        >>> from tilewright import te
        >>> print(te.tanh(te.var("x", "f32")))
        tanh(%x)
    """
    return unary("tanh", x)


def asinh(x: Any) -> Expr:
    """The inverse hyperbolic sine.

    Examples:
        >>> from tilewright import te
        >>> print(te.asinh(te.var("x", "f32")))
        asinh(%x)
    """
    return unary("asinh", x)


def acosh(x: Any) -> Expr:
    """The inverse hyperbolic cosine.

    Examples:
        >>> from tilewright import te
        >>> print(te.acosh(te.var("x", "f32")))
        acosh(%x)
    """
    return unary("acosh", x)


def atanh(x: Any) -> Expr:
    """The inverse hyperbolic tangent.

    Examples:
        >>> from tilewright import te
        >>> print(te.atanh(te.var("x", "f32")))
        atanh(%x)
    """
    return unary("atanh", x)


def atan2(x1: Any, x2: Any) -> Expr:
    """The angle of the point (x2, x1), in radians.

    Examples:
        >>> from tilewright import te
        >>> print(te.atan2(te.var("x", "f32"), te.var("y", "f32")))
        atan2(%x, %y)
    """
    return binary("atan2", x1, x2)


def pow(x: Any, y: Any) -> Expr:
    """x to the power of y.

    Examples:
        >>> from tilewright import te
        >>> print(te.pow(te.var("x", "f32"), te.var("y", "f32")))
        pow(%x, %y)
    """
    return binary("pow", x, y)


power = pow


def fmod(x: Any, y: Any) -> Expr:
    """The remainder of a division that truncates.

    Examples:
        >>> from tilewright import te
        >>> print(te.fmod(te.var("x", "f32"), te.var("y", "f32")))
        fmod(%x, %y)
    """
    return binary("fmod", x, y)


def copysign(x1: Any, x2: Any) -> Expr:
    """The magnitude of `x1` with the sign of `x2`.

    Examples:
        >>> from tilewright import te
        >>> print(te.copysign(te.var("x", "f32"), te.var("y", "f32")))
        copysign(%x, %y)
    """
    return binary("copysign", x1, x2)


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c with a single rounding.

    Examples:
        >>> from tilewright import te
        >>> x = te.var("x", "f32")
        >>> print(te.fma(x, x, 1.0))
        fma(%x, %x, f32(1.0))
    """
    return call("fma", value_of(a), b, c)


def saturating_div(a: Any, b: Any) -> Expr:
    """a / b; a quotient outside of the range of a byte may be any value of its sign outside of it.

    Examples:
        >>> from tilewright import te
        >>> print(te.saturating_div(te.var("x", "f32"), te.var("y", "f32")))
        saturating_div(%x, %y)
    """
    return binary("saturating_div", a, b)


def ranged_div(a: Any, b: Any) -> Expr:
    """a / b, given that b > 0 is derived from a range containing a: the quotient is nearly in the
    range of a byte, unless b is outside of the normal range.

    Examples:
        >>> from tilewright import te
        >>> print(te.ranged_div(te.var("x", "f32"), te.var("y", "f32")))
        ranged_div(%x, %y)
    """
    return binary("ranged_div", a, b)


def floor(x: Any) -> Expr:
    """Round down.

    Examples:
        >>> from tilewright import te
        >>> print(te.floor(te.var("x", "f32")))
        floor(%x)
    """
    return unary("floor", x)


def ceil(x: Any) -> Expr:
    """Round up.

    Examples:
        >>> from tilewright import te
        >>> print(te.ceil(te.var("x", "f32")))
        ceil(%x)
    """
    return unary("ceil", x)


def trunc(x: Any) -> Expr:
    """Truncate: round towards zero.

    Examples:
        >>> from tilewright import te
        >>> print(te.trunc(te.var("x", "f32")))
        trunc(%x)
    """
    return unary("trunc", x)


def round(x: Any) -> Expr:
    """Round to the nearest integer, ties to even, as NumPy and ONNX do.

    Examples:
        >>> from tilewright import te
        >>> print(te.round(te.var("x", "f32")))
        round(%x)
    """
    return unary("round", x)


nearbyint = round


def abs(x: Any) -> Expr:
    """The absolute value.

    Examples:
        >>> from tilewright import te
        >>> print(te.abs(te.var("x", "f32")))
        abs(%x)
    """
    return unary("abs", x)


def isnan(x: Any) -> Expr:
    """Whether a value is NaN.

    Examples:
        >>> from tilewright import te
        >>> print(te.isnan(te.var("x", "f32")))
        isnan(%x)
    """
    return unary("isnan", x)


def isinf(x: Any) -> Expr:
    """Whether a value is infinite.

    Examples:
        >>> from tilewright import te
        >>> print(te.isinf(te.var("x", "f32")))
        isinf(%x)
    """
    return unary("isinf", x)


def isfinite(x: Any) -> Expr:
    """Whether a value is neither infinite nor NaN.

    Examples:
        >>> from tilewright import te
        >>> print(te.isfinite(te.var("x", "f32")))
        not (isnan(%x) or isinf(%x))
    """
    return sym.logical_not(sym.logical_or(isnan(x), isinf(x)))


def bitwise_and(x: Any, y: Any) -> Expr:
    """The bitwise AND.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_and(te.var("x", "i32"), 3))
        bit_and(%x, i32(3))
    """
    return binary("bit_and", x, y)


def bitwise_or(x: Any, y: Any) -> Expr:
    """The bitwise OR.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_or(te.var("x", "i32"), 3))
        bit_or(%x, i32(3))
    """
    return binary("bit_or", x, y)


def bitwise_xor(x: Any, y: Any) -> Expr:
    """The bitwise XOR.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_xor(te.var("x", "i32"), 3))
        bit_xor(%x, i32(3))
    """
    return binary("bit_xor", x, y)


def bitwise_not(x: Any) -> Expr:
    """The bitwise complement.

    Examples:
        >>> from tilewright import te
        >>> print(te.bitwise_not(te.var("x", "i32")))
        bit_not(%x)
    """
    return unary("bit_not", x)


def shift_left(x: Any, y: Any) -> Expr:
    """x shifted left.

    Examples:
        >>> from tilewright import te
        >>> print(te.shift_left(te.var("x", "i32"), 3))
        shift_left(%x, i32(3))
    """
    return binary("shift_left", x, y)


def shift_right(x: Any, y: Any) -> Expr:
    """x shifted right arithmetically; logically, if unsigned.

    Examples:
        >>> from tilewright import te
        >>> print(te.shift_right(te.var("x", "i32"), 3))
        shift_right(%x, i32(3))
    """
    return binary("shift_right", x, y)


def popcount(x: Any) -> Expr:
    """The number of set bits.

    Examples:
        >>> from tilewright import te
        >>> print(te.popcount(te.var("x", "i32")))
        popcount(%x)
    """
    return unary("popcount", x)


def bits_of(x: Any) -> Expr:
    """The bits of a float as a signed integer of the same width.

    Examples:
        >>> from tilewright import te
        >>> print(te.bits_of(te.var("x", "f32")))
        bits_of(%x)
    """
    return unary("bits_of", x)


def from_bits(x: Any) -> Expr:
    """The float with the bits of an integer of the same width.

    Examples:
        >>> from tilewright import te
        >>> print(te.from_bits(te.var("x", "i32")))
        from_bits(%x)
    """
    return unary("from_bits", x)
