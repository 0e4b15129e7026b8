"""Softmax, normalizations and their kind on a GPU: a block of threads for each row, or for several.

    for row in blockIdx.x { max of the row; exp and sum of the row; row / sum }
    for rows in blockIdx.x { for row in threadIdx.y { ... } }         where rows are short

All stages of a row run in one kernel, with what makes the row element by element. A thread takes
`vector` neighbours at a time, so that it asks memory for up to 16 bytes at once. It has the same
elements in every stage, and keeps them in registers: a row is read once. Where it does not take
vectors, or has no registers for them, stages hand on what they make through shared memory.

A block waits for its row, then computes: so that memory does not wait meanwhile, it also brings to
L2 what a block of the next wave will read (`ahead`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.base.multiprocessor import (
    LINE_BYTES,
    USUAL_THREADS,
    Multiprocessor,
    multiprocessor_of,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.reduction import (
    combined_parts,
    depth_of,
    factored,
    finish,
    share_parts,
)
from tilewright.rules.gpu.threads import MAX_TURNS, by_one_thread
from tilewright.rules.match.nest import (
    Access,
    Nest,
    block_of,
    fused,
    inner_nest,
    loop_extents,
    total,
)
from tilewright.rules.match.rows import Stages, is_part_of_later, own_axes, stages_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring, unit
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.tensor.ir import RESIDENT, Buffer
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import blocks, output_buffers


@dataclass(frozen=True)
class Plan:
    """How the threads of a block share out a row."""

    threads: int = unit("threads", "of a row")
    vector: int = unit("elements", "side by side that a thread takes at a time")
    rows: int = unit("rows", "of a block, each with threads of its own")
    ahead: int = unit("waves", "of blocks whose rows are on their way to L2 before their turn")


@dataclass(frozen=True)
class Found:
    """The stages of rows, by their names and sizes."""

    root: str
    stages: Stages
    rows: int
    beside: int  # rows along their innermost axis, which those of a block divide
    length: int  # of the longest stage of a row
    moved_bytes: int  # of memory, by all rows
    shared_bytes: int  # that stages hand on, of a row
    held_bytes: int  # of rows that stages hand on or read again, where threads keep their own
    live_bytes: int  # of those, that are needed at one time
    again_bytes: int  # of a row, that stages read again, where they do not
    reduced: int  # results of reductions, of a row
    element_bytes: int  # of the widest element in memory
    streamed_bytes: int  # of a row, that come from memory
    is_known: bool  # all sizes are, the number of rows too
    is_beside: bool  # a row's elements lie side by side
    is_whole: bool  # every stage but numbers of a row runs over the whole of it


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A block without reductions, together with the reductions that it uses."""
    if is_part_of_later(sch, reference):
        return None
    sm = multiprocessor_of(context.target)
    for with_prologue in (True, False):
        stages = stages_of(sch, reference, with_prologue=with_prologue)
        found = None if stages is None else _found(sch, stages)
        # A prologue joins where the rows that it makes stay in registers.
        if found is not None and (not with_prologue or _is_held(found, sm.block_threads, sm)):
            return found
    return None


