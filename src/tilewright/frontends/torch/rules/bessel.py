"""Bessel and Airy functions, and the scaled complementary error function, in f64.

Below a threshold each is a series in x or x**2, above it its asymptotic form, whose slowly changing
factors are series in 1/x or 1/x**2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
from mpmath import mpf

from tilewright.base.dtype import F64
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.chebyshev import fitted
from tilewright.frontends.torch.rules.special import in_f64, inverse_error
from tilewright.graph import Value

NEAR = 8.0  # where the asymptotic forms of the oscillating functions and of I begin
NEAR_K = 2.0  # and of K
TINY = mpf(10) ** -20  # where limits at zero are taken


def _where(node: Context, cond: Value, yes: Value | float, no: Value | float) -> Value:
    pair = [node.value(x, F64) if isinstance(x, float) else x for x in (yes, no)]
    return node.emit("where", cond, *pair)


def _inverse(node: Context, x: Value, least: float) -> Value:
    """1 / x where x is at least `least`."""
    return node.emit("reciprocal", node.emit("maximum", x, least))


# ------------------------------------------------------------------------------------ I and K


def _scaled_i(order: int) -> Callable[[Context, Value], Value]:
    """exp(-|x|) I(x)."""

    def near(t: mpf) -> mpf:
        return mpmath.exp(-t) * mpmath.besseli(order, t)

    def far(t: mpf) -> mpf:  # t = 1 / x
        x = 1 / max(t, mpf(10) ** -6)
        return mpmath.sqrt(x) * mpmath.exp(-x) * mpmath.besseli(order, x)

    def formula(node: Context, x: Value) -> Value:
        size = node.emit("abs", x)
        low = fitted(node, size, near, 0.0, NEAR, 34)
        inverse = _inverse(node, size, NEAR)
        high = fitted(node, inverse, far, 0.0, 1 / NEAR, 28)
        high = node.emit("mul", high, node.emit("sqrt", inverse))
        made = _where(node, node.emit("less_equal", size, NEAR), low, high)
        if order == 0:
            return made
        return node.emit("mul", made, node.emit("sign", x))

    return formula


def _i(order: int) -> Callable[[Context, Value], Value]:
    scaled = _scaled_i(order)

    def formula(node: Context, x: Value) -> Value:
        return node.emit("mul", scaled(node, x), node.emit("exp", node.emit("abs", x)))

    return formula


def _scaled_k(order: int) -> Callable[[Context, Value], Value]:
    """exp(x) K(x): up to 2, K = +-log(x / 2) I + a series, which is divided by x for order 1."""
    sign = -1 if order == 0 else 1

    def near(t: mpf) -> mpf:  # t = x**2
        x = mpmath.sqrt(max(t, TINY))
        rest = mpmath.besselk(order, x) - sign * mpmath.log(x / 2) * mpmath.besseli(order, x)
        return rest * x**order

    def far(t: mpf) -> mpf:  # t = 1 / x
        x = 1 / max(t, mpf(10) ** -6)
        return mpmath.sqrt(x) * mpmath.exp(x) * mpmath.besselk(order, x)

    unscaled = _i(order)

    def formula(node: Context, x: Value) -> Value:
        low = fitted(node, node.emit("mul", x, x), near, 0.0, NEAR_K**2, 14)
        if order:
            low = node.emit("div", low, x)
        logs = node.emit("mul", node.emit("log", node.emit("mul", x, 0.5)), unscaled(node, x))
        low = node.emit("add" if sign > 0 else "sub", low, logs)
        low = node.emit("mul", low, node.emit("exp", x))
        inverse = _inverse(node, x, NEAR_K)
        high = fitted(node, inverse, far, 0.0, 1 / NEAR_K, 30)
        high = node.emit("mul", high, node.emit("sqrt", inverse))
        made = _where(node, node.emit("less_equal", x, NEAR_K), low, high)
        made = _where(node, node.emit("equal", x, 0.0), math.inf, made)
        return _where(node, node.emit("less", x, 0.0), math.nan, made)

    return formula


def _k(order: int) -> Callable[[Context, Value], Value]:
    scaled = _scaled_k(order)

    def formula(node: Context, x: Value) -> Value:
        return node.emit("mul", scaled(node, x), node.emit("exp", node.emit("neg", x)))

    return formula


# ------------------------------------------------------------------------------------ J and Y


def _turning(order: int) -> tuple[Callable[[mpf], mpf], Callable[[mpf], mpf]]:
    """P and Q of J + iY = sqrt(2 / (pi x)) (P + iQ) exp(i (x - phase)), Q times x; of 1 / x**2."""

    def factor(t: mpf) -> tuple[mpf, mpf]:
        x = 1 / mpmath.sqrt(max(t, mpf(10) ** -8))
        phase = x - (2 * order + 1) * mpmath.pi / 4
        whole = mpmath.hankel1(order, x) * mpmath.sqrt(mpmath.pi * x / 2) * mpmath.expj(-phase)
        return mpmath.re(whole), mpmath.im(whole) * x

    return lambda t: factor(t)[0], lambda t: factor(t)[1]


_TURNING = tuple(_turning(order) for order in (0, 1))


def _far(node: Context, size: Value, order: int, *, second: bool) -> Value:
    """J, or Y with `second`, above NEAR."""
    inverse = _inverse(node, size, NEAR)
    square = node.emit("mul", inverse, inverse)
    p, q = (fitted(node, square, part, 0.0, NEAR**-2, 22) for part in _TURNING[order])
    q = node.emit("mul", q, inverse)
    phase = node.emit("sub", size, (2 * order + 1) * math.pi / 4)
    cosine, sine = node.emit("cos", phase), node.emit("sin", phase)
    if second:
        turned = node.emit("add", node.emit("mul", p, sine), node.emit("mul", q, cosine))
    else:
        turned = node.emit("sub", node.emit("mul", p, cosine), node.emit("mul", q, sine))
    return node.emit("mul", turned, node.emit("sqrt", node.emit("mul", inverse, 2 / math.pi)))


def _j(order: int) -> Callable[[Context, Value], Value]:
    def near(t: mpf) -> mpf:  # J(x) / x**order of x**2
        x = mpmath.sqrt(max(t, TINY))
        return mpmath.besselj(order, x) / x**order

    def formula(node: Context, x: Value) -> Value:
        size = node.emit("abs", x)
        low = fitted(node, node.emit("mul", x, x), near, 0.0, NEAR**2, 26)
        high = _far(node, size, order, second=False)
        if order:
            low = node.emit("mul", low, x)
            high = node.emit("mul", high, node.emit("sign", x))
        return _where(node, node.emit("less_equal", size, NEAR), low, high)

    return formula


def _y(order: int) -> Callable[[Context, Value], Value]:
    """Below NEAR: 2 / pi (log(x) J - order / x) + x**order times a series in x**2."""

    def near(t: mpf) -> mpf:
        x = mpmath.sqrt(max(t, TINY))
        main = mpmath.log(x) * mpmath.besselj(order, x) - mpf(order) / x
        return (mpmath.bessely(order, x) - 2 / mpmath.pi * main) / x**order

    first = _j(order)

    def formula(node: Context, x: Value) -> Value:
        low = fitted(node, node.emit("mul", x, x), near, 0.0, NEAR**2, 26)
        low = node.emit("mul", low, x) if order else low
        main = node.emit("mul", node.emit("log", x), first(node, x))
        if order:
            main = node.emit("sub", main, node.emit("reciprocal", x))
        low = node.emit("add", low, node.emit("mul", main, 2 / math.pi))
        high = _far(node, x, order, second=True)
        made = _where(node, node.emit("less_equal", x, NEAR), low, high)
        made = _where(node, node.emit("equal", x, 0.0), -math.inf, made)
        return _where(node, node.emit("less", x, 0.0), math.nan, made)

    return formula


def _spherical(node: Context, x: Value) -> Value:
    """sin(x) / x, by a series near zero; zero at infinity."""
    square = node.emit("mul", x, x)
    series: Value = node.value(0.0, F64)
    for k in range(6, -1, -1):
        term = (-1) ** k / math.factorial(2 * k + 1)
        series = node.emit("add", node.emit("mul", series, square), term)
    made = node.emit("div", node.emit("sin", x), x)
    size = node.emit("abs", x)
    made = _where(node, node.emit("less", size, 0.5), series, made)
    return _where(node, node.emit("equal", size, math.inf), 0.0, made)


# ------------------------------------------------------------------------------------ Airy

AIRY_LOW, AIRY_HIGH = -8.0, 2.0


def _airy_far(t: mpf) -> mpf:  # of 1 / zeta
    zeta = 1 / max(t, mpf(10) ** -6)
    x = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
    return mpmath.airyai(x) * mpmath.exp(zeta) * x ** mpf("0.25")


def _airy_turning(t: mpf) -> tuple[mpf, mpf]:
    """P and Q, by zeta, of Ai(-x) = x**-1/4 / sqrt(pi) (P sin(a) - Q cos(a)), a = zeta + pi / 4."""
    zeta = 1 / mpmath.sqrt(max(t, mpf(10) ** -8))
    x = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
    angle = zeta + mpmath.pi / 4
    scale = mpmath.sqrt(mpmath.pi) * x ** mpf("0.25")
    first, second = mpmath.airyai(-x) * scale, mpmath.airybi(-x) * scale
    p = first * mpmath.sin(angle) + second * mpmath.cos(angle)
    q = second * mpmath.sin(angle) - first * mpmath.cos(angle)
    return p, q * zeta


def _airy_p(t: mpf) -> mpf:
    return _airy_turning(t)[0]


def _airy_q(t: mpf) -> mpf:
    return _airy_turning(t)[1]


def _airy(node: Context, x: Value) -> Value:
    middle = fitted(node, x, mpmath.airyai, AIRY_LOW, AIRY_HIGH, 40)
    size = node.emit("abs", x)
    root = node.emit("sqrt", size)
    zeta = node.emit("mul", node.emit("mul", size, root), 2 / 3)
    fourth = node.emit("rsqrt", node.emit("maximum", root, 1e-30))
    above = 2 / 3 * AIRY_HIGH**1.5
    right = fitted(node, _inverse(node, zeta, above), _airy_far, 0.0, 1 / above, 30)
    right = node.emit(
        "mul", node.emit("mul", right, fourth), node.emit("exp", node.emit("neg", zeta))
    )
    below = 2 / 3 * abs(AIRY_LOW) ** 1.5
    inverse = _inverse(node, zeta, below)
    square = node.emit("mul", inverse, inverse)
    p = fitted(node, square, _airy_p, 0.0, below**-2, 14)
    q = node.emit("mul", fitted(node, square, _airy_q, 0.0, below**-2, 14), inverse)
    angle = node.emit("add", zeta, math.pi / 4)
    left = node.emit(
        "sub",
        node.emit("mul", p, node.emit("sin", angle)),
        node.emit("mul", q, node.emit("cos", angle)),
    )
    left = node.emit("mul", node.emit("mul", left, fourth), 1 / math.sqrt(math.pi))
    made = _where(node, node.emit("greater", x, AIRY_HIGH), right, middle)
    return _where(node, node.emit("less", x, AIRY_LOW), left, made)


# ------------------------------------------------------------------------------------ errors

BEND = 3.75


def _scaled_error(t: mpf) -> mpf:
    """(1 + 2x) exp(x**2) erfc(x) of t = (x - BEND) / (x + BEND)."""
    if t >= 1:
        return 2 / mpmath.sqrt(mpmath.pi)
    x = BEND * (1 + t) / (1 - t)
    if x > 1000:
        return (1 + 2 * x) / (x * mpmath.sqrt(mpmath.pi)) * (1 - 1 / (2 * x * x))
    return (1 + 2 * x) * mpmath.exp(x * x) * mpmath.erfc(x)


def erfcx(node: Context, x: Value) -> Value:
    """exp(x**2) erfc(x); for negative x, 2 exp(x**2) minus its value at -x."""
    size = node.emit("abs", x)
    t = node.emit("div", node.emit("sub", size, BEND), node.emit("add", size, BEND))
    t = _where(node, node.emit("equal", size, math.inf), 1.0, t)
    made = fitted(node, t, _scaled_error, -1.0, 1.0, 40)
    made = node.emit("div", made, node.emit("add", node.emit("mul", size, 2.0), 1.0))
    square = node.emit("mul", node.emit("exp", node.emit("mul", x, x)), 2.0)
    return _where(node, node.emit("less", x, 0.0), node.emit("sub", square, made), made)


def log_normal_share(node: Context, x: Value) -> Value:
    """The logarithm of the cumulative normal distribution."""
    scaled = node.emit("mul", x, -math.sqrt(0.5))
    low = node.emit("log", node.emit("mul", erfcx(node, node.emit("maximum", scaled, 0.0)), 0.5))
    low = node.emit("sub", low, node.emit("mul", scaled, scaled))
    other = node.emit("neg", node.emit("sub", node.emit("erf", node.emit("neg", scaled)), 1.0))
    high = node.emit("log1p", node.emit("mul", other, -0.5))
    return _where(node, node.emit("less", x, -1.0), low, high)


def _normal_quantile(node: Context, p: Value) -> Value:
    """The quantile of the lower tail, by Newton's steps on the logarithm of the distribution."""
    upper = node.emit("greater", p, 0.5)
    tail = _where(node, upper, node.emit("sub", node.value(1.0, F64), p), p)
    guess = inverse_error(node, node.emit("sub", node.emit("mul", tail, 2.0), 1.0))
    far = node.emit("neg", node.emit("sqrt", node.emit("mul", node.emit("log", tail), -2.0)))
    x = _where(node, node.emit("less", tail, 1e-6), far, node.emit("mul", guess, math.sqrt(2)))
    goal = node.emit("log", tail)
    for _ in range(5):
        scaled = node.emit("mul", x, -math.sqrt(0.5))
        slope = node.emit("div", node.value(math.sqrt(2 / math.pi), F64), erfcx(node, scaled))
        off = node.emit("sub", log_normal_share(node, x), goal)
        x = node.emit("sub", x, node.emit("div", off, slope))
    x = _where(node, upper, node.emit("neg", x), x)
    x = _where(node, node.emit("equal", p, 0.0), -math.inf, x)
    return _where(node, node.emit("equal", p, 1.0), math.inf, x)


