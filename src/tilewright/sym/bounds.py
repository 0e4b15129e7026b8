"""Constant bounds of integer expressions: interval arithmetic with floor semantics.

    bounds(i * 8 + ii, EMPTY.bind(i, 0, 4).bind(ii, 0, 8))      Interval(0, 31)

Sums are bounded term by term over the polynomial, so `x - x` is 0. Integers that are not of type
`index` wrap; their interval is that of the type unless the arithmetic provably does not overflow.
Booleans count as 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym.context import ANY, EMPTY, NATURAL, Context, Interval
from tilewright.sym.expr import Const, Expr, Size, Var, const
from tilewright.sym.ops import floordiv, floormod
from tilewright.sym.poly import Monomial, Poly, Product, poly_of

_BOOLEAN = Interval(0, 1)
_APART = 8  # minima, maxima and quotients that `upper_bound` takes apart


def bounds(expr: Expr, ctx: Context = EMPTY) -> Interval:
    """Inclusive constant bounds of an integer or boolean expression; `None` is unbounded."""
    if expr.dtype is INDEX:
        return poly_bounds(poly_of(expr), ctx)
    return monomial_bounds(expr, ctx)


def poly_bounds(poly: Poly, ctx: Context) -> Interval:
    lower: int | None = poly.const
    upper: int | None = poly.const
    for monomial, coefficient in poly.terms.items():
        inner = monomial_bounds(monomial, ctx)
        low, high = inner.lower, inner.upper
        if coefficient < 0:
            low, high = high, low
        lower = None if lower is None or low is None else lower + coefficient * low
        upper = None if upper is None or high is None else upper + coefficient * high
        if lower is None and upper is None:
            return ANY
    return Interval(lower, upper)


def upper_bound(expr: Expr, ctx: Context = EMPTY) -> int | None:
    """An upper bound of an integer, minima, maxima and quotients taken apart, whose operands may
    cancel against the rest: x - max(0, x - 9) is at most 9 for x of any range."""
    return _taken_apart(poly_of(expr), ctx, _APART)


def _taken_apart(poly: Poly, ctx: Context, left: int) -> int | None:
    found = poly_bounds(poly, ctx).upper
    sides = next((x for term in poly.terms.items() if (x := _sides(*term))), None) if left else None
    if sides is None:
        return found
    atom, is_either, parts = sides
    rest = poly.plus(Poly({atom: poly.terms[atom]}, 0), -1)
    ends = [_taken_apart(rest.plus(part), ctx, left - 1) for part in parts]
    known = [end for end in ends if end is not None]
    if not known or (is_either and len(known) < len(ends)):
        return found
    end = max(known) if is_either else min(known)
    return end if found is None else min(found, end)


def _sides(monomial: Monomial, times: int) -> tuple[Monomial, bool, list[Poly]] | None:
    """What a term is at most: each of some polynomials, or one of them."""
    if isinstance(monomial, (e.Max, e.Min)):
        is_either = isinstance(monomial, e.Max) == (times > 0)
        return monomial, is_either, [poly_of(x).scaled(times) for x in (monomial.a, monomial.b)]
    if isinstance(monomial, e.FloorDiv) and isinstance(monomial.b, Const):
        by = int(monomial.b.value)
        if by > 0 and times % by == 0:  # a - by < by * (a // by) <= a
            whole = poly_of(monomial.a) if times > 0 else poly_of(monomial.a).shifted(1 - by)
            return monomial, False, [whole.scaled(times // by)]
    if isinstance(monomial, e.FloorMod) and isinstance(monomial.a, e.FloorDiv):
        inner, outer = monomial.a.b, monomial.b
        if isinstance(inner, Const) and isinstance(outer, Const) and inner.value > 0:
            # (a // inner) % outer, the same
            rest = floormod(monomial.a.a, const(inner.value * outer.value))
            return monomial, False, [poly_of(floordiv(rest, inner)).scaled(times)]
    return None


def lower_bound(poly: Poly, ctx: Context) -> int | None:
    """The lower bound of `poly_bounds`, which proofs use most."""
    lower = poly.const
    for monomial, coefficient in poly.terms.items():
        inner = monomial_bounds(monomial, ctx)
        end = inner.lower if coefficient > 0 else inner.upper
        if end is None:
            return None
        lower += coefficient * end
    return lower


def monomial_bounds(monomial: Monomial, ctx: Context) -> Interval:
    """Bounds of an atom or a product of atoms."""
    found = ctx._bounded.get(monomial)
    if found is None:
        # Break recursion of a range that refers to itself through others: unbounded.
        ctx._bounded[monomial] = ANY
        found = ctx._bounded[monomial] = _compute(monomial, ctx)
    return found


def _compute(monomial: Monomial, ctx: Context) -> Interval:
    if isinstance(monomial, tuple):
        return _product_bounds(monomial, ctx)
    rule = _BOUNDS.get(type(monomial))
    found = rule(monomial, ctx) if rule is not None else _type_bounds(monomial)
    assumed = ctx.intervals.get(monomial)
    if assumed is not None:
        found = found.meet(assumed)
    known = ctx.values.get(monomial)
    if known is not None:
        found = found.meet(bounds(known, ctx))
    return found


def _type_bounds(expr: Expr) -> Interval:
    of = expr.dtype
    if of.is_bool:
        return _BOOLEAN
    if of is INDEX or not of.is_int or of.is_vector:
        return ANY
    return Interval(int(of.min), int(of.max))


def _unless_wrapped(found: Interval, expr: Expr) -> Interval:
    """The interval if it fits the type of `expr`; otherwise that of the type, since it may wrap."""
    limits = _type_bounds(expr)
    if limits is ANY:
        return found if expr.dtype is INDEX else ANY
    if found.lower is None or found.upper is None:
        return limits
    return found if found.lower in limits and found.upper in limits else limits


def _var_bounds(expr: Var, ctx: Context) -> Interval:
    found = NATURAL if isinstance(expr, Size) else _type_bounds(expr)
    span = ctx.ranges.get(expr)
    if span is not None:
        stop = bounds(span[1], ctx).upper
        start = bounds(span[0], ctx).lower
        found = found.meet(Interval(start, None if stop is None else stop - 1))
    return found


def _const_bounds(expr: Const, ctx: Context) -> Interval:
    if expr.dtype.is_float:
        return ANY
    return Interval(int(expr.value), int(expr.value))


def _add_bounds(expr: e.Binary, ctx: Context) -> Interval:
    a, b = bounds(expr.a, ctx), bounds(expr.b, ctx)
    sign = -1 if isinstance(expr, e.Sub) else 1
    return _unless_wrapped(_sum(a, b, sign), expr)


def _sum(a: Interval, b: Interval, sign: int) -> Interval:
    low, high = (b.lower, b.upper) if sign > 0 else (b.upper, b.lower)
    lower = None if a.lower is None or low is None else a.lower + sign * low
    upper = None if a.upper is None or high is None else a.upper + sign * high
    return Interval(lower, upper)


def _mul_bounds(expr: e.Binary, ctx: Context) -> Interval:
    return _unless_wrapped(product_interval(bounds(expr.a, ctx), bounds(expr.b, ctx)), expr)


def _product_bounds(product: Product, ctx: Context) -> Interval:
    found = Interval(1, 1)
    left = list(product)
    while left:
        factor = left.pop()
        inner = bounds(factor, ctx)
        if factor in left:  # squares are nonnegative
            left.remove(factor)
            inner = _square(inner)
        found = product_interval(found, inner)
    return found


def _square(of: Interval) -> Interval:
    whole = product_interval(of, of)
    ends = [abs(end) for end in (of.lower, of.upper) if end is not None]
    away = 0 in of or not ends
    return Interval(0 if away else min(ends) ** 2, whole.upper)


def product_interval(a: Interval, b: Interval) -> Interval:
    """The interval of products of members of `a` and `b`."""
    if a.value == 0 or b.value == 0:
        return Interval(0, 0)
    if None not in (a.lower, a.upper, b.lower, b.upper):
        ends = [x * y for x in (a.lower, a.upper) for y in (b.lower, b.upper)]  # type: ignore[operator]
        return Interval(min(ends), max(ends))
    corners = [_times(x, y) for x in _ends(a) for y in _ends(b)]
    low, high = min(corners), max(corners)
    return Interval(
        None if low == -_INFINITY else int(low), None if high == _INFINITY else int(high)
    )


_INFINITY = float("inf")


def _ends(of: Interval) -> tuple[float | int, float | int]:
    return (
        -_INFINITY if of.lower is None else of.lower,
        _INFINITY if of.upper is None else of.upper,
    )


def _times(x: float | int, y: float | int) -> float | int:
    return 0 if x == 0 or y == 0 else x * y  # 0 * infinity is 0: infinite ends are never attained


def div_interval(a: Interval, b: Interval) -> Interval:
    """The interval of x // y with x in `a` and y in `b`, y not 0."""
    found: Interval | None = None
    # Divisors of one sign at a time: the quotient is monotone in both operands.
    positive = b.meet(Interval(1, None))
    negative = b.meet(Interval(None, -1))
    for part in (positive, negative):
        low, high = _ends(part)
        if low > high:
            continue
        corners = [_floordiv(x, y) for x in _ends(a) for y in (low, high)]
        least, most = min(corners), max(corners)
        one = Interval(
            None if least == -_INFINITY else int(least), None if most == _INFINITY else int(most)
        )
        found = one if found is None else found.join(one)
    return ANY if found is None else found


