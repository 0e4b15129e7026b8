"""Matching the left sides of rules against normal forms.

Integer subjects are polynomials, conditions are expressions; a match gives the variables of the
rule their values. A sum in a pattern is matched as a sum: one of its terms anchors the match (a
quotient or remainder with its coefficient, or a multiple `x * d`), the others follow from what is
bound then, and a lone variable takes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym.bounds import poly_bounds
from tilewright.sym.context import Context
from tilewright.sym.expr import Const, Expr, Mul, Var
from tilewright.sym.poly import (
    NIL,
    Monomial,
    Poly,
    constant,
    divide_monomial,
    factors,
    monomial_of,
    poly_of,
)

Value = Poly | Expr
Env = dict[Var, Value]
Build = Callable[[Expr, Env], Value]


class Matcher:
    """Matches patterns in one context; `build` evaluates a pattern whose variables are bound."""

    __slots__ = ("build", "ctx", "dividing")

    def __init__(self, ctx: Context, build: Build, *, dividing: bool = False) -> None:
        self.ctx = ctx
        self.build = build
        self.dividing = dividing  # whether the patterns are quotients

    def children(
        self, patterns: tuple[Expr, ...], subjects: tuple[Value, ...], env: Env
    ) -> Iterator[Env]:
        """Match several patterns at once, the last first: divisors bind before dividends."""
        if not patterns:
            yield env
            return
        *fronts, last = patterns
        if isinstance(last, Mul) and len(patterns) == 2 and isinstance(subjects[-1], Poly):
            bound = self._factored(last, subjects, env)
        else:
            bound = self.one(last, subjects[-1], env)
        for found in bound:
            yield from self.children(tuple(fronts), subjects[:-1], found)

    def one(self, pattern: Expr, subject: Value, env: Env) -> Iterator[Env]:
        if isinstance(pattern, Var):
            if pattern in env:
                if _same(env[pattern], subject):
                    yield env
            elif pattern.name[0] != "c" or (isinstance(subject, Poly) and subject.is_const):
                if (pattern.dtype is INDEX) == isinstance(subject, Poly):
                    yield {**env, pattern: subject}
        elif isinstance(pattern, Const):
            if isinstance(subject, Poly):
                if subject.is_const and subject.const == pattern.value:
                    yield env
            elif subject is pattern:
                yield env
        elif isinstance(pattern, (e.Add, Mul)):
            if isinstance(subject, Poly):
                yield from self.sum(addends(pattern), subject, env)
        else:
            node = subject.atom() if isinstance(subject, Poly) else subject
            if type(node) is type(pattern):
                assert node is not None
                yield from self.node(pattern, node, env)

    def node(self, pattern: Expr, node: Expr, env: Env) -> Iterator[Env]:
        """Match the operands of a node of the same kind."""
        subjects = tuple(
            [poly_of(child) if child.dtype is INDEX else child for child in node.children()]
        )
        for patterns in orders(pattern):
            yield from self.children(patterns, subjects, env)

    def sum(self, parts: tuple[Expr, ...], subject: Poly, env: Env) -> Iterator[Env]:
        """Match the terms of a sum: an anchor, what follows from it, the rest."""
        anchor, *others = parts
        scale: Expr | None = None
        kernel = anchor
        if isinstance(anchor, Mul):
            kernel, scale = anchor.a, anchor.b
        if isinstance(kernel, Var):
            assert scale is not None
            if isinstance(scale, Var) and scale in env:
                divisor = env[scale]
                assert isinstance(divisor, Poly)
                # Known remainders make more terms divide; a remainder just drops those, while a
                # quotient would get more divisions for it: see `without_small_rest`.
                whole = len(env) == 1 and not self.dividing
                quotient, rest = split(subject, divisor, self.ctx if whole else None)
                if not _is_nil(quotient):
                    yield from self._rest(others, rest, {**env, kernel: quotient})
            return
        for monomial, coefficient in list(subject.terms.items()):
            for atom in factors(monomial):
                if type(atom) is not type(kernel):
                    continue
                left = divide_monomial(monomial, atom)
                assert left is not None
                times = Poly({monomial_of(left): coefficient}, 0) if left else constant(coefficient)
                rest = subject.without(monomial)
                for bound in self.node(kernel, atom, env):
                    for found in self._scaled(scale, times, bound):
                        yield from self._rest(others, rest, found)

    def _scaled(self, scale: Expr | None, times: Poly, env: Env) -> Iterator[Env]:
        """Match the coefficient of an anchor: nothing, `z`, or `d * z` with `d` bound."""
        if scale is None:
            if times.is_const and times.const == 1:
                yield env
        elif isinstance(scale, Mul):
            assert isinstance(scale.a, Var) and isinstance(scale.b, Var)
            divisor = env[scale.a]
            assert isinstance(divisor, Poly)
            quotient = exact_quotient(times, divisor)
            if quotient is not None:
                yield from self.one(scale.b, quotient, env)
        else:
            yield from self.one(scale, times, env)

    def _rest(self, parts: list[Expr], subject: Poly, env: Env) -> Iterator[Env]:
        left = subject
        for part in parts:
            if isinstance(part, Var) and part not in env:
                yield from self.one(part, left, env)
                return
            known = self.build(part, env)
            assert isinstance(known, Poly)
            left = left.plus(known, -1)
            if known.is_const or any(monomial in left.terms for monomial in known.terms):
                return
        if _is_nil(left):
            yield env

    def _factored(self, pattern: Mul, subjects: tuple[Value, ...], env: Env) -> Iterator[Env]:
        """A divisor `k * d`: by every `d` that also divides part of the dividend."""
        k, d = pattern.a, pattern.b
        assert isinstance(k, Var) and isinstance(d, Var)
        divisor, dividend = subjects[-1], subjects[0]
        assert isinstance(divisor, Poly) and isinstance(dividend, Poly)
        if d in env:
            known = env[d]
            assert isinstance(known, Poly)
            quotient = exact_quotient(divisor, known)
            if quotient is not None:
                yield {**env, k: quotient}
            return
        for part in common_divisors(dividend, divisor):
            quotient = exact_quotient(divisor, part)
            if quotient is not None:
                yield {**env, d: part, k: quotient}


_orders: dict[Expr, tuple[tuple[Expr, ...], ...]] = {}


def orders(pattern: Expr) -> tuple[tuple[Expr, ...], ...]:
    """The orders in which operands may come: both, for min, max, and, or."""
    found = _orders.get(pattern)
    if found is None:
        operands = pattern.children()
        found = (operands,)
        if isinstance(pattern, (e.Min, e.Max, e.And, e.Or, e.Eq, e.Ne)):
            found = (operands, operands[::-1])
        _orders[pattern] = found
    return found


_addends: dict[Expr, tuple[Expr, ...]] = {}


def addends(pattern: Expr) -> tuple[Expr, ...]:
    """The terms of a sum in a pattern, in order."""
    found = _addends.get(pattern)
    if found is None:
        parts: list[Expr] = []
        node = pattern
        while isinstance(node, e.Add):
            parts.append(node.b)
            node = node.a
        parts.append(node)
        found = _addends[pattern] = tuple(reversed(parts))
    return found


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, Poly):
        return isinstance(b, Poly) and a.same(b)
    return a is b


def _is_nil(poly: Poly) -> bool:
    return poly.const == 0 and not poly.terms


def exact_quotient(whole: Poly, divisor: Poly) -> Poly | None:
    """whole / divisor where every term divides, without a look at the context."""
    quotient, rest = split(whole, divisor, None)
    return quotient if _is_nil(rest) else None


def split(whole: Poly, divisor: Poly, ctx: Context | None) -> tuple[Poly, Poly]:
    """(q, r) with whole == q * divisor + r, as much in q as divides term by term."""
    if divisor.is_const:
        return _split_by_constant(whole, divisor.const, ctx)
    if divisor.const == 0 and len(divisor.terms) == 1:
        ((monomial, scale),) = divisor.terms.items()
        return _split_by_monomial(whole, monomial, scale)
    return _split_by_sum(whole, divisor)


def _split_by_constant(whole: Poly, by: int, ctx: Context | None) -> tuple[Poly, Poly]:
    residues = ctx.residues if ctx is not None else None
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    shift = 0
    for monomial, coefficient in whole.terms.items():
        if coefficient % by == 0:
            quotient[monomial] = quotient.get(monomial, 0) + coefficient // by
            continue
        if residues and monomial in residues:
            # n == m*j + s:  a*n == by * a' * (n // by') + a * (s % by')  where by = g*by', a = g*a'
            assert isinstance(monomial, Expr)
            modulus, residue = residues[monomial]
            part = by // gcd(coefficient, by)
            if modulus % part == 0:
                node = e.FloorDiv(monomial, e.const(part))
                factor = coefficient * part // by
                quotient[node] = quotient.get(node, 0) + factor
                shift += coefficient * (residue % part)
                continue
        rest[monomial] = coefficient
    total = whole.const + shift
    return Poly(_clean(quotient), total // by), Poly(rest, total % by)


def _clean(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    return {m: c for m, c in terms.items() if c} if 0 in terms.values() else terms


def _split_by_monomial(whole: Poly, by: Monomial, scale: int) -> tuple[Poly, Poly]:
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    shift = 0
    for monomial, coefficient in whole.terms.items():
        left = divide_monomial(monomial, by) if coefficient % scale == 0 else None
        if left is None:
            rest[monomial] = coefficient
        elif left:
            quotient[monomial_of(left)] = coefficient // scale
        else:
            shift = coefficient // scale
    return Poly(quotient, shift), Poly(rest, whole.const)


def _split_by_sum(whole: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    content = divisor.content()
    base = divisor if content == 1 else divisor.divided(content)
    quotient, rest = _split_by_monomial(whole, base.expr(), content)
    # The divisor may also lie there in the open, term by term.
    first, scale = next(iter(divisor.terms.items()))
    times, left_over = divmod(rest.terms.get(first, 0), scale)
    if times and not left_over:
        less = rest.plus(divisor, -times)
        if not any(monomial in less.terms for monomial in divisor.terms):
            quotient, rest = quotient.shifted(times), less
    return quotient, rest


def without_small_rest(whole: Poly, divisor: int, ctx: Context) -> Poly:
    """A sum with the same quotient by `divisor` > 0, as far as known remainders shorten it.

    Let g divide `divisor`, and let T be the terms whose sum is known modulo g: T == s (mod g).
    The others and the constant are R + c. With s + c == g*q + t, 0 <= t < g:
    if 0 <= R + t < g, then the quotient depends on T and q alone. The constant that stands for q
    is 0 where it can be, else the least.
    """
    moduli = {
        gcd(coefficient * ctx.residues[monomial][0], divisor)
        for monomial, coefficient in whole.terms.items()
        if monomial in ctx.residues
    }
    for g in sorted(moduli, reverse=True):
        if g == 1:
            break
        kept: dict[Monomial, int] = {}
        others: dict[Monomial, int] = {}
        residue = 0
        for monomial, coefficient in whole.terms.items():
            modulus, rest = ctx.residues.get(monomial, (1, 0))  # type: ignore[call-overload]
            if coefficient * modulus % g == 0:
                kept[monomial] = coefficient
                residue = (residue + coefficient * rest) % g
            else:
                others[monomial] = coefficient
        count, low = divmod(residue + whole.const, g)
        shift = g * count - residue if count else 0
        if shift == whole.const and not others:
            continue
        span = poly_bounds(Poly(others, low), ctx)
        if span.lower is not None and span.upper is not None and 0 <= span.lower <= span.upper < g:
            whole = Poly(kept, shift)
    return whole


def common_divisors(dividend: Poly, divisor: Poly) -> list[Poly]:
    """Proper parts of the divisor that divide some term of the dividend, greatest first."""
    if divisor.const or len(divisor.terms) > 1:
        if not divisor.is_const:
            return []
    if divisor.is_const:
        found: set[int] = set()
        for coefficient in dividend.terms.values():
            found.add(gcd(coefficient, divisor.const))
        return [constant(g) for g in sorted(found, reverse=True) if 1 < g < abs(divisor.const)]
    ((whole, scale),) = divisor.terms.items()
    parts: list[Poly] = []
    for monomial, coefficient in dividend.terms.items():
        left, shared = list(factors(whole)), []
        for factor in factors(monomial):
            if factor in left:
                left.remove(factor)
                shared.append(factor)
        common = gcd(coefficient, scale)
        if (not shared and common == 1) or (not left and common == abs(scale)):
            continue
        part = Poly({monomial_of(tuple(shared)): common}, 0) if shared else constant(common)
        if not any(part.same(other) for other in parts):
            parts.append(part)
    return sorted(parts, key=lambda part: -sum(len(factors(m)) for m in part.terms))


__all__ = ["NIL", "Env", "Matcher", "Value", "common_divisors", "exact_quotient", "split"]
