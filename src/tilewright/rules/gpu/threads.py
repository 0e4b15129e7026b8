"""Loops on threads: what every GPU schedule does at its ends.

for b in thread(blockIdx.x) { for t in thread(threadIdx.x) 0..256 { ... } }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.base.multiprocessor import USUAL_THREADS
from tilewright.rules.match.nest import Nest, fused, inner_nest, nest_of
from tilewright.sym import ONE, ZERO, Const
from tilewright.tensor.ir import SERIAL, THREAD, Block, For
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.analysis.tree import all_loops, find_block
from tilewright.tensor.visit import blocks, walk

MAX_TURNS = 16  # of a thread in a copy, that are unrolled


@dataclass(frozen=True)
class ThreadsPlan:
    """Threads of a block, each of which has iterations of its own."""

    threads: int


@dataclass(frozen=True)
class Spatial:
    """A block without reductions that stands alone."""

    reference: BlockRef
    nest: Nest


def spatial_nest(sch: Schedule, reference: BlockRef) -> Spatial | None:
    """A block whose iterations are all independent."""
    nest = own_nest(sch, reference)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.loops):
        return None
    return Spatial(reference, nest)


def own_nest(sch: Schedule, reference: BlockRef) -> Nest | None:
    """A block and the loops that are its own, below loops it shares with others: those run on the
    host, kernel after kernel, as the steps of a recurrence do."""
    alone = nest_of(sch, reference)
    if alone is not None:
        return alone
    path = find_block(sch.function, reference.name)
    assert path is not None
    loops = [stmt for stmt in path if isinstance(stmt, For)]
    shared = [loop for loop in loops if sum(1 for _ in blocks(loop)) > 1]
    own = loops[len(shared) :]
    if loops[: len(shared)] != shared or any(isinstance(stmt, Block) for stmt in path[:-1]):
        return None
    if any(loop.kind != SERIAL or loop.start is not ZERO for loop in loops):
        return None
    nest = inner_nest(sch, reference, len(shared))
    if nest is None or len(nest.loops) != len(own) or not own:
        return None
    bindings = nest.block.bindings
    whole = all(bindings[at] is loop.var for at, loop in nest.loops.items())
    return nest if whole else None


def units_first(nest: Nest, positions: Sequence[int]) -> tuple[list[LoopRef], list[LoopRef]]:
    """Loops of one iteration, which are no digits of an index, and the others."""
    units = [nest.loops[at] for at in positions if nest.extent(at) is ONE]
    others = [nest.loops[at] for at in positions if nest.extent(at) is not ONE]
    return (units, others) if others else (units[:-1], units[-1:])


def bind_flat(
    sch: Schedule, loops: Sequence[LoopRef], threads: int = USUAL_THREADS, vector: int = 1
) -> tuple[LoopRef, LoopRef]:
    """Loops as one, cut into blocks of threads, each with a few neighbouring elements."""
    whole = fused(sch, loops)
    if vector > 1:
        block, thread, lane = sch.split(whole, [None, threads, vector])
        sch.vectorize(lane)
    else:
        block, thread = sch.split(whole, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return block, thread


def share(sch: Schedule, loops: Sequence[LoopRef], threads: int, vector: int = 1) -> LoopRef:
    """The threads of a block share loops inside of it; the loop over threads."""
    whole = fused(sch, loops)
    if vector > 1:
        turn, thread, lane = sch.split(whole, [None, threads, vector])
        sch.vectorize(lane)
    else:
        turn, thread = sch.split(whole, [None, threads])
    sch.bind(thread, "threadIdx.x")
    turns = next(loop.extent for loop in all_loops(sch.function.body) if loop.var is turn.var)
    if isinstance(turns, Const) and 1 < turns.value <= MAX_TURNS:
        sch.attempt(sch.unroll, turn)  # all of them ask memory before the first one waits
    elif isinstance(turns, Const) and turns.value > MAX_TURNS:
        sch.attempt(sch.unroll, sch.split(turn, [None, MAX_TURNS // 2])[1])
    return thread


def by_one_thread(sch: Schedule, block: BlockRef, threads: int) -> None:
    """A block inside a kernel that only the first thread runs."""
    unit = sch.add_unit_loop(block)
    _, thread = sch.split(unit, [1, threads])
    sch.bind(thread, "threadIdx.x")


def alone(sch: Schedule, block: BlockRef) -> LoopRef:
    """The nest that holds a block, below loops with kernels of others, becomes a kernel of one
    thread."""
    path = find_block(sch.function, block.name)
    assert path is not None
    loops = [stmt for stmt in path if isinstance(stmt, For)]
    free = [
        at
        for at, loop in enumerate(loops)
        if not any(isinstance(s, For) and s.kind == THREAD for s in walk(loop))
    ]
    unit = sch.add_unit_loop(sch.get_loops(block)[free[0]] if free else block)
    sch.bind(unit, "blockIdx.x")
    return unit


def attempt_all(sch: Schedule, loops: Sequence[LoopRef], step: Callable[[LoopRef], None]) -> None:
    """A step that only makes things faster, for every loop that takes it."""
    for loop in loops:
        sch.attempt(step, loop)
