"""Element by element on a GPU: one loop over all, a thread for a few neighbours."""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import THREADS, bind_flat, own_nest, units_first
from tilewright.rules.match.followers import followers
from tilewright.rules.match.nest import Nest, block_of, groups, is_expression
from tilewright.sym import ONE, ZERO, Const
from tilewright.tensor.ir import Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs


def elementwise(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block without reductions that stands alone."""
    nest = own_nest(sch, reference)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.loops):
        return ()
    if not is_expression(nest.block):
        return ()
    lanes = vector_of(nest, context)
    units, loops = units_first(nest, nest.spatial)
    if units:
        sch.reorder(*units, *loops)
    _, thread = bind_flat(sch, loops, THREADS, lanes)
    return (reference, *_followed(sch, reference, thread, lanes))


def _followed(
    sch: Schedule, reference: BlockRef, thread: LoopRef, lanes: int
) -> tuple[BlockRef, ...]:
    """What takes results element by element is done by the thread that has them."""
    done: list[BlockRef] = []
    waiting = [reference]
    while waiting:
        last = waiting.pop()
        for reader in followers(sch, last):
            if not _takes_each(sch, last, reader):
                continue
            if sch.attempt(sch.reverse_compute_at, reader, thread):
                waiting.append(reader)
                done.append(reader)
                if lanes > 1:
                    sch.vectorize(sch.get_loops(reader)[-1])
    return tuple(done)


def _takes_each(sch: Schedule, made_by: BlockRef, reader: BlockRef) -> bool:
    """Whether a block reads each element of a result once, for an element of its own."""
    source, block = block_of(sch.function, made_by.name), block_of(sch.function, reader.name)
    made = source.writes[0].buffer
    loads = [node for node in exprs(block.body) if isinstance(node, Load) and node.buffer is made]
    if [it.extent for it in block.iters] != [it.extent for it in source.iters]:
        return False
    return all(
        index is it.var or it.extent is ONE
        for load in loads
        for index, it in zip(load.index, block.iters, strict=True)
    )


def vector_of(nest: Nest, context: RuleContext) -> int:
    """Neighbouring elements of one thread: as wide as a load, where all of memory agrees and there
    are blocks for every multiprocessor all the same."""
    last = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if not last:
        return 1
    part = groups(nest, last)[-1]
    extent = 1
    for at in part:
        found = nest.extent(at)
        if not isinstance(found, Const):
            return 1
        extent *= int(found.value)
    sizes = [access.buffer.dtype.size_bytes for access in nest.accesses]
    lanes = max(1, multiprocessor_of(context.target).access_bytes // max(sizes))
    while lanes > 1 and (
        extent % lanes or nest.instances < context.target.cores * THREADS * 2 * lanes
    ):
        lanes //= 2
    for access in nest.accesses:
        stride = access.stride(nest.var(part[-1]))
        if stride is None or (stride is not ZERO and stride is not ONE):
            return 1
    return lanes
