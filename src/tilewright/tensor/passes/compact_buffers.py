"""Shrink each intermediate buffer to the box that is live at its allocation.

    for i in 0..64 { alloc T: f32[64, 64]; for j { T[i, j] = .. } .. }
    for i in 0..64 { alloc T: f32[1, 64];  for j { T[0, j] = .. } .. }

The box is the union of all accesses over the loops inside of the allocation; indices become
relative to its start. A dimension keeps its size where the box is not provably smaller.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ZERO, Const, Context, Expr, FloorDiv, Lt, Var, conjuncts
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import (
    Address,
    Alloc,
    Buffer,
    ExternCall,
    For,
    Function,
    Load,
    MaskedLoad,
    Range,
    Region,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.ownership import is_shared_between
from tilewright.tensor.passes.accesses import Access, Place, collect, conditions_between
from tilewright.tensor.regions import is_data_dependent, region_over
from tilewright.tensor.scopes import MemoryScope
from tilewright.tensor.visit import rewrite, walk

# A varying size with a bound, such as min(64, n), becomes that constant, up to so many bytes: a
# bound may also be far above any real size, as in min(1000000000, n).
MAX_SLACK_BYTES = 1 << 24

Box = tuple[Buffer, tuple[Expr, ...]]  # the compacted buffer, its start in the old one


def compact_buffers(fn: Function, ctx: PassContext) -> Function:
    buffers = [stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, Alloc)]
    if not buffers:
        return fn
    boxes: dict[Buffer, Box] = {}
    for buffer, accesses in collect(fn.body, buffers).items():
        box = _box(buffer, accesses)
        if box is not None:
            boxes[buffer] = box
    if not boxes:
        return fn
    return replace(fn, body=_rebased(fn.body, boxes))


def _box(buffer: Buffer, accesses: list[Access]) -> Box | None:
    if not accesses or any(access.is_opaque for access in accesses):
        return None
    home = next(
        place
        for place in accesses[0].place.ancestors()
        if isinstance(place.stmt, Alloc) and place.stmt.buffer is buffer
    )
    ctx, running_outside = _surroundings(home, buffer.memory)
    seen: set[tuple[object, ...]] = set()
    boxes: list[Region] = []
    for access in accesses:
        running = dict(running_outside)
        for place in access.place.below(home):
            if isinstance(place.stmt, For) and place is not access.place:
                running[place.stmt.var] = (place.stmt.start, place.stmt.stop)
        key = tuple(x for r in access.ranges for x in (r.start, r.extent))
        limits = _limits(access)
        if (key, tuple(running), tuple(limits.items())) not in seen:
            seen.add((key, tuple(running), tuple(limits.items())))
            boxes.append(_tighter_region(access, limits, running, ctx))
    for slack in (True, False):
        dims = [
            _dimension(dim, [box.ranges[axis] for box in boxes], ctx, slack)
            for axis, dim in enumerate(buffer.shape)
        ]
        shape = tuple([extent for _, extent in dims])
        if _is_small(shape, buffer):
            break
    if all(a is b for a, b in zip(shape, buffer.shape, strict=True)):
        return None
    return replace(buffer, shape=shape), tuple([start for start, _ in dims])


def _tighter_region(
    access: Access,
    limits: dict[Expr, Expr],
    running: dict[Var, tuple[Expr, Expr]],
    ctx: Context,
) -> Region:
    """The region of an access by its loops or by its limits, whichever is tighter per dimension."""
    by_loops = _region(access, running, ctx)
    reached = dict(running)
    limited = _limited(access, limits, reached)
    if limited is access:
        return by_loops
    by_limits = _region(limited, reached, ctx)
    pairs = zip(by_loops.ranges, by_limits.ranges, strict=True)
    return replace(by_loops, ranges=tuple([b if _is_less(b, a) else a for a, b in pairs]))


def _is_less(one: Range, other: Range) -> bool:
    """Whether a range is provably shorter."""
    if not isinstance(one.extent, Const):
        return False
    return not isinstance(other.extent, Const) or one.extent.value < other.extent.value


def _limits(access: Access) -> dict[Expr, Expr]:
    """Upper bounds on expressions at an access, from its guards: `t * 256 + lane` of a copy's tail,
    say."""
    found: dict[Expr, Expr] = {}
    for cond in conditions_between(access.place.below(None)):
        for part in conjuncts(cond):
            if isinstance(part, Lt) and isinstance(part.b, Const):
                found[part.a] = part.b
    return found


def _limited(
    access: Access, limits: dict[Expr, Expr], running: dict[Var, tuple[Expr, Expr]]
) -> Access:
    """The access with each bounded expression replaced by a variable that ranges up to the
    bound."""
    reach = Context().bind_all(running)
    given: dict[Expr, Expr] = {}
    for expr, limit in limits.items():
        lower = sym.bounds(expr, reach).lower
        if lower is not None and lower >= 0 and sym.uses_var(expr, set(running)):
            given[expr] = each = sym.var("limited")
            running[each] = (ZERO, limit)
    if not given:
        return access
    # The largest first: one may contain another.
    order = sorted(given, key=lambda expr: -sum(1 for _ in sym.walk(expr)))

    def limited(start: Expr) -> Expr:
        for expr in order:
            start = sym.rewrite(start, partial(_instead, expr, given[expr]))
        return start

    ranges = tuple([replace(r, start=limited(r.start)) for r in access.ranges])
    return replace(access, ranges=ranges)


def _instead(expr: Expr, new: Expr, node: Expr) -> Expr:
    return new if node is expr else node


def _surroundings(home: Place, memory: MemoryScope) -> tuple[Context, dict[Var, tuple[Expr, Expr]]]:
    """The facts at the allocation; threads outside of it that share the buffer count as inner
    loops."""
    ctx = Context()
    shared: dict[Var, tuple[Expr, Expr]] = {}
    for place in home.below(None):
        loop = place.stmt
        if isinstance(loop, For):
            if is_shared_between(memory, loop):
                shared[loop.var] = (loop.start, loop.stop)
            else:
                ctx = ctx.bind(loop.var, loop.start, loop.stop)
    return ctx, shared


def _region(access: Access, running: dict[Var, tuple[Expr, Expr]], ctx: Context) -> Region:
    ranges = tuple(
        [
            Range(ZERO, dim) if is_data_dependent(r.start) or is_data_dependent(r.extent) else r
            for r, dim in zip(access.ranges, access.buffer.shape, strict=True)
        ]
    )
    return region_over(Region(access.buffer, ranges), running, ctx)


def _is_small(shape: tuple[Expr, ...], buffer: Buffer) -> bool:
    """Whether a constant size is small enough to be worth its slack."""
    size = math.prod(int(dim.value) for dim in shape if isinstance(dim, Const))
    return size * buffer.dtype.size_bytes <= MAX_SLACK_BYTES


def _dimension(dim: Expr, ranges: list[Range], ctx: Context, slack: bool) -> tuple[Expr, Expr]:
    """Start and extent of the union of ranges, or the whole dimension.

    With `slack`, an extent that has a constant bound is replaced by it.
    """
    start = sym.simplify(_by_one_divisor(ranges[0].start), ctx)
    stop = sym.simplify(sym.add(start, ranges[0].extent), ctx)
    for r in ranges[1:]:
        first = sym.simplify(_by_one_divisor(r.start), ctx)
        last = sym.simplify(sym.add(first, r.extent), ctx)
        if first is not start:
            start = sym.simplify(sym.minimum(start, first), ctx)
        if last is not stop:
            stop = sym.simplify(sym.maximum(stop, last), ctx)
    extent = sym.simplify(sym.sub(stop, start), ctx)
    if slack and not isinstance(extent, Const):
        limit = sym.upper_bound(extent, ctx)
        if limit is not None:
            extent = sym.const(limit)
    if isinstance(extent, Const):
        smaller = not isinstance(dim, Const) or extent.value < dim.value
    else:
        smaller = extent is not dim and sym.prove(sym.le(extent, dim), ctx)
    # The allocation may be outside of loops that are empty when a divisor is zero.
    smaller = smaller and is_total(start, ctx) and is_total(extent, ctx)
    if not sym.prove(sym.le(0, extent), ctx):
        extent = sym.maximum(extent, 0)  # empty loops end before they start
    return (start, extent) if smaller else (ZERO, dim)


def _by_one_divisor(start: Expr) -> Expr:
    """Rewrite a // n // 8 as a // (n * 8), which also holds where n may be 0.

    Constants are left to `simplify`, which divides from the inside out: the same start would else
    come in two forms, (b * 16 + t // 8) // 75 and (b * 128 + t) // 600.
    """

    def joined(node: Expr) -> Expr:
        if not isinstance(node, FloorDiv) or not isinstance(node.a, FloorDiv):
            return node
        if isinstance(node.a.b, Const):
            return node
        if not isinstance(node.b, Const) or node.b.value <= 0:
            return node
        return FloorDiv(node.a.a, sym.mul(node.a.b, node.b))

    return sym.rewrite(start, joined)


def _rebased(body: Stmt, boxes: dict[Buffer, Box]) -> Stmt:
    def moved(box: Box, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple([sym.sub(at, start) for at, start in zip(index, box[1], strict=True)])

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, (Load, MaskedLoad, Address)):
            box = boxes.get(expr.buffer)
            if box is not None:
                index = moved(box, expr.index)
                if isinstance(expr, MaskedLoad):
                    return MaskedLoad(box[0], index, expr.mask)
                return type(expr)(box[0], index)
        return expr

    def region_rule(region: Region) -> Region:
        box = boxes.get(region.buffer)
        if box is None:
            return region
        starts = moved(box, tuple([r.start for r in region.ranges]))
        ranges = [Range(at, r.extent) for at, r in zip(starts, region.ranges, strict=True)]
        return Region(box[0], tuple(ranges))

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            box = boxes.get(stmt.buffer)
            if box is not None:
                return replace(stmt, buffer=box[0], index=moved(box, stmt.index))
        elif isinstance(stmt, (TensorCall, ExternCall)):
            return replace(stmt, regions=tuple([region_rule(r) for r in stmt.regions]))
        elif isinstance(stmt, Alloc):
            box = boxes.get(stmt.buffer)
            if box is not None:
                return replace(stmt, buffer=box[0])
        return stmt

    return rewrite(body, rule, expr_rule)
