"""Reductions whose results are contiguous in memory: GEMV with weights [k, n], column sums.

    for b in blockIdx.x { for t in threadIdx.x {
      part[t // lanes, t % lanes] = sum over own k of x[k] * w[k, lane * vector ...] }
      y = epilogue(sum of parts) }

The kernel is memory-bound: the large operand is read once. Each thread reads `vector` neighbouring
elements per access and has `unroll` loads in flight; `lanes` threads read a contiguous run; `parts`
such groups of a block split k, and add their sums in shared memory. Constant weights are packed so
that what a block reads is contiguous, and so is each load of its threads together. The vector
operand may be computed in the kernel, redundantly in each block, in shared memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import WORD_BYTES, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import depth_of, extent_of, try_extent
from tilewright.rules.gpu.reduction import fuse_epilogue
from tilewright.rules.gpu.threads import MAX_TURNS, own_nest, share_among_threads
from tilewright.rules.match.nest import (
    Access,
    Nest,
    block_of,
    fused,
    guess,
    inner_nest,
    is_expression,
    total,
)
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, Const
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import SCAN, Buffer
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class Plan:
    """How k and the results are distributed over threads."""

    lanes: int  # threads along the results
    vector: int  # neighbouring results per thread
    parts: int  # groups of threads that split k
    unroll: int  # loads that a thread has in flight


@dataclass(frozen=True)
class Found:
    """A reduction in a program, and the sizes that determine its plans."""

    reference: BlockRef
    kept: tuple[int, ...]  # iterators of the results, the contiguous one last
    results: int
    last: int  # results along the last iterator
    length: int  # of the reduction
    element_bytes: int
    packed: Packed | None  # the constant that is packed


@dataclass(frozen=True)
class Packed:
    """A constant matrix: its read, and whether it is contiguous along k."""

    read: int
    is_transposed: bool


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A reduction of few results that are contiguous in the largest operand."""
    nest = own_nest(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    if any(it.kind == SCAN and at in nest.loops for at, it in enumerate(nest.block.iters)):
        return None
    if len(nest.spatial) + len(nest.reduce) != len(nest.loops) or not nest.spatial:
        return None
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if not kept or len(nest.block.writes) != 1 or nest.is_dynamic(list(nest.loops)):
        return None
    sm = multiprocessor_of(context.target)
    length, results = total(nest, nest.reduce), total(nest, kept)
    if results >= sm.count * sm.block_threads or length < 2 * sm.warp:
        return None  # one thread per result is enough
    largest = max(nest.reads, key=lambda access: _elements(access.buffer))
    kept.sort(key=lambda at: largest.stride(nest.var(at)) is ONE)  # the contiguous one last
    packed = _packed(nest, largest, kept[-1], context)
    if packed is None and not _is_contiguous_along(nest, largest, kept[-1]):
        return None
    size = max(access.buffer.dtype.size_bytes for access in nest.reads)
    last = nest.guess(kept[-1])
    return Found(reference, tuple(kept), results, last, length, size, packed)


def _elements(buffer: Buffer) -> int:
    return math.prod(guess(dim, {}) for dim in buffer.shape)


def _is_contiguous_along(nest: Nest, largest: Access, at: int) -> bool:
    """Whether an operand is contiguous along a result iterator, and not along the reduction."""
    return (
        largest.stride(nest.var(at)) is ONE and largest.stride(nest.var(nest.reduce[-1])) is not ONE
    )


def _packed(nest: Nest, largest: Access, at: int, context: RuleContext) -> Packed | None:
    """The constant matrix with the reduction along one axis and a result iterator along the
    other."""
    buffer: Buffer = largest.buffer
    reads = [i for i, read in enumerate(nest.block.reads) if read.buffer is buffer]
    known = buffer.name in context.constants and len(buffer.shape) == 2
    if not known or len(reads) != 1 or len(nest.reduce) != 1:
        return None
    places = [each.start for each in nest.block.reads[reads[0]].ranges]
    for is_transposed in (False, True):
        along, across = reversed(places) if is_transposed else places
        step = sym.linear(across, [nest.var(at)])
        is_across = step is not None and step[0].get(nest.var(at)) is ONE
        if along is nest.var(nest.reduce[0]) and is_across:
            rows, columns = reversed(buffer.shape) if is_transposed else buffer.shape
            # Where only a slice is read, tiles divide the slice but maybe not the matrix.
            fits = isinstance(columns, Const) and int(columns.value) % nest.guess(at) == 0
            is_whole = fits and rows == nest.extent(nest.reduce[0])
            return Packed(reads[0], is_transposed) if is_whole else None
    return None


# ------------------------------------------------------------------------------------ choosing


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    """The candidate distributions: those without a tail of results."""
    sm = multiprocessor_of(context.target)
    words, least = sm.access_words, 2 * sm.access_words
    # Besides divisors of the length.
    parts = [*preferring(2 * sm.warp, doublings(sm.issuing_threads, least))]
    most = sm.block_threads // 2
    shared = sm.registers // sm.block_threads // 2  # registers for the loads in flight
    alone = sm.registers // sm.block_threads - sm.address_registers
    parts += [n for n in range(least + 1, most + 1) if found.length % n == 0 and n not in parts]
    lanes = [n for n in range(1, sm.warp + 1) if found.last % n == 0]
    fitting = [n for n in doublings(words) if n * found.element_bytes <= sm.access_bytes]
    whole = [n for n in fitting if found.last % n == 0]

    unrolled = (words, MAX_TURNS, *range(words + 1, MAX_TURNS))

    def legal(c: Columns) -> Column:
        threads = c["lanes"] * c["parts"]
        wide = c["lanes"] * c["vector"]
        fits = (threads >= 2 * sm.warp) & (threads <= sm.block_threads)
        each = -(-found.length // c["parts"])
        fits &= (c["parts"] <= max(found.length // 2, least)) & (
            -(-found.length // each) == c["parts"]
        )
        fits &= threads * c["vector"] * WORD_BYTES <= sm.static_shared_bytes
        # A block alone on its multiprocessor has all its registers.
        is_alone = found.results <= wide * sm.count
        fits &= c["unroll"] * c["vector"] <= np.where(is_alone, alone, shared)
        fits &= is_alone | (c["unroll"] < alone // words)
        result: Column = fits & (found.last % wide == 0)
        return result

    return Space(
        Plan,
        {
            "lanes": lanes,
            "vector": whole,
            "parts": parts,
            "unroll": (*preferring(least, unrolled), alone // words),
        },
        legal,
    )


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Memory time at the bandwidth that the loads in flight sustain, plus adding up the parts."""
    sm = multiprocessor_of(context.target)
    wide, threads = c["lanes"] * c["vector"], c["lanes"] * c["parts"]
    warps = -(-threads // sm.warp)
    blocks = -(-found.last // wide) * (found.results // found.last)
    busy = np.minimum(blocks, sm.count)
    registers = sm.address_registers + sm.load_registers * c["unroll"] * (c["vector"] + 1)
    ready = np.minimum(sm.threads, sm.registers / registers) // (warps * sm.warp)
    resident = np.clip(ready, 1, -(-blocks // sm.count))
    waves = -(-blocks // (sm.count * resident))
    moved = 1.0 * found.length * found.results * found.element_bytes
    if found.packed is None:
        run = wide * found.element_bytes
        fetched = np.ceil(run / sm.sector_bytes) * sm.sector_bytes
        # Memory is read two sectors at a time.
        fetched = fetched * np.where(run < 2 * sm.sector_bytes, sm.lone_sector_ratio, 1.0)
        moved = moved * fetched / run
    turns = -(-found.length // c["parts"])
    # Loads that leave others over have no registers, and come one by one.
    is_whole = (turns <= c["unroll"]) | (turns % c["unroll"] == 0)
    rounds = np.where(is_whole, -(-turns // c["unroll"]), turns)
    balance = np.ceil(blocks / sm.count) * busy / blocks
    rate = np.minimum(
        sm.memory_bytes_per_cycle, busy * sm.l2_bytes_per_cycle / sm.l2_to_memory_ratio
    )
    # Loops are unrolled twice at least; an element is converted and multiplied.
    each = sm.access_instructions + sm.turn_instructions // 2 + 2 * c["vector"]
    issued = waves * resident * warps * turns * each / sm.warps_issued_per_cycle
    exchange = 2 * (sm.shared_latency_cycles + sm.barrier_cycles)  # of the parts
    loop = sm.access_instructions + sm.turn_instructions
    tail = np.where(found.length % c["parts"] > 0, sm.mask_ratio, 1.0)
    return Cost.of(
        memory=np.maximum(moved * balance / rate, issued) * tail,
        latency=waves * sm.global_latency_cycles * rounds,
        gather=waves * (exchange + loop * c["parts"]),
    )


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    reference, done = found.reference, []
    each = -(-found.length // plan.parts)  # consecutive steps of k, so that loads are contiguous
    wide = plan.lanes * plan.vector
    if found.packed is not None:
        done.append(_pack(sch, reference, found.packed, wide, each, found.length))
    prologue = [before for before in sch.get_producers(reference) if before not in done]
    for before in prologue:
        _inline_producers(sch, before)
    nest = own_nest(sch, reference)
    assert nest is not None
    part, _ = sch.split(fused(sch, [nest.loops[at] for at in nest.reduce]), [None, each])
    partial = sch.rfactor(part, 0)
    row, followed = _bind_results(sch, found, plan, nest)
    store, along, elements = _bind_parts(sch, found, plan, partial, row)
    start = sch.decompose_reduction(partial, along)
    is_split = found.packed is not None and found.length % each == 0
    first = _prefetch_all(sch, partial, row, plan, each, is_split) if prologue else ()
    asked = [*first, *_prefetch_some(sch, partial, along, plan)]
    sch.attempt(sch.unroll, elements)
    threads = plan.lanes * plan.parts
    lane, summed = sch.get_loops(reference)[depth_of(sch, reference, row) :][-2:]
    _, each_lane = sch.split(lane, [-(-wide // threads), threads])
    sch.bind(each_lane, "threadIdx.x")
    for before in prologue:
        sch.set_scope(before, 0, "shared")
        sch.compute_at(before, row)
        share_among_threads(sch, sch.get_loops(before)[depth_of(sch, before, row) :], threads)
    sch.attempt(sch.unroll, summed)  # hoists the predicate of the threads that add up
    return (*done, *prologue, start, partial, store, *asked, reference, *followed)


def _bind_results(
    sch: Schedule, found: Found, plan: Plan, nest: Nest
) -> tuple[LoopRef, list[BlockRef]]:
    """Distribute the results over blocks. Returns the loop over blocks, and what stores results."""
    left = own_nest(sch, found.reference) or nest
    units = [left.loops[at] for at in nest.spatial if at not in found.kept]
    *others, last = [left.loops[at] for at in found.kept]
    block, lane = sch.split(last, [None, plan.lanes * plan.vector])
    sch.reorder(*units, *others, block, lane)
    followed = fuse_epilogue(sch, found.reference, lane)
    row = fused(sch, [*others, block])
    sch.bind(row, "blockIdx.x")
    return row, followed


def _bind_parts(
    sch: Schedule, found: Found, plan: Plan, partial: BlockRef, row: LoopRef
) -> tuple[BlockRef, LoopRef, LoopRef]:
    """Distribute the parts of k over a block's threads. Returns what stores them in shared memory,
    a thread's loop over k, and that over its neighbouring results."""
    sch.compute_at(partial, row)
    depth = depth_of(sch, partial, row)
    inside = inner_nest(sch, partial, depth)
    assert inside is not None
    part, near = inside.loops[0], inside.loops[1 + found.kept[-1]]
    neighbour, elements = sch.split(near, [plan.lanes, plan.vector])
    taken = (part.var, neighbour.var, elements.var)
    rest = [loop for loop in sch.get_loops(partial)[depth:] if loop.var not in taken]
    sch.reorder(part, neighbour, *rest, elements)
    thread = sch.fuse(part, neighbour)
    sch.set_scope(partial, 0, "shared")
    store = sch.cache_write(partial, 0, "local")
    sch.reverse_compute_at(store, thread)
    sch.bind(thread, "threadIdx.x")
    return store, rest[-1], elements


def _pack(
    sch: Schedule, reference: BlockRef, packed: Packed, wide: int, each: int, length: int
) -> BlockRef:
    """Pack a block's tile contiguously, and, where all parts have the same length, so that each
    load of its threads together is contiguous too."""
    copy = sch.cache_read(reference, packed.read, "global")
    rows = f"k % {each}, k // {each}" if length % each == 0 else "k"
    names = "n, k" if packed.is_transposed else "k, n"
    sch.transform_layout(copy, ("write", 0), f"({names}) -> (n // {wide}, {rows}, n % {wide})")
    sch.annotate(copy, CONSTANT, True)
    return copy


def _inline_producers(sch: Schedule, reference: BlockRef) -> None:
    """Inline all producers of a block, transitively."""
    for producer in sch.get_producers(reference):
        _inline_producers(sch, producer)
        sch.compute_inline(producer)


def _prefetch_all(
    sch: Schedule, partial: BlockRef, row: LoopRef, plan: Plan, each: int, is_split: bool
) -> tuple[BlockRef, ...]:
    """Load all of a thread's weights into registers before the prologue, so that they may arrive
    while kernels that produce the other operand still run. Nothing, if they exceed the loads in
    flight.

    `is_split` says that weights are packed by parts of equal length.
    """
    if each > plan.unroll:
        return ()
    reads = block_of(sch.function, partial.name).reads
    largest = max(range(len(reads)), key=lambda at: _elements(reads[at].buffer))
    point = sch.checkpoint()
    try:
        copy = sch.cache_read(partial, largest, "local")
        sch.compute_at(copy, row)
        *along, near = sch.get_loops(copy)[depth_of(sch, copy, row) :]
        if is_split:
            _, own, part = along  # tiles, rows of a part, parts
        else:
            part, own = sch.split(along[-1], [plan.parts, each])
        lane, elements = sch.split(near, [plan.lanes, plan.vector])
        sch.reorder(part, lane, own, elements)
        sch.bind(sch.fuse(part, lane), "threadIdx.x")
        sch.unroll(own)
        sch.unroll(elements)
        return (copy,)
    except ScheduleError:
        sch.restore(point)  # they are loaded after the prologue
        return ()


def _prefetch_some(sch: Schedule, partial: BlockRef, along: LoopRef, plan: Plan) -> list[BlockRef]:
    """Hoist all loads of `unroll` steps before their first use, to have that many in flight. The
    largest operand is loaded first: weights may be read before kernels that produce the others
    finish."""
    done: list[BlockRef] = []
    turns = extent_of(sch, along)
    reads = block_of(sch.function, partial.name).reads
    by_size = sorted(range(len(reads)), key=lambda at: -_elements(reads[at].buffer))
    if turns > plan.unroll:
        outer, some = sch.split(along, [None, plan.unroll])
    else:
        outer, some = sch.add_unit_loop(along), along
    for at in by_size:
        point = sch.checkpoint()
        try:
            copy = sch.cache_read(partial, at, "local")
            sch.compute_at(copy, outer)
            loops = sch.get_loops(copy)[depth_of(sch, copy, outer) :]
            extents = [try_extent(sch, loop) for loop in loops]
            if None in extents or math.prod(filter(None, extents)) > plan.unroll * plan.vector:
                sch.restore(point)  # a box around elements that are apart, most of them not read
                continue
            for loop in loops:
                sch.unroll(loop)
            done.append(copy)
        except ScheduleError:
            sch.restore(point)  # loaded where it is used
    sch.attempt(sch.unroll, some)
    if turns <= MAX_TURNS:
        sch.attempt(sch.unroll, outer)
    return done


GEMV = Rule("gemv", Plan, match, plans, cost, apply)
