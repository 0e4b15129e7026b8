"""What graph passes count of a function is what rules price it with."""

import pytest

from tilewright.base.machine import FUNCTION_CYCLES, OPERATION_CYCLES
from tilewright.base.target import Target
from tilewright.graph.rates import OPERATIONS, rates_of


@pytest.mark.parametrize("name", FUNCTION_CYCLES)
def test_a_function_takes_as_long_for_passes_as_for_rules(name):
    target = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    counted_ns = OPERATIONS[name] * rates_of(target).operation_ns
    priced_ns = FUNCTION_CYCLES[name] * target.machine.cycle_ns / target.lanes(32)
    assert 1 / target.machine.fma_per_cycle == OPERATION_CYCLES
    assert counted_ns == pytest.approx(priced_ns)