RULES: dict[str, Rule] = {
    "aten.i0": in_f64(_i(0)),
    "aten.special_i0e": in_f64(_scaled_i(0)),
    "aten.special_i1": in_f64(_i(1)),
    "aten.special_i1e": in_f64(_scaled_i(1)),
    "aten.special_modified_bessel_i0": in_f64(_i(0)),
    "aten.special_modified_bessel_i1": in_f64(_i(1)),
    "aten.special_modified_bessel_k0": in_f64(_k(0)),
    "aten.special_modified_bessel_k1": in_f64(_k(1)),
    "aten.special_scaled_modified_bessel_k0": in_f64(_scaled_k(0)),
    "aten.special_scaled_modified_bessel_k1": in_f64(_scaled_k(1)),
    "aten.special_bessel_j0": in_f64(_j(0)),
    "aten.special_bessel_j1": in_f64(_j(1)),
    "aten.special_bessel_y0": in_f64(_y(0)),
    "aten.special_bessel_y1": in_f64(_y(1)),
    "aten.special_spherical_bessel_j0": in_f64(_spherical),
    "aten.special_airy_ai": in_f64(_airy),
    "aten.special_erfcx": in_f64(erfcx),
    "aten.special_log_ndtr": in_f64(log_normal_share),
    "aten.special_ndtri": in_f64(_normal_quantile),
}
