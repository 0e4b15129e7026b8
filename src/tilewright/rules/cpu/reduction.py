"""A reduction by itself: rows on the cores; or, where rows are few, parts of each.

for c in parallel 0..8 { for k in ... { part[c] += x[...] } }   then   sum = part[0] + ...
"""

from __future__ import annotations

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import ACCUMULATORS, lane_axis, total, vectorize_stage
from tilewright.rules.match.nest import Nest, fused, is_expression, nest_of
from tilewright.sym import Const
from tilewright.tensor.schedule import BlockRef, Schedule


def reduction(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a reduction that stands alone."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return ()
    if len(nest.spatial) + len(nest.reduce) != len(nest.block.iters):
        return ()
    each_ns = cost.instance_ns(nest, context.target)
    count = cost.chunks(each_ns * nest.instances, context.threads)
    lanes = cost.lanes_of(context.target, nest.block)
    across = lane_axis(nest, lanes) or []
    width = lanes
    while width < ACCUMULATORS * lanes and total(nest, across) >= 2 * width:
        width *= 2
    rows = total(nest, [at for at in nest.spatial if at not in across])
    if across:
        rows *= -(-total(nest, across) // width)
    if rows < min(count, 2 * context.threads):
        return _in_parts(sch, reference, nest, count, each_ns, context)
    _by_rows(sch, reference, nest, across, width, rows, count, context)
    return (reference,)


def _by_rows(
    sch: Schedule,
    reference: BlockRef,
    nest: Nest,
    across: list[int],
    width: int,
    rows: int,
    count: int,
    context: RuleContext,
) -> None:
    """Every result is one thread's work."""
    outer = [nest.loops[at] for at in nest.spatial if at not in across]
    reduce = [nest.loops[at] for at in nest.reduce]
    if across:
        lanes = cost.lanes_of(context.target, nest.block)
        inner = fused(sch, [nest.loops[at] for at in across])
        tile, step, lane = sch.split(inner, [None, width // lanes, lanes])
        sch.reorder(*outer, tile, *reduce, step, lane)
        sch.vectorize(lane)
        sch.unroll(step)
        outer.append(tile)
    if outer:
        row = fused(sch, outer)
        if count > 1:
            row_ns = cost.instance_ns(nest, context.target) * nest.instances / rows
            size = cost.chunk_rows(rows, count, row_ns, nest.is_open(nest.spatial))
            chunk, row = sch.split(row, [None, size])
            sch.parallel(chunk)
    if not across:
        vectorize_stage(sch, reference, bool(outer) + (count > 1), context)


def _in_parts(
    sch: Schedule,
    reference: BlockRef,
    nest: Nest,
    count: int,
    each_ns: float,
    context: RuleContext,
) -> tuple[BlockRef, ...]:
    """Parts of the outermost reduced loop that is long enough are reduced by themselves first."""
    at = next((at for at in nest.reduce if nest.guess(at) >= count), nest.reduce[0])
    extent = nest.extent(at)
    if isinstance(extent, Const):
        size = -(-int(extent.value) // count)
    else:
        inside = nest.instances / nest.guess(at)
        size = max(1, int(2 * cost.REGION_NS / (each_ns * inside)))
    chunk, _ = sch.split(nest.loops[at], [None, size])
    partial = sch.rfactor(chunk, 0)
    loops = sch.get_loops(partial)
    chunk = next(loop for loop in loops if loop.var is chunk.var)
    sch.reorder(chunk, *[loop for loop in loops if loop is not chunk])
    sch.parallel(chunk)
    vectorize_stage(sch, partial, 1, context)
    vectorize_stage(sch, reference, 0, context)
    return (partial, reference)
