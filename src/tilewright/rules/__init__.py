"""Schedule rules: from a function as lowering made it to one that runs well on a target.

    default_schedule(fn, target) -> Schedule

Every rule is a trace of schedule primitives chosen by analysis of the program and the target, so
its result is the same answer, and what a rule decides can be searched over.
"""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.rules.inline import inline_producers
from tilewright.rules.spread import spread
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import blocks


def default_schedule(fn: Function, target: str | Target = "cpu") -> Schedule:
    """The schedule chosen without tuning."""
    chosen = Target.parse(target)
    sch = Schedule(fn)
    inline_producers(sch)
    for block in list(blocks(sch.function.body)):
        spread(sch, sch.get_block(block.name), chosen)
    return sch
