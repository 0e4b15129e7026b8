"""Reductions whose results lie side by side in memory: GEMV with weights [k, n], column sums.

    for b in blockIdx.x { for t in threadIdx.x { part[t // lanes, t % lanes] = sum of x[k, lane] } }

Neighbouring threads read neighbouring elements of the operand that matters, so each warp reads
whole lines; groups of `lanes` threads take parts of the sum, which are added up in shared memory.
"""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.epilogue import followers
from tilewright.rules.cpu.vectorize import total
from tilewright.rules.gpu.reduction import depth_of, finish
from tilewright.rules.match.nest import Access, Nest, fused, inner_nest, is_expression, nest_of
from tilewright.sym import ONE, Const
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import output_buffers

SECTOR_BYTES = 32  # memory is read in pieces of this size, of the programming model's guide


def gemv(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a reduction of few results that are neighbours in the operand that is read most."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return ()
    if len(nest.spatial) + len(nest.reduce) != len(nest.block.iters) or not nest.spatial:
        return ()
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if not kept or len(nest.block.writes) != 1 or nest.is_dynamic(list(nest.loops)):
        return ()
    sm = multiprocessor_of(context.target)
    length, results = total(nest, nest.reduce), total(nest, kept)
    if results >= sm.count * sm.block_threads or length < 2 * sm.warp:
        return ()  # a thread for each result
    if not _is_side_by_side(nest, kept[-1]):
        return ()
    lanes = sm.warp
    size = max(access.buffer.dtype.size_bytes for access in nest.reads)
    while lanes * size > SECTOR_BYTES and results // lanes < 2 * sm.count:
        lanes //= 2
    parts = sm.block_threads // 2 // lanes
    return _apply(sch, reference, nest, kept, lanes, parts)


def _is_side_by_side(nest: Nest, at: int) -> bool:
    """Whether the largest operand has neighbours along a result, and not along the sum."""

    def elements(access: Access) -> int:
        count = 1
        for dim in access.buffer.shape:
            count *= int(dim.value) if isinstance(dim, Const) else 256
        return count

    largest = max(nest.reads, key=elements)
    return (
        largest.stride(nest.var(at)) is ONE and largest.stride(nest.var(nest.reduce[-1])) is not ONE
    )


def _apply(
    sch: Schedule, reference: BlockRef, nest: Nest, kept: list[int], lanes: int, parts: int
) -> tuple[BlockRef, ...]:
    made = nest.block.writes[0].buffer
    consumers = followers(sch, reference) if made not in output_buffers(sch.function) else []
    _, inner = sch.split(fused(sch, [nest.loops[at] for at in nest.reduce]), [None, parts])
    partial = sch.rfactor(inner, 0)
    own = [sch.get_loops(reference)[at] for at in nest.spatial]
    units = [loop for at, loop in enumerate(own) if nest.spatial[at] not in kept]
    others = [own[nest.spatial.index(at)] for at in kept[:-1]]
    block, lane = sch.split(own[nest.spatial.index(kept[-1])], [None, lanes])
    sch.reorder(*units, *others, block, lane)
    row = fused(sch, [*others, block])
    sch.compute_at(partial, row)
    for each in consumers:
        sch.reverse_compute_at(each, row)
    threads = lanes * parts
    inside = inner_nest(sch, partial, depth_of(sch, partial, row))
    assert inside is not None
    part, neighbour = inside.loops[0], inside.loops[1 + nest.spatial.index(kept[-1])]
    rest = [
        loop
        for loop in sch.get_loops(partial)[depth_of(sch, partial, row) :]
        if loop.var not in (part.var, neighbour.var)
    ]
    sch.reorder(part, neighbour, *rest)
    thread = sch.fuse(part, neighbour)
    sch.bind(thread, "threadIdx.x")
    store = sch.cache_write(partial, 0, "local")
    sch.reverse_compute_at(store, thread)
    lane = sch.get_loops(reference)[depth_of(sch, reference, row)]
    _, some = sch.split(lane, [1, threads])
    sch.bind(some, "threadIdx.x")
    for each in consumers:
        finish(sch, each, row, threads)
    sch.bind(row, "blockIdx.x")
    return (partial, store, reference, *consumers)
