"""Every block has a rule: work in a given order has one of its own, and what no rule takes is told
to the user."""

import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import why_fell_back

OPERATORS = {
    "nonzero": "graph @main(%x: f32[9, 7]) { %y = nonzero(%x) return %y }",
    "cummax": "graph @main(%x: f32[9, 7]) { %y, %i = cummax(%x) {axis = 1} return %y, %i }",
    "unique": "graph @main(%x: f32[63]) { %y, %f, %i, %c = unique(%x) return %y, %f, %i, %c }",
    "boxes": "graph @main(%k: i64[1, 2, 50], %n: i64[1, 2]) { %y = list_boxes(%k, %n) return %y }",
    "scatter": "graph @main(%x: f32[9, 7], %i: i64[3, 1], %u: f32[3, 7])"
    " { %y = scatter_nd(%x, %i, %u) return %y }",
}


@pytest.mark.parametrize("text", OPERATORS.values(), ids=OPERATORS)
def test_work_in_order_is_listed_and_priced(text):
    made = schedule(lower_graph(graph.parse(text).main, "kernel"), "cpu", threads=2)
    assert why_fell_back(made.decisions, made.refusals) == ""
    assert all(each.predicted_ns > 0 for each in made.decisions)
    assert "sequence" in [each.rule for each in made.decisions]


def test_what_no_rule_takes_is_told():
    fn = lower_graph(graph.parse(OPERATORS["nonzero"]).main, "kernel")
    made = schedule(fn, "cpu", only=())
    assert "no rule takes it" in why_fell_back(made.decisions, made.refusals)
    assert not made.decisions
