"""Element by element on a GPU: one loop over all, a thread for a few neighbours."""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import THREADS, bind_flat, own_nest, units_first
from tilewright.rules.match.nest import Nest, groups, is_expression
from tilewright.sym import ONE, ZERO, Const
from tilewright.tensor.schedule import BlockRef, Schedule


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
    bind_flat(sch, loops, THREADS, lanes)
    return (reference,)


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
