"""Ownership of buffers: by the whole device, a thread block, or one thread.

Given by the scope, except for an intermediate in global memory that is used inside of one kernel
only. It is allocated inside of the loops around all its uses, and owned by a thread if the
innermost concurrent one of them is no thread loop, or one of them is over threads; else by the
thread block. So it is as if in local or shared memory, and the pass `bind_threads` moves it there.

    for b in thread(blockIdx.x) { for t in thread(threadIdx.x) { B = ...; C = B } }     B is local
    for b in thread(blockIdx.x) { for t .. { B = ... }  for t .. { C = B } }            B is shared
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.tensor.ir import (
    BLOCK_LEVEL,
    CLUSTER_AXIS,
    SERIAL,
    THREAD,
    THREAD_LEVEL,
    UNROLL,
    For,
    level_of,
)
from tilewright.tensor.scopes import LOCAL, SHARED, MemoryScope, Owner

UNIT_AXIS = "threadIdx.x"  # the threads that drive a unit together are neighbours


def owning_memory(memory: MemoryScope, around: Iterable[For]) -> MemoryScope:
    """The memory that an intermediate is really in, given the loops around all places that use it,
    from the outermost in."""
    if memory.owner is not Owner.DEVICE:
        return memory
    concurrent = [loop for loop in around if loop.kind not in (SERIAL, UNROLL)]
    if not any(loop.kind == THREAD for loop in concurrent):
        return memory
    if concurrent[-1].kind != THREAD or any(loop.level == THREAD_LEVEL for loop in concurrent):
        return LOCAL
    return SHARED


def is_shared_between(memory: MemoryScope, loop: For) -> bool:
    """Whether all iterations of a thread loop see the same buffer."""
    if loop.kind != THREAD:
        return False
    if memory.owner is Owner.BLOCK:
        return loop.level == THREAD_LEVEL
    if memory.owner is Owner.CLUSTER:
        return loop.level == THREAD_LEVEL or loop.thread == CLUSTER_AXIS
    if memory.owner is Owner.UNIT:
        return loop.thread == UNIT_AXIS
    return memory.owner is Owner.DEVICE


def is_apart_along(memory: MemoryScope, axis: str) -> bool:
    """Whether threads that differ along an axis have copies of their own."""
    if memory.owner is Owner.CLUSTER:
        return level_of(axis) == BLOCK_LEVEL and axis != CLUSTER_AXIS
    if memory.owner is Owner.BLOCK:
        return level_of(axis) == BLOCK_LEVEL
    return memory.owner is Owner.THREAD
