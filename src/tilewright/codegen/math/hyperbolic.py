"""tanh, sinh, cosh and their inverses.

Near 0 by odd polynomials; elsewhere from exponentials and logarithms, where nothing cancels.
"""

from __future__ import annotations

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import exp_by_one_power, half_exp
from tilewright.codegen.math.logarithm import INF, NAN, log, log1p
from tilewright.codegen.math.value import Real, polynomial

LN2 = 0.6931471805599453


def square_of(x: Real) -> Real:
    """x**2, or a number that adds as little to 1: the square of a tiny one underflows slowly."""
    large = x.abs().at_least(2.0**-14 if x.is_f32 else 2.0**-28)
    return large * large


def odd(x: Real, f32: tuple[float, ...], f64: tuple[float, ...]) -> Real:
    """x + x**3 P(x**2)."""
    square = square_of(x)
    return polynomial(square, f32 if x.is_f32 else f64) * square * x + x


def tanh(x: Real) -> Real:
    """1 - 2 / (exp(2 |x|) + 1) away from 0."""
    size = x.abs()
    near = odd(size, c.TANH_F32, c.TANH_F64)
    far = 1.0 - 2.0 / (exp_by_one_power(size.at_most(22.0) * 2.0) + 1.0)
    return (size < 0.625).choose(near, far).with_sign_of(x)


def sinh(x: Real) -> Real:
    """(exp(x) - exp(-x)) / 2 from h = exp(|x|) / 2: h - 1 / (4 h)."""
    size = x.abs()
    near = odd(x, c.SINH_F32, c.SINH_F64)
    half = half_exp(size)
    far = half - 0.25 / half
    return (size < 1.0).choose(near, far.with_sign_of(x))


def cosh(x: Real) -> Real:
    half = half_exp(x.abs())
    return half + 0.25 / half


def asinh(x: Real) -> Real:
    """log(a + sqrt(a**2 + 1)) = log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|."""
    size = x.abs()
    square = square_of(x)
    result = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    result = (size < (2.0**-14 if x.is_f32 else 2.0**-28)).choose(size, result)
    large = log(size) + LN2  # where the square would overflow
    result = (size > (1e18 if x.is_f32 else 1e150)).choose(large, result)
    return result.with_sign_of(x)


def acosh(x: Real) -> Real:
    """log(x + sqrt(x**2 - 1)) = log1p(t + sqrt(2 t + t**2)), t = x - 1."""
    t = x - 1.0
    result = log1p(t + (t * 2.0 + t * t).sqrt())
    large = log(x) + LN2
    result = (x > (1e18 if x.is_f32 else 1e150)).choose(large, result)
    return (x >= 1.0).choose(result, NAN)


def atanh(x: Real) -> Real:
    """log1p(2 a / (1 - a)) / 2, a = |x|."""
    size = x.abs()
    result = log1p(size * 2.0 / (1.0 - size)) * 0.5
    result = size.equals(1.0).choose(INF, result)
    return (size <= 1.0).choose(result.with_sign_of(x), NAN)
