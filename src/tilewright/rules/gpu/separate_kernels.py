"""Stages of rows as kernels of their own, which `rows` and `columns` are priced against.

Of few long rows, or of rows far apart in memory, all multiprocessors together read each several
times before one block per row is done: later rules split each sum over several blocks. What lies
between stages, element by element, is computed by the kernels that read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.depthwise import DEPTHWISE
from tilewright.rules.gpu.elementwise import ELEMENTWISE
from tilewright.rules.gpu.gemv import GEMV
from tilewright.rules.gpu.reduction import REDUCTION
from tilewright.rules.gpu.row_stages import is_last_axis, named_stages
from tilewright.rules.gpu.scalar import SCALAR
from tilewright.rules.match.nest import total
from tilewright.rules.match.rows import is_part_of_later, stages_of
from tilewright.rules.rule import Closed, Rule, RuleSet
from tilewright.rules.space import Columns, Cost, Space
from tilewright.tensor.schedule import BlockRef, Schedule

LATER: RuleSet = ((GEMV,), (DEPTHWISE, REDUCTION), (ELEMENTWISE, SCALAR))  # as in RULES


@dataclass(frozen=True)
class Found:
    """The cycles of the kernels for each reduction, and of one for the result."""

    cycles: float


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    if is_part_of_later(sch, reference):
        return None
    stages = stages_of(sch, reference)
    if stages is None or any(nest.is_dynamic(list(nest.loops)) for nest in stages.nests):
        return None
    if total(stages.root, stages.rows) >= multiprocessor_of(context.target).count and all(
        is_last_axis(nest, stages, name) for name, nest in named_stages(stages)
    ):
        return None  # all multiprocessors have rows that they read from end to end
    sm = multiprocessor_of(context.target)
    found = []
    for name, nest in named_stages(stages):
        priced = _cycles(sch, name, context) if nest.reduce or nest is stages.root else 0.0
        if priced is None:
            return None
        # Blocks share a sum in two kernels. Each waits for the one before, then for memory.
        kernels = 2 if nest.reduce else 0
        touched = {access.buffer: nest.touched(access.buffer) for access in nest.accesses}
        moved = sum(count * buffer.dtype.size_bytes for buffer, count in touched.items())
        least = kernels * sm.kernel_cycles + moved / sm.memory_bytes_per_cycle
        found.append(max(priced, least) if priced else 0.0)
    return Found(sum(found))


def _cycles(sch: Schedule, name: str, context: RuleContext) -> float | None:
    """What the first rules take that serve a block by itself."""
    for entry in LATER:
        problems = [(rule, rule.match(sch, sch.get_block(name), context)) for rule in entry]
        priced = [rule.default(found, context) for rule, found in problems if found is not None]
        cycles = [each.cycles for each in priced if each is not None]
        if cycles:
            return min(cycles)
    return None


def plans(found: Found, context: RuleContext) -> Space[Closed]:
    return Space(Closed, {"form": ("only",)})


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    return Cost.of(kernels=np.full(len(c["form"]), found.cycles))


SEPARATE_KERNELS = Rule("separate_kernels", Closed, match, plans, cost, None)
