"""Proofs that a polynomial is nonnegative, used by `simplify` and `prove`.

Facts are polynomials f >= 0: ranges of variables, assumptions, and the axioms of atoms, such as
d * (x // d) <= x <= d * (x // d) + d - 1 for d > 0. To show p >= 0, pick a term that has no
constant lower bound and cancel it with a fact that bounds it:

    b * p + b - 1 == a * c * f + rest,   a, b > 0,   c >= 0,   f >= 0,   rest >= 0   gives   p >= 0

(a Fourier-Motzkin step; `c` is a product of nonnegative factors: i * m <= (n - 1) * m; an integer p
with b * p > -b is nonnegative). This is repeated with the rest, until constant bounds prove it or
the effort is exhausted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym.bounds import lower_bound, monomial_bounds
from tilewright.sym.context import Context, FactTable
from tilewright.sym.expr import Const, Expr, Var
from tilewright.sym.poly import (
    Monomial,
    Poly,
    divide_monomial,
    factors,
    monomial_of,
    poly_of,
)

_DEGREE, _TERMS = 3, 12  # limits of goals for which a proof is attempted
QUICK, THOROUGH = 24, 80  # goals examined: in simplification, and for an explicit proof


def nonnegative(poly: Poly, ctx: Context, effort: int = QUICK) -> bool:
    """Whether the polynomial is provably >= 0."""
    low = lower_bound(poly, ctx)
    if low is not None and low >= 0:
        return True
    if not poly.terms or not _can_reason(poly, ctx):
        return False
    key = (effort, *poly.key())
    found = ctx._proved.get(key)
    if found is None:
        found = ctx._proved[key] = _Proof(ctx, effort).attempt(tightened(poly.expanded()))
    return found


def _can_reason(poly: Poly, ctx: Context) -> bool:
    """Whether any facts besides constant bounds are known about the terms."""
    indexed = ctx._indexed
    if indexed is None:
        indexed = ctx._indexed = _index(ctx)
    for monomial in poly.terms:
        if monomial in indexed.by_term or type(monomial) is tuple or type(monomial) in _REASONED:
            return True
    return False


def tightened(poly: Poly) -> Poly:
    """Divide by the gcd of the coefficients: g*q + k >= 0 iff q + k // g >= 0, in integers."""
    divisor = reduce(gcd, poly.terms.values(), 0)
    if divisor <= 1:
        return poly
    return Poly({m: c // divisor for m, c in poly.terms.items()}, poly.const // divisor)


_NONE: list[Poly] = []


class _Cancellation(NamedTuple):
    """A fact that cancels a term: `part` of `target` occurs in it with coefficient `own`."""

    target: Monomial
    coefficient: int
    fact: Poly
    own: int
    cofactor: Monomial | None
    sign: int


class _Proof:
    """One proof attempt, with its remaining effort and the goals already tried."""

    __slots__ = ("axioms", "ctx", "effort", "opened", "seen")

    def __init__(self, ctx: Context, effort: int, given: list[Poly] = _NONE) -> None:
        self.ctx = ctx
        self.effort = effort
        self.seen: dict[frozenset[tuple[Monomial, int]], int] = {}
        # Axioms of a quotient imply that its divisor is not 0: they hold where it is evaluated,
        # hence for this goal, and are not facts of the context.
        self.axioms: dict[Monomial, list[Poly]] = {}
        self.opened: set[Expr] = set()
        for fact in given:
            for monomial in fact.terms:
                self.axioms.setdefault(monomial, []).append(fact)

    def attempt(self, goal: Poly, most: int = 99, least: int | None = None) -> bool:
        """Try to prove goal >= 0. A step is rejected if the goal gets harder: more than `most`
        terms without a bound, or a constant bound below `least`."""
        if self.effort <= 0:
            return False
        self.effort -= 1
        ctx = self.ctx
        low, high = goal.const, goal.const
        unbounded = False
        open_terms: list[Monomial] = []
        for monomial, coefficient in goal.terms.items():
            inner = monomial_bounds(monomial, ctx)
            least_end, most_end = inner.lower, inner.upper
            if coefficient < 0:
                least_end, most_end = most_end, least_end
            if least_end is None:
                open_terms.append(monomial)
            else:
                low += coefficient * least_end
            if most_end is None:
                unbounded = True
            else:
                high += coefficient * most_end
        if not open_terms:
            if low >= 0:
                return True
            if least is not None and low < least:
                return False
        elif len(open_terms) > most:
            return False
        if not goal.terms or (not unbounded and high < 0):
            return False
        if len(goal.terms) > _TERMS:
            return False
        key = frozenset(goal.terms.items())
        tried = self.seen.get(key)
        if tried is not None and goal.const <= tried:
            return False  # not easier than an earlier failure
        self.seen[key] = goal.const
        cases = _cases(goal)
        if cases is not None:
            kept, self.effort = self.effort // 2, self.effort // 2
            if self._cancel(goal, open_terms, low):
                return True
            share = kept // len(cases)
            return all(_Proof(ctx, share, given).attempt(part) for part, given in cases)
        return self._cancel(goal, open_terms, low)

    def _cancel(self, goal: Poly, open_terms: list[Monomial], low: int) -> bool:
        """Try to prove the goal from a fact and a goal with one term less."""
        for monomial in goal.terms:
            for atom in factors(monomial):
                if type(atom) in _AXIOMS and atom not in self.opened:
                    self._open(atom)
        for rest in _without_quotients(goal, self.ctx):
            if self.attempt(rest):
                return True
        # Terms without a bound first, then those with the fewest cancelling facts.
        if open_terms:
            ways = [self._cancellations(goal, monomial) for monomial in open_terms]
            ways.sort(key=len)
            if not ways[0]:
                return False  # no facts about that term
            most = max(1, len(open_terms))
            if any(self._try_cancellations(goal, some, most, None) for some in ways):
                return True
        least = None if open_terms else low
        for monomial in goal.terms:
            if self.effort <= 0:
                break
            if monomial not in open_terms and self._try_cancellations(
                goal, self._cancellations(goal, monomial), len(open_terms), least
            ):
                return True
        return False

    def _try_cancellations(
        self, goal: Poly, ways: list[_Cancellation], most: int, least: int | None
    ) -> bool:
        """Try to prove the goal by one of the cancellations."""
        for way in ways:
            if self.effort <= 0:
                return False  # before computing the rest
            if self.attempt(self._rest(goal, way), most, least):
                return True
        return False

    def _open(self, atom: Expr) -> None:
        self.opened.add(atom)
        known = self.ctx._axioms.get(atom)
        if known is None:
            found: list[Poly] = _AXIOMS[type(atom)](atom, self.ctx)
            known = self.ctx._axioms[atom] = [fact.expanded() for fact in found]
        for fact in known:
            for monomial in fact.terms:
                self.axioms.setdefault(monomial, []).append(fact)

    def _facts(self, about: Monomial) -> list[Poly]:
        assert self.ctx._indexed is not None
        found = self.ctx._indexed.by_term.get(about)
        more = self.axioms.get(about)
        if found is None or more is None:
            return found or more or _NONE
        return found + more

    def _cancellations(self, goal: Poly, monomial: Monomial) -> list[_Cancellation]:
        """The facts that can cancel the term."""
        found: list[_Cancellation] = []
        coefficient = goal.terms[monomial]
        if type(monomial) is not tuple:
            for fact in self._facts(monomial):
                own = fact.terms[monomial]
                if (own > 0) == (coefficient > 0):
                    found.append(_Cancellation(monomial, coefficient, fact, own, None, 1))
        else:
            for fact in self._facts(monomial):
                own = fact.terms[monomial]
                if (own > 0) == (coefficient > 0):
                    found.append(_Cancellation(monomial, coefficient, fact, own, None, 1))
            for atom in dict.fromkeys(monomial):
                self._product_cancellations(monomial, coefficient, atom, found)
        # -m with +n*m: bounds of n bound the pair, (n - 1) * m >= 0.
        for other, scale in goal.terms.items():
            if type(other) is tuple and other != monomial:
                left = divide_monomial(other, monomial)
                if left is not None and len(left) == 1:
                    self._product_cancellations(other, scale, left[0], found)
        if len(found) > 1:  # those that introduce the fewest terms first
            found.sort(key=lambda way: sum(term not in goal.terms for term in way.fact.terms))
        return found

    def _product_cancellations(
        self, target: Monomial, coefficient: int, atom: Expr, found: list[_Cancellation]
    ) -> None:
        """Facts about one factor of a product, multiplied by the others, if their sign is known."""
        left = divide_monomial(target, atom)
        assert left
        room = _DEGREE - len(left)
        if room < 1:
            return
        cofactor = monomial_of(left)
        inner = monomial_bounds(cofactor, self.ctx)
        if inner.lower is not None and inner.lower >= 0:
            sign = 1
        elif inner.upper is not None and inner.upper <= 0:
            sign = -1
        else:
            return
        for fact in self._facts(atom) + _constant_facts(atom, self.ctx):
            own = fact.terms[atom]
            if (own * sign > 0) == (coefficient > 0) and _degree(fact) <= room:
                found.append(_Cancellation(target, coefficient, fact, own, cofactor, sign))

    def _rest(self, goal: Poly, way: _Cancellation) -> Poly:
        used, scale = way.fact, abs(way.own)
        if way.cofactor is not None:
            used = used.multiplied_out(Poly({way.cofactor: way.sign}, 0))
        scaled = goal.scaled(scale).shifted(scale - 1)
        return tightened(scaled.plus(used, -abs(way.coefficient)))


def _degree(poly: Poly) -> int:
    return max(len(m) if type(m) is tuple else 1 for m in poly.terms)


def _cases(goal: Poly) -> list[tuple[Poly, list[Poly]]] | None:
    """Case distinctions: p with +min(a, b) is >= 0 if it is with a where a <= b and with b where b
    <= a; likewise with -max, and with select by its condition."""
    for monomial, coefficient in goal.terms.items():
        if isinstance(monomial, e.Select):
            facts = [_facts_of(monomial.cond, True), _facts_of(monomial.cond, False)]
        elif isinstance(monomial, (e.Min, e.Max)):
            if (coefficient > 0) != isinstance(monomial, e.Min):
                continue
            gap = poly_of(monomial.b).plus(poly_of(monomial.a), -1).expanded()
            facts = [[gap], [gap.scaled(-1)]]
            if isinstance(monomial, e.Max):
                facts.reverse()
        else:
            continue
        rest = goal.without(monomial)
        arms = (monomial.a, monomial.b)
        return [
            (tightened(rest.plus(poly_of(arm).expanded(), coefficient)), given)
            for arm, given in zip(arms, facts, strict=True)
        ]
    return None


def _facts_of(cond: Expr, holds: bool) -> list[Poly]:
    """The inequalities implied by a condition or its negation."""
    if isinstance(cond, (e.And, e.Or)):
        if isinstance(cond, e.And) == holds:
            return _facts_of(cond.a, holds) + _facts_of(cond.b, holds)
    elif isinstance(cond, e.Not):
        return _facts_of(cond.a, not holds)
    elif isinstance(cond, (e.Lt, e.Le)) and cond.a.dtype is INDEX:
        gap = poly_of(cond.b).plus(poly_of(cond.a), -1).expanded()
        if isinstance(cond, e.Lt):
            gap = gap.shifted(-1)
        return [gap if holds else gap.scaled(-1).shifted(-1)]
    return []


def _without_quotients(goal: Poly, ctx: Context) -> Iterator[Poly]:
    """Replace quotients: x // d <= r iff x < (r + 1) * d, and x // d >= r iff x >= r * d, for d >
    0."""
    for atom, coefficient in goal.terms.items():
        if not isinstance(atom, e.FloorDiv) or isinstance(atom.b, Const):
            continue  # constant divisors are covered by the axioms
        divisor = poly_of(atom.b).expanded()
        if coefficient in (1, -1) and is_positive_divisor(divisor, ctx):
            rest = goal.without(atom)
            x = poly_of(atom.a).expanded()
            if coefficient < 0:
                yield tightened(rest.shifted(1).multiplied_out(divisor).plus(x, -1).shifted(-1))
            else:
                yield tightened(x.plus(rest.multiplied_out(divisor)))


def _index(ctx: Context) -> FactTable:
    """The facts indexed by their terms, without constant bounds."""
    parent = ctx._parent
    if (
        parent is not None
        and parent.values is ctx.values
        and parent.facts is ctx.facts
        and len(parent.ranges) + 1 == len(ctx.ranges)
    ):  # one more range: extend the parent's table
        if parent._indexed is None:
            parent._indexed = _index(parent)
        table, opened = dict(parent._indexed.by_term), set(parent._indexed.opened)
        known = _range_facts(next(reversed(ctx.ranges.items())), ctx)
    else:
        table, opened = {}, set()
        known = list(ctx.facts)
        for item in ctx.ranges.items():
            known += _range_facts(item, ctx)
    while known:
        spread = known.pop(0).expanded()
        if len(spread.terms) > 1:
            for monomial in spread.terms:
                table[monomial] = [*table.get(monomial, ()), spread]
        for monomial in spread.terms:
            for atom in factors(monomial):
                if type(atom) in _AXIOMS and atom not in opened:
                    opened.add(atom)
                    if not isinstance(atom, _DIVISIONS) or isinstance(atom.b, Const):
                        known += _AXIOMS[type(atom)](atom, ctx)
    return FactTable(table, opened)


def _range_facts(item: tuple[Var, tuple[Expr, Expr]], ctx: Context) -> list[Poly]:
    var, (start, stop) = item
    it = poly_of(ctx.values.get(var, var))
    return [it.plus(poly_of(start), -1), poly_of(stop).plus(it, -1).shifted(-1)]


def _constant_facts(atom: Expr, ctx: Context) -> list[Poly]:
    inner = monomial_bounds(atom, ctx)
    found: list[Poly] = []
    if inner.lower is not None:
        found.append(Poly({atom: 1}, -inner.lower))
    if inner.upper is not None:
        found.append(Poly({atom: -1}, inner.upper))
    return found


def is_positive_divisor(divisor: Poly, ctx: Context) -> bool:
    """Whether d > 0, given that it is a divisor: a size is then at least 1."""
    low = lower_bound(divisor, ctx)
    return low is not None and low >= (1 if divisor.is_const else 0)


def _floordiv_axioms(atom: e.FloorDiv, ctx: Context) -> list[Poly]:
    divisor, x = poly_of(atom.b), poly_of(atom.a)
    if not is_positive_divisor(divisor, ctx):
        return []
    rest = x.plus(divisor.multiplied_out(Poly({atom: 1}, 0)), -1)
    found = [rest, divisor.plus(rest, -1).shifted(-1)]
    if not divisor.is_const:
        found.append(divisor.shifted(-1))
    elif isinstance(atom.a, Var) and atom.a in ctx.ranges:
        # x < d * s implies x // d < s, which is lost where sums of both are rounded.
        stop, by = poly_of(ctx.ranges[atom.a][1]).expanded(), divisor.const
        if all(coefficient % by == 0 for coefficient in stop.terms.values()):
            found.append(stop.shifted(-1).divided(by).plus(Poly({atom: 1}, 0), -1))
    return found


def _floormod_axioms(atom: e.FloorMod, ctx: Context) -> list[Poly]:
    divisor, x = poly_of(atom.b), poly_of(atom.a)
    if not is_positive_divisor(divisor, ctx):
        return []
    this = Poly({atom: 1}, 0)
    found = [this, divisor.plus(this, -1).shifted(-1)]
    low = lower_bound(x, ctx)
    if low is not None and low >= 0:
        found.append(x.plus(this, -1))
    if not divisor.is_const:
        found.append(divisor.shifted(-1))
    # x == d * (x // d) + x % d
    whole = divisor.multiplied_out(Poly({e.FloorDiv(atom.a, atom.b): 1}, 0)).plus(this)
    found.append(x.plus(whole, -1))
    found.append(whole.plus(x, -1))
    return found


def _min_axioms(atom: e.Min, ctx: Context) -> list[Poly]:
    this = Poly({atom: 1}, 0)
    return [poly_of(atom.a).plus(this, -1), poly_of(atom.b).plus(this, -1)]


def _max_axioms(atom: e.Max, ctx: Context) -> list[Poly]:
    this = Poly({atom: 1}, 0)
    return [this.plus(poly_of(atom.a), -1), this.plus(poly_of(atom.b), -1)]


_AXIOMS: dict[type[Expr], Callable[[Any, Context], list[Poly]]] = {
    e.FloorDiv: _floordiv_axioms,
    e.FloorMod: _floormod_axioms,
    e.Min: _min_axioms,
    e.Max: _max_axioms,
}
_DIVISIONS = (e.FloorDiv, e.FloorMod)
_REASONED = frozenset((*_AXIOMS, e.Select))
