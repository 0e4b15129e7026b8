"""Rules and plans that are given for a block."""

import pytest

from tilewright.base.errors import UserTypeError
from tilewright.rules import Choice, default_schedule, schedule
from tilewright.tensor.parser import parse

FN = parse(
    """func @twice(%x: f32[40, 33], %y: f32[40, 33]) stage scheduled {
      for %i in 0..40 { for %j in 0..33 {
        block @y(%v0: spatial 40 = %i, %v1: spatial 33 = %j) {
          reads %x[%v0, %v1]
          writes %y[%v0, %v1]
          %y[%v0, %v1] = %x[%v0, %v1] * 2.0
        }
      } }
    }"""
)


def test_a_choice_may_be_a_tuple():
    (made,) = schedule(FN).decisions
    by_name = default_schedule(FN, choices={"y": Choice(made.rule, made.plan)})
    by_tuple = default_schedule(FN, choices={"y": (made.rule, made.plan)})
    assert str(by_tuple.function) == str(by_name.function)


@pytest.mark.parametrize("given", ["elementwise", ("elementwise",), ("elementwise", 3), None])
def test_what_is_no_choice_is_refused(given):
    with pytest.raises(UserTypeError) as caught:
        default_schedule(FN, choices={"y": given})
    assert caught.value.code == "TW2706"
