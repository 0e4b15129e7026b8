"""Reductions on a GPU: a thread for each result, or threads of a block for parts of one.

    for b in blockIdx.x { for t in threadIdx.x { part[t] = sum of x[b, ...] }; sum = part[0] + ... }

Threads that work on one result leave their parts in shared memory; a few of them combine those,
one thread the rest. Of few long sums each is the work of several blocks, whose parts a reduction of
their own combines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import parts_along
from tilewright.rules.gpu.threads import (
    MAX_TURNS,
    bind_flat,
    by_one_thread,
    own_nest,
    share,
    units_first,
)
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import (
    Nest,
    block_of,
    fused,
    inner_nest,
    is_expression,
    loop_extents,
    total,
)
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings
from tilewright.sym import ONE, Const, Select
from tilewright.tensor.ir import SCAN, Store
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import output_buffers


@dataclass(frozen=True)
class Plan:
    """How a reduction is shared out."""

    threads: int  # of a block
    per_result: int  # threads that work on one result; 1: each thread has results of its own
    vector: int = 1  # neighbours that a thread takes at a time
    parts: int = 1  # blocks that share a result


@dataclass(frozen=True)
class Found:
    """A reduction that stands alone."""

    reference: BlockRef
    results: int
    length: int
    widest: int  # neighbours along the sum that one access can have
    own: int  # iterations of the innermost loop of the sum, which vectors have to divide
    element_bytes: int  # of all that one step reads
    is_scan: bool  # each step starts from the one before
    is_open: bool  # how much there is, a call tells


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    tried = sch.copy()
    inline_moves(tried, reference)
    nest = own_nest(tried, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    if len(nest.spatial) + len(nest.reduce) != len(nest.loops):
        return None
    return Found(
        reference,
        total(nest, nest.spatial),
        total(nest, nest.reduce),
        _widest(nest, context),
        nest.guess(nest.reduce[-1]),
        sum(access.buffer.dtype.size_bytes for access in nest.reads),
        any(it.kind == SCAN for it in nest.block.iters),
        nest.is_dynamic(list(nest.loops)),
    )


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """A thread for each result, or all of a block, or of several."""
    sm = multiprocessor_of(context.target)

    def legal(c: Columns) -> Column:
        alone = (c["per_result"] == 1) & (c["vector"] == 1) & (c["parts"] == 1)
        each = found.length // (c["threads"] * c["parts"])
        whole = (each > 0) & (each % c["vector"] == 0) & (found.own % np.maximum(1, each) == 0)
        shared = (c["per_result"] == c["threads"]) & ((c["vector"] == 1) | whole)
        shared &= (found.length >= 2 * WARP) & (not found.is_scan)
        # Parts of whole turns, or of single elements.
        even = found.length % (c["threads"] * c["parts"]) == 0
        shared &= (c["parts"] == 1) | even | (c["vector"] == 1)
        result: Column = (alone | shared) & ((c["threads"] == WARP) | (not found.is_scan))
        return result

    threads = doublings(USUAL_THREADS, WARP)[::-1]
    # No more blocks than run at once; a warp combines their parts.
    resident = sm.count * (sm.threads // USUAL_THREADS)
    most = 1 if found.is_open else max(1, resident // found.results)
    return Space(Plan, {
        "threads": threads, "per_result": (*threads, 1), "vector": doublings(found.widest)[::-1],
        "parts": (1, *[parts for parts in doublings(most) if parts >= WARP]),
    }, legal)  # fmt: skip


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Memory; steps of the last thread, which others hide where results alone occupy the GPU;
    meetings of threads that share a result; multiprocessors without a block; a kernel that combines
    parts."""
    sm, cores = multiprocessor_of(context.target), context.target.cores
    alone = c["per_result"] == 1
    hidden = alone & (found.results >= cores * USUAL_THREADS)
    meeting = 10.0 * sm.warps_issued_per_cycle + 4.0 * np.log2(c["per_result"])
    idle = np.maximum(0.0, cores * c["threads"] - found.results) / cores
    moved = 1.0 * found.results * found.length * found.element_bytes
    blocks = found.results * c["parts"]
    busy = np.minimum(blocks, sm.count)
    rate = np.minimum(sm.memory_bytes_per_cycle, busy * sm.own_memory_bytes_per_cycle)
    return Cost.of(
        launch=np.where(c["parts"] > 1, 2.0, 1.0) * sm.launch_cycles,
        memory=moved / np.where(alone, sm.memory_bytes_per_cycle, rate),
        steps=np.where(hidden, 0.0, found.length / c["per_result"] / c["parts"]),
        loads=np.where(alone, 0.0, 1.0 / c["vector"]),
        meeting=np.where(alone, 0.0, meeting),
        idle=np.where(alone, idle / USUAL_THREADS, 0.0),
    )


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """The schedule of a plan, also of what follows the reduction element by element."""
    reference = found.reference
    inline_moves(sch, reference)
    nest = own_nest(sch, reference)
    assert nest is not None
    if found.is_scan:
        units, spatial = units_first(nest, nest.spatial)
        sch.reorder(*units, *spatial, *[nest.loops[at] for at in nest.reduce])
        bind_flat(sch, spatial, plan.threads)
        return (reference,)
    if plan.parts > 1:
        part, _ = sch.split(fused(sch, [nest.loops[at] for at in nest.reduce]), [plan.parts, None])
        return (
            *_of_own(sch, parts_along(sch, part), plan),
            *_of_own(sch, reference, Plan(WARP, WARP)),
        )
    if plan.per_result > 1:
        return _by_blocks(sch, reference, nest, plan)
    return by_threads(sch, reference, nest, plan.threads)


