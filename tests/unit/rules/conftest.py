"""What every rule of the one form keeps, whatever it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import tensor
from tilewright.base.target import Target
from tilewright.rules import Choice, schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.inline import inline_producers
from tilewright.rules.rule import Rule
from tilewright.rules.space import parse_plan, plan_text
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule


def check(
    fn: Function,
    rule: Rule[Any, Any],
    target: str,
    inputs: Sequence[Any],
    outputs: Sequence[tuple[tuple[int, ...], Any]],
    *,
    threads: int = 2,
    constants: Sequence[str] = (),
    tolerance: float = 1e-4,
    plans: int = 8,
) -> tuple[str, str]:
    """Random legal plans give the plain program's answer; the default's block and plan."""
    made = schedule(fn, target, threads=threads, constants=constants)
    chosen = next(each for each in made.decisions if each.rule == rule.name)
    steps = [step for step in str(made.schedule.trace).splitlines() if "decide(" in step]
    assert any(rule.name in step and chosen.plan in step for step in steps)
    assert chosen.predicted_ns > 0

    sch = Schedule(fn)
    inline_producers(sch)
    context = RuleContext(Target.parse(target), threads, frozenset(constants))
    before = str(sch.function)
    found = rule.match(sch, sch.get_block(chosen.block), context)
    assert found is not None
    assert str(sch.function) == before  # matching changes nothing
    space = rule.plans(found, context)
    assert space is not None
    assert space.is_legal(parse_plan(rule.plan, chosen.plan))

    def run(function: Function) -> list[np.ndarray[Any, Any]]:
        results = [np.full(shape, 7).astype(dtype) for shape, dtype in outputs]
        tensor.interpret(function, *[np.copy(each) for each in inputs], *results)
        return results

    want = run(fn)
    drawn = space.sample(plans, np.random.default_rng(0))
    count = len(next(iter(drawn.values())))
    assert count > 0
    for row in range(count):
        text = plan_text(space.plan_at(drawn, row))
        given = {chosen.block: Choice(rule.name, text)}
        again = schedule(fn, target, threads=threads, constants=constants, choices=given)
        assert Choice(rule.name, text) in [each.choice for each in again.decisions]
        for a, b in zip(run(again.schedule.function), want, strict=True):
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), tolerance, tolerance, err_msg=text
            )
    return chosen.block, chosen.plan


@pytest.fixture(
    params=[
        pytest.param(3, id="some plans"),
        pytest.param(1, id="all plans", marks=pytest.mark.fuzz),
    ]
)
def check_plans(request: pytest.FixtureRequest) -> Callable[..., tuple[str, str]]:
    """`check`, of a third of the plans unless with fuzz: the interpreter takes long."""

    def checked(*args: Any, plans: int = 8, **more: Any) -> tuple[str, str]:
        return check(*args, plans=max(2, plans // request.param), **more)

    return checked
