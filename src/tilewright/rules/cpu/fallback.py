"""The rule for any block: vectorize the innermost loop, split the outermost across threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.base.extents import ASSUMED
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import Nest, nest_of, total
from tilewright.rules.rule import FALLBACK_NAME, Rule
from tilewright.rules.sharing import (
    NONE,
    Axes,
    Work,
    sharing_candidates,
    sharing_legal,
    sharing_terms,
)
from tilewright.rules.space import Columns, Cost, Space, unit
from tilewright.sym import Const
from tilewright.tensor.ir import INDEPENDENT, If, annotation
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import walk

ROWS = "rows"


@dataclass(frozen=True)
class FallbackPlan:
    """The vectorization of a block that no other rule takes."""

    lanes: int = unit("elements", "of a vector; 1: none")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows", "in a thread's chunk")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Nest | None:
    nest = nest_of(sch, block)  # None: scheduled already, or it shares loops with other blocks
    return nest if nest is not None and nest.spatial else None


def match_steps(sch: Schedule, block: BlockRef, context: RuleContext) -> Nest | None:
    """Independent instances whose bodies are sequential loops."""
    nest = match(sch, block, context)
    return nest if nest is not None and _is_independent(nest) else None


def plans(nest: Nest, context: RuleContext) -> Space[FallbackPlan]:
    axes = _axes(nest, context)
    return Space(
        FallbackPlan,
        {"lanes": _lanes(nest, context), **sharing_candidates(axes, context)},
        lambda c: sharing_legal(c, axes, context),
    )


def _branches(nest: Nest) -> bool:
    """Whether lanes may diverge: each would need a loop of its own."""
    return any(isinstance(stmt, If) for stmt in walk(nest.block.body))


def _lanes(nest: Nest, context: RuleContext) -> tuple[int, ...]:
    """Candidates for the vector length along the last axis."""
    lanes = context.target.lanes(max(r.buffer.dtype.bits for r in nest.block.writes))
    last = nest.extent(nest.spatial[-1])
    is_wide = lanes > 1 and (not isinstance(last, Const) or int(last.value) >= lanes)
    return (lanes, 1) if is_wide and not _branches(nest) else (1,)


def _outer(nest: Nest, context: RuleContext) -> list[int]:
    """The axes that are split across threads: all, except the last if it is vectorized."""
    has_vectors = len(nest.spatial) > 1 and len(_lanes(nest, context)) > 1
    return nest.spatial[:-1] if has_vectors else nest.spatial


def _serial_cycles(nest: Nest, context: RuleContext) -> float:
    """Cycles of all instances on one core."""
    if _is_independent(nest):
        each = costs.sequence_cycles(nest, context.target)
        return _instances(nest, list(nest.loops)) * each
    return costs.nest_cycles(nest, context.target)


def _is_independent(nest: Nest) -> bool:
    return annotation(nest.block, INDEPENDENT) is not None


def _instances(nest: Nest, part: list[int]) -> int:
    """Independent instances along some axes."""
    if not _is_independent(nest):
        return total(nest, part)
    return math.prod(nest.computed(at, ASSUMED.elements) for at in part)


def _axes(nest: Nest, context: RuleContext) -> Axes:
    outer = _outer(nest, context)
    rows = _instances(nest, outer)
    work = _serial_cycles(nest, context)
    return {ROWS: Work(rows, work / max(1, rows), nest.is_dynamic(outer))} if rows > 1 else {}


def cost(nest: Nest, c: Columns, context: RuleContext) -> Cost:
    vectors = _instances(nest, list(nest.loops)) / c["lanes"]
    turns = vectors * (1 + costs.body_cycles(nest.block))
    serial = np.maximum(turns, _serial_cycles(nest, context))
    return Cost.of(**sharing_terms(c, _axes(nest, context), serial, context))


def apply(
    sch: Schedule, nest: Nest, plan: FallbackPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """Apply each primitive that is legal; refusals are recorded."""
    spatial = [nest.loops[at] for at in nest.spatial]
    reduce = [loop for at, loop in nest.loops.items() if at not in nest.spatial]
    inner: list[LoopRef] = []
    if plan.lanes > 1:
        spatial[-1], lane = sch.split(spatial[-1], [None, plan.lanes])
        inner = [lane]
    sch.attempt(sch.reorder, *spatial, *reduce, *inner)
    for lane in inner:
        sch.attempt(sch.vectorize, lane)
    if plan.parallel != NONE:
        sch.attempt(
            _parallelize, sch, [spatial[at] for at in range(len(_outer(nest, context)))], plan.chunk
        )
    return (BlockRef(nest.name),)


def _parallelize(sch: Schedule, outer: list[LoopRef], chunk: int) -> None:
    whole = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    if chunk > 1:
        whole, _ = sch.split(whole, [None, chunk])
    sch.parallel(whole)


STEPS = Rule("steps", FallbackPlan, match_steps, plans, cost, apply)
FALLBACK = Rule(FALLBACK_NAME, FallbackPlan, match, plans, cost, apply)
