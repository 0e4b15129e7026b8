"""pow(x, y) = 2**(y log2 |x|), with the sign and the many special values of IEEE 754.

The exponent y log2 |x| needs more bits than the result has: for f32, it alone is worked out in f64;
an f64 takes the logarithm and the product in two parts each. Zeros and infinities need no cases of
their own: their logarithms are infinite, and 2 to an infinite power is what it should be.
"""

from __future__ import annotations

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import F32, F64, LOG2E, nearest, scale
from tilewright.codegen.math.logarithm import INF, NAN, split
from tilewright.codegen.math.value import Real, Truth, polynomial

_LOG2E_LOW = 2.0355273740931033e-17


def pow_(x: Real, y: Real) -> Real:
    size = x.abs()
    finite = _pow_f32(size, y) if x.is_f32 else _pow_f64(size, y)
    return _special(x, y, size, finite)


def _scale_of(size: Real, e: Real) -> Real:
    """The whole part e of the logarithm, with that of zero, infinity and NaN."""
    return size.equals(0.0).choose(-INF, (size < INF).choose(e, size))


def _pow_f32(size: Real, y: Real) -> Real:
    """The fraction of the exponent that is left has few enough bits for f32."""
    parts = split(size)
    f = parts.f.to_f64()
    log2 = polynomial(f, c.LOG2_RATIO_F64) * f + _scale_of(size, parts.e).to_f64()
    exponent = (log2 * y.to_f64()).at_most(200.0).at_least(-200.0)
    n, n_int = nearest(exponent)
    r = (exponent - n).to_f32()
    return scale(polynomial(r, F32.exp2) * r + 1.0, n_int.to_i32())


def _pow_f64(size: Real, y: Real) -> Real:
    """log(1 + f) = 2 s + s**3 R(s**2), s = f / (2 + f) with its rounding error carried along."""
    parts = split(size)
    f, e = parts.f, _scale_of(size, parts.e)
    below = f + 2.0
    below_low = (2.0 - below) + f
    s = f / below
    # What s misses of f / (2 + f): (f - s (below + below_low)) / below.
    s_low = ((-s).fma(below, f) - s * below_low) / below
    t = s * s
    high = s * 2.0
    low = s_low * 2.0 + polynomial(t, c.LOG_QUOTIENT_F64) * t * s
    # log2 = e + (high + low) * log2(e), all in two parts.
    product = high * LOG2E
    product_low = high.fma(LOG2E, -product) + (high * _LOG2E_LOW + low * LOG2E)
    log_high = e + product
    log_low = ((e - log_high) + product) + product_low
    exponent = y * log_high
    exponent_low = y.fma(log_high, -exponent) + y * log_low
    exponent_low = (exponent.abs() < 2000.0).choose(exponent_low, 0.0)
    exponent = exponent.at_most(2000.0).at_least(-2000.0)
    n, n_int = nearest(exponent)
    r = (exponent - n) + exponent_low
    return scale(polynomial(r, F64.exp2) * r + 1.0, n_int)


def _is_integer(y: Real) -> Truth:
    return y.trunc().equals(y)


def _is_odd(y: Real) -> Truth:
    """y is an integer and half of it is none."""
    half = y * 0.5
    return _is_integer(y) & ~half.trunc().equals(half)


def _special(x: Real, y: Real, size: Real, finite: Real) -> Real:
    """The sign, and where a product of 0 and infinity or NaN is none: x**0 and 1**y are 1."""
    result = (size.equals(1.0) | y.equals(0.0)).choose(1.0, finite)
    negative = x.bits() < 0
    result = (negative & _is_odd(y)).choose(-result, result)
    improper = (x < 0.0) & (size < INF) & ~_is_integer(y)
    return improper.choose(NAN, result)
