"""A single number on a GPU, such as the scale of a dynamically quantized tensor: one thread."""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import as_kernel_of_one_thread, own_nest
from tilewright.rules.match.nest import Nest, is_expression
from tilewright.rules.rule import Closed, Rule
from tilewright.rules.space import Columns, Cost, Space
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Nest | None:
    nest = own_nest(sch, reference)
    return nest if nest is not None and not nest.loops and is_expression(nest.block) else None


def plans(nest: Nest, context: RuleContext) -> Space[Closed]:
    return Space(Closed, {"form": ("only",)})


def cost(nest: Nest, c: Columns, context: RuleContext) -> Cost:
    launch = multiprocessor_of(context.target).launch_cycles
    return Cost.of(launch=launch + 0.0 * (c["form"] == ""))


def apply(sch: Schedule, nest: Nest, plan: Closed, context: RuleContext) -> tuple[BlockRef, ...]:
    return tuple(sch.get_child_blocks(as_kernel_of_one_thread(sch, BlockRef(nest.name))))


SCALAR = Rule("scalar", Closed, match, plans, cost, apply)