def _found(sch: Schedule, found: Stages) -> Found | None:
    """Stages by their sizes, if they are a row of several results."""
    if _hands_on_any_size(found):
        return None
    sink = found.root
    inner = [at for at in sink.loops if at not in found.rows]
    if total(sink, inner) == 1:
        return None  # one result per row: a reduction and what follows it
    rows = total(sink, found.rows)
    lengths = [_length(found, name, nest) for name, nest in found.members.items()]
    length = max([*lengths, total(sink, inner)])
    used = {access.buffer for nest in found.nests for access in nest.accesses}
    params = [buffer for buffer in sch.function.buffers if buffer in used]
    moved = sum(_elements(buffer.shape) * buffer.dtype.size_bytes for buffer in params)
    sizes = [buffer.dtype.size_bytes for buffer in params]
    own = [size for size in (*lengths, total(sink, inner)) if size != 1]
    known = not any(nest.is_dynamic(list(nest.loops)) for nest in found.nests)
    inside = not any(nest.is_dynamic(_own_axes(found, name, nest)) for name, nest in _named(found))
    beside = sink.extent(_row_axes(found)[-1])
    last = all(_is_last_axis(nest, found, name) for name, nest in _named(found))
    handed_on = _handed_on(found)
    # Numbers of a row aside; an element of less than a word takes a register of its own, too.
    kept = [max(size / elements, 4) * elements for elements, size in handed_on if elements > 1]
    again = _read_again(sch, found)
    kept += [length * max(buffer.dtype.size_bytes, 4) for buffer in again]
    return Found(
        sink.name,
        found,
        rows,
        int(beside.value) if isinstance(beside, Const) else 1,
        length,
        moved,
        sum(size for _, size in handed_on),
        int(sum(kept)),
        _live_bytes(found, again, length),
        sum(length * b.dtype.size_bytes * (len(_readers(found, b)) - 1) for b in again),
        _reduced(found),
        max(sizes, default=4),
        sum(length * buffer.dtype.size_bytes for buffer in _streamed(sch, found)),
        known,
        last,
        inside and last and len(set(own)) == 1,
    )


def _is_held(found: Found, threads: Any, sm: Multiprocessor) -> Any:
    """Whether threads, so many, have registers for their elements of a row."""
    words = found.held_bytes / 4 / threads
    return found.is_whole & (words <= sm.accumulators)


def _read_again(sch: Schedule, found: Stages) -> list[Buffer]:
    """Parameters whose rows more than one stage reads."""
    params = [buffer for buffer in sch.function.buffers if len(_readers(found, buffer)) > 1]
    return [buffer for buffer in params if _has_rows(found, buffer)]


def _live_bytes(found: Stages, again: Sequence[Buffer], length: int) -> int:
    """Of what threads keep of a row, what they need at one time: a stage may put what it makes in
    place of what it is the last to read."""
    names = [*reversed(list(found.members)), found.root.name]
    begins = {buffer: names.index(_readers(found, buffer)[0]) for buffer in again}
    for (name, nest), (elements, _) in zip(found.members.items(), _handed_on(found), strict=True):
        if elements > 1:
            begins[nest.block.writes[0].buffer] = names.index(name)
    live = [0] * len(names)
    for buffer, begin in begins.items():
        for at in range(begin, names.index(_readers(found, buffer)[-1])):
            live[at] += length * max(buffer.dtype.size_bytes, 4)
    return max(live)


def _streamed(sch: Schedule, found: Stages) -> list[Buffer]:
    """Parameters of which each row is read by its own block, and by no other."""
    params = [buffer for buffer in sch.function.buffers if _readers(found, buffer)]
    return [buffer for buffer in params if _has_rows(found, buffer)]


def _readers(found: Stages, buffer: Buffer) -> list[str]:
    """The stages that read a buffer, in the order of the program."""
    named = [*reversed(list(found.members.items())), (found.root.name, found.root)]
    return [name for name, nest in named if any(read.buffer is buffer for read in nest.reads)]


def _has_rows(found: Stages, buffer: Buffer) -> bool:
    """Whether all stages that read a buffer read all of it, each element where it is."""
    for name, nest in _named(found):
        rows = found.rows if name == found.root.name else found.row_axis_of[name].values()
        axes = [*rows, *_own_axes(found, name, nest)]
        moved = [nest.var(at) for at in axes if nest.extent(at) is not ONE]
        for read in nest.reads:
            if read.buffer is buffer and (
                total(nest, axes) != _elements(buffer.shape)
                or any(read.stride(var) in (None, ZERO) for var in moved)
                or not _is_in_place(nest, read)
            ):
                return False
    return True


def _is_in_place(nest: Nest, access: Access) -> bool:
    """Whether an access is at the element that the iterators tell, not at a neighbour of it."""
    first = {nest.var(at): ZERO for at in nest.loops}
    return sym.simplify(sym.substitute(access.offset, first)) is ZERO


def _named(found: Stages) -> list[tuple[str, Nest]]:
    return [(found.root.name, found.root), *found.members.items()]


