"""Softmax and normalizations along an axis that is not the contiguous one, and of very short rows.

    for tile in blockIdx.x { for c in threadIdx.x { for p in threadIdx.y {
        max of x[p::P, c]; sum of exp(x[p::P, c] - max); exp / sum } } }     columns of a tile
    for row in blockIdx.x, threadIdx.x { max of x[row, :]; ... }             parts = 1

A block takes a tile of neighbouring columns, so that loads and stores are of neighbours: each
thread has `vector` columns side by side and every `parts`-th element of them. Partial results of a
column are combined in shared memory. Elements stay in registers where there are enough, and memory
is read once; else every stage reads it again and computes what lies between. With one part a thread
has whole rows, whichever way they lie: a softmax of rows of nine takes no barrier. Rows that lie
along memory, but have no vectors (of 197 elements), are shared by neighbouring threads instead,
several rows to a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import sym
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
from tilewright.rules.gpu.reduction import combined_parts, factored, stored_at
from tilewright.rules.gpu.row_stages import (
    axes_inside,
    copied,
    intermediates_of,
    named_stages,
    row_axes,
    rows_of,
    stage_length,
    touched_bytes,
)
from tilewright.rules.gpu.threads import MAX_TURNS
from tilewright.rules.match.nest import (
    Nest,
    block_of,
    fused,
    inner_nest,
    total,
)
from tilewright.rules.match.rows import Stages, is_part_of_later, own_axes, stages_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.sym import ONE, ZERO, Const, Expr, Var
from tilewright.tensor.ir import Buffer, Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs


@dataclass(frozen=True)
class Plan:
    """How a tile of columns is shared out."""

    columns: int = unit("threads", "side by side, each with columns of its own")
    vector: int = unit("columns", "side by side that a thread has")
    parts: int = unit("threads", "that share a column; 1: each thread has whole rows")


@dataclass(frozen=True)
class Found:
    """The stages of columns, by their names and sizes."""

    root: str
    stages: Stages
    rows: int  # columns, or rows of a thread, in all
    width: int  # of them side by side along their innermost axis
    is_wide: bool  # that axis is the contiguous one, in all memory
    is_along: bool  # the axis of the stages is
    lanes: int  # neighbours along it that one access may have
    length: int
    is_known: bool  # all sizes are
    is_long_known: bool  # the length is
    again: tuple[Buffer, ...]  # parameters that several stages read at the same places
    held_words: int  # of a column, that its threads keep
    steps: int  # stages that go through a column
    reads: int  # of a column's elements by all stages, where threads keep none
    moved_bytes: int
    read_bytes: int  # of those
    element_bytes: int  # of the narrowest operand that has the columns
    sums: int  # results of reductions, of a column


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    if is_part_of_later(sch, reference):
        return None
    for with_prologue in (True, False):
        stages = stages_of(sch, reference, with_prologue=with_prologue)
        found = None if stages is None else _found(sch, stages, context)
        if found is not None:
            return found
    return None


def _found(sch: Schedule, stages: Stages, context: RuleContext) -> Found | None:
    """Stages along one axis, the same for all but those of one number."""
    sink = stages.root
    inside = {name: axes_inside(stages, name, nest) for name, nest in named_stages(stages)}
    if not inside[sink.name] or any(len(axes) > 1 for axes in inside.values()):
        return None
    extent = sink.extent(inside[sink.name][0])
    for name, nest in named_stages(stages):
        if any(nest.extent(at) is not extent for at in inside[name]):
            return None
        if nest.reduce and not inside[name]:
            return None
    length = stage_length(stages, sink.name, sink)
    own = {b for nest in stages.members.values() for b in _written(nest)}
    params = {b for nest in stages.nests for b in _buffers(nest)} - own
    params |= set(_written(sink)) if sink in stages.members.values() else set()
    width, lanes = _lanes(stages, params, context)
    again = tuple(
        buffer for buffer in sch.function.buffers if _is_read_again(stages, buffer, inside)
    )
    between = sum(elements > 1 for elements, _ in intermediates_of(stages))
    sizes = [b.dtype.size_bytes for b in params if len(b.shape) and b.shape[-1] is not ONE]
    return Found(
        sink.name,
        stages,
        total(sink, stages.rows),
        width,
        lanes > 0,
        all(_lies_along(nest, inside[name], params) for name, nest in named_stages(stages)),
        max(1, lanes),
        length,
        not any(nest.is_dynamic(list(nest.loops)) for nest in stages.nests),
        isinstance(extent, Const),
        again,
        length * max(1, between + len(again) - 1),
        sum(len(axes) for axes in inside.values()) + len(again),
        sum(any(b in params for b in _reads(nest)) for nest in stages.nests) + between,
        touched_bytes(stages, params),
        touched_bytes(stages, params - {*_written(sink)}),
        min(sizes, default=WORD_BYTES),
        sum(bool(nest.reduce) for nest in stages.members.values()),
    )


def _buffers(nest: Nest) -> list[Buffer]:
    return [access.buffer for access in nest.accesses]


def _reads(nest: Nest) -> list[Buffer]:
    return [access.buffer for access in nest.reads]


def _lies_along(nest: Nest, inside: list[int], params: set[Buffer]) -> bool:
    """Whether neighbours along a stage's axis lie side by side in all memory."""
    own = [access for access in nest.accesses if access.buffer in params]
    strides = [access.stride(nest.var(at)) for at in inside for access in own]
    return all(isinstance(stride, Const) and stride.value in (0, 1) for stride in strides)


