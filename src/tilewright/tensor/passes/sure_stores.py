"""Which elements of a local allocation are certainly initialized when a statement is reached.

    for i in 0..4 { T[2 * i] = ... ; if c { T[2 * i + 1] = ... } }     nothing: there are gaps
    for i in 0..4 { for j in 0..2 { T[2 * i + j] = ... } }             T[0 +: 8]

A store counts if its conditions hold at the statement too, and if the loops that end before the
statement cover contiguous elements without gaps. Common enclosing loops are at one iteration: only
stores of the same iteration count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import ONE, ZERO, Const, Context, Expr, Var, const
from tilewright.tensor.ir import Alloc, Buffer, For, If, Stmt, Store
from tilewright.tensor.passes.facts import in_branch
from tilewright.tensor.passes.rewriter import Rewriter, with_branches
from tilewright.tensor.visit import loads

Interval = tuple[Expr, Expr]  # the first element, and the one after the last


@dataclass(frozen=True, slots=True)
class Placed:
    """A store with its index, loops and conditions."""

    index: Expr
    loops: tuple[For, ...]
    conditions: tuple[Expr, ...]


Stores = dict[Buffer, list[Placed]]  # of local allocations, so far


def copied(stores: Stores) -> Stores:
    return {buffer: [*places] for buffer, places in stores.items()}


class StoreFinder(Rewriter):
    """Collects the stores before a statement, or all of them."""

    def __init__(self, ctx: Context, stores: Stores, end: Stmt | None = None) -> None:
        super().__init__(ctx)
        self.stores = stores
        self.end = end
        self.is_over = False
        self.loops: tuple[For, ...] = ()
        self.conditions: tuple[Expr, ...] = ()
        self.loops_at_end: tuple[For, ...] = ()

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        if stmt is self.end:
            self.is_over, self.loops_at_end = True, self.loops
        if isinstance(stmt, Store) and stmt.buffer in self.stores and not self.is_over:
            (index,) = stmt.index
            if stmt.mask is None and not index.dtype.is_vector:
                self.stores[stmt.buffer].append(Placed(index, self.loops, self.conditions))
        return stmt

    def visit_alloc(self, stmt: Alloc) -> Stmt | None:
        self.stores[stmt.buffer] = []
        return super().visit_alloc(stmt)

    def visit_for(self, loop: For) -> Stmt | None:
        outer, self.loops = self.loops, (*self.loops, loop)
        try:
            return super().visit_for(loop)
        finally:
            self.loops = outer

    def visit_if(self, stmt: If) -> Stmt | None:
        then = self._under(stmt.cond, in_branch(self.ctx, stmt, taken=True), stmt.then)
        if stmt.otherwise is None:
            return with_branches(stmt, then, None)
        no = in_branch(self.ctx, stmt, taken=False)
        otherwise = self._under(sym.logical_not(stmt.cond), no, stmt.otherwise)
        return with_branches(stmt, then, otherwise)

    def _under(self, cond: Expr, ctx: Context, stmt: Stmt) -> Stmt | None:
        outer, self.conditions = self.conditions, (*self.conditions, cond)
        try:
            return self.scoped(ctx, stmt)
        finally:
            self.conditions = outer


def intervals(placed: Iterable[Placed], around: Collection[Var], ctx: Context) -> list[Interval]:
    """The intervals certainly stored, where `ctx` holds inside of the loops `around`."""
    found = [_interval(each, around, ctx) for each in placed]
    return _joined([each for each in found if each is not None])


def _interval(placed: Placed, around: Collection[Var], ctx: Context) -> Interval | None:
    """The elements of one store, if they are contiguous without gaps."""
    ended = {loop.var: loop for loop in placed.loops if loop.var not in around}
    ends = [end for loop in ended.values() for end in (loop.start, loop.stop)]
    exprs = (placed.index, *placed.conditions, *ends)
    if next(loads(*exprs), None) is not None or any(sym.uses_var(end, ended) for end in ends):
        return None
    if not all(sym.prove(cond, ctx) for cond in placed.conditions):
        return None
    found = sym.linear(placed.index, ended)
    if found is None:
        return None
    slopes: list[tuple[int, For]] = []
    for loop in ended.values():
        slope = found[0].get(loop.var, ZERO)
        if not isinstance(slope, Const) or slope.value < 0:
            return None
        slopes.append((int(slope.value), loop))
    width: Expr = ONE
    for step, loop in sorted(slopes, key=lambda each: each[0]):
        extent = sym.simplify(loop.extent, ctx)
        if width is const(step):
            width = sym.simplify(sym.mul(extent, step), ctx)  # an empty loop stores nothing
            continue
        if not isinstance(width, Const) or step > width.value or not _runs(extent, ctx):
            return None
        width = sym.simplify(sym.add(sym.mul(sym.sub(extent, 1), step), width), ctx)
    starts: dict[Var, Expr] = {loop.var: loop.start for loop in ended.values()}
    first = sym.simplify(sym.substitute(placed.index, starts), ctx)
    return first, sym.simplify(sym.add(first, width), ctx)


def _runs(extent: Expr, ctx: Context) -> bool:
    return sym.prove(sym.le(1, extent), ctx)


def _joined(found: list[Interval]) -> list[Interval]:
    """Merge adjacent constant intervals."""
    numbers: list[tuple[int, int]] = []
    others: list[Interval] = []
    for first, end in found:
        if isinstance(first, Const) and isinstance(end, Const):
            numbers.append((int(first.value), int(end.value)))
        else:
            others.append((first, end))
    joined: list[tuple[int, int]] = []
    for low, high in sorted(numbers):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return [*((const(low), const(high)) for low, high in joined), *others]
