"""All rules that could take a block: what a tuner may choose between."""

from __future__ import annotations

import pytest

from tilewright.graph.parser import parse
from tilewright.lower.graph import lower_graph
from tilewright.rules import Choice, alternatives, schedule
from tilewright.rules.space import plan_text

X86 = "x86_64-linux-gnu -mcpu=cascadelake"
GEMV = """graph @main(%x: f32[1, 512], %w: f32[512, 256]) -> (f32[1, 256]) {
  %y = matmul(%x, %w)
  %z = relu(%y)
  return %z
}"""
SOFTMAX = """graph @main(%x: f32[64, 100]) -> (f32[64, 100]) {
  %y = softmax(%x) {axes = (1,)}
  return %y
}"""


@pytest.mark.parametrize("text", [GEMV, SOFTMAX], ids=["gemv", "softmax"])
def test_every_alternative_can_be_chosen(text):
    fn = lower_graph(parse(text).main, "kernel")
    for offers in alternatives(fn, X86, threads=2):
        for offer in offers:
            priced = offer.rule.default(offer.problem, offer.context)
            assert priced is not None
            choice = Choice(offer.rule.name, plan_text(priced.plan))
            made = schedule(fn, X86, threads=2, choices={offer.block: choice})
            assert choice in [each.choice for each in made.decisions]


def test_the_rule_that_takes_a_block_by_default_stands_first():
    fn = lower_graph(parse(GEMV).main, "kernel")
    made = schedule(fn, X86, threads=2)
    offered = alternatives(fn, X86, threads=2)
    assert [each[0].rule.name for each in offered] == [each.rule for each in made.decisions]
    assert [each[0].block for each in offered] == [each.block for each in made.decisions]


def test_a_rule_that_would_take_far_longer_is_no_alternative():
    fn = lower_graph(parse(GEMV).main, "kernel")
    (offers,) = (each for each in alternatives(fn, X86, threads=2) if each[0].block == "y")
    costs = [offer.rule.default(offer.problem, offer.context).cycles for offer in offers]
    assert all(cost <= 4.0 * costs[0] for cost in costs)
