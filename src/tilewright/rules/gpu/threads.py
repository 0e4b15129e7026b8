"""Loops on threads: what every GPU schedule does at its ends.

    for b in thread(blockIdx.x) { for t in thread(threadIdx.x) 0..256 { ... } }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.rules.nest import Nest, attempt, fused
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

WARP = 32  # threads that run in step: of the programming model, not of one processor
THREADS = 256  # of a block where nothing asks for more or fewer


def units_first(nest: Nest, positions: Sequence[int]) -> tuple[list[LoopRef], list[LoopRef]]:
    """Loops of one iteration, which are no digits of an index, and the others."""
    units = [nest.loops[at] for at in positions if nest.extent(at) is ONE]
    others = [nest.loops[at] for at in positions if nest.extent(at) is not ONE]
    return (units, others) if others else (units[:-1], units[-1:])


def bind_flat(
    sch: Schedule, loops: Sequence[LoopRef], threads: int = THREADS, vector: int = 1
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
        _, thread, lane = sch.split(whole, [None, threads, vector])
        sch.vectorize(lane)
    else:
        _, thread = sch.split(whole, [None, threads])
    sch.bind(thread, "threadIdx.x")
    return thread


def by_one_thread(sch: Schedule, block: BlockRef, threads: int) -> None:
    """A block inside a kernel that only the first thread runs."""
    unit = sch.add_unit_loop(block)
    _, thread = sch.split(unit, [1, threads])
    sch.bind(thread, "threadIdx.x")


def alone(sch: Schedule, block: BlockRef) -> None:
    """Whatever nest holds a block becomes a kernel of one thread."""
    loops = sch.get_loops(block)
    unit = sch.add_unit_loop(loops[0] if loops else block)
    sch.bind(unit, "blockIdx.x")


def attempt_all(
    sch: Schedule, loops: Sequence[LoopRef], step: Callable[[LoopRef], None]
) -> None:
    """A step that only makes things faster, for every loop that takes it."""
    for loop in loops:
        attempt(sch, step, loop)
