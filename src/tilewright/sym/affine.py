"""Affine structure of index expressions: coefficients, splitting, bijections.

linear(io * 8 + ii + n, (io, ii))                      {io: 8, ii: 1}, n
split_terms(io * 8 + ii, {ii})                         io * 8, ii
is_bijective((f // m, f % m), {f: n * m})              True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.sym import expr as e
from tilewright.sym.context import EMPTY, Context
from tilewright.sym.divide import exact_quotient
from tilewright.sym.expr import Expr, Size, Var
from tilewright.sym.ops import as_expr
from tilewright.sym.poly import UNIT, Monomial, Poly, constant, factors, monomial_of, poly_of
from tilewright.sym.prove import equal
from tilewright.sym.simplify import simplify
from tilewright.sym.visit import free_vars, uses_var


def linear(expr: Expr, variables: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """Coefficients c and a rest r, free of the variables: expr == sum of c[v] * v + r.

    None where a variable occurs in any other way. Variables that do not occur are left out.
    """
    wanted = dict.fromkeys(variables)
    inside = {v for v in free_vars(expr) if v in wanted}
    if not inside:
        return {}, expr
    poly = poly_of(expr)
    if any(
        type(atom) in (e.Add, e.Sub) and uses_var(atom, inside)
        for monomial in poly.terms
        for atom in factors(monomial)
    ):
        poly = poly.expanded()
    slopes: dict[Var, Poly] = {}
    rest = constant(poly.const)
    for monomial, coefficient in poly.terms.items():
        parts = factors(monomial)
        found = [atom for atom in parts if atom in inside]
        others = tuple(atom for atom in parts if atom not in inside)
        if len(found) > 1 or any(uses_var(atom, inside) for atom in others):
            return None
        if not found:
            rest = rest.plus(Poly({monomial: coefficient}, 0))
            continue
        var = found[0]
        assert isinstance(var, Var)
        one = Poly({monomial_of(others): coefficient}, 0) if others else constant(coefficient)
        slopes[var] = slopes.get(var, constant(0)).plus(one)
    ordered = {v: slopes[v].expr() for v in wanted if v in slopes and not _is_nil(slopes[v])}
    return ordered, rest.expr()


def _is_nil(poly: Poly) -> bool:
    return poly.is_const and poly.const == 0


def split_terms(expr: Expr, inner: set[Var] | Mapping[Var, object]) -> tuple[Expr, Expr] | None:
    """(outer, inner) with expr == outer + inner: the inner part over `inner` and sizes alone, the
    outer part free of `inner`. None where a term mixes inner with other variables."""
    poly = poly_of(expr)
    if any(
        type(atom) in (e.Add, e.Sub) and uses_var(atom, inner)
        for monomial in poly.terms
        for atom in factors(monomial)
    ):
        poly = poly.expanded()
    outside: dict[Monomial, int] = {}
    inside: dict[Monomial, int] = {}
    for monomial, coefficient in poly.terms.items():
        used = [v for v in free_vars(*factors(monomial)) if not isinstance(v, Size)]
        if not any(v in inner for v in free_vars(*factors(monomial))):
            outside[monomial] = coefficient
        elif all(v in inner for v in used):
            inside[monomial] = coefficient
        else:
            return None
    return Poly(outside, poly.const).expr(), Poly(inside, 0).expr()


@dataclass(frozen=True, slots=True)
class _Digit:
    """(source // low) % extent: one digit of a variable, or of a sum that counts like one."""

    source: Expr
    low: Poly
    extent: Poly | None  # None: all that is above `low`


def is_bijective(
    exprs: Sequence[Expr], extents: Mapping[Var, Expr | int], ctx: Context = EMPTY
) -> bool:
    """Whether the tuple of indices visits every point of some box exactly once while each variable
    runs over 0..extent. True only when certain."""
    inner = ctx.bind_all({v: (0, as_expr(extent)) for v, extent in extents.items()})
    sizes = {v: poly_of(simplify(as_expr(extent), ctx)) for v, extent in extents.items()}
    cover = _Cover(sizes, ctx, inner)
    if not all(cover.take_index(simplify(expr, inner)) for expr in exprs):
        return False
    return cover.is_complete()


class _Cover:
    """Collects the digits that indices are made of, then checks that nothing is left or doubled."""

    def __init__(self, sizes: dict[Var, Poly], ctx: Context, inner: Context) -> None:
        self.sizes = sizes
        self.ctx = ctx
        self.inner = inner
        self.digits: dict[Expr, list[_Digit]] = {}

    def same(self, a: Poly, b: Poly) -> bool:
        return a.same(b) or equal(a.expr(), b.expr(), self.ctx)

    def is_one(self, poly: Poly) -> bool:
        return poly.is_const and poly.const == 1

    def take_index(self, expr: Expr) -> bool:
        return self.extent_of(poly_of(expr)) is not None

    def extent_of(self, index: Poly) -> Poly | None:
        """How many values a mixed-radix number takes, its digits taken note of; None if it is not
        one. Terms must be digit * scale with scale_0 = 1, scale_(k+1) = scale_k * extent_k."""
        terms: list[tuple[Poly, Poly]] = []  # scale, extent
        for monomial, coefficient in index.expanded().terms.items():
            moving = [atom for atom in factors(monomial) if uses_var(atom, self.sizes)]  # type: ignore[arg-type]
            if not moving:
                continue  # an offset moves the box
            if len(moving) > 1:
                return None
            others = tuple(atom for atom in factors(monomial) if atom is not moving[0])
            scale = Poly({monomial_of(others): coefficient}, 0) if others else constant(coefficient)
            extent = self.digit(moving[0])
            if extent is None:
                return None
            terms.append((scale, extent))
        total = UNIT
        while terms:
            place = next((k for k, (scale, _) in enumerate(terms) if self.same(scale, total)), None)
            if place is None:
                return None
            total = poly_of(simplify(total.times(terms.pop(place)[1]).expr(), self.ctx))
        return total

    def digit(self, atom: Expr) -> Poly | None:
        """Note the digit an atom is; its extent."""
        low: Poly = UNIT
        extent: Poly | None = None
        source = atom
        if isinstance(source, e.FloorMod):
            extent, source = poly_of(source.b), source.a
        if isinstance(source, e.FloorDiv):
            low, source = poly_of(source.b), source.a
        if any(uses_var(bound.expr(), self.sizes) for bound in (low, extent or UNIT)):  # type: ignore[arg-type]
            return None
        whole = self.source_extent(source)
        if whole is None:
            return None
        if extent is None:
            extent = exact_quotient(whole, low)
            if extent is None:
                quotient = simplify(e.FloorDiv(whole.expr(), low.expr()), self.ctx)
                extent = poly_of(quotient)
                if not self.same(extent.times(low), whole):
                    return None
        self.digits.setdefault(source, []).append(_Digit(source, low, extent))
        return extent

    def source_extent(self, source: Expr) -> Poly | None:
        """How many values a source of digits takes: a variable, or a mixed-radix sum of others."""
        if isinstance(source, Var):
            return self.sizes.get(source)
        known = self.digits.get(source)
        if known:
            return _total(known, self.ctx)
        return None

    def is_complete(self) -> bool:
        for var, size in self.sizes.items():
            found = self.digits.get(var)
            if found is None:
                if not self.same(size, UNIT):
                    return False
                continue
            reached = UNIT
            left = list(found)
            while left:
                place = next((k for k, one in enumerate(left) if self.same(one.low, reached)), None)
                if place is None:
                    return False
                extent = left.pop(place).extent
                assert extent is not None
                reached = poly_of(simplify(reached.times(extent).expr(), self.ctx))
            if not self.same(reached, size):
                return False
        return True


def _total(digits: list[_Digit], ctx: Context) -> Poly | None:
    return None
