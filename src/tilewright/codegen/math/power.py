"""pow(x, y) = 2**(y log2 |x|), with the sign and the many special values of IEEE 754.

The exponent y log2 |x| needs more bits than the result has: an f32 is worked out in f64; an f64
takes the logarithm and the product in two parts each.
"""

from __future__ import annotations

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import F64, LOG2E, nearest, scale
from tilewright.codegen.math.logarithm import INF, NAN, split
from tilewright.codegen.math.value import Real, Truth, polynomial

_LOG2E_LOW = 2.0355273740931033e-17


def pow_(x: Real, y: Real) -> Real:
    size = x.abs()
    finite = _pow_f32(size, y) if x.is_f32 else _pow_f64(size, y)
    return _special(x, y, size, finite)


def _pow_f32(size: Real, y: Real) -> Real:
    wide = size.to_f64()
    parts = split(wide)
    s = parts.f / (parts.f + 2.0)
    t = s * s
    log2 = parts.e + (s * 2.0 + polynomial(t, c.LOG_QUOTIENT_F64) * t * s) * LOG2E
    exponent = (log2 * y.to_f64()).at_most(1000.0).at_least(-1000.0)
    n, n_int = nearest(exponent)
    r = exponent - n
    return scale(polynomial(r, F64.exp2) * r + 1.0, n_int).to_f32()


def _pow_f64(size: Real, y: Real) -> Real:
    """log(1 + f) = 2 s + s**3 R(s**2), s = f / (2 + f) with its rounding error carried along."""
    parts = split(size)
    f, e = parts.f, parts.e
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
    zero, infinite = size.equals(0.0), size.equals(INF)
    rising = y > 0.0
    result = zero.choose(rising.choose(x.number(0.0), INF), finite)
    result = infinite.choose(rising.choose(x.number(INF), 0.0), result)
    # x**(+-inf) by comparing |x| with 1.
    endless = y.abs().equals(INF)
    to_zero = (size < 1.0).choose(x.number(1.0), 0.0) - rising.choose(x.number(1.0), 0.0)
    result = endless.choose(to_zero.equals(0.0).choose(x.number(0.0), INF), result)
    odd = _is_odd(y)
    negative = x.bits() < 0
    result = (negative & odd).choose(-result, result)
    improper = (x < 0.0) & (size < INF) & ~_is_integer(y)
    result = improper.choose(NAN, result)
    result = (x.is_nan() | y.is_nan()).choose(NAN, result)
    unit = x.equals(-1.0) & endless
    return (x.equals(1.0) | y.equals(0.0) | unit).choose(1.0, result)
