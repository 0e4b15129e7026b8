"""sin, cos, tan and their inverses.

    x = n pi/2 + r,  |r| <= pi/4

The remainder of an f32 is found in f64, with pi/2 in two parts: it is exact enough up to |x| of
2**26, and a sine stays within [-1, 1] beyond. The remainder of an f64 takes three parts of pi/2 and
is good up to |x| of 2**20.
"""

from __future__ import annotations

from tilewright.codegen.math import coefficients as c
from tilewright.codegen.math.exponential import nearest
from tilewright.codegen.math.hyperbolic import odd, square_of
from tilewright.codegen.math.logarithm import INF, NAN
from tilewright.codegen.math.value import Real, Whole, polynomial

PI, HALF_PI, QUARTER_PI = 3.141592653589793, 1.5707963267948966, 0.7853981633974483
TWO_OVER_PI = 0.6366197723675814

# pi/2 in parts, each with so few bits that its product with n is exact.
_HALF_PI_25 = (1.5707963109016418, 1.5893254773528197e-08)  # 25 bits, then the rest
_HALF_PI_33 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_HALF_PI_LOST = 6.123233995736766e-17  # pi/2 minus its f64
_HALF_PI_LOST_F32 = -4.371139000186241e-08  # and minus its f32


def _lost(x: Real) -> float:
    """What pi/2 in the type of x misses."""
    return _HALF_PI_LOST_F32 if x.is_f32 else _HALF_PI_LOST


def _remainder(x: Real) -> tuple[Real, Whole]:
    """(r, n) with x = n pi/2 + r; n is a 32-bit or 64-bit integer as x."""
    if x.is_f32:
        wide = x.at_most(2.0**28).at_least(-(2.0**28)).to_f64()
        n, _ = nearest(wide * TWO_OVER_PI)
        r = (wide - n * _HALF_PI_25[0]) - n * _HALF_PI_25[1]
        small = r.at_most(0.8).at_least(-0.8).to_f32()
        return (x.abs() < INF).choose(small, NAN), n.to_f32_int()
    x_safe = x.at_most(2.0**30).at_least(-(2.0**30))
    n, n_int = nearest(x_safe * TWO_OVER_PI)
    r = x_safe - n * _HALF_PI_33[0]
    r = r - n * _HALF_PI_33[1]
    r = r - n * _HALF_PI_33[2]
    r = r.at_most(0.8).at_least(-0.8)
    return (x.abs() < INF).choose(r, NAN), n_int


def _sin_reduced(r: Real) -> Real:
    return odd(r, c.SIN_F32, c.SIN_F64)


def _cos_reduced(r: Real) -> Real:
    """1 - (r**2 / 2 - r**4 P(r**2)), where what 1 - r**2 / 2 loses is added back."""
    square = square_of(r)
    half = square * 0.5
    rest = polynomial(square, c.COS_F32 if r.is_f32 else c.COS_F64) * (square * square)
    near_one = 1.0 - half
    return near_one + (((1.0 - near_one) - half) + rest)


def _quadrant(n: Whole, sine: Real, cosine: Real) -> Real:
    """The sine of n pi/2 + r: odd quadrants swap, the upper two change the sign."""
    chosen = (n & 1).differs(0).choose(cosine, sine)
    return (n & 2).differs(0).choose(-chosen, chosen)


def sin(x: Real) -> Real:
    r, n = _remainder(x)
    result = _quadrant(n, _sin_reduced(r), _cos_reduced(r))
    return x.equals(0.0).choose(x, result)


def cos(x: Real) -> Real:
    r, n = _remainder(x)
    return _quadrant(n + 1, _sin_reduced(r), _cos_reduced(r))


def tan(x: Real) -> Real:
    r, n = _remainder(x)
    sine, cosine = _sin_reduced(r), _cos_reduced(r)
    swap = (n & 1).differs(0)
    result = swap.choose(-cosine, sine) / swap.choose(sine, cosine)
    return x.equals(0.0).choose(x, result)


def _asin_core(z: Real) -> Real:
    """asin(z) for |z| <= 1/2."""
    return odd(z, c.ASIN_F32, c.ASIN_F64)


def asin(x: Real) -> Real:
    """Beyond 1/2, pi/2 - 2 asin(sqrt((1 - |x|) / 2))."""
    size = x.abs()
    large = size > 0.5
    root = ((1.0 - size) * 0.5).sqrt()
    core = _asin_core(large.choose(root, size))
    beyond = HALF_PI - (core * 2.0 - _lost(x))
    return large.choose(beyond, core).with_sign_of(x)


def acos(x: Real) -> Real:
    size = x.abs()
    large = size > 0.5
    root = ((1.0 - size) * 0.5).sqrt()
    core = _asin_core(large.choose(root, x))
    doubled = core * 2.0
    lost = _lost(x)
    beyond = (x < 0.0).choose(PI - (doubled - lost * 2.0), doubled)
    return large.choose(beyond, HALF_PI - (core - lost))


def _atan_core(z: Real) -> Real:
    """atan(z) for 0 <= z <= 1. In f64, beyond tan(pi/8): pi/4 + atan((z - 1) / (z + 1))."""
    if z.is_f32:
        return odd(z, c.ATAN_F32, c.ATAN_F32)
    wide = z > 0.41421356237309503
    narrow = wide.choose((z - 1.0) / (z + 1.0), z)
    core = odd(narrow, c.ATAN_NARROW_F64, c.ATAN_NARROW_F64)
    return wide.choose(QUARTER_PI + (core + _HALF_PI_LOST / 2), core)


def atan(x: Real) -> Real:
    size = x.abs()
    large = size > 1.0
    core = _atan_core(large.choose(1.0 / size, size))
    lost = _lost(x)
    return large.choose(HALF_PI - (core - lost), core).with_sign_of(x)


def atan2(y: Real, x: Real) -> Real:
    """The angle of (x, y), quadrants by the signs of both, zeros and infinities included."""
    across, up = x.abs(), y.abs()
    steep = up > across
    greater, lesser = steep.choose(up, across), steep.choose(across, up)
    ratio = lesser / greater
    ratio = greater.equals(0.0).choose(0.0, ratio)
    ratio = (lesser.equals(INF)).choose(1.0, ratio)
    lost = _lost(x)
    angle = _atan_core(ratio)
    angle = steep.choose(HALF_PI - (angle - lost), angle)
    angle = (x.bits() < 0).choose(PI - (angle - lost * 2.0), angle)
    angle = (x.is_nan() | y.is_nan()).choose(NAN, angle)
    return angle.with_sign_of(y)
