"""Softmax, normalizations and their kind on a GPU: a block of threads for each row.

    for row in blockIdx.x { max of the row; exp and sum of the row; row / sum }

All stages of a row run in one kernel; what they hand on stays in shared memory.
"""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.reduction import COMBINED, depth_of, factored, finish, share_parts
from tilewright.rules.match.nest import fused, inner_nest, total
from tilewright.rules.match.rows import Stages, stages_of
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import blocks

SHARED_ALIGN_BYTES = 128  # of each buffer there
PART_BYTES = 8  # of one part of a reduction, at most


def rows(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block without reductions together with the reductions that it uses."""
    found = stages_of(sch, reference)
    if found is None or _has_later(sch, reference) or not _fits(found, context):
        return ()
    sink = found.root
    if total(sink, [at for at in sink.loops if at not in found.rows]) == 1:
        return ()  # one result per row: a reduction and what follows it
    kept = [at for at in found.rows if sink.extent(at) is not ONE] or found.rows[-1:]
    units = [at for at in found.rows if at not in kept]
    order = [at for at in sink.loops if at not in found.rows]
    sch.reorder(*[sink.loops[at] for at in (*units, *kept, *order)])
    row = fused(sch, [sink.loops[at] for at in kept])
    for name in found.members:
        sch.compute_at(sch.get_block(name), row)
    threads = _threads(found, context)
    done: list[BlockRef] = []
    for name in reversed(list(found.members)):
        done += _stage(sch, sch.get_block(name), row, threads)
    done += _stage(sch, reference, row, threads)
    sch.bind(row, "blockIdx.x")
    return tuple(done)


def _stage(sch: Schedule, reference: BlockRef, row: LoopRef, threads: int) -> list[BlockRef]:
    """One stage on all threads of a block."""
    depth = depth_of(sch, reference, row)
    nest = inner_nest(sch, reference, depth)
    reduce = [] if nest is None else [nest.loops[at] for at in nest.reduce]
    if not reduce:
        finish(sch, reference, row, threads)
        return [reference]
    own = sch.get_loops(reference)[depth:]
    sch.reorder(*[loop for loop in own if loop not in reduce], *reduce)
    parts = factored(sch, reference, reduce, threads)
    return [*parts, *share_parts(sch, reference, parts, row, threads), reference]


def _threads(found: Stages, context: RuleContext) -> int:
    """As many as a row has work for."""
    sm = multiprocessor_of(context.target)
    longest = max(total(nest, nest.reduce) for nest in found.members.values())
    threads = sm.warp
    while threads < sm.block_threads // 2 and longest >= 4 * threads:
        threads *= 2
    return threads


def _fits(found: Stages, context: RuleContext) -> bool:
    """Whether what the stages hand on fits into shared memory."""
    sm = multiprocessor_of(context.target)
    size = 0
    for name, nest in found.members.items():
        own = [at for at in nest.spatial if at not in found.row_axis_of[name].values()]
        size += total(nest, own) * nest.block.writes[0].buffer.dtype.size_bytes
        if nest.reduce:  # parts of threads, and of a few that combine them
            size += (sm.block_threads // 2 + COMBINED) * PART_BYTES
    return size + SHARED_ALIGN_BYTES * 3 * len(found.members) <= sm.static_shared_bytes


def _has_later(sch: Schedule, reference: BlockRef) -> bool:
    """Whether the block is a stage of a larger whole, whose turn comes later."""
    names = [block.name for block in blocks(sch.function.body)]
    for name in names[names.index(reference.name) + 1 :]:
        found = stages_of(sch, sch.get_block(name))
        if found is not None and reference.name in found.members:
            return True
    return False
