"""One stage of work inside loops that it shares with others: lanes for it, nothing more.

A reduction has lanes in one of two ways. Along a result that is contiguous, lane by lane:

    for k { for l in vector 0..16 { sum[l] += x[k, l] } }

Along what it reduces, in parts that are combined at the end, halves of a vector first:

    for k { for l in vector 0..16 { part[l] += x[16 * k + l] } }   then   sum = part[0] + ...
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.machine import Machine
from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.elementwise import unroll_candidates, vectors
from tilewright.rules.match.nest import (
    DYNAMIC_EXTENT,
    Access,
    Nest,
    assumed,
    attempt,
    block_of,
    fused,
    groups,
    inner_nest,
    loop_extents,
    total,
)
from tilewright.rules.space import Column, doublings
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.ir import Update
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

SPATIAL_LANES, REDUCTION_LANES = "spatial", "reduction"
FEW_ELEMENTS = 4  # further apart, or fewer than that, lanes are loaded and added one by one


def vectorize_stage(
    sch: Schedule,
    reference: BlockRef,
    depth: int,
    context: RuleContext,
    accumulators: int,
    lanes_along: str | None = None,
) -> None:
    """Give lanes to a block that stands under `depth` loops shared with others."""
    nest = inner_nest(sch, reference, depth)
    if nest is None or not nest.loops:
        return
    lanes = cost.lanes_of(context.target, nest.block)
    if lanes < 2:
        return
    if not nest.reduce:
        attempt(sch, _lanes_of_map, sch, nest, lanes, context.target.machine)
        return
    within, machine = _within_rows(sch, nest), context.target.machine
    args = (sch, reference, within, depth, lanes, accumulators, lanes_along, machine)
    attempt(sch, _lanes_of_reduction, *args)


def _within_rows(sch: Schedule, nest: Nest) -> Nest:
    """A reduction without the rows that it shares with others: of each it has one iteration, along
    which lanes would be empty but for the first."""
    here = _extents(sch, nest)
    kept = {at: loop for at, loop in nest.loops.items() if at in nest.reduce or here[at] is not ONE}
    return replace(nest, loops=kept)


def _extents(sch: Schedule, nest: Nest) -> dict[int, Expr]:
    """How far the loops of a block reach where it stands, by iterator: a part of the whole, if it
    shares the loops around them."""
    around = sch.get_loops(BlockRef(nest.name))
    extents = dict(zip(around, loop_extents(sch, BlockRef(nest.name)), strict=True))
    return {at: extents[loop] for at, loop in nest.loops.items()}


def accumulator_counts(machine: Machine) -> tuple[int, ...]:
    """Vectors of partial results, in the order of preference: each waits for its own sum only."""
    return doublings(machine.fma_latency_cycles)[::-1]


def accumulate_cycles(vectors: float, accumulators: Any, machine: Machine) -> Column:
    """Of adding vectors up in so many accumulators, each of which waits for its own."""
    latency = machine.fma_latency_cycles / accumulators
    found: Column = vectors * np.maximum(1 / machine.loads_per_cycle, latency)
    return found


def row_cycles(
    vectors: Any, lanes: int, accumulators: Any, machine: Machine, between: float = 0.0
) -> Column:
    """Of a row of so many vectors that is added up to one number, among many such rows.

    Rows follow one another without waiting, as far as the processor's window reaches: a short one
    takes as long as its instructions, a long one as long as its chain of sums. `between` counts the
    instructions of other work that stand between two of them.
    """
    folds = 2.0 * math.log2(lanes)  # a move of lanes and an operation each
    work = vectors / machine.loads_per_cycle + (accumulators - 1) / machine.fma_per_cycle + folds
    steps = vectors / accumulators + np.log2(accumulators) + math.log2(lanes)
    in_flight = machine.reorder_window / (2.0 * vectors + accumulators + folds + between)
    chain = machine.fma_latency_cycles * steps / np.maximum(1.0, in_flight)
    found: Column = np.maximum(work, chain)
    return found


def _lanes_of_map(sch: Schedule, nest: Nest, lanes: int, machine: Machine) -> None:
    parts = groups(nest, nest.spatial)
    loop = fused(sch, [nest.loops[at] for at in parts[-1]])
    if total(nest, parts[-1]) > 1:
        vectors(sch, loop, lanes, unroll_candidates(nest, lanes, machine)[0])


def _lanes_of_reduction(
    sch: Schedule,
    reference: BlockRef,
    nest: Nest,
    depth: int,
    lanes: int,
    accumulators: int,
    lanes_along: str | None,
    machine: Machine,
) -> None:
    if (lanes_along or preferred_lanes(nest, lanes)) == REDUCTION_LANES:
        _vectorize_reduction(sch, reference, nest, depth, lanes, accumulators, machine)
    else:
        _vectorize_spatial(sch, nest, spatial_axis(nest), lanes, accumulators)


def spatial_axis(nest: Nest) -> list[int]:
    """The spatial iterators, one loop in truth, along which a reduction could take lanes."""
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    return groups(nest, kept)[-1] if kept else []


def preferred_lanes(nest: Nest, lanes: int) -> str:
    """Lanes run along a contiguous result, unless it is short or operands are far apart there, and
    what is reduced lies in a row."""
    part, along = spatial_axis(nest), reduced_run(nest)
    if not part:
        return REDUCTION_LANES
    if total(nest, part) * 2 <= lanes and along >= lanes:
        return REDUCTION_LANES
    is_apart = spatial_stride(nest) > FEW_ELEMENTS
    return REDUCTION_LANES if is_apart and along >= lanes else SPATIAL_LANES


def spatial_stride(nest: Nest) -> int:
    """Between lanes along the result, of the worst access."""
    part = spatial_axis(nest)
    return max(_distance(nest, access, part[-1]) for access in nest.accesses) if part else 0


def reduced_run(nest: Nest) -> int:
    """How many neighbours in memory the reduction combines."""
    if not nest.reduce:
        return 0
    part = groups(nest, nest.reduce)[-1]
    if all(_distance(nest, access, part[-1]) <= 1 for access in nest.reads):
        return total(nest, part)
    return 0


def _distance(nest: Nest, access: Access, at: int) -> int:
    """Between lanes along an iterator; more than any array has if it varies."""
    stride = access.stride(nest.var(at))
    return abs(int(stride.value)) if isinstance(stride, Const) else sys.maxsize


def _vectorize_spatial(
    sch: Schedule, nest: Nest, part: Sequence[int], lanes: int, accumulators: int
) -> None:
    """Lanes along a contiguous result, several vectors of it at a time."""
    others = [nest.loops[at] for at in nest.spatial if at not in part]
    reduce = [nest.loops[at] for at in nest.reduce]
    count, here = accumulators, _extents(sch, nest)
    length = math.prod(assumed(here[at], DYNAMIC_EXTENT, nest.likely) for at in part)
    while count > 1 and count * lanes > length:
        count //= 2
    loop = fused(sch, [nest.loops[at] for at in part])
    outer, step, lane = sch.split(loop, [None, count, lanes])
    sch.reorder(*others, outer, *reduce, step, lane)
    sch.vectorize(lane)
    sch.unroll(step)
    if nest.is_dynamic(part) or length % (count * lanes):
        attempt(sch, store_sums, sch, BlockRef(nest.name), outer, lanes)


def store_sums(sch: Schedule, block: BlockRef, row: LoopRef, lanes: int) -> None:
    """Sums of a row stay in registers until they are whole: lanes beyond the last result are masked
    in memory, where LLVM would leave sums so masked for every step."""
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, row)
    vector, lane = sch.split(sch.get_loops(store)[-1], [None, lanes])
    sch.vectorize(lane)
    sch.unroll(vector)


def _vectorize_reduction(
    sch: Schedule,
    reference: BlockRef,
    nest: Nest,
    depth: int,
    lanes: int,
    accumulators: int,
    machine: Machine,
) -> None:
    """Lanes along what is reduced."""
    parts = groups(nest, nest.reduce)
    reduce = [fused(sch, [nest.loops[at] for at in part]) for part in parts]
    run = total(nest, parts[-1])
    if run < lanes // 2:
        return
    count = 1
    while count < accumulators and run >= accumulators * count * lanes:
        count *= 2
    while run % lanes == 0 and run % (count * lanes):  # rather fewer than one that is not whole
        count //= 2
    steps = run // (count * lanes)
    if not _is_long(nest, steps, machine):
        _, inner = sch.split(reduce[-1], [None, count * lanes])
        *_, last = _factor(sch, reference, inner, depth)
        lanes_of_parts = [last]
    elif len(reduce) > 1:  # each of them is a part, read to its end
        _, inner = sch.split(reduce[-1], [None, count * lanes])
        lanes_of_parts = _factor_twice(sch, reference, inner, reduce[0], depth)
    else:
        far, _, inner = sch.split(reduce[-1], [None, _chain_steps(steps), count * lanes])
        lanes_of_parts = _factor_twice(sch, reference, inner, far, depth)
    for part in lanes_of_parts:
        step, lane = sch.split(part, [count, lanes]) if count > 1 else (None, part)
        sch.vectorize(lane)
        if step is not None:
            sch.unroll(step)
    fold_lanes(sch, reference, count * lanes, lanes, depth)


def _is_long(nest: Nest, steps: int, machine: Machine) -> bool:
    """Whether chains of so many steps add up floats that had better be summed in parts.

    Every step of a chain rounds, and where many addends are alike, as behind an activation that
    made zeros, all of them in the same direction. A chain whose loads and additions would fit the
    body of a loop is short.
    """
    body = nest.block.body
    is_sum = isinstance(body, Update) and body.reducer.name == "sum"
    is_float = nest.writes[0].buffer.dtype.is_float
    is_short = nest.is_dynamic(nest.reduce) or 2 * steps <= machine.loop_body_instructions
    return is_sum and is_float and not is_short


def _chain_steps(steps: int) -> int:
    """Of a part of a long sum: about the root of all, so that neither parts nor their sum are long,
    and such that none is left over if it can be, which takes no condition."""
    root = math.isqrt(steps)
    near = range(2 * root, root // 2, -1)
    return next((each for each in near if steps % each == 0), root)


def fold_lanes(sch: Schedule, reference: BlockRef, size: int, lanes: int, depth: int = 0) -> None:
    """Combine `size` parts, by vectors while there are enough of them, the rest one by one."""
    for width in (lanes, FEW_ELEMENTS):
        if size <= width:
            continue
        _, lane = sch.split(sch.get_loops(reference)[-1], [None, width])
        *_, step, lane = _factor(sch, reference, lane, depth)
        sch.vectorize(lane)
        sch.unroll(step)
        size = width
    sch.unroll(sch.get_loops(reference)[-1])


def _factor(sch: Schedule, reference: BlockRef, loop: LoopRef, depth: int) -> list[LoopRef]:
    """Reduce in parts along a loop, under the same `depth` loops; the parts' loops, lanes last."""
    return _moved(sch, reference, sch.rfactor(loop, _rank(sch, reference)), depth)


