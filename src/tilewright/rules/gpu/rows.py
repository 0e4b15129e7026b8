"""Softmax, normalizations and the like on a GPU: all stages of a row fused into one kernel.

    for row in blockIdx.x { max of the row; exp and sum of the row; row / sum }
    for rows in blockIdx.x { for row in threadIdx.y { ... } }         where rows are short

The elementwise producer of the row is fused too. Each thread loads `vector` neighbouring elements
per access, up to 16 bytes; it owns the same elements in every stage and keeps them in registers, so
that a row is read once. Without vectors, or with too few registers, stages communicate through
shared memory.

A block first waits for its row, then computes; to keep memory busy meanwhile, it also prefetches to
L2 the rows of a block of a later wave (`ahead`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import I64
from tilewright.base.multiprocessor import (
    LINE_BYTES,
    USUAL_THREADS,
    WORD_BYTES,
    Multiprocessor,
    multiprocessor_of,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import depth_of, is_unit
from tilewright.rules.gpu.reduction import combined_parts, factored, finish, share_parts
from tilewright.rules.gpu.row_stages import (
    adjacent_axes,
    axes_inside,
    copied,
    intermediates_of,
    is_last_axis,
    live_bytes,
    named_stages,
    read_again,
    readers_of,
    row_axes,
    stage_length,
    streamed,
    touched_bytes,
)
from tilewright.rules.gpu.threads import MAX_TURNS, by_one_thread
from tilewright.rules.match.nest import (
    block_of,
    fused,
    inner_nest,
    loop_extents,
    total,
)
from tilewright.rules.match.rows import Stages, is_part_of_later, own_axes, stages_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring, unit
from tilewright.sym import ONE, Expr
from tilewright.tensor.ir import RESIDENT, Buffer
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import blocks, output_buffers


@dataclass(frozen=True)
class Plan:
    """How a row is distributed over the threads of a block."""

    threads: int = unit("threads", "per row")
    vector: int = unit("elements", "contiguous ones per access of a thread")
    rows: int = unit("rows", "per block, each with threads of its own")
    ahead: int = unit("waves", "of blocks: the distance at which rows are prefetched to L2")


@dataclass(frozen=True)
class Found:
    """The stages of rows, and their sizes."""

    root: str
    stages: Stages
    rows: int
    lines: list[int]  # the innermost row axes that are one axis in memory
    beside: int  # rows along them, which `rows` divides
    length: int  # of the longest stage of a row
    moved_bytes: int  # memory traffic of all rows
    shared_bytes: int  # intermediate results per row
    held_bytes: int  # per row in registers: intermediate results, and inputs that are reread
    live_bytes: int  # the most of those that are live at once
    again_bytes: int  # per row, reread by stages where registers do not hold them
    reduced: int  # results of reductions per row
    element_bytes: int  # of the widest element in memory
    streamed_bytes: int  # per row, from memory
    is_known: bool  # all sizes are static, the number of rows too
    is_beside: bool  # a row is contiguous
    is_whole: bool  # every stage with more than a scalar per row runs over the whole row


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A block without reductions, together with the reductions that feed it."""
    if is_part_of_later(sch, reference):
        return None
    sm = multiprocessor_of(context.target)
    for with_prologue in (True, False):
        stages = stages_of(sch, reference, with_prologue=with_prologue)
        found = None if stages is None else _found(sch, stages)
        # A prologue is fused where its rows stay in registers.
        if found is not None and (not with_prologue or _is_held(found, sm.block_threads, sm)):
            return found
    return None


def _found(sch: Schedule, found: Stages) -> Found | None:
    """The sizes of the stages, if they are rows of several results."""
    if _has_dynamic_intermediates(found):
        return None
    sink = found.root
    inner = [at for at in sink.loops if at not in found.rows]
    if total(sink, inner) == 1:
        return None  # one result per row: a reduction and its epilogue
    rows = total(sink, found.rows)
    lengths = [stage_length(found, name, nest) for name, nest in found.members.items()]
    length = max([*lengths, total(sink, inner)])
    used = {access.buffer for nest in found.nests for access in nest.accesses}
    params = [buffer for buffer in sch.function.buffers if buffer in used]
    moved = touched_bytes(found, params)
    sizes = [buffer.dtype.size_bytes for buffer in params]
    own = [size for size in (*lengths, total(sink, inner)) if size != 1]
    known = not any(nest.is_dynamic(list(nest.loops)) for nest in found.nests)
    inside = not any(
        nest.is_dynamic(axes_inside(found, name, nest)) for name, nest in named_stages(found)
    )
    lines = adjacent_axes(found)
    is_counted = not sink.is_dynamic(lines)
    last = all(is_last_axis(nest, found, name) for name, nest in named_stages(found))
    handed_on = intermediates_of(found)
    # Scalars per row aside; an element narrower than a word still takes a register.
    kept = [
        max(size / elements, WORD_BYTES) * elements for elements, size in handed_on if elements > 1
    ]
    again = read_again(sch, found)
    kept += [length * max(buffer.dtype.size_bytes, WORD_BYTES) for buffer in again]
    return Found(
        sink.name,
        found,
        rows,
        lines,
        total(sink, lines) if is_counted else 1,
        length,
        moved,
        sum(size for _, size in handed_on),
        int(sum(kept)),
        live_bytes(found, again, length),
        sum(length * b.dtype.size_bytes * (len(readers_of(found, b)) - 1) for b in again),
        _reduced(found),
        max(sizes, default=WORD_BYTES),
        sum(length * buffer.dtype.size_bytes for buffer in streamed(sch, found)),
        known,
        last,
        inside and last and len(set(own)) == 1,
    )


