"""One stage of work inside loops that it shares with others: lanes for it, nothing more.

A reduction has lanes in one of two ways. Along a result that is contiguous, lane by lane:

    for k { for l in vector 0..16 { sum[l] += x[k, l] } }

Along what it reduces, in parts that are combined at the end, halves of a vector first:

    for k { for l in vector 0..16 { part[l] += x[16 * k + l] } }   then   sum = part[0] + ...
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.elementwise import vectors
from tilewright.rules.match.nest import Access, Nest, attempt, block_of, fused, groups, inner_nest
from tilewright.sym import ONE, Const
from tilewright.tensor.schedule import BlockRef, Schedule

ACCUMULATORS = 4  # vectors of partial results: enough to hide the latency of an addition
WIDEST_STRIDE = 4  # between lanes; further apart, every lane is a load of its own


def vectorize_stage(sch: Schedule, reference: BlockRef, depth: int, context: RuleContext) -> None:
    """Give lanes to a block that stands under `depth` loops shared with others."""
    nest = inner_nest(sch, reference, depth)
    if nest is None or not nest.loops:
        return
    lanes = cost.lanes_of(context.target, nest.block)
    if lanes < 2:
        return
    if not nest.reduce:
        attempt(sch, _lanes_of_map, sch, nest, lanes)
        return
    point = sch.checkpoint()
    if not attempt(sch, lanes_of_reduction, sch, reference, nest, lanes):
        sch.restore(point)


def _lanes_of_map(sch: Schedule, nest: Nest, lanes: int) -> None:
    parts = groups(nest, nest.spatial)
    loop = fused(sch, [nest.loops[at] for at in parts[-1]])
    if total(nest, parts[-1]) > 1:
        vectors(sch, nest, loop, lanes)


def lanes_of_reduction(sch: Schedule, reference: BlockRef, nest: Nest, lanes: int) -> None:
    across = lane_axis(nest, lanes)
    if across is None:
        _lanes_along(sch, reference, nest, lanes)
    else:
        _lanes_across(sch, nest, across, lanes)


def lane_axis(nest: Nest, lanes: int) -> list[int] | None:
    """The spatial iterators along which a reduction takes lanes; None: along what it reduces."""
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if not kept:
        return None
    part = groups(nest, kept)[-1]
    along = _reduced_run(nest)
    if total(nest, part) * 2 <= lanes and along >= lanes:
        return None
    worst = max(_distance(nest, access, part[-1]) for access in nest.accesses)
    if worst > WIDEST_STRIDE and along >= lanes:
        return None
    return part


def _reduced_run(nest: Nest) -> int:
    """How many neighbours in memory the reduction combines."""
    if not nest.reduce:
        return 0
    part = groups(nest, nest.reduce)[-1]
    if all(_distance(nest, access, part[-1]) <= 1 for access in nest.reads):
        return total(nest, part)
    return 0


def _distance(nest: Nest, access: Access, at: int) -> int:
    """Between lanes along an iterator; a large number if it varies."""
    stride = access.stride(nest.var(at))
    return abs(int(stride.value)) if isinstance(stride, Const) else 1 << 20


def _lanes_across(sch: Schedule, nest: Nest, part: Sequence[int], lanes: int) -> None:
    """Lanes along a contiguous result, several vectors of it at a time."""
    others = [nest.loops[at] for at in nest.spatial if at not in part]
    reduce = [nest.loops[at] for at in nest.reduce]
    loop = fused(sch, [nest.loops[at] for at in part])
    count = ACCUMULATORS if total(nest, part) >= ACCUMULATORS * lanes else 1
    outer, step, lane = sch.split(loop, [None, count, lanes])
    sch.reorder(*others, outer, *reduce, step, lane)
    sch.vectorize(lane)
    sch.unroll(step)


def _lanes_along(sch: Schedule, reference: BlockRef, nest: Nest, lanes: int) -> None:
    """Lanes along what is reduced."""
    parts = groups(nest, nest.reduce)
    reduce = [fused(sch, [nest.loops[at] for at in part]) for part in parts]
    run = total(nest, parts[-1])
    if run < lanes // 2:
        return
    count = 1
    while count < ACCUMULATORS and run >= 4 * count * lanes:
        count *= 2
    while run % lanes == 0 and run % (count * lanes):  # rather fewer than one that is not whole
        count //= 2
    _, inner = sch.split(reduce[-1], [None, count * lanes])
    rank = len(nest.block.writes[0].ranges)
    partial = sch.rfactor(inner, rank)
    loops = sch.get_loops(partial)
    at = next(i for i, loop in enumerate(loops) if loop.var is inner.var)
    step, lane = sch.split(loops[at], [count, lanes]) if count > 1 else (None, loops[at])
    sch.vectorize(lane)
    if step is not None:
        sch.unroll(step)
    fold_lanes(sch, reference, count * lanes, lanes)


def fold_lanes(sch: Schedule, reference: BlockRef, size: int, lanes: int) -> None:
    """Combine `size` parts, by vectors while there are enough of them, the rest one by one."""
    rank = len(block_of(sch.function, reference.name).writes[0].ranges)
    for width in (lanes, 4):
        if size <= width:
            continue
        _, lane = sch.split(sch.get_loops(reference)[-1], [None, width])
        partial = sch.rfactor(lane, rank)
        loops = sch.get_loops(partial)
        sch.vectorize(loops[-1])
        sch.unroll(loops[-2])
        size = width
    sch.unroll(sch.get_loops(reference)[-1])


def total(nest: Nest, part: Sequence[int]) -> int:
    out = 1
    for at in part:
        out *= nest.guess(at)
    return out