def inline_moves(sch: Schedule, reference: BlockRef) -> None:
    """Copies that a reduction reads through, pads of a depthwise convolution say, are read at their
    source: asking again where an image ends is cheaper than a kernel."""
    for producer in sch.get_producers(reference):
        block = block_of(sch.function, producer.name)
        if isinstance(block.body, Store) and isinstance(block.body.value, Select):
            sch.attempt(sch.compute_inline, producer)


def _widest(nest: Nest, context: RuleContext) -> int:
    """Neighbours along the sum that a thread can load at once."""
    if len(nest.reduce) != 1 or nest.is_dynamic(nest.reduce):
        return 1
    strides = [access.stride(nest.var(nest.reduce[0])) for access in nest.reads]
    if not all(isinstance(stride, Const) and stride.value in (0, 1) for stride in strides):
        return 1
    sizes = [access.buffer.dtype.size_bytes for access in nest.reads]
    return max(1, multiprocessor_of(context.target).access_bytes // max(sizes))


def by_threads(
    sch: Schedule, reference: BlockRef, nest: Nest, threads: int
) -> tuple[BlockRef, ...]:
    """Each result is one thread's work, and so is what follows it."""
    units, spatial = units_first(nest, nest.spatial)
    reduce = [nest.loops[at] for at in nest.reduce]
    if not spatial:
        spatial = [sch.add_unit_loop(reduce[0])]
    sch.reorder(*units, *spatial, *reduce)
    done = through(sch, reference, spatial[-1])
    bind_flat(sch, spatial, threads)
    return (reference, *done)


def through(sch: Schedule, block: BlockRef, at: LoopRef) -> list[BlockRef]:
    """Results stay a thread's own until what follows them is done, there and then."""
    consumers = _consumers(sch, block)
    if not consumers:
        return stored_at(sch, block, at)
    _own(sch, block)
    for reference in consumers:
        sch.reverse_compute_at(reference, at)
    return consumers


def _consumers(sch: Schedule, block: BlockRef) -> list[BlockRef]:
    """What goes on with each result, where nobody else sees those."""
    made = {region.buffer for region in block_of(sch.function, block.name).writes}
    return [] if made & set(output_buffers(sch.function)) else epilogue_blocks(sch, block)


def _own(sch: Schedule, block: BlockRef) -> None:
    """All that a block makes is a thread's own."""
    for number in range(len(block_of(sch.function, block.name).writes)):
        sch.set_scope(block, number, "local")


def stored_at(sch: Schedule, block: BlockRef, at: LoopRef) -> list[BlockRef]:
    """All that a block makes stays a thread's own until it is stored under a loop: of a reduction
    of several values, a maximum and where it is say, a store for each."""
    writes = block_of(sch.function, block.name).writes
    stores = [sch.cache_write(block, number, "local") for number in range(len(writes))]
    for store in stores:
        sch.reverse_compute_at(store, at)
    return stores


def _of_own(sch: Schedule, reference: BlockRef, plan: Plan) -> tuple[BlockRef, ...]:
    """A step of a reduction, in a kernel of its own."""
    nest = own_nest(sch, reference)
    if nest is None:
        raise ScheduleError("TW2705", f"the loops of @{reference.name} are not its own")
    return _by_blocks(sch, reference, nest, plan)


def _by_blocks(sch: Schedule, reference: BlockRef, nest: Nest, plan: Plan) -> tuple[BlockRef, ...]:
    """A block of threads for each result."""
    consumers = _consumers(sch, reference)
    reduce = [nest.loops[at] for at in nest.reduce]
    parts = factored(sch, reference, reduce, plan.threads, plan.vector)
    left = own_nest(sch, reference)
    if left is None:
        raise ScheduleError("TW2705", f"the loops of @{reference.name} are not its own")
    units, spatial = units_first(left, left.spatial)
    if spatial:
        sch.reorder(*units, *spatial)
        row = fused(sch, spatial)
    else:
        row = sch.add_unit_loop(left.loops[left.reduce[0]])
    for part in reversed(parts):
        sch.compute_at(part, row)
    for each in consumers:
        sch.reverse_compute_at(each, row)
    stored = share_parts(sch, reference, parts, row, plan.threads, for_all=bool(consumers))
    for each in consumers:
        finish(sch, each, row, plan.threads)
    sch.bind(row, "blockIdx.x")
    return (*parts, *stored, reference, *consumers)


def factored(
    sch: Schedule, reference: BlockRef, loops: Sequence[LoopRef], threads: int, vector: int = 1
) -> list[BlockRef]:
    """A reduction in steps: a part for each thread, then a few of those, then the result. Each
    thread takes `vector` neighbours at a time."""
    whole = fused(sch, loops)
    if vector > 1:
        _, inner, _ = sch.split(whole, [None, threads, vector])
    else:
        _, inner = sch.split(whole, [None, threads])
    parts = [sch.rfactor(inner, 0)]
    few_parts = combined_parts(threads)
    if threads >= WARP:  # of fewer, one thread combines all
        _, few = sch.split(sch.get_loops(reference)[-1], [None, few_parts])
        parts.append(sch.rfactor(few, 0))
    return parts


def combined_parts(threads: int) -> int:
    """Sums that one thread combines at the end, after some have combined about as many each."""
    return 1 << threads.bit_length() // 2


def share_parts(
    sch: Schedule,
    reference: BlockRef,
    parts: Sequence[BlockRef],
    row: LoopRef,
    threads: int,
    *,
    for_all: bool = False,
    beside: bool = False,
) -> list[BlockRef]:
    """The steps of a reduction on the threads of a block, all of them under one loop. The last one
    each thread does for itself; the first one stores it, unless it is for all of them. `beside`
    says that the loop is one of threads, too."""
    stored = []
    for at, part in enumerate(parts):
        nest = inner_nest(sch, part, depth_of(sch, part, row))
        assert nest is not None
        if at == 0:
            _unroll_turns(sch, nest)
        own = nest.loops[0]
        sch.reorder(own, *[loop for loop in sch.get_loops(part)[depth_of(sch, part, row) :]
                           if loop.var is not own.var])  # fmt: skip
        thread = own
        if at:
            _, thread = sch.split(own, [1, threads])
        sch.bind(thread, "threadIdx.x")
        stored += stored_at(sch, part, thread)
        if beside:
            for store in stored:
                sch.set_scope(store, 0, "shared")
    if for_all:
        _own(sch, reference)
        return stored
    results = stored_at(sch, reference, row)
    for result in results:
        by_one_thread(sch, result, threads)
    return [*stored, *results]


def _unroll_turns(sch: Schedule, nest: Nest) -> None:
    """The turns of a thread, of vectors or single elements: several ask memory before the first
    one waits."""
    turn, *lanes = [nest.loops[at] for at in nest.reduce]
    for lane in lanes:
        sch.unroll(lane)  # each vector is one access
    turns = nest.extent(nest.reduce[0])
    if isinstance(turns, Const) and turns.value <= MAX_TURNS:
        sch.unroll(turn)
    else:
        sch.annotate(turn, "unroll", MAX_TURNS // 2)


def finish(sch: Schedule, reference: BlockRef, row: LoopRef, threads: int) -> None:
    """What follows a reduction inside its kernel: all threads, or the first where it is little."""
    depth = depth_of(sch, reference, row)
    if any(extent is not ONE for extent in loop_extents(sch, reference)[depth:]):
        share(sch, sch.get_loops(reference)[depth:], threads)
    else:
        by_one_thread(sch, reference, threads)


def depth_of(sch: Schedule, reference: BlockRef, row: LoopRef) -> int:
    """How many loops down to and with `row` stand around a block."""
    return [loop.var for loop in sch.get_loops(reference)].index(row.var) + 1


REDUCTION = Rule("reduction", Plan, match, plans, cost, apply)