def _floordiv(x: float | int, y: float | int) -> float | int:
    if abs(x) == _INFINITY:
        return x if y > 0 else -x
    if abs(y) == _INFINITY:  # the quotient is just above or below zero
        return 0 if x == 0 or (x > 0) == (y > 0) else -1
    return x // y


def _floordiv_bounds(expr: e.Binary, ctx: Context) -> Interval:
    return _unless_wrapped(div_interval(bounds(expr.a, ctx), bounds(expr.b, ctx)), expr)


def _floormod_bounds(expr: e.Binary, ctx: Context) -> Interval:
    x, y = bounds(expr.a, ctx), bounds(expr.b, ctx)
    return _unless_wrapped(mod_interval(x, y), expr)


def mod_interval(x: Interval, y: Interval) -> Interval:
    """The interval of a % b with a in `x` and b in `y`, b not 0: of b's sign and smaller
    magnitude."""
    divisor = y.value
    if divisor == 0:
        return ANY
    first = None if divisor is None or x.lower is None else divmod(x.lower, divisor)
    last = None if divisor is None or x.upper is None else divmod(x.upper, divisor)
    if first is not None and last is not None and first[0] == last[0]:  # within one period
        return Interval(min(first[1], last[1]), max(first[1], last[1]))
    # The divisor is nonzero, so a bound of zero becomes one.
    lower = 0 if y.lower is not None and y.lower >= 0 else None
    if lower is None and y.lower is not None:
        lower = y.lower + 1
    upper = 0 if y.upper is not None and y.upper <= 0 else None
    if upper is None and y.upper is not None:
        upper = y.upper - 1
    if lower == 0 and x.lower is not None and x.lower >= 0 and x.upper is not None:
        upper = x.upper if upper is None else min(upper, x.upper)
    if upper == 0 and x.upper is not None and x.upper <= 0 and x.lower is not None:
        lower = x.lower if lower is None else max(lower, x.lower)
    return Interval(lower, upper)


