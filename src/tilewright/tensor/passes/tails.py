"""Tail specialization: a version of the code per number of remaining iterations.

    for i in unroll 0..4 { if r - i > 0 { S } }         r iterations are left: 1, 2 or 3

    if r <= 1 { for i in unroll 0..1 { S } }
    else { if r <= 2 { for i in unroll 0..2 { S } }
           else { for i in unroll 0..3 { S } } }

Requested by a loop's annotation `tails`. It keeps accumulators in registers, which requires their
number to be static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import ZERO, Const, Expr, Le, Lt, Var
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import UNROLL, For, annotation

TAILS = "tails"  # the annotation of a loop
MAX_HEIGHTS = 16


@dataclass(frozen=True, slots=True)
class Tail:
    """Conditions that hold for the first `left` iterations of unrolled loops of one extent."""

    left: Expr
    heights: tuple[int, ...]  # possible values of `left`, ascending
    conditions: tuple[tuple[Expr, Var], ...]  # each with the loop that it bounds

    @property
    def loops(self) -> dict[Var, list[Expr]]:
        """The bounded loops, with their conditions."""
        found: dict[Var, list[Expr]] = {}
        for cond, var in self.conditions:
            found.setdefault(var, []).append(cond)
        return found

    def values_at(self, height: int) -> dict[Expr, Expr]:
        """The conditions' values when `height` iterations are left."""
        return {cond: sym.lt(var, height) for cond, var in self.conditions}


def is_marked(loop: For) -> bool:
    return bool(annotation(loop, TAILS, False))


def try_tail(conditions: Sequence[tuple[Expr, list[For]]], ctx: sym.Context) -> Tail | None:
    """The tail of a loop, from conditions that may fail there and the inner loops around each."""
    found: list[tuple[Expr, Var]] = []
    left: Expr | None = None
    extent: Expr | None = None
    for cond, inner in conditions:
        cut = _bounded_loop(cond, inner)
        if cut is None:
            return None
        loop, rest = cut
        rest = sym.simplify(rest, ctx)
        size = sym.simplify(loop.extent, ctx)
        if found and (left is not rest or extent is not size):
            return None
        left, extent = rest, size
        found.append((cond, loop.var))
    if (
        left is None
        or not is_total(left, ctx)
        or not isinstance(extent, Const)
        or not 1 < extent.value <= MAX_HEIGHTS
    ):
        return None
    return Tail(left, _heights(left, int(extent.value), ctx), tuple(found))


def _heights(left: Expr, extent: int, ctx: sym.Context) -> tuple[int, ...]:
    """The possible numbers of remaining iterations: one, if the remainder is static."""
    rest = sym.simplify(sym.floormod(left, extent), ctx)
    heights = [int(rest.value)] if isinstance(rest, Const) else list(range(1, extent))
    heights = [each for each in heights if each]
    if not sym.prove(sym.le(1, left), ctx):
        heights.insert(0, 0)
    if not sym.prove(sym.lt(left, extent), ctx):
        heights.append(extent)
    return tuple(heights)


def _bounded_loop(cond: Expr, inner: list[For]) -> tuple[For, Expr] | None:
    """The one unrolled loop that a condition bounds, and its remaining iterations."""
    if not isinstance(cond, (Lt, Le)):
        return None
    used = [loop for loop in inner if sym.uses_var(cond, {loop.var})]
    if len(used) != 1 or used[0].kind != UNROLL or used[0].start is not ZERO:
        return None
    loop = used[0]
    gap = sym.sub(cond.b, cond.a)  # positive, or non-negative, iff the condition holds
    found = sym.linear(gap, (loop.var,))
    slope = None if found is None else found[0].get(loop.var)
    if found is None or not isinstance(slope, Const) or slope.value != -1:
        return None
    return loop, found[1] if isinstance(cond, Lt) else sym.add(found[1], 1)
