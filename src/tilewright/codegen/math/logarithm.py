"""log, log2, log10, log1p.

    x = 2**e m,  sqrt(1/2) <= m < sqrt(2);    log x = e ln 2 + log(1 + f),  f = m - 1

f32: log(1 + f) = f - f**2 / 2 + f**3 P(f). f64: with s = f / (2 + f),
log(1 + f) = f - (f**2 / 2 - s (f**2 / 2 + s**2 R(s**2))), which keeps the error of s small.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import F32, F64, limits, power_of_two
from tilewright.codegen.math.value import Real, Whole, polynomial

INF, NAN = float("inf"), float("nan")

# Subtracting these bits moves the exponent's step to sqrt(1/2).
_SQRT_HALF = {F32: 0x3F3504F3, F64: 0x3FE6A09E667F3BCD}
_ONE = {F32: 0x3F800000, F64: 0x3FF0000000000000}
_LEAST_NORMAL = {F32: 2.0**-126, F64: 2.0**-1022}
_LIFT = {F32: 25, F64: 54}  # brings subnormal numbers among the normal ones


@dataclass(frozen=True, slots=True)
class Parts:
    """x = 2**e (1 + f)."""

    exponent: Whole
    f: Real

    @property
    def e(self) -> Real:
        return self.exponent.to_real()


def split(x: Real) -> Parts:
    """For x > 0 and finite."""
    of = limits(x)
    small = x < _LEAST_NORMAL[of]
    lift = _LIFT[of]
    bits = small.choose(x * 2.0**lift, x).bits() + (_ONE[of] - _SQRT_HALF[of])
    exponent = (bits >> of.mantissa) - small.choose_int(bits.number(of.bias + lift), of.bias)
    m = ((bits & ((1 << of.mantissa) - 1)) + _SQRT_HALF[of]).real()
    return Parts(exponent, m - 1.0)


def _beyond_f(f: Real) -> Real:
    """log(1 + f) - f."""
    square = f * f
    if f.is_f32:
        return polynomial(f, c.LOG_F32) * (f * square) - square * 0.5
    s = f / (f + 2.0)
    t = s * s
    half = square * 0.5
    return s * (half + t * polynomial(t, c.LOG_QUOTIENT_F64)) - half


def _outside(x: Real, inside: Real) -> Real:
    """The values of a logarithm where it has no finite ones."""
    result = x.equals(INF).choose(INF, inside)
    result = x.equals(0.0).choose(-INF, result)
    return (x >= 0.0).choose(result, NAN)


def log(x: Real) -> Real:
    of, parts = limits(x), split(x)
    low = _beyond_f(parts.f) + parts.e * of.ln2_low
    return _outside(x, parts.e * of.ln2_high + (parts.f + low))


def _in_base(x: Real, whole: float, high: float, low: float) -> Real:
    """e * whole + log(1 + f) * (high + low)."""
    parts = split(x)
    rest = parts.f * low + _beyond_f(parts.f) * high
    return _outside(x, parts.e * whole + (parts.f * high + rest))


def log2(x: Real) -> Real:
    """log2(e) in two parts."""
    if x.is_f32:
        return _in_base(x, 1.0, 1.4426950216293335, 1.9259629911266175e-08)
    return _in_base(x, 1.0, 1.4426950408889634, 2.0355273740931033e-17)


def log10(x: Real) -> Real:
    """log10(2) and log10(e), each in two parts."""
    of, parts = limits(x), split(x)
    if of is F32:
        two_high, two_low = 0.301025390625, 4.605038981195214e-06
        e_high, e_low = 0.4342944920063019, -1.0103050118726031e-08
    else:
        two_high, two_low = 0.30102999566361177, 3.694239077158931e-13
        e_high, e_low = 0.4342944819032518, 1.098319650216765e-17
    rest = parts.f * e_low + _beyond_f(parts.f) * e_high + parts.e * two_low
    return _outside(x, parts.e * two_high + (parts.f * e_high + rest))


def log1p(x: Real) -> Real:
    """log(u) with u = 1 + x rounded, and what was lost, c = x - (u - 1): log(u + c) = log u + c/u.

    c / u = 2**-e c / (1 + f) with 2**-e c so small that 1 - f stands for 1 / (1 + f).
    """
    of = limits(x)
    u = x + 1.0
    # The larger operand minus the sum is exact.
    lost = (x > 1.0).choose(1.0 - (u - x), x - (u - 1.0))
    parts = split(u)
    down = power_of_two(parts.exponent.number(0) - parts.exponent, of)
    small = (x > 2.0**60).choose(0.0, lost * down)
    low = _beyond_f(parts.f) + (small - small * parts.f) + parts.e * of.ln2_low
    result = parts.e * of.ln2_high + (parts.f + low)
    result = x.equals(0.0).choose(x, result)
    result = x.equals(INF).choose(INF, result)
    result = x.equals(-1.0).choose(-INF, result)
    return (x >= -1.0).choose(result, NAN)
