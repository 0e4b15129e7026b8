"""Divisions that are safe to hoist: out of a loop that a zero divisor makes empty, most are not."""

from __future__ import annotations

from tilewright import sym
from tilewright.sym import ZERO, Const, Context, Expr, FloorDiv, Mul


def is_total(root: Expr, ctx: Context) -> bool:
    """Whether no division in an expression can be by zero where `ctx` holds."""
    divisors = [e.b for e in sym.walk(root) if isinstance(e, (FloorDiv, sym.FloorMod))]
    return all(isinstance(by, Const) or _is_not_zero(by, ctx) for by in divisors)


def _is_not_zero(by: Expr, ctx: Context) -> bool:
    """Positive, or a factor of what the extent of a loop around is: that runs, so it is not 0."""
    if sym.prove(sym.lt(0, by), ctx):
        return True
    if isinstance(by, Mul):
        return all(
            each.value != 0 if isinstance(each, Const) else _is_not_zero(each, ctx)
            for each in (by.a, by.b)
        )
    if isinstance(by, FloorDiv) and isinstance(by.b, Const) and sym.prove(sym.le(by.b, by.a), ctx):
        return True
    extents = [stop for start, stop in ctx.ranges.values() if start is ZERO]
    # a // c is at least 1, so a - c + 1 is.
    extents += [
        sym.simplify(sym.sub(stop.a, int(stop.b.value) - 1))
        for stop in extents
        if isinstance(stop, FloorDiv) and isinstance(stop.b, Const) and stop.b.value > 0
    ]
    return any(sym.simplify(sym.floormod(extent, by)) is ZERO for extent in extents)