def _min_bounds(expr: e.Binary, ctx: Context) -> Interval:
    a, b = bounds(expr.a, ctx), bounds(expr.b, ctx)
    if not expr.dtype.is_int or expr.dtype.is_vector:
        return ANY
    lower = None if a.lower is None or b.lower is None else min(a.lower, b.lower)
    uppers = [end for end in (a.upper, b.upper) if end is not None]
    return Interval(lower, min(uppers, default=None))


def _max_bounds(expr: e.Binary, ctx: Context) -> Interval:
    a, b = bounds(expr.a, ctx), bounds(expr.b, ctx)
    if not expr.dtype.is_int or expr.dtype.is_vector:
        return ANY
    upper = None if a.upper is None or b.upper is None else max(a.upper, b.upper)
    lowers = [end for end in (a.lower, b.lower) if end is not None]
    return Interval(max(lowers, default=None), upper)


def _select_bounds(expr: e.Select, ctx: Context) -> Interval:
    if expr.dtype.is_float or expr.dtype.is_vector:
        return ANY
    cond = bounds(expr.cond, ctx)
    if cond.value is not None:
        return bounds(expr.a if cond.value else expr.b, ctx)
    return bounds(expr.a, ctx).join(bounds(expr.b, ctx))


def _cast_bounds(expr: e.Cast, ctx: Context) -> Interval:
    source = expr.value.dtype
    if source.is_float or source.is_vector:
        return _type_bounds(expr)
    if expr.dtype.is_bool:
        inner = bounds(expr.value, ctx)
        if 0 not in inner:
            return Interval(1, 1)
        return inner if inner.value == 0 else _BOOLEAN
    return _unless_wrapped(bounds(expr.value, ctx), expr)