def _written(nest: Nest) -> list[Buffer]:
    return [access.buffer for access in nest.writes]


def _lanes(stages: Stages, params: set[Buffer], context: RuleContext) -> tuple[int, int]:
    """The extent of the innermost axis of rows, and how many neighbours along it one access may
    have: 0 where they do not lie side by side."""
    at = row_axes(stages)[-1]
    extent = stages.root.extent(at)
    sizes = [1]
    for name, nest in named_stages(stages):
        own = rows_of(stages, name).get(at)
        for access in nest.accesses:
            if access.buffer not in params:
                continue
            stride = ZERO if own is None else access.stride(nest.var(own))
            if not isinstance(stride, Const) or stride.value not in (0, 1):
                return stages.root.guess(at), 0
            sizes += [access.buffer.dtype.size_bytes] if stride is ONE else []
    if not isinstance(extent, Const):
        return stages.root.guess(at), 1
    widest = multiprocessor_of(context.target).access_bytes // max(sizes)
    return int(extent.value), int(np.gcd(widest, int(extent.value)))


def _is_read_again(stages: Stages, buffer: Buffer, inside: dict[str, list[int]]) -> bool:
    """Whether several stages read a parameter, all at the same places: an element of each row
    along its axis."""
    seen: list[tuple[Any, ...]] = []
    for name, nest in named_stages(stages):
        loads = dict.fromkeys(e for e in exprs(nest.block.body) if isinstance(e, Load))
        mine = [load for load in loads if load.buffer is buffer]
        if not mine:
            continue
        if len(mine) > 1 or len(inside[name]) != 1:
            return False
        rows, own = rows_of(stages, name), nest.var(inside[name][0])
        along = [at for at, index in enumerate(mine[0].index) if sym.uses_var(index, {own})]
        if len(along) != 1 or not _is_shifted(mine[0].index[along[0]], own):
            return False
        last = mine[0].index[-1]
        lane = nest.var(rows[row_axes(stages)[-1]])
        if along[0] == buffer.rank - 1 or not (last is lane or not sym.uses_var(last, {lane})):
            return False
        if sum(sym.uses_var(index, {lane}) for index in mine[0].index) > 1:
            return False
        names = {nest.var(at): stages.root.var(row) for row, at in rows.items()}
        names[own] = stages.root.var(inside[stages.root.name][0])
        seen.append(tuple(sym.simplify(sym.substitute(i, names)) for i in mine[0].index))
    return len(seen) > 1 and all(index == seen[0] for index in seen)


def _is_shifted(index: Expr, var: Var) -> bool:
    """Whether an index is a variable plus what does not depend on it."""
    found = sym.linear(index, (var,))
    return found is not None and found[0].get(var, ZERO) is ONE


# ------------------------------------------------------------------------------------ plans


