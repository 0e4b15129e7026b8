"""Register tiles of convolutions."""

import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.conv_model import Problem, shapes
from tilewright.rules.cpu.gemm_model import MAX_TAILS


def test_tiles_lie_along_a_dynamic_axis():
    """One tail each for what such an axis leaves over, not rows of which each has an address."""
    problem = Problem(1, (128, 56), 3, 84, 1, (False, True), False)
    tiles = list(shapes(problem, 32))
    assert tiles == [(1, 1, size) for size in range(1, MAX_TAILS + 1)]


def test_tails_of_a_dynamic_axis_are_code_of_their_own():
    module = graph.parse(
        "graph @main(%x: f32[1, 128, w, 12], %f: f32[12, 12, 3, 3]) -> (f32[1, 128, w, 12]) {"
        "%y = conv(%x, %f) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1), "
        'layout = "channels_last"} return %y }'
    )
    made = schedule(lower_graph(module.main, "conv"), "aarch64-linux-gnu -mcpu=neoverse-n1")
    assert "tails" in str(made.schedule.function)


@pytest.mark.parametrize(("channels", "is_fetched"), [(64, False), (512, True)])
def test_weights_of_the_next_chunk_are_prefetched_where_they_exceed_l2(channels, is_fetched):
    """From L2 they come in time, and a full register tile has no register for their address."""
    module = graph.parse(
        f"graph @main(%x: f32[1, 9, 9, {channels}], %f: f32[{channels}, {channels}, 3, 3]) "
        f"-> (f32[1, 7, 7, {channels}]) {{"
        "%y = conv(%x, %f) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1), "
        'layout = "channels_last"} return %y }'
    )
    fn = lower_graph(module.main, "conv")
    target = "aarch64-linux-gnu -mcpu=neoverse-n1"
    made = schedule(fn, target, constants=("f",))
    (decision,) = [each for each in made.decisions if each.rule == "conv"]
    fields = dict(word.split("=") for word in decision.plan.split())
    fields |= {"oc_panels": "1", "prefetch_weights": "0"}  # as many chunks as panels
    plan = " ".join(f"{name}={value}" for name, value in fields.items())
    chosen = {decision.block: ("conv", plan)}
    again = schedule(fn, target, constants=("f",), choices=chosen)
    assert ("prefetch(" in str(again.schedule.function)) is is_fetched


@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(1024, 512, 256), (400, 256, 512)])
def test_what_is_left_over_has_code_of_its_own(positions, inputs, outputs):
    """Vectors of a last panel among others of its chunk would each be behind a branch."""
    module = graph.parse(
        f"graph @main(%x: f32[1, {positions}, {inputs}], %f: f32[{outputs}, {inputs}, 1]) "
        f"-> (f32[1, {positions}, {outputs}]) {{"
        "%y = conv(%x, %f) {strides = (1,), pads = (0, 0), dilations = (1,), "
        'layout = "channels_last"} return %y }'
    )
    fn = lower_graph(module.main, "conv")
    target = "x86_64-linux-gnu -mcpu=cascadelake"
    made = schedule(fn, target, threads=2, constants=("f",))
    (decision,) = [each for each in made.decisions if each.rule == "conv"]
    fields = dict(word.split("=") for word in decision.plan.split())
    vectors, nr, chunk = outputs // 16, int(fields["nr"]), int(fields["oc_panels"])
    assert vectors % nr == 0 or chunk >= -(-vectors // nr)
    rows = positions % int(fields["tile"].split("x")[-1])
    assert rows == 0 or fields["row_tiles"] == "1"


def test_a_size_that_several_strided_convolutions_leave_is_no_obstacle():
    """The last one of a stack whose length is open: its tiles are compared with nested maxima."""
    length = "max((max(s // 40 - 1, 0) + 1) // 2 - 1, 0)"
    text = (
        f"graph @main(%x: f32[1, {length}, 256], %w: f32[256, 16, 128]) {{ %y = conv(%x, %w) "
        "{strides = (2,), pads = (64, 64), dilations = (1,), groups = 16, "
        'layout = "channels_last"} return %y }'
    )
    target = "x86_64-linux-gnu -mcpu=emeraldrapids"
    made = schedule(lower_graph(graph.parse(text).main, "conv"), target, constants=("w",))
    assert made.decisions[0].rule == "conv"
