"""Proofs that a polynomial is never negative: the engine under `simplify` and `prove`.

Facts are polynomials f >= 0: ranges of variables, assumptions, and the axioms of atoms, such as
d * (x // d) <= x <= d * (x // d) + d - 1 for d > 0. To show p >= 0, pick a term that has no constant
lower bound and cancel it with a fact that bounds it:

    b * p == a * c * f + rest,   a, b > 0,   c >= 0,   f >= 0     so   rest >= 0   gives   p >= 0

(a Fourier-Motzkin step; `c` is a product of non-negative factors, which covers i * m <= (n - 1) * m).
Then go on with the rest, until constant bounds settle it or the effort is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from math import gcd
from typing import Any

from tilewright.sym import expr as e
from tilewright.sym.bounds import lower_bound, monomial_bounds, poly_bounds
from tilewright.sym.context import Context
from tilewright.sym.expr import Expr
from tilewright.sym.poly import (
    Monomial,
    Poly,
    divide_monomial,
    factors,
    monomial_of,
    poly_of,
)

QUICK, THOROUGH = 12, 64  # steps of effort: inside a simplification, and when asked for a proof


def nonnegative(poly: Poly, ctx: Context, effort: int = QUICK) -> bool:
    """Whether the polynomial is certainly >= 0."""
    low = lower_bound(poly, ctx)
    if low is not None and low >= 0:
        return True
    if not poly.terms:
        return False
    key = (effort, *poly.key())
    found = ctx._proved.get(key)
    if found is None:
        found = ctx._proved[key] = _Proof(ctx, effort).attempt(tightened(poly.expanded()))
    return found


def tightened(poly: Poly) -> Poly:
    """g*q + k >= 0 just when q + k // g >= 0, in integers."""
    divisor = reduce(gcd, poly.terms.values(), 0)
    if divisor <= 1:
        return poly
    return Poly({m: c // divisor for m, c in poly.terms.items()}, poly.const // divisor)


class _Proof:
    """One attempt with its remaining effort and the goals already seen."""

    def __init__(self, ctx: Context, effort: int) -> None:
        self.ctx = ctx
        self.effort = effort
        self.seen: set[tuple[object, ...]] = set()
        # Axioms of a quotient say that its divisor is not 0: they hold where it is evaluated,
        # hence for this goal, and are not facts of the context.
        self.axioms: dict[Monomial, list[Poly]] = {}
        self.opened: set[Expr] = set()

    def attempt(self, goal: Poly) -> bool:
        ctx = self.ctx
        total: int | None = goal.const
        open_terms: list[Monomial] = []
        for monomial, coefficient in goal.terms.items():
            inner = monomial_bounds(monomial, ctx)
            end = inner.lower if coefficient > 0 else inner.upper
            if end is None:
                open_terms.append(monomial)
            elif total is not None:
                total += coefficient * end
        if not open_terms and total is not None and total >= 0:
            return True
        if not goal.terms:
            return False
        upper = poly_bounds(goal, ctx).upper
        if upper is not None and upper < 0:
            return False
        key = goal.key()
        if self.effort <= 0 or key in self.seen:
            return False
        self.effort -= 1
        self.seen.add(key)
        case = self._split_cases(goal)
        if case is not None:
            share = self.effort // len(case)
            return all(_Proof(ctx, share).attempt(part) for part in case)
        if open_terms:
            # Every proof has to cancel each of these: the one with the fewest ways decides.
            ways = [list(self._ways(goal, monomial)) for monomial in open_terms]
            chosen = min(ways, key=len)
        else:
            chosen = [way for monomial in goal.terms for way in self._ways(goal, monomial)]
        return any(self.attempt(rest) for rest in chosen)

    def _split_cases(self, goal: Poly) -> list[Poly] | None:
        """p with +min(a, b) is >= 0 when it is with a and with b; so with -max and with select."""
        for monomial, coefficient in goal.terms.items():
            if not isinstance(monomial, (e.Min, e.Max, e.Select)):
                continue
            if isinstance(monomial, e.Select) or (coefficient > 0) == isinstance(monomial, e.Min):
                rest = goal.without(monomial)
                return [
                    tightened(rest.plus(poly_of(arm).expanded(), coefficient))
                    for arm in (monomial.a, monomial.b)
                ]
        return None

    def _ways(self, goal: Poly, monomial: Monomial) -> Iterator[Poly]:
        """What remains to prove after cancelling the term by each fact that can."""
        coefficient = goal.terms[monomial]
        for atom in dict.fromkeys(factors(monomial)):
            for fact in self._facts(atom):
                yield from self._cancel(goal, monomial, coefficient, fact, atom)
        if isinstance(monomial, tuple):
            for fact in self._facts(monomial):
                yield from self._cancel(goal, monomial, coefficient, fact, monomial)
        # -m against +n*m: what bounds n bounds the pair, (n - 1) * m >= 0.
        for other, scale in goal.terms.items():
            if isinstance(other, tuple) and other != monomial:
                left = divide_monomial(other, monomial)
                if left is not None and len(left) == 1:
                    for fact in self._facts(left[0]):
                        yield from self._cancel(goal, other, scale, fact, left[0])

    def _cancel(
        self, goal: Poly, target: Monomial, coefficient: int, fact: Poly, part: Monomial
    ) -> Iterator[Poly]:
        own = fact.terms.get(part)
        if own is None:
            return
        left = divide_monomial(target, part)
        if left is None:
            return
        used = fact
        if left:
            cofactor = monomial_bounds(monomial_of(left), self.ctx)
            if cofactor.lower is not None and cofactor.lower >= 0:
                used = fact.multiplied_out(Poly({monomial_of(left): 1}, 0))
            elif cofactor.upper is not None and cofactor.upper <= 0:
                used = fact.multiplied_out(Poly({monomial_of(left): -1}, 0))
                own = -own
            else:
                return
        if (own > 0) != (coefficient > 0):
            return
        yield tightened(goal.scaled(abs(own)).plus(used, -abs(coefficient)))

    def _facts(self, about: Monomial) -> list[Poly]:
        ctx = self.ctx
        if ctx._indexed is None:
            ctx._indexed = _index(ctx)
        if isinstance(about, Expr) and about not in self.opened:
            self.opened.add(about)
            for fact in _axioms(about, ctx):
                for monomial in fact.terms:
                    listed = self.axioms.setdefault(monomial, [])
                    if not any(fact.same(other) for other in listed):
                        listed.append(fact)
        return ctx._indexed.get(about, []) + self.axioms.get(about, [])


def _index(ctx: Context) -> dict[Monomial, list[Poly]]:
    """The facts by the terms that occur in them."""
    table: dict[Monomial, list[Poly]] = {}
    known = list(ctx.facts)
    for var, (start, stop) in ctx.ranges.items():
        it = poly_of(ctx.values.get(var, var))
        known.append(it.plus(poly_of(start), -1))
        known.append(poly_of(stop).plus(it, -1).shifted(-1))
    for fact in known:
        spread = fact.expanded()
        for monomial in spread.terms:
            table.setdefault(monomial, []).append(spread)
    return table


def _axioms(atom: Expr, ctx: Context) -> list[Poly]:
    """What holds of the atom by its meaning, and its constant bounds."""
    rule = _AXIOMS.get(type(atom))
    found = rule(atom, ctx) if rule is not None else []
    this = Poly({atom: 1}, 0)
    inner = monomial_bounds(atom, ctx)
    if inner.lower is not None:
        found.append(this.shifted(-inner.lower))
    if inner.upper is not None:
        found.append(this.scaled(-1).shifted(inner.upper))
    return [fact.expanded() for fact in found]


def is_positive_divisor(divisor: Poly, ctx: Context) -> bool:
    """Whether d > 0, given that something is divided by it: a size is then at least 1."""
    low = lower_bound(divisor, ctx)
    return low is not None and low >= 0


def _floordiv_axioms(atom: e.FloorDiv, ctx: Context) -> list[Poly]:
    divisor, x = poly_of(atom.b), poly_of(atom.a)
    if not is_positive_divisor(divisor, ctx):
        return []
    rest = x.plus(divisor.multiplied_out(Poly({atom: 1}, 0)), -1)
    found = [rest, divisor.plus(rest, -1).shifted(-1)]
    if not divisor.is_const:
        found.append(divisor.shifted(-1))
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
