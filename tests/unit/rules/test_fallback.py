"""What no other rule takes: lanes and threads where they are legal."""

import numpy as np
import pytest

from tilewright.base.target import Target
from tilewright.rules import schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.fallback import FALLBACK
from tilewright.rules.rule import why_fell_back
from tilewright.tensor.parser import parse
from tilewright.tensor.schedule import Schedule

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def body(statement):
    return parse(
        f"""
        func @clipped(%x: f32[40, 33], %y: f32[40, 33]) stage scheduled {{
          for %i in 0..40 {{ for %j in 0..33 {{
            block @y(%v0: spatial 40 = %i, %v1: spatial 33 = %j) {{
              reads %x[%v0, %v1]
              writes %y[%v0, %v1]
              {statement}
            }}
          }} }}
        }}
        """
    )


BRANCH = "if %x[%v0, %v1] < 0.0 { %y[%v0, %v1] = 0.0 } else { %y[%v0, %v1] = %x[%v0, %v1] }"
STORE = "%y[%v0, %v1] = %x[%v0, %v1] * 2.0"


@pytest.mark.parametrize(("statement", "lanes"), [(BRANCH, 1), (STORE, 16)])
def test_lanes_that_may_branch_are_no_vectors(statement, lanes):
    context = RuleContext(Target.parse(SERVER))
    sch = Schedule(body(statement))
    found = FALLBACK.match(sch, sch.get_block("y"), context)
    assert FALLBACK.default(found, context).plan.lanes == lanes


def test_every_plan_keeps_the_answer(check_plans):
    fn = body(BRANCH)
    x = np.random.default_rng(0).standard_normal((40, 33)).astype(np.float32)
    check_plans(fn, FALLBACK, SERVER, [x], [((40, 33), np.float32)])


def test_who_was_asked_for_did_not_fall_back():
    fn = body(BRANCH)
    (decision,) = schedule(fn, SERVER).decisions
    made = schedule(fn, SERVER, choices={"y": decision.choice})
    assert decision.rule == FALLBACK.name
    assert "no rule knows" in why_fell_back([decision], ())
    assert why_fell_back(made.decisions, made.refusals) == ""
