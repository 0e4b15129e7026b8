"""Vectorize one stage inside of loops that it shares with other stages.

A reduction is vectorized in one of two ways. Along a contiguous result, one result per lane:

    for k { for l in vector 0..16 { sum[l] += x[k, l] } }

Along the reduced axis, with a horizontal reduction at the end, halving vectors first:

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
    Access,
    Nest,
    attempt,
    block_of,
    fused,
    groups,
    guess,
    inner_nest,
    loop_extents,
    total,
)
from tilewright.rules.space import Column, doublings
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.ir import Update
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

SPATIAL_LANES, REDUCTION_LANES = "spatial", "reduction"
FEW_ELEMENTS = 4  # at larger strides, or with fewer lanes, elements are handled one by one


def vectorize_stage(
    sch: Schedule,
    reference: BlockRef,
    depth: int,
    context: RuleContext,
    accumulators: int,
    vector_axis: str | None = None,
) -> None:
    """Vectorize a block inside of `depth` loops that it shares with others."""
    nest = inner_nest(sch, reference, depth)
    if nest is None or not nest.loops:
        return
    lanes = cost.lanes_of(context.target, nest.block)
    if lanes < 2:
        return
    if not nest.reduce:
        attempt(sch, _vectorize_map, sch, nest, lanes, context.target.machine)
        return
    within, machine = _without_unit_rows(sch, nest), context.target.machine
    args = (sch, reference, within, depth, lanes, accumulators, vector_axis, machine)
    attempt(sch, _vectorize_reduction_stage, *args)


def _without_unit_rows(sch: Schedule, nest: Nest) -> Nest:
    """A reduction without the row loops that have a single iteration here: lanes along them would
    be empty but for the first."""
    here = _extents(sch, nest)
    kept = {at: loop for at, loop in nest.loops.items() if at in nest.reduce or here[at] is not ONE}
    return replace(nest, loops=kept)


def _extents(sch: Schedule, nest: Nest) -> dict[int, Expr]:
    """The extents of a block's loops where it is placed, by iterator; less than the whole domain
    where it shares outer loops."""
    around = sch.get_loops(BlockRef(nest.name))
    extents = dict(zip(around, loop_extents(sch, BlockRef(nest.name)), strict=True))
    return {at: extents[loop] for at, loop in nest.loops.items()}


def accumulator_counts(machine: Machine) -> tuple[int, ...]:
    """Numbers of independent accumulators, in order of preference: each waits for its own sum
    only."""
    return doublings(machine.fma_latency_cycles)[::-1]


def accumulate_cycles(vectors: float, accumulators: Any, machine: Machine) -> Column:
    """Cycles to sum vectors in so many independent accumulators."""
    latency = machine.fma_latency_cycles / accumulators
    found: Column = vectors * np.maximum(1 / machine.loads_per_cycle, latency)
    return found


def row_cycles(
    vectors: Any, lanes: int, accumulators: Any, machine: Machine, between: float = 0.0
) -> Column:
    """Cycles to reduce a row of so many vectors to one number, among many such rows.

    Rows overlap in the out-of-order window: a short row is bound by its instruction count, a long
    one by the latency of its chain of sums. `between` counts instructions of other work between two
    rows.
    """
    folds = 2.0 * math.log2(lanes)  # a shuffle and an operation each
    work = vectors / machine.loads_per_cycle + (accumulators - 1) / machine.fma_per_cycle + folds
    steps = vectors / accumulators + np.log2(accumulators) + math.log2(lanes)
    in_flight = machine.reorder_window / (2.0 * vectors + accumulators + folds + between)
    chain = machine.fma_latency_cycles * steps / np.maximum(1.0, in_flight)
    found: Column = np.maximum(work, chain)
    return found


def _vectorize_map(sch: Schedule, nest: Nest, lanes: int, machine: Machine) -> None:
    parts, here = groups(nest, nest.spatial), _extents(sch, nest)
    is_single = all(here[at] is ONE for at in parts[-1])
    loop = fused(sch, [nest.loops[at] for at in parts[-1]])
    if not is_single:
        vectors(sch, loop, lanes, unroll_candidates(nest, lanes, machine)[0])


def _vectorize_reduction_stage(
    sch: Schedule,
    reference: BlockRef,
    nest: Nest,
    depth: int,
    lanes: int,
    accumulators: int,
    vector_axis: str | None,
    machine: Machine,
) -> None:
    if (vector_axis or preferred_lanes(nest, lanes)) == REDUCTION_LANES:
        _vectorize_reduction(sch, reference, nest, depth, lanes, accumulators, machine)
    else:
        _vectorize_spatial(sch, nest, spatial_axis(nest), lanes, accumulators)


def spatial_axis(nest: Nest) -> list[int]:
    """The spatial iterators, fusible into one loop, along which a reduction could be vectorized."""
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    return groups(nest, kept)[-1] if kept else []


def preferred_lanes(nest: Nest, lanes: int) -> str:
    """The axis to vectorize: the contiguous result, unless it is short or operands are strided
    along it while the reduced elements are contiguous."""
    part, along = spatial_axis(nest), reduced_run(nest)
    if not part:
        return REDUCTION_LANES
    if total(nest, part) * 2 <= lanes and along >= lanes:
        return REDUCTION_LANES
    is_apart = spatial_stride(nest) > FEW_ELEMENTS
    return REDUCTION_LANES if is_apart and along >= lanes else SPATIAL_LANES


def spatial_stride(nest: Nest) -> int:
    """The largest stride of an access along the result."""
    part = spatial_axis(nest)
    return max(_lane_stride(nest, access, part[-1]) for access in nest.accesses) if part else 0


def reduced_run(nest: Nest) -> int:
    """The number of contiguous elements that the reduction combines."""
    kept = [at for at in nest.reduce if nest.extent(at) is not ONE]
    if not kept:
        return min(1, len(nest.reduce))
    part = groups(nest, kept)[-1]
    if all(_lane_stride(nest, access, part[-1]) <= 1 for access in nest.reads):
        return total(nest, part)
    return 0


def _lane_stride(nest: Nest, access: Access, at: int) -> int:
    """The stride of an access along an iterator; a huge number if it is not constant."""
    stride = access.stride(nest.var(at))
    return abs(int(stride.value)) if isinstance(stride, Const) else sys.maxsize


def _vectorize_spatial(
    sch: Schedule, nest: Nest, part: Sequence[int], lanes: int, accumulators: int
) -> None:
    """Vectorize along a contiguous result, several vectors at a time."""
    others = [nest.loops[at] for at in nest.spatial if at not in part]
    reduce = [nest.loops[at] for at in nest.reduce]
    count, here = accumulators, _extents(sch, nest)
    length = math.prod(guess(here[at], nest.likely) for at in part)
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
    """Keep the sums of a row in a local buffer until they are complete: then only the final store
    is masked. LLVM would mask the accumulation in every step otherwise."""
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
    """Vectorize along the reduced axis."""
    parts = groups(nest, nest.reduce)
    reduce = [fused(sch, [nest.loops[at] for at in part]) for part in parts]
    run = total(nest, parts[-1])
    if run < lanes // 2:
        return
    count = 1
    while count < accumulators and run >= accumulators * count * lanes:
        count *= 2
    while run % lanes == 0 and run % (
        count * lanes
    ):  # fewer accumulators rather than a partial one
        count //= 2
    steps = run // (count * lanes)
    if not _is_long(nest, steps, machine):
        _, inner = sch.split(reduce[-1], [None, count * lanes])
        *_, last = _factor(sch, reference, inner, depth)
        lanes_of_parts = [last]
    elif len(reduce) > 1:  # one partial sum per run
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
    """Whether a chain of so many float additions should be split into partial sums, for accuracy.

    Every addition rounds, and where many addends are equal, as after an activation that produced
    zeros, all of them round in the same direction. A chain that fits the body of an unrolled loop
    is short.
    """
    body = nest.block.body
    is_sum = isinstance(body, Update) and body.reducer.name == "sum"
    is_float = nest.writes[0].buffer.dtype.is_float
    is_short = nest.is_dynamic(nest.reduce) or 2 * steps <= machine.loop_body_instructions
    return is_sum and is_float and not is_short


def _chain_steps(steps: int) -> int:
    """The length of a partial sum: about the square root of the number of steps, so that neither
    the parts nor their sum is long; a divisor where there is one nearby, to avoid a predicate."""
    root = math.isqrt(steps)
    near = range(2 * root, root // 2, -1)
    return next((each for each in near if steps % each == 0), root)


def fold_lanes(sch: Schedule, reference: BlockRef, size: int, lanes: int, depth: int = 0) -> None:
    """Combine `size` partial results: by vectors while there are enough, the rest one by one."""
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
    """Factor a reduction along a loop, under the same `depth` loops; returns the partial block's
    loops, lanes last."""
    return _place_partial(sch, reference, sch.rfactor(loop, _rank(sch, reference)), depth)


def _factor_twice(
    sch: Schedule, reference: BlockRef, loop: LoopRef, far: LoopRef, depth: int
) -> list[LoopRef]:
    """Factor a reduction along `loop`, and each partial sum again along `far`; returns both lane
    loops."""
    rank = _rank(sch, reference)
    partial, near = sch.rfactor(loop, rank), sch.rfactor(far, rank)
    *outer, lane = _place_partial(sch, reference, partial, depth)
    sch.compute_at(near, outer[-1])  # so that both sums stay in registers
    part, near_lane, *others = sch.get_loops(near)[len(sch.get_loops(partial)) - 1 :]
    sch.reorder(part, *others, near_lane)
    return [lane, near_lane]


def _rank(sch: Schedule, reference: BlockRef) -> int:
    return len(block_of(sch.function, reference.name).writes[0].ranges)


def _place_partial(
    sch: Schedule, reference: BlockRef, partial: BlockRef, depth: int
) -> list[LoopRef]:
    """Move a partial reduction under the loops around the block that combines it; returns its
    loops, lanes last."""
    loops, around = sch.get_loops(partial), sch.get_loops(reference)[:depth]
    is_shared = not around or loops[0].var is around[0].var
    if is_shared or not attempt(sch, sch.compute_at, partial, around[-1]):
        return loops
    lane, *others = sch.get_loops(partial)[depth:]
    sch.reorder(*others, lane)
    return [*others, lane]
