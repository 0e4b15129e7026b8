"""Which indices fit 32 bits: the ranges of all variables that a program binds.

    ranges = index_ranges(loop, known(fn))           or sizes_in_memory(fn), on a GPU
    fits(i * 4096 + j, ranges)          whether it fits 32 bits, wherever it is computed

A variable's range comes from the loop or value that binds it, at the upper bounds of sizes;
enclosing conditions are ignored, since guarded expressions may be computed speculatively.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.sym import EMPTY, Const, Context, Expr, Interval, Var, bounds
from tilewright.tensor import ir
from tilewright.tensor.ir import Function, Stmt
from tilewright.tensor.passes.order_tiles import WAVES
from tilewright.tensor.passes.simplify_program import known as known_of
from tilewright.tensor.visit import walk

WORD = Interval(-(1 << 31), (1 << 31) - 1)
MEMORY_BYTES = 1 << 40  # more than a GPU has
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def fits(expr: Expr, ranges: Context) -> bool:
    """Whether an integer certainly fits 32 bits."""
    found = bounds(expr, ranges)
    return found == found.meet(WORD)


def is_natural(expr: Expr, ranges: Context) -> bool:
    """Whether an integer is certainly non-negative."""
    lower = bounds(expr, ranges).lower
    return lower is not None and lower >= 0


def sizes_in_memory(fn: Function) -> Context:
    """Bounds of sizes, given that every array fits a GPU's memory: of the arrays that a size is an
    extent of, at least one has elements, or nothing is computed."""
    most: dict[Var, int] = {}
    for buffer in fn.buffers:
        known = [int(dim.value) for dim in buffer.shape if isinstance(dim, Const)]
        row_bytes = math.prod(known, start=buffer.dtype.size_bytes)
        for dim in buffer.shape:
            if isinstance(dim, Var):
                most[dim] = max(most.get(dim, 0), MEMORY_BYTES // max(1, row_bytes))
    ctx = known_of(fn)
    for size, limit in most.items():
        ctx = ctx.assume(sym.le(size, limit))
    return ctx


def index_ranges(
    root: Stmt, known: Context = EMPTY, thread_limits: Mapping[str, int] = NO_LIMITS
) -> Context:
    """Bounds of sizes, and the range of every variable bound below `root`.

    Copies of a loop bind one variable: its range is their union. `thread_limits` has the most
    threads of a launch along each axis, whatever the loops' extents.
    """
    threads = _threads(root, known, thread_limits)
    found: dict[Var, Interval] = {}
    ranges = known
    for stmt in walk(root):
        if isinstance(stmt, ir.For):
            here = _span(stmt, ranges, threads)
        elif isinstance(stmt, ir.Let) and stmt.var.dtype is INDEX:
            here = bounds(stmt.value, ranges)
        else:
            continue
        before = found.get(stmt.var)
        found[stmt.var] = here = here if before is None else before.join(here)
        if before is not None and _is_bounded(before) and not _is_bounded(here):
            ranges = known  # drop its other bounds
            for var, span in found.items():
                ranges = _bound(ranges, var, span)
        else:
            ranges = _bound(ranges, stmt.var, here)
    return ranges


def _threads(root: Stmt, known: Context, limits: Mapping[str, int]) -> dict[str, int | None]:
    """The most threads along each axis: loops on one axis share it."""
    most: dict[str, int | None] = {}
    for stmt in walk(root):
        if isinstance(stmt, ir.For) and stmt.kind == ir.THREAD:
            here, before = bounds(stmt.extent, known).upper, most.get(stmt.thread, 0)
            most[stmt.thread] = None if here is None or before is None else max(here, before)
    return {axis: limits.get(axis) if count is None else count for axis, count in most.items()}


def _span(loop: ir.For, ranges: Context, threads: Mapping[str, int | None]) -> Interval:
    """All values of a loop's variable. Persistent blocks' tiles are bounded by the grid limit: the
    results of more would exceed memory."""
    start, stop = bounds(loop.start, ranges), bounds(loop.stop, ranges).upper
    blocks = ir.annotation(loop, WAVES)
    if blocks is not None:
        most = (WORD.upper or 0) // blocks
        stop = most if stop is None else min(stop, most)
    if loop.kind == ir.THREAD:
        count = threads[loop.thread]
        stop = None if start.upper is None or count is None else start.upper + count
    if start.lower is None or stop is None:
        return Interval(start.lower, None)
    return Interval(start.lower, max(start.lower, stop - 1))  # one value where it never runs


def _is_bounded(span: Interval) -> bool:
    return span.lower is not None and span.upper is not None


def _bound(ranges: Context, var: Var, span: Interval) -> Context:
    """The range of a variable too, where it has two ends."""
    if span.lower is None or span.upper is None:
        return ranges
    return ranges.bind(var, span.lower, span.upper + 1)