def _row_axes(found: Stages) -> list[int]:
    """The iterators of rows, those of one value aside."""
    sink = found.root
    return [at for at in found.rows if sink.extent(at) is not ONE] or found.rows[-1:]


def _own_axes(found: Stages, name: str, nest: Nest) -> list[int]:
    """The iterators of a stage inside of a row, those of one value aside."""
    rows = found.rows if name == found.root.name else found.row_axis_of[name].values()
    return [at for at in nest.loops if at not in rows and nest.extent(at) is not ONE]


def _length(found: Stages, name: str, nest: Nest) -> int:
    return total(nest, _own_axes(found, name, nest))


def _is_last_axis(nest: Nest, found: Stages, name: str) -> bool:
    """Whether a stage runs along one axis of a row, whose neighbours lie side by side."""
    own = _own_axes(found, name, nest)
    if not own:
        return True
    if len(own) > 1:
        return False
    var = nest.var(own[0])
    strides = [access.stride(var) for access in nest.accesses]
    made = {each.block.writes[0].buffer for each in found.members.values()}
    in_place = all(_is_in_place(nest, read) for read in nest.reads if read.buffer in made)
    return in_place and all(
        isinstance(stride, Const) and stride.value in (0, 1) for stride in strides
    )


def _elements(shape: tuple[object, ...]) -> int:
    count = 1
    for dim in shape:
        count *= int(dim.value) if isinstance(dim, Const) else 256
    return count


def _handed_on(found: Stages) -> list[tuple[int, int]]:
    """Elements, and their bytes, that each stage of a row hands on."""
    made = []
    for name, nest in found.members.items():
        own = [at for at in nest.spatial if at not in found.row_axis_of[name].values()]
        elements = total(nest, own)
        made.append((elements, elements * nest.block.writes[0].buffer.dtype.size_bytes))
    return made


def _reduced(found: Stages) -> int:
    """How many results the reductions of a row have: threads keep a part of each."""
    return sum(
        total(nest, [at for at in nest.spatial if at not in found.row_axis_of[name].values()])
        for name, nest in found.members.items()
        if nest.reduce
    )


