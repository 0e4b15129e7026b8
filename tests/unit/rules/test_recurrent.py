"""Steps of a scan: panels of weights in registers, caches and on threads."""

import numpy as np
import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.recurrent import RECURRENT

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def lstm(steps, batch, hidden):
    state, gates = f"f32[{batch}, {hidden}]", 4 * hidden
    module = graph.parse(
        f"graph @main(%g: f32[{steps}, {batch}, {gates}], %r: f32[{gates}, {hidden}], "
        f"%h: {state}, %c: {state}) -> (f32[{steps}, {batch}, {hidden}], {state}, {state}) {{"
        '%y, %p, %q = lstm(%g, %r, none, %h, %c) {activations = (("sigmoid", 0.0, 0.0), '
        '("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)), reverse = false} return %y, %p, %q }'
    )
    return lower_graph(module.main, "lstm")


@pytest.mark.parametrize(("batch", "hidden"), [(1, 40), (3, 24)])
def test_every_plan_keeps_the_answer(check_plans, batch, hidden):
    rng = np.random.default_rng(0)
    shapes = ((3, batch, 4 * hidden), (4 * hidden, hidden), (batch, hidden), (batch, hidden))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    outputs = [(shape, np.float32) for shape in ((3, batch, hidden), shapes[2], shapes[3])]
    fn = lstm(3, batch, hidden)
    check_plans(fn, RECURRENT, SERVER, inputs, outputs, constants=["r"])


def test_weights_beyond_l2_are_walked_over_in_alternating_direction():
    large = schedule(lstm(35, 1, 650), SERVER, constants=["r"]).decisions[0].plan
    small = schedule(lstm(35, 1, 64), SERVER, constants=["r"]).decisions[0].plan
    assert "alternate=1 parallel=none" in large
    assert "alternate=0 parallel=none" in small


def test_threads_share_panels():
    plan = schedule(lstm(35, 1, 650), SERVER, threads=2, constants=["r"]).decisions[0].plan
    assert "alternate=1 parallel=panels" in plan
