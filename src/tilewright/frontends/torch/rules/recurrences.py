"""Functions computed by recurrences: orthogonal polynomials, incomplete gamma functions, Hurwitz's
zeta function, greatest common divisors."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import F64, I64
from tilewright.frontends.common.loops import Values, repeated
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.elementwise import operands
from tilewright.frontends.torch.rules.special import BERNOULLI, log_gamma
from tilewright.graph import Value
from tilewright.graph.types import items_of

TERMS = 300  # steps of a series and a continued fraction
FAR = 30  # terms of the zeta function before the Euler-Maclaurin tail

# The polynomial of degree k + 1 at x, from k (as f64) and those of degrees k and k - 1.
Next = Callable[[Context, Value, Value, Value, Value], Value]


def _where(node: Context, cond: Value, yes: Value | float, no: Value | float) -> Value:
    pair = [node.value(x, F64) if isinstance(x, float) else x for x in (yes, no)]
    return node.emit("where", cond, *pair)


def _pair(node: Context, one: str, two: str) -> tuple[Value, Value]:
    """Two operands in f64, in the shape of the result."""
    shape = items_of(node.out)
    a, b = (node.emit("expand", node.value(node.args[name], F64), shape=shape) for name in
            (one, two))  # fmt: skip
    return a, b


# ------------------------------------------------------------------------------------ polynomials


def _polynomial(first: Callable[[Context, Value], Value], following: Next) -> Rule:
    """The polynomial of degree n, which may be a tensor: elements keep their value at their own
    degree, in steps up to the greatest."""

    def rule(node: Context) -> Value:
        x, n = _pair(node, "x", "n")
        degree = node.emit("trunc", n)
        rank = len(node.out)
        most = node.emit("reduce_max", degree, axes=tuple(range(rank)), keepdims=False)
        count = node.cast(node.emit("maximum", most, 0.0), I64)
        one = node.emit("expand", node.value(1.0, F64), shape=items_of(node.out))

        def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
            before, last, made = states
            at, wanted = fixed
            here = inner.cast(i, F64)
            reached = inner.emit("equal", wanted, inner.emit("add", here, 1.0))
            made = inner.emit("where", reached, last, made)
            k = inner.emit("add", here, 1.0)
            return last, following(inner, at, k, last, before), made

        start = (one, first(node, x), one)
        made = repeated(node, count, start, (x, degree), step)[2]
        made = _where(node, node.emit("less", degree, 0.0), 0.0, made)
        return node.cast(made, node.to)

    return rule


def _line(slope: float, at_zero: float) -> Callable[[Context, Value], Value]:
    return lambda node, x: node.emit("add", node.emit("mul", x, slope), at_zero)


def _chebyshev(slope: float, at_zero: float) -> Next:
    """2 x' p(k) - p(k - 1), x' = slope / 2 x + at_zero / 2."""

    def following(node: Context, x: Value, k: Value, last: Value, before: Value) -> Value:
        twice = node.emit("add", node.emit("mul", x, slope), at_zero)
        return node.emit("sub", node.emit("mul", twice, last), before)

    return following


def _hermite(factor: float) -> Next:
    """factor (x p(k) - k p(k - 1))."""

    def following(node: Context, x: Value, k: Value, last: Value, before: Value) -> Value:
        less = node.emit("mul", k, before)
        return node.emit("mul", node.emit("sub", node.emit("mul", x, last), less), factor)

    return following


def _laguerre(node: Context, x: Value, k: Value, last: Value, before: Value) -> Value:
    """((2k + 1 - x) p(k) - k p(k - 1)) / (k + 1)."""
    factor = node.emit("sub", node.emit("add", node.emit("mul", k, 2.0), 1.0), x)
    above = node.emit("sub", node.emit("mul", factor, last), node.emit("mul", k, before))
    return node.emit("div", above, node.emit("add", k, 1.0))


def _legendre(node: Context, x: Value, k: Value, last: Value, before: Value) -> Value:
    """((2k + 1) x p(k) - k p(k - 1)) / (k + 1)."""
    factor = node.emit("mul", node.emit("add", node.emit("mul", k, 2.0), 1.0), x)
    above = node.emit("sub", node.emit("mul", factor, last), node.emit("mul", k, before))
    return node.emit("div", above, node.emit("add", k, 1.0))


_STARTS = {  # the polynomial of degree 1, by kind
    "t": (1.0, 0.0),
    "u": (2.0, 0.0),
    "v": (2.0, -1.0),
    "w": (2.0, 1.0),
}
_SHIFTED = {"t": (2.0, -1.0), "u": (4.0, -2.0), "v": (4.0, -3.0), "w": (4.0, -1.0)}

_POLYNOMIALS: dict[str, tuple[tuple[float, float], Next]] = {
    **{
        f"chebyshev_polynomial_{kind}": (start, _chebyshev(2.0, 0.0))
        for kind, start in _STARTS.items()
    },
    **{
        f"shifted_chebyshev_polynomial_{kind}": (start, _chebyshev(4.0, -2.0))
        for kind, start in _SHIFTED.items()
    },
    "hermite_polynomial_h": ((2.0, 0.0), _hermite(2.0)),
    "hermite_polynomial_he": ((1.0, 0.0), _hermite(1.0)),
    "laguerre_polynomial_l": ((-1.0, 1.0), _laguerre),
    "legendre_polynomial_p": ((1.0, 0.0), _legendre),
}


# ------------------------------------------------------------------------------------ gamma's


def _incomplete(upper: bool) -> Rule:
    """The regularized incomplete gamma functions.

    Below a + 1, the series x**a exp(-x) / gamma(a) (1 / a + x / (a (a + 1)) + ...) gives the lower
    one; above it, a continued fraction gives the upper one.
    """

    def rule(node: Context) -> Value:
        a, x = _pair(node, "self", "other")
        weight = node.emit("sub", node.emit("mul", a, node.emit("log", x)), x)
        weight = node.emit("exp", node.emit("sub", weight, log_gamma(node, a)))
        small = node.emit("less", x, node.emit("add", a, 1.0))
        lower = node.emit("mul", weight, _series(node, a, x))
        higher = node.emit("mul", weight, _fraction(node, a, x))
        one = node.value(1.0, F64)
        if upper:
            made = node.emit("where", small, node.emit("sub", one, lower), higher)
        else:
            made = node.emit("where", small, lower, node.emit("sub", one, higher))
        none, all_ = (1.0, 0.0) if upper else (0.0, 1.0)
        for of, at, value in (
            *((x, 0.0, none), (x, math.inf, all_), (a, math.inf, none), (a, 0.0, all_)),
        ):
            made = _where(node, node.emit("equal", of, at), value, made)
        both = [node.emit("logical_and", *(node.emit("equal", of, at) for of in (a, x)))
                for at in (0.0, math.inf)]  # fmt: skip
        below = [node.emit("less", of, 0.0) for of in (a, x)]
        for cond in (*both, *below):
            made = _where(node, cond, math.nan, made)
        return node.cast(made, node.to)

    return rule


def _series(node: Context, a: Value, x: Value) -> Value:
    """1 / a + x / (a (a + 1)) + ...: each term is the previous one times x / (a + k)."""

    def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
        total, term = states
        k = inner.emit("add", inner.cast(i, F64), 1.0)
        by = inner.emit("div", fixed[1], inner.emit("add", fixed[0], k))
        term = inner.emit("mul", term, by)
        return inner.emit("add", total, term), term

    first = node.emit("reciprocal", a)
    return repeated(node, TERMS, (first, first), (a, x), step)[0]


def _fraction(node: Context, a: Value, x: Value) -> Value:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...)), by Lentz' method."""
    tiny = 1e-300

    def away(inner: Context, value: Value) -> Value:
        """A denominator, kept away from zero."""
        lost = inner.emit("less", inner.emit("abs", value), tiny)
        return inner.emit("where", lost, inner.value(tiny, F64), value)

    def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
        made, c, d = states
        k = inner.emit("add", inner.cast(i, F64), 1.0)
        above = inner.emit("mul", k, inner.emit("sub", fixed[0], k))
        below = inner.emit("sub", inner.emit("add", fixed[1], 1.0), fixed[0])
        below = inner.emit("add", below, inner.emit("mul", k, 2.0))
        d = away(inner, inner.emit("add", below, inner.emit("mul", above, d)))
        d = inner.emit("reciprocal", d)
        c = away(inner, inner.emit("add", below, inner.emit("div", above, c)))
        return inner.emit("mul", made, inner.emit("mul", c, d)), c, d

    first = away(node, node.emit("sub", node.emit("add", x, 1.0), a))
    inverse = node.emit("reciprocal", first)
    far = node.emit("expand", node.value(1 / tiny, F64), shape=items_of(node.out))
    return repeated(node, TERMS, (inverse, far, inverse), (a, x), step)[0]


