"""Attention: register tiles that fit a machine's registers."""

import numpy as np
import pytest

from tilewright import graph
from tilewright.base.target import Target
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.attention import ATTENTION
from tilewright.rules.space import parse_plan

SERVERS = [
    "x86_64-linux-gnu -mcpu=emeraldrapids",
    "x86_64-linux-gnu -mcpu=haswell",
    "aarch64-linux-gnu -mcpu=neoverse-n1",
]


def attention(heads, queries, keys, features, attributes=""):
    shapes = [f"f32[1, {heads}, {n}, {features}]" for n in (queries, keys, keys)]
    module = graph.parse(
        f"graph @main(%q: {shapes[0]}, %k: {shapes[1]}, %v: {shapes[2]}) -> ({shapes[0]}) {{"
        f"%y = attention(%q, %k, %v) {{{attributes}}} return %y }}"
    )
    return lower_graph(module.main, "attention")


@pytest.mark.parametrize("target", SERVERS)
def test_every_plan_keeps_the_answer(check_plans, target):
    rng = np.random.default_rng(0)
    shapes = ((1, 2, 21, 24), (1, 2, 13, 24), (1, 2, 13, 24))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    fn = attention(2, 21, 13, 24)
    check_plans(fn, ATTENTION, target, inputs, [((1, 2, 21, 24), np.float32)])


@pytest.mark.parametrize("target", SERVERS)
def test_register_tiles_leave_room_for_their_operands(target):
    text = schedule(attention(12, 128, 128, 64), target, threads=2).decisions[0].plan
    plan, registers = parse_plan(ATTENTION.plan, text), Target.parse(target).vector_registers
    assert (plan.keys + 1) * plan.tile_vectors < registers
    assert (plan.queries + 1) * plan.feature_vectors < registers


def test_a_dynamic_number_of_queries_is_shared_out_by_heads():
    plan = schedule(attention(12, "n", "n", 64), SERVERS[0], threads=2).decisions[0].plan
    assert plan.endswith("parallel=heads")


def test_two_sums_over_the_features_of_rows_are_no_attention():
    """As in the gradient of a layer norm: the second does not weigh by the first."""
    module = graph.parse(
        """graph @main(%g: f32[4, 64, 96], %x: f32[4, 64, 96], %w: f32[96]) -> (f32[4, 64, 96]) {
             %gw = mul(%g, %w)
             %a = reduce_sum(%gw) {axes = (2,), keepdims = true}
             %p = mul(%gw, %x)
             %b = reduce_sum(%p) {axes = (2,), keepdims = true}
             %u = sub(%gw, %a)
             %q = mul(%x, %b)
             %y = sub(%u, %q)
             return %y
           }"""
    )
    decisions = schedule(lower_graph(module.main, "gradient"), SERVERS[0]).decisions
    assert {each.rule for each in decisions} == {"fused_reductions"}
