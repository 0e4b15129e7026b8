"""A standalone reduction: results split across threads or, where they are few, partial reductions.

for c in parallel 0..8 { for k in ... { part[c] += x[...] } }   then   sum = part[0] + ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.machine import Machine
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import (
    REDUCTION_LANES,
    SPATIAL_LANES,
    accumulate_cycles,
    accumulator_counts,
    preferred_lanes,
    reduced_run,
    row_cycles,
    spatial_axis,
    spatial_stride,
    store_sums,
    vectorize_stage,
)
from tilewright.rules.match.nest import Nest, attempt, fused, is_expression, nest_of, total
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import (
    Axes,
    Forms,
    Work,
    forms_candidates,
    forms_legal,
    forms_terms,
)
from tilewright.rules.space import Column, Columns, Cost, Space, Value, unit
from tilewright.tensor.schedule import BlockRef, Schedule

ROWS, PARTS = "rows", "parts"  # the axis split across threads: results, or the reduced axis


@dataclass(frozen=True)
class ReductionPlan:
    """The vectorization and parallelism of a reduction."""

    lanes: str = unit("axis", "that is vectorized: spatial or reduction")
    accumulators: int = unit("vectors", "of partial results, at most")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows, or steps of a part", "in a thread's chunk")


@dataclass(frozen=True)
class Reduction:
    """A reduction that shares its loops with no other block."""

    nest: Nest
    lanes: int  # of a vector
    across: tuple[int, ...]  # spatial iterators that could be vectorized

    def width(self, accumulators: int) -> int:
        """Results computed at a time where lanes are spatial."""
        width = self.lanes
        while width < accumulators * self.lanes and total(self.nest, self.across) >= 2 * width:
            width *= 2
        return width

    def rows(self, lanes: str, accumulators: int) -> int:
        if lanes == REDUCTION_LANES:
            return total(self.nest, self.nest.spatial)
        others = total(self.nest, [at for at in self.nest.spatial if at not in self.across])
        return others * -(-total(self.nest, self.across) // self.width(accumulators))

    def split(self, threads: int) -> int:
        """The reduction iterator to split into parts: the outermost that is long enough."""
        long = [at for at in self.nest.reduce if self.nest.guess(at) >= 2 * threads]
        return (long or self.nest.reduce)[0]

    def axes(self, lanes: str, accumulators: int, context: RuleContext) -> Axes:
        nest, work = self.nest, costs.nest_cycles(self.nest, context.target)
        found: dict[str, Work] = {}
        rows, at = self.rows(lanes, accumulators), self.split(context.threads)
        if rows > 1:
            found[ROWS] = Work(rows, work / rows, nest.is_dynamic(nest.spatial))
        # A dynamic number of results may be 1: a part of one result must be worth a thread.
        dynamic = [each for each in nest.spatial if nest.is_dynamic([each])]
        least = work / total(nest, dynamic)
        is_worth = not dynamic or least >= 2 * context.target.machine.wake_cycles
        if lanes == preferred_lanes(nest, self.lanes) and nest.guess(at) > 1 and is_worth:
            found[PARTS] = Work(nest.guess(at), work / nest.guess(at), nest.is_dynamic([at]))
        return found

    def forms(self, lanes: str, context: RuleContext) -> Forms:
        found: dict[Value, Axes] = {
            a: self.axes(lanes, a, context) for a in accumulator_counts(context.target.machine)
        }
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Reduction | None:
    nest = nest_of(sch, block)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    if len(nest.spatial) + len(nest.reduce) != len(nest.block.iters):
        return None
    lanes = costs.lanes_of(context.target, nest.block)
    return Reduction(nest, lanes, tuple(spatial_axis(nest)))


def _lanes_candidates(found: Reduction) -> tuple[str, ...]:
    """The preferred axis, then the other where it exists."""
    first = preferred_lanes(found.nest, found.lanes)
    if first == REDUCTION_LANES:
        return (first, SPATIAL_LANES) if found.across else (first,)
    has_run = reduced_run(found.nest) >= found.lanes > 1
    return (first, REDUCTION_LANES) if has_run else (first,)


def plans(found: Reduction, context: RuleContext) -> Space[ReductionPlan]:
    forms = {lanes: found.forms(lanes, context) for lanes in _lanes_candidates(found)}
    merged = [forms_candidates(each, context) for each in forms.values()]

    def legal(c: Columns) -> Column:
        ok: Column = np.zeros(len(c["lanes"]), bool)
        for lanes, each in forms.items():
            ok = ok | ((c["lanes"] == lanes) & forms_legal(c, "accumulators", each, context))
        return ok

    fields = {
        name: tuple(dict.fromkeys(value for each in merged for value in each[name]))
        for name in ("parallel", "chunk")
    }
    return Space(
        ReductionPlan,
        {
            "lanes": tuple(forms),
            "accumulators": accumulator_counts(context.target.machine),
            **fields,
        },
        legal,
    )


def cost(found: Reduction, c: Columns, context: RuleContext) -> Cost:
    nest, target, machine = found.nest, context.target, context.target.machine
    base, vectors = costs.nest_cycles(nest, target), nest.instances / found.lanes
    results = total(nest, nest.spatial)
    is_spatial = c["lanes"] == SPATIAL_LANES
    # Spatial lanes: those beyond the last result are wasted, and strided ones are loaded singly.
    loads = min(found.lanes, max(1, spatial_stride(nest)))
    width = max(1, total(nest, found.across))
    lost = -(-width // found.lanes) * found.lanes / width
    spatial = accumulate_cycles(
        vectors * lost, _vectors_per_tile(found, c["accumulators"], machine), machine
    )
    if loads > 1:  # inserted one by one
        spatial = np.maximum(spatial, vectors * lost * loads)
    spatial = np.maximum(spatial, base * _line_share(found, c["accumulators"], machine))
    # Reduction lanes: every result ends with a horizontal reduction.
    extent = nest.guess(found.split(context.threads))
    parts = -(-extent // np.maximum(1, c["chunk"]))
    pieces = np.where(c["parallel"] == PARTS, parts, 1) * results
    along = pieces * row_cycles(
        np.maximum(1.0, vectors / pieces), found.lanes, c["accumulators"], machine
    )
    serial = np.maximum(base, np.where(is_spatial, spatial, along))
    terms: dict[str, Column] = {}
    for lanes in _lanes_candidates(found):
        forms = found.forms(lanes, context)
        for name, term in forms_terms(c, "accumulators", forms, serial, context).items():
            terms[name] = np.where(c["lanes"] == lanes, term, terms.get(name, term))
    item = nest.block.writes[0].buffer.dtype.size_bytes
    moved = 2 * parts * results * item / costs.shared_bytes_per_cycle(nest, machine)
    combine = np.where(c["parallel"] == PARTS, moved + parts * machine.fma_latency_cycles, 0.0)
    return Cost.of(**terms, combine=combine)


def _vectors_per_tile(found: Reduction, accumulators: Column, machine: Machine) -> Column:
    """Vectors of results computed at a time: no more than a row has."""
    held: Column = np.ones(len(accumulators))
    for count in accumulator_counts(machine):
        held = np.where(accumulators == count, found.width(count) // found.lanes, held)
    return held


def _line_share(found: Reduction, accumulators: Column, machine: Machine) -> Column:
    """Bytes of the lines fetched for a tile of results, over the bytes used: a tile may start and
    end within a line."""
    item = found.nest.block.writes[0].buffer.dtype.size_bytes
    share: Column = np.ones(len(accumulators))
    for count in accumulator_counts(machine):
        size_bytes = found.width(count) * item
        read = (size_bytes + machine.l1d.line_bytes - item) / size_bytes
        is_whole = total(found.nest, found.across) <= found.width(count)
        share = np.where(accumulators == count, 1.0 if is_whole else read, share)
    return share


def apply(
    sch: Schedule, found: Reduction, plan: ReductionPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    if plan.parallel == PARTS:
        return _by_parts(sch, found, plan, context)
    _by_rows(sch, found, plan, context)
    return (BlockRef(found.nest.name),)


def _by_rows(sch: Schedule, found: Reduction, plan: ReductionPlan, context: RuleContext) -> None:
    """Each result is computed by one thread."""
    nest, is_spatial = found.nest, plan.lanes == SPATIAL_LANES
    across = found.across if is_spatial else ()
    outer = [nest.loops[at] for at in nest.spatial if at not in across]
    reduce = [nest.loops[at] for at in nest.reduce]
    if across:
        lanes = [nest.loops[at] for at in across]
        sch.reorder(*outer, *lanes, *reduce)  # loops of extent 1 may be between them
        inner = fused(sch, lanes)
        count = found.width(plan.accumulators) // found.lanes
        tile, step, lane = sch.split(inner, [None, count, found.lanes])
        sch.reorder(*outer, tile, *reduce, step, lane)
        sch.vectorize(lane)
        sch.unroll(step)
        outer.append(tile)
    if outer:
        row = fused(sch, outer)
        if plan.parallel == ROWS:
            chunk, row = sch.split(row, [None, plan.chunk])
            sch.parallel(chunk)
        is_even = total(nest, across) % found.width(plan.accumulators) == 0
        if across and (nest.is_dynamic(across) or not is_even):
            attempt(sch, store_sums, sch, BlockRef(nest.name), row, found.lanes)
    if not across:
        depth = bool(outer) + (plan.parallel == ROWS)
        block = BlockRef(nest.name)
        vectorize_stage(sch, block, depth, context, plan.accumulators, plan.lanes)


def _by_parts(
    sch: Schedule, found: Reduction, plan: ReductionPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """The outermost reduced loop that is long enough is split into parts that are reduced in
    parallel."""
    nest, reference = found.nest, BlockRef(found.nest.name)
    chunk, _ = sch.split(nest.loops[found.split(context.threads)], [None, plan.chunk])
    partial = sch.rfactor(chunk, 0)
    loops = sch.get_loops(partial)
    chunk = next(loop for loop in loops if loop.var is chunk.var)
    sch.reorder(chunk, *[loop for loop in loops if loop is not chunk])
    sch.parallel(chunk)
    vectorize_stage(sch, partial, 1, context, plan.accumulators)
    vectorize_stage(sch, reference, 0, context, plan.accumulators)
    return (partial, reference)


REDUCTION = Rule("reduction", ReductionPlan, match, plans, cost, apply)
