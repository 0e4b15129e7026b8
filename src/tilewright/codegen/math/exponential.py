"""exp, exp_nonpositive, exp2, expm1, sigmoid, and the scaling by powers of two that they share.

    x = n ln 2 + r,  |r| <= ln 2 / 2;     exp(x) = 2**n exp(r)

n is found by adding a number so large that its unit in the last place is 1: the sum rounds to an
integer, which also stands in its low bits. n ln 2 is subtracted in two parts, the first of which
has so few bits that its product with n is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.value import Real, Whole, polynomial
from tilewright.tensor.ir import Call

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Limits:
    """What depends on the float type."""

    magic: float  # 1.5 * 2**mantissa
    magic_bits: int
    mantissa: int
    bias: int
    ln2_high: float
    ln2_low: float
    least: float  # exp of anything below is 0
    powerless: float  # where n rounds to -bias: the bits of 2**n as a normal number are those of 0
    most: float  # exp of anything above is inf
    exp: tuple[float, ...]
    exp2: tuple[float, ...]


F32 = Limits(
    magic=12582912.0,
    magic_bits=0x4B400000,
    mantissa=23,
    bias=127,
    ln2_high=0.693145751953125,
    ln2_low=1.4286068203094172e-06,
    least=-103.98,
    powerless=-88.0,
    most=90.0,
    exp=c.EXP_F32,
    exp2=c.EXP2_F32,
)
F64 = Limits(
    magic=6755399441055744.0,
    magic_bits=0x4338000000000000,
    mantissa=52,
    bias=1023,
    ln2_high=0.6931471803691238,
    ln2_low=1.9082149292705877e-10,
    least=-745.14,
    powerless=-709.0,
    most=711.0,
    exp=c.EXP_F64,
    exp2=c.EXP2_F64,
)


def limits(x: Real) -> Limits:
    return F32 if x.is_f32 else F64


def power_of_two(n: Whole, of: Limits) -> Real:
    """2**n, for n of a normal number."""
    return ((n + of.bias) << of.mantissa).real()


def scale(y: Real, n: Whole) -> Real:
    """y * 2**n in two steps, each a normal number: the result rounds once, to subnormals too."""
    of = limits(y)
    half = n >> 1
    return y * power_of_two(half, of) * power_of_two(n - half, of)


def scale_nearest(y: Real, n: Real, whole: Whole) -> Real:
    """y * 2**n, where n is at hand as a float too: some machines have an instruction for it."""
    return _scale_power(y, n, scale(y, whole))


def _scale_power(y: Real, n: Real, otherwise: Real) -> Real:
    return Real(Call("scale_power", (y.expr, n.expr, otherwise.expr), y.expr.dtype))


def nearest(x: Real) -> tuple[Real, Whole]:
    """The integer nearest to x, as a float and as an integer; |x| < 2**22 or 2**51."""
    of = limits(x)
    shifted = x + of.magic
    return shifted - of.magic, shifted.bits() - of.magic_bits


def reduce(x: Real) -> tuple[Real, Real, Whole]:
    """(r, n, n) with x = n ln 2 + r."""
    n, n_int = nearest(x * LOG2E)
    return _rest(x, n), n, n_int


def _rest(x: Real, n: Real) -> Real:
    """x - n ln 2"""
    of = limits(x)
    return (x - n * of.ln2_high) - n * of.ln2_low


def exp_by_one_power(x: Real, lift: int = 0) -> Real:
    """exp(x) where 2**(n + lift) is a normal number. That power is the sum that rounds to n, with
    an exponent's bias and `lift` in it, shifted to where exponents stand; the result is scaled
    back, and rounds once, to subnormals too."""
    of = limits(x)
    magic = of.magic + of.bias + lift
    shifted = x * LOG2E + magic
    n = shifted - magic
    y = _power_of_rest(_rest(x, n))
    scaled = y * (shifted.bits() << of.mantissa).real()
    return _scale_power(y, n, scaled * 2.0**-lift if lift else scaled)


def _exp_reduced(r: Real) -> Real:
    """exp(r) - 1 for |r| <= ln 2 / 2. No r**2 on its own: it would underflow, which is slow."""
    return polynomial(r, limits(r).exp) * r * r + r


def _power_of_rest(r: Real) -> Real:
    """exp(r) for |r| <= ln 2 / 2."""
    return polynomial(r, (1.0, 1.0, *limits(r).exp))


def _clamp(x: Real, low: float, high: float) -> Real:
    return x.at_most(high).at_least(low)


def exp(x: Real) -> Real:
    """What becomes 0 is worked out for 0 instead and dropped: underflow is slow as well."""
    of = limits(x)
    vanishes = x < of.least
    r, n, n_int = reduce(vanishes.choose(0.0, x).at_most(of.most))
    return vanishes.choose(0.0, scale_nearest(_power_of_rest(r), n, n_int))


def exp_nonpositive(x: Real) -> Real:
    """exp(min(x, 0)). Without numbers that are not normal one multiplication scales, by 0 where
    the power has no bits."""
    of = limits(x)
    near = x.at_most(0.0).at_least(of.powerless)
    shifted = near * LOG2E + (of.magic + of.bias)
    r = _rest(near, shifted - (of.magic + of.bias))
    return _power_of_rest(r) * (shifted.bits() << of.mantissa).real()


def half_exp(x: Real) -> Real:
    """exp(x) / 2 for x >= 0; it is finite a little longer than exp(x)."""
    r, n, n_int = reduce(x.at_most(limits(x).most))
    return scale_nearest(_power_of_rest(r), n - 1.0, n_int - 1)


def exp2(x: Real) -> Real:
    of = limits(x)
    vanishes = x < of.least * LOG2E
    near = vanishes.choose(0.0, x.at_most(of.most * LOG2E))
    n, n_int = nearest(near)
    r = near - n
    return vanishes.choose(0.0, scale_nearest(polynomial(r, of.exp2) * r + 1.0, n, n_int))


def expm1(x: Real) -> Real:
    """2**n (exp(r) - 1) + (2**n - 1), where the second term is exact or dominates.

    Worked out for n - 1 and doubled, so that 2**n does not overflow before the result does.
    """
    of = limits(x)
    low, high = (-20.0, 89.0) if x.is_f32 else (-40.0, 710.0)
    r, _, n = reduce(_clamp(x, low, high))
    factor = power_of_two(n - 1, of)
    result = (_exp_reduced(r) * factor + (factor - 0.5)) * 2.0
    return (x.abs() < (1e-8 if x.is_f32 else 1e-17)).choose(x, result)


LIFT = 64  # by which the power of an exponential that is no normal number is one


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)) with an exponential that cannot overflow."""
    size = x.abs()
    vanishes = size > -limits(x).least
    small = vanishes.choose(0.0, exp_by_one_power(vanishes.choose(0.0, -size), LIFT))
    return (x < 0.0).choose(small, 1.0) / (small + 1.0)
