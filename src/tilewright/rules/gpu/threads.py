"""Binding loops to blocks and threads: shared by all GPU schedules.

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

MAX_TURNS = 16  # iterations of a thread's copy loop that are unrolled


@dataclass(frozen=True)
class ThreadsPlan:
    """Threads per block, each with its own iterations."""

    threads: int


@dataclass(frozen=True)
class Spatial:
    """A standalone block without reductions."""

    reference: BlockRef
    nest: Nest


def spatial_nest(sch: Schedule, reference: BlockRef) -> Spatial | None:
    """A block whose iterations are all independent."""
    nest = own_nest(sch, reference)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.loops):
        return None
    return Spatial(reference, nest)


def own_nest(sch: Schedule, reference: BlockRef) -> Nest | None:
    """A block with its own loops, below loops that it shares with others: those run on the host,
    launching kernel after kernel, as the steps of a recurrence do."""
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
    """Loops of extent 1, which are no digits of a fused index, and the others."""
    units = [nest.loops[at] for at in positions if nest.extent(at) is ONE]
    others = [nest.loops[at] for at in positions if nest.extent(at) is not ONE]
    return (units, others) if others else (units[:-1], units[-1:])


def bind_flat(
    sch: Schedule, loops: Sequence[LoopRef], threads: int = USUAL_THREADS, vector: int = 1
) -> tuple[LoopRef, LoopRef]:
    """Fuse loops and split them into blocks of threads, with `vector` neighbouring elements
    each."""
    whole = fused(sch, loops)
    if vector > 1:
        block, thread, lane = sch.split(whole, [None, threads, vector])
        sch.vectorize(lane)
    else:
        block, thread = sch.split(whole, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return block, thread


def share_among_threads(
    sch: Schedule, loops: Sequence[LoopRef], threads: int, vector: int = 1
) -> LoopRef:
    """Distribute loops over the threads of an enclosing block; returns the loop over threads."""
    whole = fused(sch, loops)
    if vector > 1:
        turn, thread, lane = sch.split(whole, [None, threads, vector])
        sch.vectorize(lane)
    else:
        turn, thread = sch.split(whole, [None, threads])
    sch.bind(thread, "threadIdx.x")
    turns = next(loop.extent for loop in all_loops(sch.function.body) if loop.var is turn.var)
    if isinstance(turns, Const) and 1 < turns.value <= MAX_TURNS:
        sch.attempt(sch.unroll, turn)  # so that all loads are in flight at once
    elif isinstance(turns, Const) and turns.value > MAX_TURNS:
        sch.attempt(sch.unroll, sch.split(turn, [None, MAX_TURNS // 2])[1])
    return thread


def by_one_thread(sch: Schedule, block: BlockRef, threads: int) -> None:
    """Run a block inside of a kernel on its first thread only."""
    unit = sch.add_unit_loop(block)
    _, thread = sch.split(unit, [1, threads])
    sch.bind(thread, "threadIdx.x")


def as_kernel_of_one_thread(sch: Schedule, block: BlockRef) -> LoopRef:
    """Make the nest that holds a block a kernel of one thread, below loops with kernels of
    others."""
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
    """Apply an optional primitive to every loop that takes it."""
    for loop in loops:
        sch.attempt(step, loop)
