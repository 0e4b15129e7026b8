"""Reductions on a GPU: a thread per result, or several threads or blocks per result.

    for b in blockIdx.x { for t in threadIdx.x { part[t] = sum of x[b, ...] }; sum = part[0] + ... }

Threads that share a result leave partial sums in shared memory; a few of them combine those, and
one thread the rest. A few long sums are split across several blocks each, whose partial results a
further kernel reduces. Of many short sums along memory a block has several, one per threadIdx.y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import LINE_BYTES, USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import depth_of, parts_along
from tilewright.rules.gpu.threads import (
    MAX_TURNS,
    bind_flat,
    by_one_thread,
    own_nest,
    share_among_threads,
    units_first,
)
from tilewright.rules.match.epilogue import epilogue_blocks, is_repeated
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
    """How a reduction is distributed."""

    threads: int  # per block
    per_result: int  # threads per result, all of the block or some; 1: it has results of its own
    vector: int = 1  # neighbouring elements per access
    parts: int = 1  # blocks per result


@dataclass(frozen=True)
class Found:
    """A standalone reduction."""

    reference: BlockRef
    results: int
    length: int
    widest: int  # elements along the reduction per access, at most
    own: int  # extent of the innermost reduction loop, which vectors divide
    is_along: bool  # what it reads lies along that loop
    element_bytes: int  # read per step
    is_scan: bool  # each step depends on the one before
    is_open: bool  # an extent is dynamic


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
        any(access.stride(nest.var(nest.reduce[-1])) is ONE for access in nest.reads),
        sum(access.buffer.dtype.size_bytes for access in nest.reads),
        any(it.kind == SCAN for it in nest.block.iters),
        nest.is_dynamic(list(nest.loops)),
    )


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """A thread per result, all threads of a block, or several blocks."""
    sm = multiprocessor_of(context.target)

    def legal(c: Columns) -> Column:
        alone = (c["per_result"] == 1) & (c["vector"] == 1) & (c["parts"] == 1)
        each = found.length // (c["per_result"] * c["parts"])
        whole = (each > 0) & (each % c["vector"] == 0) & (found.own % np.maximum(1, each) == 0)
        shared = (c["per_result"] == c["threads"]) & ((c["vector"] == 1) | whole)
        shared &= found.length >= 2 * WARP
        # Parts are whole rounds of all threads, or split by single elements.
        even = found.length % (c["threads"] * c["parts"]) == 0
        shared &= (c["parts"] == 1) | even | (c["vector"] == 1)
        # A block of several results waits at barriers: no more warps than can issue.
        results = _results(c)
        beside = (c["per_result"] > 1) & (c["per_result"] <= WARP) & (c["parts"] == 1)
        beside &= (results > 1) & (c["threads"] <= WARP * sm.warps_issued_per_cycle)
        beside &= whole & (found.length % (c["per_result"] * c["vector"]) == 0)
        beside &= (found.results % results == 0) & found.is_along & (not found.is_open)
        several = (shared | beside) & (not found.is_scan)
        result: Column = (alone | several) & ((c["threads"] == WARP) | (not found.is_scan))
        return result

    threads = doublings(USUAL_THREADS, WARP)[::-1]
    # At most one wave of blocks; a warp combines their parts.
    resident = sm.count * (sm.threads // USUAL_THREADS)
    most = 1 if found.is_open else max(1, resident // found.results)
    return Space(Plan, {
        "threads": threads, "per_result": doublings(USUAL_THREADS)[::-1],
        "vector": doublings(found.widest)[::-1],
        "parts": (1, *[parts for parts in doublings(most) if parts >= WARP]),
    }, legal)  # fmt: skip


def _results(c: Columns) -> Column:
    """Results of a block, unless each thread has its own."""
    found: Column = np.maximum(1, c["threads"] // c["per_result"])
    return found


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Memory; the steps of the slowest thread, hidden where results alone occupy the GPU; barriers
    of threads that share a result; idle multiprocessors; the kernel that combines parts; lines that
    a warp's threads, each along its own, read piece by piece."""
    sm, cores = multiprocessor_of(context.target), context.target.cores
    alone = c["per_result"] == 1
    hidden = alone & (found.results >= cores * USUAL_THREADS)
    meeting = 2 * sm.barrier_cycles + sm.fma_latency_cycles * np.log2(c["per_result"])
    idle = np.maximum(0.0, cores * c["threads"] - found.results) / cores
    moved = 1.0 * found.results * found.length * found.element_bytes
    blocks = found.results * c["parts"] / _results(c)
    busy = np.minimum(blocks, sm.count)
    rate = np.minimum(sm.memory_bytes_per_cycle, busy * sm.own_memory_bytes_per_cycle)
    memory = moved / np.where(alone, sm.memory_bytes_per_cycle, rate)
    dispatch = blocks / sm.count * sm.dispatch_cycles
    lines = min(sm.warp, sm.warp * found.length * found.element_bytes / LINE_BYTES)
    lines *= found.results / sm.warp * found.length / sm.count if found.is_along else 0.0
    return Cost.of(
        launch=np.where(c["parts"] > 1, 2.0, 1.0) * sm.launch_cycles,
        memory=memory,
        steps=np.where(hidden, 0.0, found.length / c["per_result"] / c["parts"]),
        loads=np.where(alone, 0.0, 1.0 / c["vector"]),
        meeting=np.where(alone, 0.0, meeting),
        idle=np.where(alone, idle / USUAL_THREADS, 0.0),
        dispatch=np.where(alone, 0.0, np.maximum(0.0, dispatch - memory)),
        lines=np.where(alone, lines, 0.0),
    )


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan, with the elementwise consumers fused."""
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
            *_standalone_step(sch, parts_along(sch, part), plan),
            *_standalone_step(sch, reference, Plan(WARP, WARP)),
        )
    if plan.per_result > 1:
        return _by_blocks(sch, reference, nest, plan)
    return by_threads(sch, reference, nest, plan.threads)


def inline_moves(sch: Schedule, reference: BlockRef) -> None:
    """Inline copies that a reduction reads through, such as padding: a predicate is cheaper than a
    kernel."""
    for producer in sch.get_producers(reference):
        block = block_of(sch.function, producer.name)
        if isinstance(block.body, Store) and isinstance(block.body.value, Select):
            sch.attempt(sch.compute_inline, producer)


def _widest(nest: Nest, context: RuleContext) -> int:
    """Elements along the reduction that one access can load."""
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
    """One thread per result, with the epilogue fused."""
    units, spatial = units_first(nest, nest.spatial)
    reduce = [nest.loops[at] for at in nest.reduce]
    if not spatial:
        spatial = [sch.add_unit_loop(reduce[0])]
    sch.reorder(*units, *spatial, *reduce)
    done = fuse_epilogue(sch, reference, spatial[-1])
    bind_flat(sch, spatial, threads)
    return (reference, *done)


def fuse_epilogue(sch: Schedule, block: BlockRef, at: LoopRef) -> list[BlockRef]:
    """Keep results in registers through their elementwise consumers, fused at a loop."""
    consumers = _consumers(sch, block)
    if not consumers or any(is_repeated(sch, block, each) for each in consumers):
        return stored_at(sch, block, at)
    _make_local(sch, block)
    for reference in consumers:
        sch.reverse_compute_at(reference, at)
    return consumers


def _consumers(sch: Schedule, block: BlockRef) -> list[BlockRef]:
    """The elementwise consumers of each result, if no other block reads it."""
    made = {region.buffer for region in block_of(sch.function, block.name).writes}
    return [] if made & set(output_buffers(sch.function)) else epilogue_blocks(sch, block)


def _make_local(sch: Schedule, block: BlockRef) -> None:
    """Put all results of a block into thread-local buffers."""
    for number in range(len(block_of(sch.function, block.name).writes)):
        sch.set_scope(block, number, "local")


def stored_at(sch: Schedule, block: BlockRef, at: LoopRef) -> list[BlockRef]:
    """Keep all results of a block thread-local until stored under a loop: a reduction of several
    values, such as maximum and position, has a store for each."""
    writes = block_of(sch.function, block.name).writes
    stores = [sch.cache_write(block, number, "local") for number in range(len(writes))]
    for store in stores:
        sch.reverse_compute_at(store, at)
    return stores


def _standalone_step(sch: Schedule, reference: BlockRef, plan: Plan) -> tuple[BlockRef, ...]:
    """One step of a reduction as a kernel of its own."""
    nest = own_nest(sch, reference)
    if nest is None:
        raise ScheduleError("TW2705", f"the loops of @{reference.name} are not its own")
    return _by_blocks(sch, reference, nest, plan)


def _by_blocks(sch: Schedule, reference: BlockRef, nest: Nest, plan: Plan) -> tuple[BlockRef, ...]:
    """A thread block per result, or per several."""
    consumers = _consumers(sch, reference)
    reduce = [nest.loops[at] for at in nest.reduce]
    threads = plan.per_result
    parts = factored(sch, reference, reduce, threads, plan.vector)
    left = own_nest(sch, reference)
    if left is None:
        raise ScheduleError("TW2705", f"the loops of @{reference.name} are not its own")
    units, spatial = units_first(left, left.spatial)
    if spatial:
        sch.reorder(*units, *spatial)
        row = fused(sch, spatial)
    else:
        row = sch.add_unit_loop(left.loops[left.reduce[0]])
    block, is_beside = row, plan.threads > threads
    if is_beside:
        block, row = sch.split(row, [None, plan.threads // threads])
    for part in reversed(parts):
        sch.compute_at(part, row)
    for each in consumers:
        sch.reverse_compute_at(each, row)
    stored = share_parts(
        sch, reference, parts, row, threads, for_all=bool(consumers), beside=is_beside
    )
    for each in consumers:
        finish(sch, each, row, threads)
    if is_beside:
        sch.bind(row, "threadIdx.y")
    sch.bind(block, "blockIdx.x")
    return (*parts, *stored, reference, *consumers)


def factored(
    sch: Schedule, reference: BlockRef, loops: Sequence[LoopRef], threads: int, vector: int = 1
) -> list[BlockRef]:
    """Factor a reduction into steps: a partial result per thread, then a few of those, then the
    result. Each thread loads `vector` neighbouring elements per access."""
    whole = fused(sch, loops)
    if vector > 1:
        _, inner, _ = sch.split(whole, [None, threads, vector])
    else:
        _, inner = sch.split(whole, [None, threads])
    parts = [sch.rfactor(inner, 0)]
    few_parts = combined_parts(threads)
    if threads >= WARP:  # with fewer, one thread combines all
        _, few = sch.split(sch.get_loops(reference)[-1], [None, few_parts])
        parts.append(sch.rfactor(few, 0))
    return parts


def combined_parts(threads: int) -> int:
    """Partial results that the last thread combines: about the square root of the number of
    threads."""
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
    """Distribute the steps of a reduction over a block's threads, under one loop.

    The last step is done by each thread for itself with `for_all`, else by the first one, which
    stores the result. `beside` says that the loop itself is bound to threads.
    """
    stored = []
    for at, part in enumerate(parts):
        nest = inner_nest(sch, part, depth_of(sch, part, row))
        assert nest is not None
        if at == 0:
            _unroll_iterations(sch, nest)
        own = nest.loops[0]
        sch.reorder(own, *[loop for loop in sch.get_loops(part)[depth_of(sch, part, row) :]
                           if loop.var is not own.var])  # fmt: skip
        thread = own
        if at:
            _, thread = sch.split(own, [1, threads])
        sch.bind(thread, "threadIdx.x")
        stores = stored_at(sch, part, thread)
        for store in stores if beside else ():
            sch.set_scope(store, 0, "shared")
            _lay_out_in_a_line(sch, store)
        stored += stores
    if for_all:
        _make_local(sch, reference)
        return stored
    results = stored_at(sch, reference, row)
    for result in results:
        by_one_thread(sch, result, threads)
    return [*stored, *results]


def _lay_out_in_a_line(sch: Schedule, part: BlockRef) -> None:
    """Lay partial results of all axes out as one axis, so that a block stores only its own."""
    _, *shape = block_of(sch.function, part.name).writes[0].buffer.shape
    if len(shape) < 2 or not all(isinstance(dim, Const) for dim in shape):
        return
    axes = [f"d{at}" for at in range(len(shape))]
    line = axes[0]
    for axis, dim in zip(axes[1:], shape[1:], strict=True):
        line = f"({line}) * {dim} + {axis}"
    index_map = f"(part, {', '.join(axes)}) -> (part, {line})"
    sch.attempt(sch.transform_layout, part, ("write", 0), index_map)


def _unroll_iterations(sch: Schedule, nest: Nest) -> None:
    """Unroll a thread's iterations, so that several loads are in flight."""
    turn, *lanes = [nest.loops[at] for at in nest.reduce]
    for lane in lanes:
        sch.unroll(lane)  # one access per vector
    turns = nest.extent(nest.reduce[0])
    if isinstance(turns, Const) and turns.value <= MAX_TURNS:
        sch.unroll(turn)
    else:
        sch.annotate(turn, "unroll", MAX_TURNS // 2)


def finish(sch: Schedule, reference: BlockRef, row: LoopRef, threads: int) -> None:
    """Schedule a consumer inside of a reduction's kernel: on all threads, or on the first if it is
    scalar."""
    depth = depth_of(sch, reference, row)
    if any(extent is not ONE for extent in loop_extents(sch, reference)[depth:]):
        share_among_threads(sch, sch.get_loops(reference)[depth:], threads)
    else:
        by_one_thread(sch, reference, threads)


REDUCTION = Rule("reduction", Plan, match, plans, cost, apply)
