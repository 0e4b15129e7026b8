"""Functions of f32 for machines that raise 2 to a power by one instruction, to two units in the
last place: GPUs.

    exp(x) = 2**h (1 + l ln 2),  h + l = x / ln 2, h rounded
    1 + erf(x) = erfc(-x) = 2**-Q(|x|), or 2 less that

A GELU needs erf beside 1, where a polynomial for the logarithm of erfc serves all arguments.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import LOG2E, limits
from tilewright.codegen.math.hyperbolic import square_of
from tilewright.codegen.math.value import Real, polynomial
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Broadcast, Call, Stmt
from tilewright.tensor.visit import rewrite

LOG2E_LOW = 1.925963033500975e-08  # what LOG2E loses as an f32
LN2 = 0.6931471805599453
GREATEST = 88.72283172607422  # whose exponential is finite
POWER = "approximate_exp2"  # the instruction
# The same with 0 for what is too small to be normal: beside 1, or 2, that is no difference, and it
# takes one instruction instead of four.
FLUSHED_POWER = "approximate_exp2_flushed"
ERF_BESIDE_ONE = "one_plus_erf"


def _power(x: Real, op: str = POWER) -> Real:
    return Real(Call(op, (x.expr,), x.expr.dtype))


def exp(x: Real) -> Real:
    """What overflows is chosen: beside an infinite power the rest would be no number."""
    power = _finite_exp(x.at_most(GREATEST).at_least(limits(x).least))
    return (x > GREATEST).choose(x.number(float("inf")), power)


def exp_nonpositive(x: Real) -> Real:
    """What vanishes is chosen too: its power may be a number that is not normal."""
    of = limits(x)
    power = _finite_exp(x.at_most(0.0).at_least(of.least_normal))
    return (x < of.least_normal).choose(0.0, power)


def _finite_exp(x: Real) -> Real:
    high = x * LOG2E
    low = x.fma(LOG2E, -high) + x * LOG2E_LOW
    power = _power(high)
    return power * (low * LN2) + power


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)) with an exponential that cannot overflow."""
    small = exp(-x.abs())
    return (x < 0.0).choose(small, 1.0) / (small + 1.0)


def erf(x: Real) -> Real:
    size = x.abs()
    near = polynomial(square_of(x), c.ERF_F32) * x + x
    logarithm = polynomial(size.at_most(4.0), [value * -LOG2E for value in c.ERFC_LOG_F32])
    return (size < 0.921875).choose(near, (1.0 - _power(logarithm, FLUSHED_POWER)).with_sign_of(x))


def one_plus_erf(x: Real) -> Real:
    size = x.abs()
    complement = _power(polynomial(size, c.ERFC_LOG2_F32) * size, FLUSHED_POWER)
    return (x < 0.0).choose(complement, 2.0 - complement)


def join_calls(body: Stmt) -> Stmt:
    """1 + erf(x) as one call, wherever it is written."""

    def rule(expr: Expr) -> Expr:
        if not isinstance(expr, sym.Add) or expr.dtype.scalar is not F32:
            return expr
        for one, call in ((expr.a, expr.b), (expr.b, expr.a)):
            value = one.value if isinstance(one, Broadcast) else one
            if isinstance(value, Const) and value.value == 1 and _is_erf(call):
                return Call(ERF_BESIDE_ONE, call.children(), expr.dtype)
        return expr

    made = rewrite(body, None, lambda expr: sym.rewrite(expr, rule))
    assert made is not None
    return made


def _is_erf(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "erf"
