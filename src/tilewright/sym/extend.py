"""Extend a context: `bind`, `bind_all`, `assume`. Installed as methods of `Context`."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym import ops
from tilewright.sym.bounds import monomial_bounds
from tilewright.sym.context import Context, Interval
from tilewright.sym.expr import FALSE, TRUE, Const, Expr, Size, Var
from tilewright.sym.poly import Poly, factors, number, poly_of
from tilewright.sym.simplify import simplify
from tilewright.sym.visit import uses_var


def bind(ctx: Context, var: Var, start: Expr | int, stop: Expr | int) -> Context:
    low = number(start) if isinstance(start, int) else start
    high = number(stop) if isinstance(stop, int) else stop
    key = (var, low, high)
    found = ctx._child(key)
    if found is not None:
        return found
    child = ctx._extended()
    first, last = simplify(low, ctx), simplify(high, ctx)
    child.ranges = {**ctx.ranges, var: (first, last)}
    extent = poly_of(last).plus(poly_of(first), -1)
    if extent.is_const and extent.const == 1 and not uses_var(first, {var}):
        child.values = {**ctx.values, var: first}  # the only value in the range
    return ctx._adopt(key, child)


def bind_all(ctx: Context, ranges: Mapping[Var, tuple[Expr | int, Expr | int]]) -> Context:
    for var, (start, stop) in ranges.items():
        ctx = bind(ctx, var, start, stop)
    return ctx


def assume(ctx: Context, cond: Expr) -> Context:
    found = ctx._child((cond,))
    if found is not None:
        return found
    child = ctx
    for part in _conjuncts(cond):
        child = _assume_one(child, simplify(part, child))
    return ctx if child is ctx else ctx._adopt((cond,), child)


def _conjuncts(cond: Expr) -> list[Expr]:
    parts: list[Expr] = []
    stack = [cond]
    while stack:
        node = stack.pop()
        if isinstance(node, e.And):
            stack += [node.b, node.a]
        elif isinstance(node, e.Not) and isinstance(node.a, e.Or):
            stack += [ops.logical_not(node.a.b), ops.logical_not(node.a.a)]
        else:
            parts.append(node)
    return parts


def _assume_one(ctx: Context, fact: Expr) -> Context:
    """Assume one fact in normal form."""
    if isinstance(fact, Const):
        return ctx  # redundant, or contradictory: the code is unreachable
    if isinstance(fact, e.And):
        for part in _conjuncts(fact):
            ctx = _assume_one(ctx, simplify(part, ctx))
        return ctx
    child = ctx._extended()
    if isinstance(fact, e.Compare) and fact.a.dtype is INDEX:
        if isinstance(fact, e.Eq):
            return _assume_equal(child, fact)
        if isinstance(fact, e.Ne):
            child.values = {**ctx.values, fact: TRUE}
            _exclude(child, fact)
            return child
        gap = poly_of(fact.b).plus(poly_of(fact.a), -1)
        _assume_nonnegative(child, gap.shifted(-1) if isinstance(fact, e.Lt) else gap)
        return child
    if isinstance(fact, e.Not):
        child.values = {**ctx.values, fact.a: FALSE, fact: TRUE}
    else:
        child.values = {**ctx.values, fact: TRUE}
    return child


def _assume_nonnegative(ctx: Context, gap: Poly) -> None:
    ctx.facts = (*ctx.facts, gap)
    if len(gap.terms) != 1:
        return
    ((atom, scale),) = gap.terms.items()
    if isinstance(atom, Expr):
        # scale * atom + const >= 0
        limit = (
            Interval(-(gap.const // scale), None)
            if scale > 0
            else Interval(None, gap.const // -scale)
        )
        _limit(ctx, atom, limit)
    elif scale > 0 > gap.const:
        # A product of nonnegative integers is at least 1 iff all of them are.
        parts = factors(atom)
        lowest = [monomial_bounds(part, ctx).lower for part in parts]
        if all(low is not None and low >= 0 for low in lowest):
            for part in dict.fromkeys(parts):
                _limit(ctx, part, Interval(1, None))


def _limit(ctx: Context, atom: Expr, limit: Interval) -> None:
    known = ctx.intervals.get(atom)
    ctx.intervals = {**ctx.intervals, atom: limit if known is None else known.meet(limit)}
    only = monomial_bounds(atom, ctx).value
    if only is not None:
        ctx.values = {**ctx.values, atom: number(only)}
        _rewritten(ctx)
    ctx._bounded.clear()


def _exclude(ctx: Context, fact: e.Ne) -> None:
    """Tighten a bound that equals the constant in atom != constant."""
    if not isinstance(fact.b, Const):
        return
    value = int(fact.b.value)
    inner = monomial_bounds(fact.a, ctx)
    ctx._bounded.clear()
    limit: Interval | None = None
    if inner.lower == value:
        limit = Interval(value + 1, None)
    elif inner.upper == value:
        limit = Interval(None, value - 1)
    if limit is not None:
        _limit(ctx, fact.a, limit)


def _assume_equal(child: Context, fact: e.Eq) -> Context:
    a, b = fact.a, fact.b
    if isinstance(a, e.FloorMod) and isinstance(b, Const) and isinstance(a.b, Const):
        _assume_residue(child, a.a, int(a.b.value), int(b.value))
    target, value = _solved(a, b)
    if target is None:
        gap = poly_of(a).plus(poly_of(b), -1)
        child.values = {**child.values, fact: TRUE}
        child.facts = (*child.facts, gap, gap.scaled(-1))
        return child
    assert value is not None
    child.values = {**child.values, target: value}
    if isinstance(target, Var):
        _rewritten(child)
    return child


def _rewritten(ctx: Context) -> None:
    """Substitute new values in the facts so far."""
    ctx.values = {
        atom: simplify(value, ctx) if value.dtype is INDEX else value
        for atom, value in ctx.values.items()
    }
    ctx.ranges = {
        var: (simplify(start, ctx), simplify(stop, ctx))
        for var, (start, stop) in ctx.ranges.items()
    }
    ctx.facts = tuple([poly_of(simplify(fact.expr(), ctx)) for fact in ctx.facts])
    for table in (ctx._normal, ctx._bounded, ctx._proved, ctx._axioms):
        table.clear()
    ctx._indexed = None


def _assume_residue(ctx: Context, x: Expr, modulus: int, residue: int) -> None:
    poly = poly_of(x)
    if len(poly.terms) != 1 or modulus <= 0:
        return
    ((atom, scale),) = poly.terms.items()
    if not isinstance(atom, Expr) or scale not in (1, -1):
        return
    known = (residue - poly.const) * scale % modulus
    earlier = ctx.residues.get(atom)
    if earlier is not None and earlier[0] % modulus == 0:
        return
    ctx.residues = {**ctx.residues, atom: (modulus, known)}


def _solved(a: Expr, b: Expr) -> tuple[Expr | None, Expr | None]:
    """Solve a == b for one atom: preferably a loop variable, then a size, then another atom."""
    gap = poly_of(a).plus(poly_of(b), -1)
    candidates: list[tuple[int, Expr, int]] = []
    for monomial, scale in gap.terms.items():
        if isinstance(monomial, Expr) and scale in (1, -1):
            if isinstance(monomial, Var):
                order = 1 if isinstance(monomial, Size) else 0
            else:
                order = 2
            candidates.append((order, monomial, scale))
    for order, atom, scale in sorted(candidates, key=lambda one: one[0]):
        value = gap.without(atom).scaled(-scale).expr()
        if order == 2 and not isinstance(value, Const):
            continue
        if isinstance(atom, Var) and uses_var(value, {atom}):
            continue
        return atom, value
    return None, None


setattr(Context, "bind", bind)
setattr(Context, "bind_all", bind_all)
setattr(Context, "assume", assume)
