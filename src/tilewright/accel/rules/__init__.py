"""Schedules of the accelerator's operators: rules with plans and cost models.

scheduled = schedule(conv(shape, geometry), Target.parse("vta-sim"))
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.accel.rules.conv import CONV
from tilewright.accel.rules.vector import VECTOR
from tilewright.base.errors import ScheduleError
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.rule import Choice, Log, Rule, RuleSet, apply_choice, apply_first
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import blocks

RULES: RuleSet = ((CONV, VECTOR),)
Problems = tuple[tuple[Rule[Any, Any], Any], ...]


def problems_of(fn: Function, target: Target) -> Problems:
    """Rules that match an operator, with their findings, which do not depend on memories and
    bus."""
    sch, context = Schedule(fn), RuleContext(target)
    found = []
    for block in blocks(fn.body):
        for rule in RULES[0]:
            problem = rule.match(sch, sch.get_block(block.name), context)
            if problem is not None:
                found.append((rule, problem))
    return tuple(found)


def predicted_cycles(problems: Problems, target: Target) -> float:
    """The cost of the cheapest plan of any rule; infinite if none applies."""
    context = RuleContext(target)
    priced = [rule.default(problem, context) for rule, problem in problems]
    return min((one.cycles for one in priced if one is not None), default=math.inf)


def schedule(fn: Function, target: Target, choice: Choice | None = None) -> tuple[Schedule, Log]:
    """Schedule an operator by the cheapest plan of the applicable rules, or by a given one."""
    sch, log, context = Schedule(fn), Log(), RuleContext(target)
    for block in list(blocks(fn.body)):
        for rule in RULES[0]:
            given = choice if choice is not None and choice.rule == rule.name else None
            if given and rule.match(sch, sch.get_block(block.name), context) is not None:
                apply_choice(rule, given, sch, block.name, context, log)
                return sch, log
        if choice is None and apply_first(RULES[0], sch, block.name, context, log):
            return sch, log
    why = "; ".join(f"{one.rule}: {one.reason}" for one in log.refusals)
    raise ScheduleError(
        "TW7043",
        f"no rule of the accelerator schedules @{fn.name}" + (f": {why}" if why else ""),
        help="use larger memories, or run the operator on the CPU",
    )
