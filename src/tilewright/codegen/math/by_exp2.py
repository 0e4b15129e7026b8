"""f32 functions for machines with an approximate exp2 instruction, accurate to two ulps: GPUs.

    exp(x) = 2**h (1 + l ln 2),  h + l = x / ln 2, h rounded
    1 + erf(x) = erfc(-x) = 2**-Q(|x|), or 2 less that
    1 + tanh(x) = 2 / (1 + exp(-2 x))

GELU needs 1 + erf, for which one polynomial for the logarithm of erfc serves all arguments; it is x
times the normal CDF, half of that. Where a GELU is rounded to 16 bits, a shorter polynomial is
accurate enough; not inside of sums, where cancellation would expose its error. Likewise for
sigmoid, whose short exponential is off by as many ulps as its logarithm has.

Divisions use the approximate instruction too: an exactly rounded one calls a slow path, which ptxas
moves no code across.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import BF16, F16, F32
from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import LOG2E, limits
from tilewright.codegen.math.hyperbolic import odd, square_of
from tilewright.codegen.math.value import Real, polynomial
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Broadcast, Call, Stmt
from tilewright.tensor.visit import rewrite

LOG2E_LOW = 1.925963033500975e-08  # the rounding error of LOG2E as f32
LN2 = 0.6931471805599453
GREATEST = 88.72283172607422  # the largest f32 with a finite exponential
POWER = "approximate_exp2"  # the instruction
# The same with subnormals flushed to 0: no difference next to 1 or 2, and one instruction instead
# of four.
FLUSHED_POWER = "approximate_exp2_flushed"
RECIPROCAL = "approximate_reciprocal"  # of numbers >= 1
ERF_BESIDE_ONE, TANH_BESIDE_ONE = "one_plus_erf", "one_plus_tanh"
NORMAL_CDF, ROUNDED_NORMAL_CDF = "normal_cdf", "normal_cdf_rounded"
SIGMOID, ROUNDED_SIGMOID = "sigmoid", "sigmoid_rounded"
BESIDE_ONE = {"erf": ERF_BESIDE_ONE, "tanh": TANH_BESIDE_ONE}
ROUNDED = {NORMAL_CDF: ROUNDED_NORMAL_CDF, SIGMOID: ROUNDED_SIGMOID}
HALF_ROOT = 0.5**0.5


def _power(x: Real, op: str = POWER) -> Real:
    return Real(Call(op, (x.expr,), x.expr.dtype))


def _inverse(x: Real) -> Real:
    return Real(Call(RECIPROCAL, (x.expr,), x.expr.dtype))


def exp(x: Real) -> Real:
    """Overflow is selected explicitly: with an infinite power the correction would be NaN."""
    power = _finite_exp(x.at_most(GREATEST).at_least(limits(x).least))
    return (x > GREATEST).choose(x.number(float("inf")), power)


def exp_nonpositive(x: Real) -> Real:
    """Tiny results may be flushed to 0. Both limits are one instruction each, which propagates
    NaN."""
    within = sym.Max(sym.Min(x.expr, x.same(0.0)), x.same(limits(x).least))
    return _finite_exp(Real(within), FLUSHED_POWER)


def _finite_exp(x: Real, op: str = POWER) -> Real:
    high = x * LOG2E
    low = x.fma(LOG2E, -high) + x * LOG2E_LOW
    power = _power(high, op)
    return power * (low * LN2) + power


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)) with an exponential that cannot overflow."""
    small = _finite_exp((-x.abs()).at_least(limits(x).least))
    return (x < 0.0).choose(small, 1.0) * _inverse(small + 1.0)


def rounded_sigmoid(x: Real) -> Real:
    """The same, accurate to 16-bit results."""
    return _inverse(_power(x * -LOG2E, FLUSHED_POWER) + 1.0)


def tanh(x: Real) -> Real:
    """1 - 2 / (exp(2 |x|) + 1) away from 0."""
    size = x.abs()
    far = 1.0 - _inverse(_power(size * (2 * LOG2E), FLUSHED_POWER) + 1.0) * 2.0
    return (size < 0.625).choose(odd(size, c.TANH_F32, c.TANH_F64), far).with_sign_of(x)


def one_plus_tanh(x: Real) -> Real:
    return _inverse(_power(x * (-2 * LOG2E), FLUSHED_POWER) + 1.0) * 2.0


