"""erf: an odd polynomial near 0, and 1 - exp(log erfc) with a polynomial for the logarithm."""

from __future__ import annotations

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import exp_by_one_power
from tilewright.codegen.math.hyperbolic import square_of
from tilewright.codegen.math.value import Real, polynomial


def erf(x: Real) -> Real:
    size = x.abs()
    square = square_of(x)
    near = polynomial(square, c.ERF_F32 if x.is_f32 else c.ERF_F64) * x + x
    capped = size.at_most(4.0 if x.is_f32 else 6.0)
    tail = exp_by_one_power(-polynomial(capped, c.ERFC_LOG_F32 if x.is_f32 else c.ERFC_LOG_F64))
    return (size < 0.921875).choose(near, (1.0 - tail).with_sign_of(x))
