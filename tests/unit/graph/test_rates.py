"""What graph passes count of a function is what rules price it with."""

from types import SimpleNamespace

import pytest

from tilewright import graph
from tilewright.base.extents import ASSUMED
from tilewright.base.machine import FUNCTION_CYCLES, OPERATION_CYCLES
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.fusion.state import Fusion
from tilewright.graph.memory import given_sizes
from tilewright.graph.rates import OPERATIONS, context_rates, rates_of


@pytest.mark.parametrize("name", FUNCTION_CYCLES)
def test_a_function_takes_as_long_for_passes_as_for_rules(name):
    target = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    counted_ns = OPERATIONS[name] * rates_of(target).operation_ns
    priced_ns = FUNCTION_CYCLES[name] * target.machine.cycle_ns / target.lanes(32)
    assert 1 / target.machine.fma_per_cycle == OPERATION_CYCLES
    assert counted_ns == pytest.approx(priced_ns)


def test_dynamic_sizes_have_the_middle_of_their_range():
    main = graph.parse(
        "graph @main(%x: f32[m, k], %w: f32[k, 8]) { %y = matmul(%x, %w) return %y }"
    ).main
    rows, depth = given_sizes(main)
    (node,) = main.nodes

    def counted(*ranges):
        rates = context_rates(PassContext(costs=SimpleNamespace(ranges=ranges)))
        return rates.elements(node.output), rates.size_bytes(node.output), rates.operations(node)

    some = ASSUMED.elements
    assert counted() == (8 * some, 32 * some, 16 * some * some)
    assert counted((rows, 1, 64)) == (64, 256, 128 * some)
    assert counted((rows, 1, 64), (depth, 100, 100)) == (64, 256, 12_800)
    assert context_rates(PassContext()).likely == {}
    table = SimpleNamespace(ranges=((rows, 1, 64),))
    assert Fusion(main, 8, PassContext(costs=table)).rates.elements(node.output) == 64
