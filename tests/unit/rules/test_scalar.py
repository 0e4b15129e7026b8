"""Single numbers on GPUs: a rule of their own, so that nothing is called slow."""

import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import why_fell_back

SCALE = """graph @main(%x: f32[], %y: f32[]) { %d = sub(%x, %y) %z = exp(%d) return %d, %z }"""


@pytest.mark.parametrize("target", ["cuda", "cuda -arch=sm_80"])
def test_numbers_are_kernels_of_one_thread(target):
    made = schedule(lower_graph(graph.parse(SCALE).main, "scale"), target, threads=4)
    assert {each.rule for each in made.decisions} == {"scalar"}
    assert why_fell_back(made.decisions, made.refusals) == ""
    assert "in thread(blockIdx.x) 0..1" in str(made.schedule.function)