def _is_held(found: Found, c: Columns | Plan, sm: Multiprocessor) -> Any:
    """Whether threads have registers for their elements."""
    vector, parts = (c.vector, c.parts) if isinstance(c, Plan) else (c["vector"], c["parts"])
    turns = -(-found.length // parts)
    words = turns * vector * (found.held_words // found.length)
    # What a thread reads again it has made, all of it: no part ends early, nor does a tile.
    columns = c.columns if isinstance(c, Plan) else c["columns"]
    whole = (found.length % parts == 0) & (found.width % (columns * vector) == 0)
    few = (words <= sm.accumulators) & (turns <= sm.accumulators)
    return found.is_long_known & few & (whole & found.is_known | (parts == 1))


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    sm = multiprocessor_of(context.target)
    # Rows along memory that threads of a warp have vectors of are those of the rule `rows`.
    is_odd = found.is_along and found.length % (2 * sm.warp) != 0 and found.is_long_known

    def legal(c: Columns) -> Column:
        whole = c["parts"] == 1
        threads = c["columns"] * c["parts"]
        result: Column = (threads <= sm.block_threads) & (threads >= sm.warp)
        result &= whole | (c["parts"] <= found.length)
        # A tile ends with the axis.
        tile = c["columns"] * c["vector"]
        result &= whole | found.is_wide | (is_odd & (c["parts"] >= sm.warp // 2))
        result &= whole | (tile <= np.maximum(found.width, 1))
        result &= ~whole | _is_held(found, c, sm)
        partial = (c["parts"] + combined_parts(sm.block_threads)) * I64.size_bytes
        result &= whole | (found.sums * tile * partial <= sm.static_shared_bytes)
        return result

    columns = {min(n, found.width) for n in doublings(sm.block_threads)}
    space = Space(
        Plan,
        {
            "columns": tuple(sorted({*columns, USUAL_THREADS}, reverse=True)),
            "vector": doublings(found.lanes)[::-1],
            "parts": (*doublings(sm.block_threads, 2)[::-1], 1),
        },
        legal,
    )
    return space if len(space.columns()["parts"]) else None


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Memory by whole sectors; waves of blocks that issue instructions or wait; partial results."""
    sm = multiprocessor_of(context.target)
    held = _is_held(found, c, sm)
    whole = c["parts"] == 1
    threads = c["columns"] * c["parts"]
    tile = c["columns"] * c["vector"]
    tiles = -(-found.width // tile) * (found.rows // found.width)
    blocks = np.where(whole, -(-found.rows // tile), tiles)
    turns = -(-found.length // c["parts"])
    few = np.exp2(np.log2(c["parts"]) // 2)
    passes = np.where(held, 1, found.reads)
    # A few instructions for each element and stage, and those of every access.
    accesses = (sm.access_instructions + sm.turn_instructions) * (passes + 1)
    issued = turns * (sm.element_instructions * c["vector"] * found.steps + accesses)
    added = sm.access_instructions + 1  # per partial result
    issued = issued + np.where(whole, 0.0, added * found.sums * c["vector"] * few)
    issued = issued * threads / sm.warp / sm.warps_issued_per_cycle
    own = np.where(held, turns * c["vector"] * (found.held_words // found.length), 0) + sm.warp
    resident = np.minimum(sm.threads, sm.registers // own) // threads
    resident = np.clip(resident, 1, sm.warp)
    waves = -(-blocks // (sm.count * resident))
    exchange = 2 * sm.shared_latency_cycles  # to store partial results and load them
    meetings = np.where(whole, 0.0, found.sums * (exchange + sm.fma_latency_cycles * few))
    alone = found.steps * turns * 2 * sm.fma_latency_cycles  # of two operations per stage
    alone = passes * sm.global_latency_cycles + meetings + alone
    work = np.maximum(
        waves * np.maximum(resident * issued, alone), blocks / sm.count * sm.dispatch_cycles
    )
    run = np.where(
        found.is_wide & (tile < found.width), tile * found.element_bytes, sm.sector_bytes
    )
    waste = np.maximum(1.0, sm.sector_bytes / run)
    rate = np.minimum(blocks, sm.count) * sm.own_memory_bytes_per_cycle
    memory = found.moved_bytes * waste / np.minimum(sm.memory_bytes_per_cycle, rate)
    again = (passes - 1) * found.read_bytes * waste / np.minimum(blocks, sm.count)
    # Rows of one thread each lie lines apart: each access of a warp takes a step for every line.
    lines = np.minimum(sm.warp, sm.warp * found.length * found.element_bytes / LINE_BYTES)
    lines = np.where(whole & (not found.is_wide), lines, 0.0)
    apart = found.rows / sm.warp * found.length * 2 * lines / sm.count
    return Cost.of(
        launch=sm.launch_cycles,
        memory=memory,
        again=again / sm.l2_bytes_per_cycle,
        work=np.maximum(work - (1 - sm.unhidden_share) * memory, sm.unhidden_share * work),
        lines=apart,
    )


# ------------------------------------------------------------------------------------ schedule


@dataclass(frozen=True)
class _Tile:
    """A tile while its stages are scheduled: the loop of its columns, and who shares a column."""

    stages: Stages
    plan: Plan
    thread: LoopRef
    axis: str  # of the threads that share a column
    most: int  # elements of a row that one thread has, each in a register of its own


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    stages, reference = found.stages, sch.get_block(found.root)
    sm = multiprocessor_of(context.target)
    names = list(stages.members)
    if _is_held(found, plan, sm):
        names += [copied(sch, stages, buffer).name for buffer in found.again]
    else:
        names = _without_between(sch, stages)
    thread, block = _tiled(sch, stages, plan)
    # Neighbouring threads are at neighbours in memory.
    own, shared = "threadIdx.x", "threadIdx.y"
    if plan.parts > 1 and not found.is_wide:
        own, shared = shared, own
    for name in names:
        sch.compute_at(sch.get_block(name), thread)
    tile = _Tile(stages, plan, thread, shared, multiprocessor_of(context.target).accumulators)
    done: list[BlockRef] = []
    for each in [*(sch.get_block(name) for name in reversed(names)), reference]:
        done += _stage(sch, tile, each)
    sch.bind(thread, own)
    sch.bind(block, "blockIdx.x")
    return tuple(done)


def _without_between(sch: Schedule, stages: Stages) -> list[str]:
    """What lies between stages, element by element, is computed by each that reads it."""
    left = []
    for name, nest in stages.members.items():
        if not nest.reduce and axes_inside(stages, name, nest):
            sch.compute_inline(sch.get_block(name))
        else:
            left.append(name)
    return left


def _tiled(sch: Schedule, stages: Stages, plan: Plan) -> tuple[LoopRef, LoopRef]:
    """The loops of the last stage by tiles: the one of a tile's columns, that of tiles."""
    sink, kept = stages.root, row_axes(stages)
    units = [at for at in stages.rows if at not in kept]
    order = [at for at in sink.loops if at not in stages.rows]
    sch.reorder(*[sink.loops[at] for at in (*units, *kept, *order)])
    *outer, last = [sink.loops[at] for at in kept]
    if plan.parts > 1:
        tile, thread, _ = sch.split(last, [None, plan.columns, plan.vector])
        return thread, fused(sch, [*outer, tile])
    if plan.vector > 1:
        last = sch.split(last, [None, plan.vector])[0]
    block, thread = sch.split(fused(sch, [*outer, last]), [None, plan.columns])
    return thread, block


def _stage(sch: Schedule, tile: _Tile, reference: BlockRef) -> list[BlockRef]:
    """One stage by the threads of a tile."""
    stages, plan = tile.stages, tile.plan
    depth = depth_of(sch, reference, tile.thread)
    nest = inner_nest(sch, reference, depth)
    assert nest is not None
    if not nest.reduce:
        at = row_axes(stages)[-1]
        copied = reference.name not in {*stages.members, stages.root.name}
        lane = len(nest.block.iters) - 1 if copied else rows_of(stages, reference.name)[at]
        _element_by_element(sch, tile, reference, nest, lane)
        return [reference]
    reduce = [nest.loops[at] for at in nest.reduce]
    own = sch.get_loops(reference)[depth:]
    sch.reorder(*[loop for loop in own if loop not in reduce], *reduce)
    if plan.parts == 1:
        sch.set_scope(reference, 0, "local")
        _by_lanes(sch, reference, depth, tile)
        return [reference]
    parts = factored(sch, reference, reduce, plan.parts)
    stored = []
    for at, part in enumerate(parts):
        made = inner_nest(sch, part, depth)
        assert made is not None
        own_loop = made.loops[0]
        others = [each for each in sch.get_loops(part)[depth:] if each.var is not own_loop.var]
        sch.reorder(own_loop, *others)
        if at:
            _, own_loop = sch.split(own_loop, [1, plan.parts])
        sch.bind(own_loop, tile.axis)
        (store,) = stored_at(sch, part, own_loop)
        _by_lanes(sch, part, depth_of(sch, part, own_loop), tile)
        _by_lanes(sch, store, depth_of(sch, store, own_loop), tile)
        sch.set_scope(store, 0, "shared")
        stored.append(store)
    sch.set_scope(reference, 0, "local")
    _by_lanes(sch, reference, depth, tile)
    return [*parts, *stored, reference]


def _by_lanes(sch: Schedule, reference: BlockRef, depth: int, tile: _Tile) -> None:
    """A thread's columns innermost, all steps of it unrolled where they are few."""
    lane = _lane(sch, reference, depth, tile.plan)
    nest = inner_nest(sch, reference, depth)
    assert nest is not None
    steps = [nest.loops[at] for at in nest.reduce]
    if lane is not None:
        sch.reorder(*steps, lane)
    for at in nest.reduce:
        _unrolled(sch, nest.loops[at], nest.extent(at), tile.most)
    if lane is not None:
        sch.vectorize(lane)


def _unrolled(sch: Schedule, loop: LoopRef, extent: Expr, most: int) -> None:
    if isinstance(extent, Const) and int(extent.value) <= most:
        sch.unroll(loop)
    else:
        sch.annotate(loop, "unroll", MAX_TURNS // 2)


def _lane(sch: Schedule, reference: BlockRef, depth: int, plan: Plan) -> LoopRef | None:
    """The loop over columns of a thread: the only axis of its results that has several."""
    if plan.vector == 1:
        return None
    nest = inner_nest(sch, reference, depth)
    assert nest is not None
    wide = [at for at in nest.spatial if not is_unit(sch, nest.loops[at])]
    return nest.loops[wide[0]] if wide else None


def _element_by_element(
    sch: Schedule, tile: _Tile, reference: BlockRef, nest: Nest, lane_at: int
) -> None:
    """A stage without reductions: every thread at its own elements of its columns."""
    plan = tile.plan
    block = block_of(sch.function, reference.name)
    between = reference.name != tile.stages.root.name
    axes = own_axes(block)
    assert axes is not None
    wide = [at for at in nest.loops if not is_unit(sch, nest.loops[at])]
    lane = None
    if plan.vector > 1:
        lane = lane_at if lane_at in wide else None
        wide = [at for at in wide if at != lane]
    if not wide:  # a number of each column: every thread has it
        sch.set_scope(reference, 0, "local")
    else:
        (at,) = wide
        loop = nest.loops[at]
        if between:
            dim = next(dim for dim, own in axes.items() if own == at)
            if plan.parts > 1:
                sch.transform_layout(reference, ("write", 0), _by_parts(dim, plan.parts))
            sch.set_scope(reference, 0, "local")
        if plan.parts > 1:
            turn, thread = sch.split(loop, [None, plan.parts])
            sch.reorder(thread, turn, *([nest.loops[lane]] if lane is not None else []))
            sch.bind(thread, tile.axis)
        else:
            turn = loop
            sch.reorder(turn, *([nest.loops[lane]] if lane is not None else []))
        _unrolled(sch, turn, sym.ceildiv(nest.extent(at), sym.const(plan.parts)), tile.most)
    if lane is not None:
        sch.vectorize(nest.loops[lane])


def _by_parts(dim: int, parts: int) -> Callable[..., tuple[Expr, ...]]:
    """An axis by turns and by the threads that share it."""

    def layout(*index: Expr) -> tuple[Expr, ...]:
        i = index[dim]
        return (*index[:dim], i // parts, i % parts, *index[dim + 1 :])

    return layout


COLUMNS = Rule("columns", Plan, match, plans, cost, apply)
