"""Sequential work on one thread: sorting a list, or counting what came before.

Each step depends on earlier ones, so no loop can be parallelized or vectorized. The rule exists to
give such a kernel a price like any other.
"""

from __future__ import annotations

from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import Nest, nest_of
from tilewright.rules.rule import Closed, Rule
from tilewright.rules.space import Columns, Cost, Space
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Nest | None:
    """A block with a single instance: its loops are statements of its body."""
    nest = nest_of(sch, block)
    return nest if nest is not None and not nest.spatial else None


def plans(nest: Nest, context: RuleContext) -> Space[Closed]:
    return Space(Closed, {"form": ("only",)})


def cost(nest: Nest, c: Columns, context: RuleContext) -> Cost:
    steps = nest.instances * costs.sequence_cycles(nest, context.target)
    return Cost.of(compute=steps + 0.0 * (c["form"] == ""))


def apply(sch: Schedule, nest: Nest, plan: Closed, context: RuleContext) -> tuple[BlockRef, ...]:
    return (BlockRef(nest.name),)


SEQUENCE = Rule("sequence", Closed, match, plans, cost, apply)
