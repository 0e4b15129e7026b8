"""prefetch: request memory that later iterations of a loop will read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright import sym
from tilewright.base.loc import Synthetic
from tilewright.sym import ZERO, Const, Expr, Size, Var
from tilewright.tensor.calls import call
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import (
    SPATIAL,
    Address,
    Block,
    Buffer,
    Eval,
    For,
    Function,
    Iter,
    Region,
    seq,
)
from tilewright.tensor.regions import region_over, substitute_region
from tilewright.tensor.schedule.analysis.cover import Cover
from tilewright.tensor.schedule.analysis.intervals import bound_region
from tilewright.tensor.schedule.analysis.memory import chosen
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.sites import (
    inside_scope,
    is_under,
    loops_below,
    put,
    same_scope,
    scope_context,
    scope_of,
)
from tilewright.tensor.schedule.analysis.tree import Path, fresh_block_name, loop_ranges, with_body

LINE_BYTES = 64  # of a cache line, fetched by one request


def prefetch(
    fn: Function,
    name: str,
    index: int,
    var: Var,
    offset: int,
    over: Var | None = None,
    beyond: bool = False,
) -> tuple[Function, str]:
    """
    Before: for i { for j in 0..64 { C[i, j] = A[i, j] } }
    After:  for i { for ax0 in 0..1 { for ax1 in 0..4 {
              block A_prefetch where i + 2 < n { prefetch(address(A[i + 2 + ax0, ax1 * 16])) } } }
              for j in 0..64 { C[i, j] = A[i, j] } }                  by prefetch(C, 0, i, 2)

    One request per cache line; none for iterations beyond the last, or outside of the buffer. With
    `over`, an inner loop, the requests are distributed evenly over the iterations of the loops
    down to it. With `beyond`, requests beyond the last iteration are issued too: they are harmless,
    and cheaper than a test. That needs iterators as long as the requests reach; where this cannot
    be determined, the test stays.
    """
    path, block = path_to_block(fn, name, "prefetch")
    read = chosen(fn, block, block.reads, index, "read", "prefetch a read")
    loop_path, loop = path_to_loop(fn, var, "prefetch at the loop")
    _check_site(fn, name, read.buffer, path, loop_path, offset)
    outer = scope_context(fn, scope_of(path), ())
    around = [stmt for stmt in inside_scope(loop_path) if isinstance(stmt, For)]
    ctx = scope_context(fn, scope_of(path), around)
    ahead = sym.add(var, offset)
    region = region_over(bound_region(block, read), loop_ranges(loops_below(path, loop)), ctx)
    region = substitute_region(region, {var: ahead})
    _check_region(fn, name, region, loop, ctx)
    place = loop_path if over is None else _place_over(fn, over, path, loop)
    if over is not None:
        cover = _spread(fn, region, place, loop, ctx.assume(sym.lt(ahead, loop.stop)))
    else:
        if beyond:
            ctx = ctx.assume(sym.lt(ahead, loop.stop))
        cover = Cover(ctx, {each.var for each in around})
        steps = _line_steps(region, ctx)
        for r, dim, step in zip(region.ranges, read.buffer.shape, steps, strict=True):
            cover.over(r, dim, step=step)
    extents: list[Expr] | None = list(read.buffer.shape)
    if beyond:
        extents = _reach(cover, read.buffer, (*around, *loops_below(place, loop)), outer)
    if extents is None or not (beyond or sym.prove(sym.lt(ahead, loop.stop), ctx)):
        cover.conditions.insert(0, sym.lt(ahead, loop.stop))
        extents = list(read.buffer.shape)
    made = _request(fn, read.buffer, extents, cover)
    holder = place[-1]
    assert isinstance(holder, For)
    body = seq(cover.around_stmt(made), holder.body)
    return with_body(fn, put(place, replace(holder, body=body))), made.name


def _check_site(
    fn: Function, name: str, buffer: Buffer, path: Path, loop_path: Path, offset: int
) -> None:
    """The loop must be around the block, and the buffer complete before it."""
    loop = loop_path[-1]
    assert isinstance(loop, For)
    if not same_scope(path, loop_path) or not is_under(path, loop):
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch for @{name} at loop %{loop.var.name}: the loop is not around the "
            "block",
            loop.var,
            help="pass one of get_loops(block)",
        )
    if offset < 1:
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch at loop %{loop.var.name}: {offset} iterations ahead is not ahead",
            loop.var,
        )
    if any(is_under(writer.path, loop) for writer in scope_of(path).writers(buffer)):
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch %{buffer.name} at loop %{loop.var.name}: it is computed inside the "
            "loop, and later iterations' part is not there yet",
            name,
            help="only what is complete before the loop can be prefetched",
        )


def _check_region(fn: Function, name: str, region: Region, loop: For, ctx: sym.Context) -> None:
    """No bound may divide by an extent that can be zero."""
    if all(is_total(end, ctx) for r in region.ranges for end in (r.start, r.extent)):
        return
    raise refuse(
        fn,
        "TW2143",
        f"cannot prefetch %{region.buffer.name} at loop %{loop.var.name}: how much of it is read "
        "cannot be determined where a dimension is empty",
        name,
        help="prefetch before the loops inside are fused",
    )


def _place_over(fn: Function, over: Var, path: Path, loop: For) -> Path:
    """The inner loop in whose iterations requests are distributed."""
    place, inner = path_to_loop(fn, over, "spread requests over the loop")
    if not is_under(place, loop) or inner is loop or not same_scope(place, path):
        raise refuse(
            fn,
            "TW2143",
            f"cannot spread requests over the loop %{over.name}: it is not inside the loop "
            f"%{loop.var.name}",
            over,
        )
    return place


def _request(fn: Function, buffer: Buffer, extents: Sequence[Expr], cover: Cover) -> Block:
    """The block of one request."""
    iters = tuple([Iter(sym.var(f"v{a}"), extent, SPATIAL) for a, extent in enumerate(extents)])
    address = Address(buffer, tuple([it.var for it in iters]))
    loc = Synthetic("prefetch")
    return Block(
        fresh_block_name(fn, f"{buffer.name}_prefetch"),
        iters,
        tuple(cover.values),
        (),
        (),
        Eval(call("prefetch", address), loc),
        None,
        cover.predicate,
        (),
        loc,
    )


def _reach(
    cover: Cover, buffer: Buffer, loops: Sequence[For], ctx: sym.Context
) -> list[Expr] | None:
    """Extents of iterators that contain every request, also those beyond the last iteration."""
    ranges = loop_ranges((*loops, *cover.loops))
    extents: list[Expr] = []
    for value, dim in zip(cover.values, buffer.shape, strict=True):
        bounds = sym.symbolic_bounds(value, ranges, ctx)
        if bounds is None:
            return None
        first, last = bounds
        if sym.le(0, value) not in cover.conditions and not sym.prove(sym.le(0, first), ctx):
            return None
        extent = dim
        if sym.lt(value, dim) not in cover.conditions:
            extent = sym.simplify(sym.maximum(dim, sym.add(last, 1)), ctx)
        if not all(isinstance(var, Size) for var in sym.free_vars(extent)):
            return None
        extents.append(extent)
    return extents


def _line_steps(region: Region, ctx: sym.Context) -> list[int]:
    """The step between requests along each axis, so that each is for another line. A line may span
    several of the last axes, where they are short and the region contains them whole."""
    rest = max(1, LINE_BYTES // max(1, region.buffer.dtype.bits // 8))
    steps: list[int] = []
    for r, dim in zip(reversed(region.ranges), reversed(region.buffer.shape), strict=True):
        size = _known(r.extent, ctx)
        whole = isinstance(dim, Const) and dim.value == size and size > 0 and rest % size == 0
        steps.insert(0, size if whole else rest)
        rest = rest // size if whole else 1
    return steps


def _known(extent: Expr, ctx: sym.Context) -> int:
    """A static number of iterations; 0 if it is dynamic."""
    found = sym.simplify(extent, ctx)
    return int(found.value) if isinstance(found, Const) else 0


def _spread(fn: Function, region: Region, place: Path, loop: For, ctx: sym.Context) -> Cover:
    """Distribute the requests for the lines of a region over the iterations of the loops below
    `loop`.

    Iteration t of T requests line t // q of L, where q is the greatest power of two up to T / L.
    Each line is requested q times, which is cheaper than a test. With fewer iterations than lines,
    each requests several. With a dynamic T, each requests one until all are done: a rate that
    depends on T would need arithmetic in the innermost loop.
    """
    inner = loops_below(place, loop)
    extents = [_known(each.extent, ctx) for each in inner]
    steps = _line_steps(region, ctx)
    counts = [sym.ceildiv(r.extent, step) for r, step in zip(region.ranges, steps, strict=True)]
    sizes = [_known(count, ctx) for count in counts]
    if 0 in extents[1:] or 0 in sizes:
        raise refuse(
            fn,
            "TW2143",
            f"cannot spread requests for %{region.buffer.name}: it is not known how many there "
            "are, and in how many iterations",
            loop.var,
        )
    lines = prod(sizes)
    cover = Cover(ctx, set())
    if not extents[0]:
        extents[0] = -(-lines // prod(extents[1:]))
    at = _line_at(cover, inner, extents, lines)
    cover.conditions.append(sym.lt(at, lines))
    values: list[Expr] = []
    for axis in reversed(range(len(sizes))):
        size, r = sizes[axis], region.ranges[axis]
        digit = at if prod(sizes[:axis]) == 1 else sym.floormod(at, size)
        at = ZERO if prod(sizes[:axis]) == 1 else sym.floordiv(at, size)
        value = sym.add(r.start, sym.mul(digit, steps[axis]))
        values.insert(0, value)
        dim = region.buffer.shape[axis]
        if not sym.prove(sym.le(sym.add(r.start, (size - 1) * steps[axis] + 1), dim), ctx):
            cover.conditions.append(sym.lt(value, dim))
        if not sym.prove(sym.le(0, r.start), ctx):
            cover.conditions.append(sym.le(0, value))
    cover.values = values
    within = ctx
    for each in (*inner, *cover.loops):
        within = within.bind(each.var, each.start, each.stop)
    kept: list[Expr] = []
    for condition in cover.conditions:
        if not sym.prove(condition, within):
            kept.append(condition)
            within = within.assume(condition)
    cover.conditions = kept
    return cover


def _flat_iteration(inner: Sequence[For], extents: Sequence[int]) -> Expr:
    """The current iteration of some loops, taken as one."""
    turn: Expr = ZERO
    for each, extent in zip(inner, extents, strict=True):
        turn = sym.add(sym.mul(turn, extent), sym.sub(each.var, each.start))
    return turn


def _line_at(cover: Cover, inner: Sequence[For], extents: Sequence[int], lines: int) -> Expr:
    """The line to request in the current iteration."""
    turn, turns = _flat_iteration(inner, extents), prod(extents)
    if lines > turns:
        each_turn = -(-lines // turns)
        cover.all_of(sym.const(each_turn))
        return sym.add(sym.mul(turn, each_turn), cover.values.pop())
    return sym.floordiv(turn, 1 << (turns // lines).bit_length() - 1)
