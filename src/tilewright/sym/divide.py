"""Division of polynomials: quotient of the divisible terms, and remainder."""

from __future__ import annotations

from math import gcd

from tilewright.sym import expr as e
from tilewright.sym.bounds import poly_bounds
from tilewright.sym.context import Context
from tilewright.sym.expr import Const
from tilewright.sym.poly import (
    NIL,
    Monomial,
    Poly,
    constant,
    divide_monomial,
    factors,
    number,
    term,
)


def exact_quotient(whole: Poly, divisor: Poly) -> Poly | None:
    """Exact quotient whole / divisor if every term is divisible, without using a context."""
    quotient, rest = split(whole, divisor, None)
    return quotient if rest.is_nil else None


def split(whole: Poly, divisor: Poly, ctx: Context | None) -> tuple[Poly, Poly]:
    """(q, r) with whole == q * divisor + r, where q contains as much as divides term by term."""
    if divisor.is_const:
        return _split_by_constant(whole, divisor.const, ctx) if divisor.const else (NIL, whole)
    if divisor.const == 0 and len(divisor.terms) == 1:
        ((monomial, scale),) = divisor.terms.items()
        return _split_by_monomial(whole, monomial, scale)
    return _split_by_sum(whole, divisor)


def _split_by_constant(whole: Poly, by: int, ctx: Context | None) -> tuple[Poly, Poly]:
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    shift = 0
    for monomial, coefficient in whole.terms.items():
        if coefficient % by == 0:
            quotient[monomial] = quotient.get(monomial, 0) + coefficient // by
            continue
        known = residue_of(monomial, ctx) if ctx is not None and ctx.residues else None
        if known is not None:
            # n == m*j + s:  a*n == by * a' * (n // by') + a * (s % by')  where by = g*by', a = g*a'
            part = by // gcd(coefficient, by)
            if known[0] % part == 0:
                whole_term = Poly({monomial: 1}, 0).expr()
                node = e.FloorDiv(whole_term, number(part))
                quotient[node] = quotient.get(node, 0) + coefficient * part // by
                shift += coefficient * (known[1] % part)
                continue
        rest[monomial] = coefficient
    total = whole.const + shift
    return Poly(_clean(quotient), total // by), Poly(rest, total % by)


def residue_of(monomial: Monomial, ctx: Context) -> tuple[int, int] | None:
    """(modulus, residue) of a term, if known from its atoms."""
    if isinstance(monomial, tuple):
        modulus = 1
        for factor in monomial:
            known = residue_of(factor, ctx)
            if known is not None and known[1] == 0:
                modulus *= known[0]
        return None if modulus == 1 else (modulus, 0)
    known = ctx.residues.get(monomial)
    if known is None and isinstance(monomial, e.FloorDiv) and isinstance(monomial.b, Const):
        # x == m*j + s with c dividing m:  x // c == (m // c) * j + s // c
        inner = residue_of(monomial.a, ctx)
        by = int(monomial.b.value)
        if inner is not None and by > 0 and inner[0] % by == 0 and inner[0] > by:
            return inner[0] // by, inner[1] // by
    return known


def _clean(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    return {m: c for m, c in terms.items() if c} if 0 in terms.values() else terms


def _split_by_monomial(whole: Poly, by: Monomial, scale: int) -> tuple[Poly, Poly]:
    quotient = NIL
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in whole.terms.items():
        left = divide_monomial(monomial, by) if coefficient % scale == 0 else None
        if left is None:
            rest[monomial] = coefficient
        else:
            quotient = quotient.plus(term(left, coefficient // scale))
    return quotient, Poly(rest, whole.const)


def _split_by_sum(whole: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    content = divisor.content()
    base = divisor if content == 1 else divisor.divided(content)
    quotient, rest = _split_by_monomial(whole, base.expr(), content)
    # The divisor's terms may also occur separately.
    first, scale = next(iter(divisor.terms.items()))
    times, left_over = divmod(rest.terms.get(first, 0), scale)
    if times and not left_over:
        less = rest.plus(divisor, -times)
        if not any(monomial in less.terms for monomial in divisor.terms):
            quotient, rest = quotient.shifted(times), less
    return quotient, rest


def without_small_rest(whole: Poly, divisor: int, ctx: Context) -> Poly:
    """A shorter sum with the same quotient by `divisor` > 0, according to known remainders.

    Let g divide `divisor`, and let T be the terms whose sum is known modulo g: T == s (mod g). The
    others and the constant are R + c. With s + c == g*q + t, 0 <= t < g: if 0 <= R + t < g, then
    the quotient depends on T and q only. The constant that represents q is 0 if possible, else the
    least.
    """
    residues = {monomial: residue_of(monomial, ctx) for monomial in whole.terms}
    moduli = {
        gcd(coefficient * known[0], divisor)
        for monomial, coefficient in whole.terms.items()
        if (known := residues[monomial]) is not None
    }
    for g in sorted(moduli, reverse=True):
        if g == 1:
            break
        kept: dict[Monomial, int] = {}
        others: dict[Monomial, int] = {}
        residue = 0
        for monomial, coefficient in whole.terms.items():
            modulus, rest = residues[monomial] or (1, 0)
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
    """Proper factors of the divisor that divide some term of the dividend, greatest first."""
    if divisor.is_const:
        found: set[int] = set()
        for coefficient in dividend.terms.values():
            found.add(gcd(coefficient, divisor.const))
        return [constant(g) for g in sorted(found, reverse=True) if 1 < g < abs(divisor.const)]
    if divisor.const or len(divisor.terms) > 1:
        return []
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
        part = term(tuple(shared), common)
        if not any(part.same(other) for other in parts):
            parts.append(part)
    return sorted(parts, key=lambda part: -sum(len(factors(m)) for m in part.terms))