def _hands_on_any_size(found: Stages) -> bool:
    """Whether a stage makes so many numbers of a row as only calls tell: they have no place in
    shared memory."""
    return any(
        nest.is_dynamic([at for at in nest.spatial if at not in found.row_axis_of[name].values()])
        for name, nest in found.members.items()
    )


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    sm = multiprocessor_of(context.target)
    threads = preferring(USUAL_THREADS, doublings(sm.block_threads, sm.access_words)[::-1])
    reductions = found.reduced
    aside = LINE_BYTES * 3 * len(found.stages.members)

    combined = combined_parts(sm.block_threads)

    def legal(c: Columns) -> Column:
        # Parts of threads, and of a few that combine them.
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
        # All of a block wait for each other: no more than a warp for each that issues.
        together = c["threads"] * c["rows"]
        beside &= (together >= sm.warp) & (together <= sm.warp * sm.warps_issued_per_cycle)
        result &= alone | (beside & (c["rows"] > 1))
        # Of short rows memory has enough under way; of one wave of blocks none comes later; and
        # what is written passes through L2 too, beside what others have there.
        wave = _wave(found, c["threads"], c["rows"], held, sm)
        near = wave * found.streamed_bytes
        fits = (found.rows > wave) & (near > 0) & (near <= context.target.l2_bytes // 4)
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
    if not len(space.columns()["threads"]) or _is_better_apart(found, space, context):
        return None
    return space


def _is_better_apart(found: Found, space: Space[Plan], context: RuleContext) -> bool:
    """Whether rows are so few and long, or lie so across memory, that all multiprocessors together
    read them several times before blocks of their own are done: each sum is then shared by several
    blocks, and a kernel of its own adds up what they find; or neighbours add up neighbours."""
    sm = multiprocessor_of(context.target)
    if not found.is_known or (found.is_beside and found.rows >= sm.count):
        return False
    sums = sum(bool(nest.reduce) for nest in found.stages.members.values())
    apart = 2 * sums * sm.launch_cycles + (1 + sums) * found.moved_bytes / sm.memory_bytes_per_cycle
    best = space.cheapest(lambda c: cost(found, c, context))
    return best is not None and best.cycles > apart


def _read_bytes(found: Found, sm: Multiprocessor) -> int:
    """What memory moves: of elements that lie apart whole sectors."""
    if found.is_beside:
        return found.moved_bytes
    return found.moved_bytes * max(1, sm.sector_bytes // found.element_bytes)


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Rows in waves of blocks: bytes of memory, or what threads issue, and some of the lesser one;
    barriers of stages."""
    sm = multiprocessor_of(context.target)
    stages = len(found.stages.members) + 1
    held = (c["vector"] > 1) & _is_held(found, c["threads"], sm)
    resident = _resident(found, c["threads"], c["rows"], held, sm)
    waves = -(-found.rows // (sm.count * resident * c["rows"]))
    turns = -(-found.length // (c["threads"] * c["vector"]))
    # A few instructions for each element, and those that ask memory once for each vector.
    warps = c["threads"] * c["rows"] / sm.warp
    issued = stages * turns * (4.0 * c["vector"] + 6.0)
    issued = issued + 2.0 * found.reduced * np.exp2(np.log2(c["threads"]) // 2)  # parts of sums
    asked = 8.0 + found.streamed_bytes / LINE_BYTES / c["threads"]  # a place, and lines there
    issued = issued + np.where(c["ahead"] > 0, asked, 0.0)
    issued = warps * issued / sm.warps_issued_per_cycle
    # A warp waits for its operands: of few that share a cycle's issue, now and then none is ready.
    most = sm.threads / sm.warp / 2  # warps; more help no further
    ready = np.minimum(resident * warps, most) / sm.warps_issued_per_cycle
    issued = issued * (ready + 1) / ready
    handed = 2.0 * c["rows"] * found.shared_bytes / (4 * sm.shared_words_per_cycle)
    shared = np.where(held, 0.0, handed + c["rows"] * found.again_bytes / sm.l2_bytes_per_cycle)
    steps = np.log2(c["threads"]) * 20.0 * stages  # of threads that wait for each other
    alone = sm.global_latency_cycles + steps + stages * turns * 8.0
    per_wave = np.maximum(resident * (issued + shared), alone)
    blocks = found.rows / c["rows"]
    work = np.maximum(waves * per_wave, blocks / sm.count * sm.dispatch_cycles)
    rate = np.minimum(blocks, sm.count) * sm.own_memory_bytes_per_cycle
    memory = _read_bytes(found, sm) / np.minimum(sm.memory_bytes_per_cycle, rate)
    # Both run beside each other but for a part of the shorter one: begins and ends of rows. Rows
    # ahead halve it, and are asked for twice: where all wait for memory, that is in their way.
    apart = np.where(c["ahead"] > 0, 0.125, 0.25)
    return Cost.of(
        memory=memory,
        work=np.maximum(work - (1 - apart) * memory, apart * work),
        ahead=np.where(c["ahead"] > 0, 0.1 * memory, 0.0),
    )


def _wave(found: Found, threads: Any, rows: Any, held: Any, sm: Multiprocessor) -> Any:
    """Rows whose blocks all multiprocessors have at once."""
    return sm.count * rows * _resident(found, threads, rows, held, sm)


def _resident(found: Found, threads: Any, rows: Any, held: Any, sm: Multiprocessor) -> Any:
    """Blocks of a multiprocessor, of numbers or columns: as many as it has registers for, each
    thread some beside its elements."""
    own = np.where(held, found.live_bytes / 4 / threads, 0) + sm.warp
    blocks = np.minimum(sm.threads, sm.registers // own) // (threads * rows)
    return np.clip(blocks, 1, sm.warp)


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """The schedule of a plan."""
    reference = sch.get_block(found.root)
    stages = found.stages
    sink = stages.root
    sm = multiprocessor_of(context.target)
    held = plan.vector > 1 and _is_held(found, plan.threads, sm)
    names = list(stages.members)
    streamed = _streamed(sch, stages) if plan.ahead else []
    if held:
        names += [_copied(sch, stages, buffer).name for buffer in _read_again(sch, stages)]
    kept = _row_axes(stages)
    units = [at for at in stages.rows if at not in kept]
    order = [at for at in sink.loops if at not in stages.rows]
    sch.reorder(*[sink.loops[at] for at in (*units, *kept, *order)])
    *outer, row = [sink.loops[at] for at in kept]
    if plan.rows > 1:  # an axis that they divide: a row's place in it is then no quotient
        inner, row = sch.split(row, [None, plan.rows])
        many = fused(sch, [*outer, inner])
    else:
        many = row = fused(sch, [*outer, row])
    for name in names:
        sch.compute_at(sch.get_block(name), row)
    done: list[BlockRef] = []
    distance = plan.ahead * int(_wave(found, plan.threads, plan.rows, held, sm))
    done += [_ahead(sch, each, row, distance, plan.threads) for each in streamed]
    for name in reversed(names):
        done += _stage(sch, sch.get_block(name), row, plan, held=held)
    done += _stage(sch, reference, row, plan, held=held)
    if plan.rows > 1:
        sch.bind(row, "threadIdx.y")
    sch.bind(many, "blockIdx.x")
    if held and plan.rows == 1:  # rows whose loads are under way hide what is computed of others
        blocks = _resident(found, plan.threads, plan.rows, held, sm)
        sch.annotate(many, RESIDENT, int(blocks))
    return tuple(done)


def _ahead(sch: Schedule, buffer: Buffer, row: LoopRef, distance: int, threads: int) -> BlockRef:
    """Threads ask for the lines of a row that a block reads so many rows later."""
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


def _copied(sch: Schedule, stages: Stages, buffer: Buffer) -> BlockRef:
    """A copy of a parameter that all stages read instead of it."""
    first, *others = [sch.get_block(name) for name in _readers(stages, buffer)]
    reads = block_of(sch.function, first.name).reads
    index = next(at for at, read in enumerate(reads) if read.buffer is buffer)
    return sch.cache_read(first, index, "local", others)


def _stage(
    sch: Schedule, reference: BlockRef, row: LoopRef, plan: Plan, *, held: bool
) -> list[BlockRef]:
    """One stage on all threads of a block."""
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
    """A thread adds up each lane of its vectors by itself: a single sum would wait for every
    addition."""
    thread = sch.get_loops(part)[-2]
    sch.compute_at(lanes, thread)
    sch.set_scope(lanes, 0, "local")
    nest = inner_nest(sch, lanes, depth_of(sch, lanes, thread))
    assert nest is not None
    turns = [nest.loops[at] for at in nest.reduce]
    own = [nest.loops[at] for at in nest.spatial if at in nest.loops]
    (lane,) = [loop for loop in own if _extent(sch, lanes, loop) != 1]
    sch.reorder(*turns, lane)
    for turn in turns:
        sch.unroll(turn)
    sch.vectorize(lane)


def _by_vectors(sch: Schedule, reference: BlockRef, depth: int, plan: Plan, *, held: bool) -> None:
    """A stage without reductions, each thread at neighbouring elements."""
    nest = inner_nest(sch, reference, depth)
    assert nest is not None
    wide = [at for at in nest.loops if nest.extent(at) is not ONE]
    wide = [at for at in wide if _extent(sch, reference, nest.loops[at]) != 1]
    between = _is_between(sch, reference)
    if not wide and between:  # each thread for itself
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
    """What a stage makes along an axis stays with the threads that make it."""
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
    """Whether nothing but later stages reads what a stage makes."""
    made = block_of(sch.function, reference.name).writes[0].buffer
    return made not in output_buffers(sch.function)


def _is_single(sch: Schedule, reference: BlockRef, depth: int) -> bool:
    """Whether a stage makes one number of each row."""
    return all(extent is ONE for extent in loop_extents(sch, reference)[depth:])


def _extent(sch: Schedule, reference: BlockRef, loop: LoopRef) -> int:
    at = [each.var for each in sch.get_loops(reference)].index(loop.var)
    extent = loop_extents(sch, reference)[at]
    return int(extent.value) if isinstance(extent, Const) else 2


ROWS = Rule("rows", Plan, match, plans, cost, apply)