def _not_bounds(expr: e.Not, ctx: Context) -> Interval:
    value = bounds(expr.a, ctx).value
    return _BOOLEAN if value is None else Interval(1 - value, 1 - value)


def _and_bounds(expr: e.Binary, ctx: Context) -> Interval:
    a, b = bounds(expr.a, ctx), bounds(expr.b, ctx)
    if expr.dtype.is_vector:
        return ANY
    lows, highs = (a.lower or 0, b.lower or 0), (a.upper, b.upper)
    if isinstance(expr, e.And):
        return Interval(min(lows), 0 if 0 in highs else 1)
    return Interval(max(lows), 0 if highs == (0, 0) else 1)


def _compare_bounds(expr: e.Compare, ctx: Context) -> Interval:
    of = expr.a.dtype
    if of.is_vector or not of.is_int:
        return _type_bounds(expr)
    if of is INDEX:
        gap = poly_bounds(poly_of(expr.b).plus(poly_of(expr.a), -1), ctx)
    else:
        gap = _sum(bounds(expr.b, ctx), bounds(expr.a, ctx), -1)
    low, high = gap.lower, gap.upper
    certain: bool | None = None
    if isinstance(expr, (e.Lt, e.Le)):
        least = 1 if isinstance(expr, e.Lt) else 0
        if low is not None and low >= least:
            certain = True
        elif high is not None and high < least:
            certain = False
    else:
        same = isinstance(expr, e.Eq)
        if low == 0 and high == 0:
            certain = same
        elif 0 not in gap:
            certain = not same
    return _BOOLEAN if certain is None else Interval(int(certain), int(certain))


_BOUNDS: dict[type[Expr], Callable[[Any, Context], Interval]] = {
    Var: _var_bounds,
    Size: _var_bounds,
    Const: _const_bounds,
    e.Add: lambda expr, ctx: _sum_or_poly(expr, ctx, _add_bounds),
    e.Sub: lambda expr, ctx: _sum_or_poly(expr, ctx, _add_bounds),
    e.Mul: lambda expr, ctx: _sum_or_poly(expr, ctx, _mul_bounds),
    e.FloorDiv: _floordiv_bounds,
    e.FloorMod: _floormod_bounds,
    e.Min: _min_bounds,
    e.Max: _max_bounds,
    e.Select: _select_bounds,
    e.Cast: _cast_bounds,
    e.Not: _not_bounds,
    e.And: _and_bounds,
    e.Or: _and_bounds,
    e.Eq: _compare_bounds,
    e.Ne: _compare_bounds,
    e.Lt: _compare_bounds,
    e.Le: _compare_bounds,
}


def _sum_or_poly(
    expr: e.Binary, ctx: Context, plain: Callable[[e.Binary, Context], Interval]
) -> Interval:
    """Sums of indices are factors of products; other integers are not expanded."""
    if expr.dtype is INDEX:
        return poly_bounds(poly_of(expr), ctx)
    return plain(expr, ctx)