def erf(x: Real) -> Real:
    size = x.abs()
    near = polynomial(square_of(x), c.ERF_F32) * x + x
    logarithm = polynomial(size.at_most(4.0), [value * -LOG2E for value in c.ERFC_LOG_F32])
    return (size < 0.921875).choose(near, (1.0 - _power(logarithm, FLUSHED_POWER)).with_sign_of(x))


def one_plus_erf(x: Real) -> Real:
    size = x.abs()
    complement = _power(polynomial(size, c.ERFC_LOG2_F32) * size, FLUSHED_POWER)
    return (x < 0.0).choose(complement, 2.0 - complement)


def normal_cdf(x: Real) -> Real:
    """(1 + erf(x / sqrt(2))) / 2"""
    scaled = [factor * HALF_ROOT ** (at + 1) for at, factor in enumerate(c.ERFC_LOG2_F32)]
    return _normal_cdf(x, scaled)


def rounded_normal_cdf(x: Real) -> Real:
    """The same, accurate to 16-bit results."""
    return _normal_cdf(x, c.NORMAL_CDF_LOG2_F16)


def _normal_cdf(x: Real, factors: Sequence[float]) -> Real:
    tail = _power(polynomial(x.abs(), [-1.0, *factors]), FLUSHED_POWER)
    return (x < 0.0).choose(tail, 1.0 - tail)


def join_calls(body: Stmt) -> Stmt:
    """Merge 1 + erf(x), 1 + tanh(x) and GELU into one call each."""

    def rule(expr: Expr) -> Expr:
        if expr.dtype.scalar is not F32:
            return _rounded(expr) if isinstance(expr, sym.Cast) else expr
        if isinstance(expr, sym.Mul):
            return _gelu(expr)
        if not isinstance(expr, sym.Add):
            return expr
        for one, call in ((expr.a, expr.b), (expr.b, expr.a)):
            if _number(one) == 1 and isinstance(call, Call) and call.op in BESIDE_ONE:
                return Call(BESIDE_ONE[call.op], call.children(), expr.dtype)
        return expr

    made = rewrite(body, None, rule)
    assert made is not None
    return made


def _gelu(product: sym.Mul) -> Expr:
    """x / 2 (1 + erf(x / sqrt(2))) as x times the normal CDF."""
    for half, other in ((product.a, product.b), (product.b, product.a)):
        if not _is_call(other, ERF_BESIDE_ONE):
            continue
        (scaled,) = other.children()
        for number, x in _factors(half):
            for factor, inner in _factors(scaled):
                if inner is x and number == 0.5 and abs(factor - HALF_ROOT) < 2**-24:
                    return sym.Mul(x, Call(NORMAL_CDF, (x,), product.dtype))
    return product


def _rounded(cast: sym.Cast) -> Expr:
    """A number of 16 bits that is a GELU or a sigmoid, or a product of one: it needs not be more
    exact.

    A second one, or a power, would add its error; a factor met twice is taken for a power.
    """
    (value,) = cast.children()
    if cast.dtype.scalar not in (F16, BF16):
        return cast
    products: dict[Expr, Expr] = {}  # that a factor is of
    calls: list[Call] = []
    stack, seen = [value], set()
    while stack:
        expr = stack.pop()
        if isinstance(expr, Call) and expr.op in ROUNDED and expr.dtype.scalar is F32:
            calls.append(expr)
        elif not isinstance(expr, sym.Mul):
            continue
        if expr in seen:
            return cast
        seen.add(expr)
        if isinstance(expr, sym.Mul):
            products.update(dict.fromkeys(expr.children(), expr))
            stack.extend(expr.children())
    if len(calls) != 1:
        return cast
    (call,) = calls
    old: Expr = call
    new: Expr = Call(ROUNDED[call.op], call.children(), call.dtype)
    while old is not value:
        product = products[old]
        new = product.with_children(tuple([new if c is old else c for c in product.children()]))
        old = product
    return cast.with_children((new,))


def _factors(expr: Expr) -> list[tuple[float, Expr]]:
    """A number times an expression: both, if that is what it is."""
    if not isinstance(expr, sym.Mul):
        return []
    pairs = ((_number(expr.a), expr.b), (_number(expr.b), expr.a))
    return [(number, other) for number, other in pairs if number is not None]


def _number(expr: Expr) -> float | None:
    """A constant in every lane."""
    value = expr.value if isinstance(expr, Broadcast) else expr
    return float(value.value) if isinstance(value, Const) else None


def _is_call(expr: Expr, op: str) -> bool:
    return isinstance(expr, Call) and expr.op == op