def _is_held(found: Found, threads: Any, sm: Multiprocessor) -> Any:
    """Whether the registers of so many threads hold their elements of a row."""
    words = found.held_bytes / WORD_BYTES / threads
    return found.is_whole & (words <= sm.accumulators)


def _reduced(found: Stages) -> int:
    """Results of reductions per row: each thread keeps a partial one."""
    return sum(
        total(nest, [at for at in nest.spatial if at not in found.row_axis_of[name].values()])
        for name, nest in found.members.items()
        if nest.reduce
    )


def _has_dynamic_intermediates(found: Stages) -> bool:
    """Whether a stage has a dynamic number of results per row: they have no place in shared
    memory."""
    return any(
        nest.is_dynamic([at for at in nest.spatial if at not in found.row_axis_of[name].values()])
        for name, nest in found.members.items()
    )


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    sm = multiprocessor_of(context.target)
    threads = preferring(USUAL_THREADS, doublings(sm.block_threads, sm.access_words)[::-1])
    reductions = found.reduced
    # Of each stage: partial results, those combined once, the result.
    aside = LINE_BYTES * (1 + 2) * len(found.stages.members)

    combined = combined_parts(sm.block_threads)

    def legal(c: Columns) -> Column:
        # Partial results of all threads, and of the few that combine them.
        parts = c["rows"] * reductions * (c["threads"] + combined) * I64.size_bytes + aside
        held = (c["vector"] > 1) & _is_held(found, c["threads"], sm)
        fits = parts + np.where(held, 0, c["rows"] * found.shared_bytes) <= sm.static_shared_bytes
        turn = c["threads"] * c["vector"]
        whole = (found.length % turn == 0) & (found.length // turn <= MAX_TURNS)
        wide = c["vector"] * found.element_bytes <= sm.access_bytes
        vectors = whole & wide & found.is_whole
        result: Column = fits & (c["threads"] * c["rows"] <= sm.block_threads)
        result &= (c["vector"] == 1) | vectors
        alone = (c["rows"] == 1) & (c["threads"] >= sm.warp)
        beside = (found.beside % c["rows"] == 0) & (found.rows > c["rows"])
        beside &= held & (c["threads"] <= sm.warp)
        # A block waits at barriers: no more warps than can issue.
        together = c["threads"] * c["rows"]
        beside &= (together >= sm.warp) & (together <= sm.warp * sm.warps_issued_per_cycle)
        result &= alone | (beside & (c["rows"] > 1))
        # No prefetch for short rows, which keep memory busy anyway, nor for a single wave; and the
        # prefetched rows, with as much that is written, must fit half of L2.
        wave = _wave(found, c["threads"], c["rows"], held, sm)
        near = wave * found.streamed_bytes
        fits = (found.rows > wave) & (near > 0) & (2 * near <= context.target.l2_bytes // 2)
        result &= (c["ahead"] == 0) | (held & alone & fits)
        return result

    space = Space(
        Plan,
        {
            "threads": threads,
            "vector": doublings(2 * sm.access_words),
            "rows": tuple(n for n in range(1, sm.warp + 1) if found.beside % n == 0),
            "ahead": (1, 0),
        },
        legal,
    )
    return space if len(space.columns()["threads"]) else None


def _read_bytes(found: Found, sm: Multiprocessor) -> int:
    """Memory traffic; strided elements move whole sectors."""
    if found.is_beside:
        return found.moved_bytes
    return found.moved_bytes * max(1, sm.sector_bytes // found.element_bytes)


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of blocks: memory, or instruction issue, and some of the lesser one;
    barriers between stages."""
    sm = multiprocessor_of(context.target)
    stages = len(found.stages.members) + 1
    held = (c["vector"] > 1) & _is_held(found, c["threads"], sm)
    resident = _resident(found, c["threads"], c["rows"], held, sm)
    waves = -(-found.rows // (sm.count * resident * c["rows"]))
    turns = -(-found.length // (c["threads"] * c["vector"]))
    # A few instructions per element, and the loads once per vector.
    warps = c["threads"] * c["rows"] / sm.warp
    each = sm.element_instructions * c["vector"]
    issued = stages * turns * (each + sm.access_instructions + sm.turn_instructions)
    issued = issued + 2.0 * found.reduced * np.exp2(np.log2(c["threads"]) // 2)  # partial sums
    # Two loops' addresses, and lines to prefetch.
    asked = 2 * sm.turn_instructions + found.streamed_bytes / LINE_BYTES / c["threads"]
    issued = issued + np.where(c["ahead"] > 0, asked, 0.0)
    issued = warps * issued / sm.warps_issued_per_cycle
    # With few warps per scheduler, now and then none is ready.
    most = sm.threads / sm.warp / 2  # warps beyond which occupancy helps no more
    ready = np.minimum(resident * warps, most) / sm.warps_issued_per_cycle
    issued = issued * (ready + 1) / ready
    handed = 2.0 * c["rows"] * found.shared_bytes / (WORD_BYTES * sm.shared_words_per_cycle)
    shared = np.where(held, 0.0, handed + c["rows"] * found.again_bytes / sm.l2_bytes_per_cycle)
    steps = np.log2(c["threads"]) * sm.barrier_cycles * stages
    alone = sm.global_latency_cycles + steps + stages * turns * 2 * sm.fma_latency_cycles
    per_wave = np.maximum(resident * (issued + shared), alone)
    blocks = found.rows / c["rows"]
    work = np.maximum(waves * per_wave, blocks / sm.count * sm.dispatch_cycles)
    rate = np.minimum(blocks, sm.count) * sm.own_memory_bytes_per_cycle
    memory = _read_bytes(found, sm) / np.minimum(sm.memory_bytes_per_cycle, rate)
    # Memory and issue overlap except at the starts and ends of rows. Prefetching rows halves that
    # part, at the price of requesting them twice, which costs where memory is the bottleneck.
    apart = np.where(c["ahead"] > 0, sm.unhidden_share / 2, sm.unhidden_share)
    return Cost.of(
        launch=sm.launch_cycles,
        memory=memory,
        work=np.maximum(work - (1 - apart) * memory, apart * work),
        ahead=np.where(c["ahead"] > 0, sm.prefetch_share * memory, 0.0),
    )


def _wave(found: Found, threads: Any, rows: Any, held: Any, sm: Multiprocessor) -> Any:
    """Rows in one wave of blocks."""
    return sm.count * rows * _resident(found, threads, rows, held, sm)


def _resident(found: Found, threads: Any, rows: Any, held: Any, sm: Multiprocessor) -> Any:
    """Blocks per multiprocessor, by registers: a thread's elements and some more. Takes numbers or
    columns."""
    own = np.where(held, found.live_bytes / WORD_BYTES / threads, 0) + sm.warp
    blocks = np.minimum(sm.threads, sm.registers // own) // (threads * rows)
    return np.clip(blocks, 1, sm.warp)


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    reference = sch.get_block(found.root)
    stages = found.stages
    sink = stages.root
    sm = multiprocessor_of(context.target)
    held = plan.vector > 1 and _is_held(found, plan.threads, sm)
    names = list(stages.members)
    ahead = streamed(sch, stages) if plan.ahead else []
    if held:
        names += [copied(sch, stages, buffer).name for buffer in read_again(sch, stages)]
    axes = row_axes(stages)
    units = [at for at in stages.rows if at not in axes]
    order = [at for at in sink.loops if at not in stages.rows]
    sch.reorder(*[sink.loops[at] for at in (*units, *axes, *order)])
    row = fused(sch, [sink.loops[at] for at in found.lines])
    outer = [sink.loops[at] for at in axes if at not in found.lines]
    if plan.rows > 1:  # they divide the axis, so that a row's index needs no division
        inner, row = sch.split(row, [None, plan.rows])
        many = fused(sch, [*outer, inner])
    else:
        many = row = fused(sch, [*outer, row])
    for name in names:
        sch.compute_at(sch.get_block(name), row)
    done: list[BlockRef] = []
    distance = plan.ahead * int(_wave(found, plan.threads, plan.rows, held, sm))
    done += [_prefetch_rows(sch, each, row, distance, plan.threads) for each in ahead]
    for name in reversed(names):
        done += _stage(sch, sch.get_block(name), row, plan, held=held)
    done += _stage(sch, reference, row, plan, held=held)
    if plan.rows > 1:
        sch.bind(row, "threadIdx.y")
    sch.bind(many, "blockIdx.x")
    if (
        held and plan.rows == 1
    ):  # more blocks per multiprocessor overlap loads of some with arithmetic of others
        blocks = _resident(found, plan.threads, plan.rows, held, sm)
        sch.annotate(many, RESIDENT, int(blocks))
    return tuple(done)


def _prefetch_rows(
    sch: Schedule, buffer: Buffer, row: LoopRef, distance: int, threads: int
) -> BlockRef:
    """Prefetch to L2 the lines of the row that a block reads `distance` rows later."""
    reader, index = next(
        (block, index)
        for block in blocks(sch.function.body)
        for index, read in enumerate(block.reads)
        if read.buffer is buffer
    )
    asked = sch.prefetch(sch.get_block(reader.name), index, row, distance)
    lines = fused(sch, sch.get_loops(asked)[depth_of(sch, asked, row) :])
    turn, thread = sch.split(lines, [None, threads])
    sch.reorder(thread, turn)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    return asked


def _stage(
    sch: Schedule, reference: BlockRef, row: LoopRef, plan: Plan, *, held: bool
) -> list[BlockRef]:
    """Schedule one stage on all threads of a block."""
    depth = depth_of(sch, reference, row)
    nest = inner_nest(sch, reference, depth)
    reduce = [] if nest is None else [nest.loops[at] for at in nest.reduce]
    if not reduce:
        if plan.vector > 1 or _is_single(sch, reference, depth):
            _by_vectors(sch, reference, depth, plan, held=held)
        else:
            finish(sch, reference, row, plan.threads)
        return [reference]
    own = sch.get_loops(reference)[depth:]
    sch.reorder(*[loop for loop in own if loop not in reduce], *reduce)
    parts = factored(sch, reference, reduce, plan.threads, plan.vector)
    own_result = _is_between(sch, reference)
    lanes = [sch.rfactor(sch.get_loops(parts[0])[-1], 0)] if plan.vector > 1 else []
    stored = share_parts(
        sch, reference, parts, row, plan.threads, for_all=own_result, beside=plan.rows > 1
    )
    for each in lanes:
        _by_lanes(sch, each, parts[0])
    return [*lanes, *parts, *stored, reference]


def _by_lanes(sch: Schedule, lanes: BlockRef, part: BlockRef) -> None:
    """Sum each lane of a thread's vectors separately: a single sum would be one dependence
    chain."""
    thread = sch.get_loops(part)[-2]
    sch.compute_at(lanes, thread)
    sch.set_scope(lanes, 0, "local")
    nest = inner_nest(sch, lanes, depth_of(sch, lanes, thread))
    assert nest is not None
    turns = [nest.loops[at] for at in nest.reduce]
    own = [nest.loops[at] for at in nest.spatial if at in nest.loops]
    (lane,) = [loop for loop in own if not is_unit(sch, loop)]
    sch.reorder(*turns, lane)
    for turn in turns:
        sch.unroll(turn)
    sch.vectorize(lane)


def _by_vectors(sch: Schedule, reference: BlockRef, depth: int, plan: Plan, *, held: bool) -> None:
    """Schedule a stage without reductions, each thread on contiguous elements."""
    nest = inner_nest(sch, reference, depth)
    assert nest is not None
    wide = [at for at in nest.loops if nest.extent(at) is not ONE]
    wide = [at for at in wide if not is_unit(sch, nest.loops[at])]
    between = _is_between(sch, reference)
    if not wide and between:  # computed redundantly by each thread
        sch.set_scope(reference, 0, "local")
        return
    if not wide:
        by_one_thread(sch, reference, plan.threads)
        return
    (at,) = wide
    if held and between:
        _keep(sch, reference, at, plan)
    turn, thread, lane = sch.split(nest.loops[at], [None, plan.threads, plan.vector])
    sch.reorder(thread, turn, lane)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    sch.vectorize(lane)


def _keep(sch: Schedule, reference: BlockRef, at: int, plan: Plan) -> None:
    """Keep a stage's result along an axis in the registers of the threads that compute it."""
    axes = own_axes(block_of(sch.function, reference.name))
    assert axes is not None
    dim = next(dim for dim, own in axes.items() if own == at)
    lanes, turn = plan.vector, plan.vector * plan.threads

    def by_threads(*index: Expr) -> tuple[Expr, ...]:
        i = index[dim]
        own = (i // turn, i % turn // lanes, i % lanes)
        return (*index[:dim], *own, *index[dim + 1 :])

    sch.transform_layout(reference, ("write", 0), by_threads)
    sch.set_scope(reference, 0, "local")


def _is_between(sch: Schedule, reference: BlockRef) -> bool:
    """Whether only later stages read a stage's result."""
    made = block_of(sch.function, reference.name).writes[0].buffer
    return made not in output_buffers(sch.function)


def _is_single(sch: Schedule, reference: BlockRef, depth: int) -> bool:
    """Whether a stage has a scalar result per row."""
    return all(extent is ONE for extent in loop_extents(sch, reference)[depth:])


ROWS = Rule("rows", Plan, match, plans, cost, apply)
