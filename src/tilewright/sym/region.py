"""`symbolic_bounds`: the range of an index while some variables run over their ranges.

    symbolic_bounds(io * 8 + ii, {ii: (0, 8)})       (io * 8, io * 8 + 7)

Sums are bounded term by term, which is exact if every variable occurs in one term; floor division,
min and max are monotone and preserve bounds. None if there is no bound in terms of the other
variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym.bounds import monomial_bounds, poly_bounds
from tilewright.sym.context import EMPTY, Context, Interval
from tilewright.sym.deduce import THOROUGH, is_positive_divisor, nonnegative
from tilewright.sym.expr import Expr, Var, const
from tilewright.sym.ops import as_expr, floordiv, floormod, maximum, minimum, sub
from tilewright.sym.poly import Monomial, Poly, constant, factors, poly_of, term
from tilewright.sym.simplify import simplify
from tilewright.sym.visit import uses_var

Span = tuple[Poly, Poly]


def symbolic_bounds(
    expr: Expr, ranges: Mapping[Var, tuple[Expr | int, Expr | int]], ctx: Context = EMPTY
) -> tuple[Expr, Expr] | None:
    """Inclusive bounds of `expr` while each variable v of `ranges` runs over start <= v < stop.

    A range may refer to variables before it in `ranges`. None if no bound is known.
    """
    if not uses_var(expr, ranges):
        fixed = simplify(expr, ctx)
        return fixed, fixed
    if isinstance(expr, Var):
        first, last = (as_expr(end) for end in ranges[expr])
        if not uses_var(first, ranges) and not uses_var(last, ranges):
            return simplify(first, ctx), simplify(sub(last, 1), ctx)
    inner = ctx
    for var, (start, stop) in ranges.items():
        inner = inner.bind(var, as_expr(start), as_expr(stop))
    running = {
        var: (simplify(as_expr(start), ctx), simplify(as_expr(stop), ctx))
        for var, (start, stop) in ranges.items()
    }
    found = _Region(running, ctx, inner).bounds(poly_of(simplify(expr, inner)))
    if found is None:
        return None
    return simplify(found[0].expr(), ctx), simplify(found[1].expr(), ctx)


class _Region:
    def __init__(
        self, running: Mapping[Var, tuple[Expr, Expr]], ctx: Context, inner: Context
    ) -> None:
        self.running = dict(running)
        self.ctx = ctx  # with the remaining variables
        self.inner = inner  # with all variables

    def moves(self, expr: Expr) -> bool:
        return uses_var(expr, self.running)

    def bounds(self, poly: Poly) -> Span | None:
        poly = poly.expanded() if any(self._mixed(m) for m in poly.terms) else poly
        low = self.end(poly, -1)
        high = self.end(poly, 1)
        return None if low is None or high is None else (low, high)

    def _mixed(self, monomial: Monomial) -> bool:
        return isinstance(monomial, tuple) and any(
            type(f) in (e.Add, e.Sub) and self.moves(f) for f in monomial
        )

    def end(self, poly: Poly, side: int) -> Poly | None:
        """The minimum (side -1) or maximum (side 1), with the variables eliminated."""
        # In reverse order: a range may refer to earlier variables.
        for var in reversed(self.running):
            if not any(var in factors(monomial) for monomial in poly.terms):
                continue
            if any(
                uses_var(atom, {var})
                for monomial in poly.terms
                for atom in factors(monomial)
                if atom is not var
            ):
                continue  # also part of another atom, and bounded there
            replaced = self._eliminate(poly, var, side)
            if replaced is None:
                return None
            poly = replaced
        total = constant(poly.const)
        for monomial, coefficient in poly.terms.items():
            if not any(self.moves(atom) for atom in factors(monomial)):
                total = total.plus(Poly({monomial: coefficient}, 0))
                continue
            found = self._term(monomial)
            if found is None:
                return None
            lowest = (side < 0) == (coefficient > 0)
            total = total.plus(found[0] if lowest else found[1], coefficient)
        return total

    def _eliminate(self, poly: Poly, var: Var, side: int) -> Poly | None:
        """Substitute a variable's extreme value, if the sign of its slope is known and so the
        polynomial is monotone."""
        slope = constant(0)
        for monomial, coefficient in poly.terms.items():
            parts = list(factors(monomial))
            if var not in parts:
                continue
            parts.remove(var)
            if var in parts:
                return None
            slope = slope.plus(term(tuple(parts), coefficient))
        start, stop = self.running[var]
        if nonnegative(slope, self.inner, THOROUGH):
            rising = True
        elif nonnegative(slope.scaled(-1), self.inner, THOROUGH):
            rising = False
        else:
            return None
        at = poly_of(stop).shifted(-1) if rising == (side > 0) else poly_of(start)
        return poly.replaced(var, at.expanded())

    def _term(self, monomial: Monomial) -> Span | None:
        """Bounds of an atom or product that contains variables to eliminate."""
        if isinstance(monomial, tuple):
            return self._product(monomial)
        if isinstance(monomial, Var):
            start, stop = self.running[monomial]
            return self._nested(poly_of(start), poly_of(stop).shifted(-1))
        found = self._atom(monomial)
        return self._constant_bounds(monomial) if found is None else found

    def _nested(self, low: Poly, high: Poly) -> Span | None:
        first, last = self.end(low, -1), self.end(high, 1)
        return None if first is None or last is None else (first, last)

    def _atom(self, atom: Expr) -> Span | None:
        if isinstance(atom, (e.FloorDiv, e.FloorMod)):
            if self.moves(atom.b) or not is_positive_divisor(poly_of(atom.b), self.ctx):
                return None
            span = self.bounds(poly_of(atom.a))
            if isinstance(atom, e.FloorDiv):
                return None if span is None else _each(span, lambda x: floordiv(x, atom.b))
            return self._remainder(span, atom.b)
        if isinstance(atom, (e.Min, e.Max)):
            a, b = self.bounds(poly_of(atom.a)), self.bounds(poly_of(atom.b))
            if a is None or b is None:
                return None
            make = minimum if isinstance(atom, e.Min) else maximum
            return self._made(make, a[0], b[0]), self._made(make, a[1], b[1])
        if isinstance(atom, e.Select):
            a, b = self.bounds(poly_of(atom.a)), self.bounds(poly_of(atom.b))
            if a is None or b is None:
                return None
            return self._made(minimum, a[0], b[0]), self._made(maximum, a[1], b[1])
        if isinstance(atom, e.Cast) and atom.value.dtype is INDEX and atom.dtype is INDEX:
            return self.bounds(poly_of(atom.value))
        return None

    def _made(self, make: object, a: Poly, b: Poly) -> Poly:
        return poly_of(simplify(make(a.expr(), b.expr()), self.ctx))  # type: ignore[operator]

    def _remainder(self, span: Span | None, divisor: Expr) -> Span:
        """A remainder is monotone within one period; otherwise it has its full range."""
        if span is not None:
            first = simplify(floordiv(span[0].expr(), divisor), self.ctx)
            last = simplify(floordiv(span[1].expr(), divisor), self.ctx)
            if first is last:
                return _each(span, lambda x: floormod(x, divisor))
        return constant(0), poly_of(divisor).shifted(-1)

    def _product(self, parts: tuple[Expr, ...]) -> Span | None:
        """A product of nonnegative factors is monotone in all of them."""
        low, high = constant(1), constant(1)
        for part in parts:
            if not nonnegative(poly_of(part), self.inner, THOROUGH):
                return self._constant_bounds(parts)
            span = self.bounds(poly_of(part)) if self.moves(part) else (poly_of(part),) * 2
            if span is None or not nonnegative(span[0], self.ctx, THOROUGH):
                return self._constant_bounds(parts)
            low, high = low.multiplied_out(span[0]), high.multiplied_out(span[1])
        return low, high

    def _constant_bounds(self, monomial: Monomial) -> Span | None:
        inner = monomial_bounds(monomial, self.inner)
        if inner.lower is None or inner.upper is None:
            return None
        return constant(inner.lower), constant(inner.upper)


def _each(span: Span, make: object) -> Span:
    low, high = (poly_of(make(end.expr())) for end in span)  # type: ignore[operator]
    return low, high


__all__ = ["Interval", "const", "poly_bounds", "symbolic_bounds"]
