"""Minimum and maximum of a contraction's results, fused into its loops as partial reductions.

    for tile in parallel ... { sums; epilogue, store; part[tile] = max(part[tile], ...) }
    then   greatest = max(part[0], ...)

Dynamic quantization of the results waits for their range; a separate pass would read them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import vectorize_stage
from tilewright.rules.match.nest import Nest, block_of, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, unit
from tilewright.sym import Var
from tilewright.tensor.ir import REDUCE, SERIAL, For, annotation
from tilewright.tensor.passes.pipeline_loops import STAGE
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block, loops_on, vars_of_kind


@dataclass(frozen=True)
class RangePlan:
    """Where a reduction over all results of a contraction is placed."""

    loop: int = unit(
        "loops out", "from the tile of results, where they are reduced; 0: in registers"
    )


@dataclass(frozen=True)
class Range:
    """A full reduction of a block's results, and the loops it can be fused into."""

    nest: Nest
    producer: BlockRef
    shared: tuple[Var, ...]  # loops shared by the sums and their epilogue, innermost first


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Range | None:
    nest = nest_of(sch, block)
    if nest is None or any(it.kind != REDUCE for it in nest.block.iters):
        return None
    producers = sch.get_producers(block)
    if len(nest.block.reads) != 1 or len(producers) != 1:
        return None
    (producer,) = producers
    inside = {loop.var for of in sch.get_producers(producer) for loop in sch.get_loops(of)}
    shared: list[Var] = []
    for loop in _loops(sch, producer):
        if loop.var not in inside or annotation(loop, STAGE) is not None:
            break  # software pipelining counts the stages in a loop
        shared.insert(0, loop.var)
    return Range(nest, producer, tuple(shared)) if shared else None


def _loops(sch: Schedule, block: BlockRef) -> tuple[For, ...]:
    """The loop statements around a block."""
    path = find_block(sch.function, block.name)
    assert path is not None
    return loops_on(path)


def plans(found: Range, context: RuleContext) -> Space[RangePlan]:
    return Space(RangePlan, {"loop": tuple(range(len(found.shared)))})


def cost(found: Range, c: Columns, context: RuleContext) -> Cost:
    """Cycles to load results again, from registers, L1 or beyond by the loop chosen."""
    machine, nest = context.target.machine, found.nest
    vectors = nest.instances / costs.lanes_of(context.target, nest.block)
    loads = vectors / machine.loads_per_cycle * np.minimum(c["loop"], 2)
    return Cost.of(compute=(vectors / machine.fma_per_cycle + loads) / context.threads)


def apply(
    sch: Schedule, found: Range, plan: RangePlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    reference, at = BlockRef(found.nest.name), found.shared[plan.loop]
    loop = next(loop for loop in sch.get_loops(found.producer) if loop.var is at)
    part = sch.rfactor_at(reference, loop)
    if plan.loop == 0:  # accumulators in registers
        own = _loops(sch, part)[len(found.shared) :]
        serial = {each.var for each in own if each.kind == SERIAL}
        for each in sch.get_loops(part):
            if each.var in serial:
                sch.unroll(each)
    done = [reference, part, *_hoist_init(sch, part)]
    vectorize_stage(sch, reference, 0, context, 1)
    return tuple(done)


def _hoist_init(sch: Schedule, part: BlockRef) -> list[BlockRef]:
    """Initialize the partial results once, before all loops they are reduced along."""
    reduced = vars_of_kind(block_of(sch.function, part.name), REDUCE)
    within = [loop for loop in sch.get_loops(part) if loop.var in reduced]
    return [sch.decompose_reduction(part, within[0])] if within else []


RANGE = Rule("range", RangePlan, match, plans, cost, apply)