def _zeta(node: Context) -> Value:
    """The sum of (q + k)**-x, with its tail by the Euler-Maclaurin formula."""
    x, q = _pair(node, "self", "other")

    def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
        at = inner.emit("add", fixed[1], inner.cast(i, F64))
        power = inner.emit("pow", at, inner.emit("neg", fixed[0]))
        return (inner.emit("add", states[0], power),)

    nothing = node.emit("mul", node.emit("where", node.emit("isnan", x), x, x), 0.0)
    nothing = _where(node, node.emit("isnan", nothing), 0.0, nothing)
    total = repeated(node, FAR, (nothing,), (x, q), step)[0]
    far = node.emit("add", q, float(FAR))
    power = node.emit("pow", far, node.emit("neg", x))
    tail = node.emit("div", node.emit("mul", power, far), node.emit("sub", x, 1.0))
    total = node.emit("add", total, node.emit("add", tail, node.emit("mul", power, 0.5)))
    rising = x
    power = node.emit("div", power, far)
    for k, number in enumerate(BERNOULLI, 1):
        factor = number / math.factorial(2 * k)
        total = node.emit("add", total, node.emit("mul", node.emit("mul", rising, power), factor))
        for more in (2 * k - 1, 2 * k):
            rising = node.emit("mul", rising, node.emit("add", x, float(more)))
            power = node.emit("div", power, far)
    whole = node.emit("equal", q, node.emit("floor", q))
    left = node.emit("less_equal", q, 0.0)
    odd = node.emit("not_equal", x, node.emit("floor", x))
    total = _where(node, node.emit("logical_and", left, odd), math.nan, total)
    total = _where(node, node.emit("logical_and", left, whole), math.inf, total)
    total = _where(node, node.emit("equal", x, 1.0), math.inf, total)
    return node.cast(_where(node, node.emit("less", x, 1.0), math.nan, total), node.to)