def _factor_twice(
    sch: Schedule, reference: BlockRef, loop: LoopRef, far: LoopRef, depth: int
) -> list[LoopRef]:
    """The same, and what is reduced for a part again in parts, along `far`; the lanes of both."""
    rank = _rank(sch, reference)
    partial, near = sch.rfactor(loop, rank), sch.rfactor(far, rank)
    *outer, lane = _moved(sch, reference, partial, depth)
    sch.compute_at(near, outer[-1])  # where both sums stay in registers
    part, near_lane, *others = sch.get_loops(near)[len(sch.get_loops(partial)) - 1 :]
    sch.reorder(part, *others, near_lane)
    return [lane, near_lane]


def _rank(sch: Schedule, reference: BlockRef) -> int:
    return len(block_of(sch.function, reference.name).writes[0].ranges)


def _moved(sch: Schedule, reference: BlockRef, partial: BlockRef, depth: int) -> list[LoopRef]:
    """The loops of parts under those around what combines them; lanes last."""
    loops, around = sch.get_loops(partial), sch.get_loops(reference)[:depth]
    is_shared = not around or loops[0].var is around[0].var
    if is_shared or not attempt(sch, sch.compute_at, partial, around[-1]):
        return loops
    lane, *others = sch.get_loops(partial)[depth:]
    sch.reorder(*others, lane)
    return [*others, lane]
