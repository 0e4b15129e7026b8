"""Affine structure of index expressions: coefficients, splitting, bijections.

linear(io * 8 + ii + n, (io, ii))                      {io: 8, ii: 1}, n
split_terms(io * 8 + ii, {ii})                         io * 8, ii
is_bijective((f // m, f % m), {f: n * m})              True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tilewright.sym import expr as e
from tilewright.sym.context import EMPTY, Context
from tilewright.sym.expr import Expr, Size, Var
from tilewright.sym.ops import as_expr
from tilewright.sym.poly import NIL, UNIT, Monomial, Poly, constant, factors, poly_of, term
from tilewright.sym.prove import equal
from tilewright.sym.simplify import simplify
from tilewright.sym.visit import free_vars, uses_var


def linear(expr: Expr, variables: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """Decompose an affine expression: coefficients c and a remainder r, free of the variables, with
    expr == sum of c[v] * v + r.

    None if a variable occurs non-linearly. Variables that do not occur are omitted.
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
        slopes[var] = slopes.get(var, NIL).plus(term(others, coefficient))
    ordered = {v: slopes[v].expr() for v in wanted if v in slopes and not slopes[v].is_nil}
    return ordered, rest.expr()


def split_terms(expr: Expr, inner: set[Var] | Mapping[Var, object]) -> tuple[Expr, Expr] | None:
    """(outer, inner) with expr == outer + inner: `inner` contains only the variables `inner` and
    sizes, `outer` none of them. None if a term mixes inner with other variables."""
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


def is_bijective(
    exprs: Sequence[Expr], extents: Mapping[Var, Expr | int], ctx: Context = EMPTY
) -> bool:
    """Whether the tuple of indices visits every point of some box exactly once while each variable
    ranges over 0..extent. Conservative: False if unknown."""
    inner = ctx.bind_all({v: (0, as_expr(extent)) for v, extent in extents.items()})
    sizes = {v: poly_of(simplify(as_expr(extent), ctx)) for v, extent in extents.items()}
    cover = _Cover(sizes, ctx)
    if any(cover.extent(poly_of(simplify(expr, inner))) is None for expr in exprs):
        return False
    return cover.is_complete()


class _Digit(NamedTuple):
    """(source // low) % extent."""

    low: Poly
    extent: Poly


class _Cover:
    """Collects the digits of the indices, then checks that they cover their sources exactly once.

    The source of a digit is a variable, or a mixed-radix sum equivalent to one: a fused io * 8 + ii
    may be split again into (io * 8 + ii) // m and (io * 8 + ii) % m.
    """

    def __init__(self, sizes: dict[Var, Poly], ctx: Context) -> None:
        self.ctx = ctx
        self.variables = set(sizes)
        self.sizes: dict[Expr, Poly] = dict(sizes.items())
        self.digits: dict[Expr, list[_Digit]] = {v: [] for v in sizes}

    def same(self, a: Poly, b: Poly) -> bool:
        return a.same(b) or equal(a.expr(), b.expr(), self.ctx)

    def product(self, a: Poly, b: Poly) -> Poly:
        return poly_of(simplify(a.times(b).expr(), self.ctx))

    def extent(self, index: Poly) -> Poly | None:
        """Record the digits of a mixed-radix number and return its extent; None if it is not one:
        the terms must be digit * scale with scale_0 = 1, scale_(k+1) = scale_k * extent_k."""
        terms: list[tuple[Poly, Poly]] = []
        for monomial, coefficient in index.expanded().terms.items():
            parts = factors(monomial)
            moving = [atom for atom in parts if uses_var(atom, self.variables)]
            if not moving:
                continue  # an offset translates the box
            others = tuple(atom for atom in parts if atom is not moving[0])
            extent = self.take(moving[0]) if len(moving) == 1 else None
            if extent is None:
                return None
            terms.append((term(others, coefficient), extent))
        total = UNIT
        while terms:
            # A negative scale reverses the range: the same values, with the box translated.
            place = next(
                (
                    k
                    for k, (scale, _) in enumerate(terms)
                    if self.same(scale, total) or self.same(scale.scaled(-1), total)
                ),
                None,
            )
            if place is None:
                return None
            total = self.product(total, terms.pop(place)[1])
        return total

    def take(self, atom: Expr) -> Poly | None:
        """Record an atom as a digit of its source; returns its extent."""
        source = atom
        low = UNIT
        extent: Poly | None = None
        if isinstance(source, e.FloorMod):
            extent = poly_of(source.b)
            source = source.a
        if isinstance(source, e.FloorDiv):
            low = poly_of(source.b)
            source = source.a
        if any(uses_var(bound.expr(), self.variables) for bound in (low, extent or UNIT)):
            return None
        whole = self.sizes.get(source)
        if whole is None:
            if isinstance(source, Var) or source is atom:
                return None
            if not self.counts_from_zero(poly_of(source)):
                return None  # digits of a source with an offset do not fill a box
            whole = self.extent(poly_of(source))
            if whole is None:
                return None
            self.sizes[source] = whole
            self.digits[source] = []
        if extent is None:  # the most significant digit: the rest of the source
            extent = poly_of(simplify(e.FloorDiv(whole.expr(), low.expr()), self.ctx))
        self.digits[source].append(_Digit(low, extent))
        return extent

    def counts_from_zero(self, source: Poly) -> bool:
        """Whether a sum has no offset and no negative terms."""
        return source.const == 0 and all(
            coefficient > 0 and any(uses_var(atom, self.variables) for atom in factors(monomial))
            for monomial, coefficient in source.expanded().terms.items()
        )

    def is_complete(self) -> bool:
        """Whether the digits of every source are used once and multiply up to its extent."""
        for source, digits in self.digits.items():
            reached, left = UNIT, list(digits)
            while left:
                place = next((k for k, one in enumerate(left) if self.same(one.low, reached)), None)
                if place is None:
                    return False
                reached = self.product(reached, left.pop(place).extent)
            if not self.same(reached, self.sizes[source]):
                return False
        return True