# ------------------------------------------------------------------------------------ divisors

EUCLID = 93  # of Euclid's algorithm on 64 bits


def _common(node: Context) -> tuple[Value, Value, Value]:
    """Operands, and the greatest common divisor of their absolute values."""
    a, b = operands(node, node.to)
    shape = items_of(node.out)
    a, b = (node.emit("expand", x, shape=shape) for x in (a, b))

    def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
        large, small = states
        done = inner.emit("equal", small, 0)
        by = inner.emit("where", done, inner.like(small, 1), small)
        rest = inner.emit("mod", large, by)
        return (
            inner.emit("where", done, large, small),
            inner.emit("where", done, small, rest),
        )

    unsigned = node.to.kind == "uint"
    pair = [x if unsigned else node.emit("abs", x) for x in (a, b)]
    return a, b, repeated(node, EUCLID, pair, (), step)[0]


def _lcm(node: Context) -> Value:
    a, b, common = _common(node)
    by = node.emit("where", node.emit("equal", common, 0), node.like(common, 1), common)
    made = node.emit("mul", node.emit("div", a, by), b)
    return made if node.to.kind == "uint" else node.emit("abs", made)


RULES: dict[str, Rule] = {
    **{
        f"aten.special_{name}{kind}": _polynomial(_line(*start), following)
        for name, (start, following) in _POLYNOMIALS.items()
        for kind in ("", ".x_scalar", ".n_scalar")
    },
    "aten.igamma": _incomplete(upper=False),
    "aten.igammac": _incomplete(upper=True),
    "aten.special_zeta": _zeta,
    "aten.special_zeta.self_scalar": _zeta,
    "aten.special_zeta.other_scalar": _zeta,
    "aten.gcd": lambda node: _common(node)[2],
    "aten.lcm": _lcm,
}
