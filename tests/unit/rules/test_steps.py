"""Pieces of work that go step by step: shared out, where they are independent."""

import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule

SEARCH = "graph @main(%x: f32[64, 512], %v: f32[64, 512]) { %y = search_sorted(%x, %v) return %y }"
ALIGN = """graph @main(%x: f32[1, 8, 50, 50], %r: f32[100, 4], %i: i64[100])
  { %y = roi_align(%x, %r, %i) {size = (7, 7), sampling_ratio = 2} return %y }"""


@pytest.mark.parametrize(("target", "kind"), [("cpu", "parallel"), ("cuda", "blockIdx.x")])
@pytest.mark.parametrize("text", [SEARCH, ALIGN])
def test_searches_and_regions_are_shared_out(text, target, kind):
    made = schedule(lower_graph(graph.parse(text).main, "steps"), target, threads=4)
    assert [each.rule for each in made.decisions] == ["steps"]
    assert kind in str(made.schedule.function)
