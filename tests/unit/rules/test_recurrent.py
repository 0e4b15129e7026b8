"""Steps of a scan: panels of weights in registers, caches and on threads."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright import graph, sym
from tilewright.base.target import Target
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.recurrent import RECURRENT
from tilewright.tensor.ir import sizes_of

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


def gru(steps, batch, hidden, linear):
    state, gates = f"f32[{batch}, {hidden}]", 3 * hidden
    module = graph.parse(
        f"graph @main(%g: f32[{steps}, {batch}, {gates}], %r: f32[{gates}, {hidden}], "
        f"%b: f32[{gates}], %h: {state}) -> (f32[{steps}, {batch}, {hidden}], {state}) {{"
        "%y, %p = gru(%g, %r, %b, none, %h) {linear_before_reset = "
        f"{str(linear).lower()}, activations = "
        '(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0))} return %y, %p }'
    )
    return lower_graph(module.main, "gru")


@pytest.mark.parametrize("linear", [True, False], ids=["linear before reset", "reset before"])
def test_every_plan_of_a_gru_keeps_the_answer(check_plans, linear):
    rng = np.random.default_rng(0)
    steps, batch, hidden = 3, 2, 24
    shapes = ((steps, batch, 3 * hidden), (3 * hidden, hidden), (3 * hidden,), (batch, hidden))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    outputs = [((steps, batch, hidden), np.float32), ((batch, hidden), np.float32)]
    check_plans(gru(steps, batch, hidden, linear), RECURRENT, ARM, inputs, outputs, constants=["r"])


def test_fewer_sequences_than_a_register_tile_has_are_tiles_of_their_own():
    made = str(schedule(lstm(4, "n", 64), ARM, constants=["r"]).schedule.function)
    assert "tails" in made
    made = str(schedule(lstm(4, 3, 64), ARM, constants=["r"]).schedule.function)
    assert "tails" not in made


ARM = "aarch64-linux-gnu -mcpu=neoverse-n1"
DESKTOP = "x86_64-linux-gnu -mcpu=haswell"


def test_a_range_of_sequences_decides_how_many_are_computed_at_once():
    fn = lstm(4, "n", 64)
    (size,) = [each for each in sizes_of(fn) if each.name == "n"]

    def sequences(*bounds):
        conditions = [sym.le(bounds[0], size), sym.le(size, bounds[1])] if bounds else []
        made = schedule(replace(fn, requires=(*fn.requires, *conditions)), SERVER, constants=["r"])
        plans = [each.plan for each in made.decisions if "sequences=" in each.plan]
        return max(int(plan.partition("sequences=")[2].split()[0]) for plan in plans)

    assert sequences(1, 1) == 1
    assert sequences(64, 128) > sequences() >= sequences(1, 2)


def quantized_lstm(steps, batch, hidden, states, weights):
    gates = 4 * hidden
    module = graph.parse(
        f"graph @main(%g: f32[{steps}, {batch}, {gates}], %r: {weights}[{gates}, {hidden}], "
        f"%s: f32[{gates}], %t: i32[{gates}]) -> (f32[{steps}, {batch}, {hidden}]) {{"
        '%y = quantized_lstm(%g, %r, %s, %t) {activations = (("sigmoid", 0.0, 0.0), '
        f'("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)), states = dtype {states}}} return %y }}'
    )
    return lower_graph(module.main, "lstm")


DOTS = [
    (SERVER, "u8", "i8", "vnni_u8_dot"),
    (ARM, "i8", "i8", "neon_sdot_by_element"),
    (DESKTOP, "i16", "i16", "madd_i16_dot_256"),
]


@pytest.mark.parametrize(("target", "states", "weights", "dot"), DOTS)
def test_states_in_bytes_are_multiplied_by_dot_products(target, states, weights, dot):
    made = schedule(quantized_lstm(3, 1, 64, states, weights), target, constants=["r"])
    assert dot in str(made.schedule.function)


@pytest.mark.parametrize(("target", "states", "weights"), [each[:3] for each in DOTS])
def test_every_plan_of_bytes_keeps_the_answer(check_plans, target, states, weights):
    rng = np.random.default_rng(0)
    batch, hidden = 2, 16
    gates = rng.standard_normal((2, batch, 4 * hidden)).astype(np.float32)
    r = rng.integers(-128, 128, (4 * hidden, hidden)).astype(weights.replace("i", "int"))
    scale, totals = np.full(4 * hidden, 0.01, np.float32), r.sum(axis=1, dtype=np.int32)
    fn = quantized_lstm(2, batch, hidden, states, weights)
    outputs = [((2, batch, hidden), np.float32)]
    check_plans(fn, RECURRENT, target, [gates, r, scale, totals], outputs, constants=["r"])


def test_weights_beyond_a_cache_are_walked_over_in_alternating_direction():
    def alternates(hidden, target):
        plan = schedule(lstm(35, 1, hidden), target, constants=["r"]).decisions[0].plan
        assert "parallel=none" in plan
        return "alternate=1" in plan

    assert alternates(650, SERVER)  # more than L2 holds
    assert not alternates(256, SERVER)  # L1 holds no panel of them
    assert alternates(128, ARM)  # L1 holds a panel
    assert not alternates(64, ARM)  # L1 holds all


def test_vectors_go_side_by_side_where_the_window_is_shorter_than_their_chain():
    """Of gates: a chain of two functions, each of some forty instructions."""

    def vectors(target):
        decisions = schedule(lstm(35, 1, 64), target, constants=["r"]).decisions
        (plan,) = [each.plan for each in decisions if each.block == "y_step"]
        return plan.split()[0]

    assert vectors(SERVER) == "vectors=1"
    assert vectors(ARM) == "vectors=2"


def test_threads_share_panels():
    plan = schedule(lstm(35, 1, 650), SERVER, threads=2, constants=["r"]).decisions[0].plan
    assert "alternate=1 parallel=panels" in plan


def running_sum(*shape, axis=1):
    sizes = f"f32[{', '.join(map(str, shape))}]"
    cumsum = f"%y = cumsum(%x) {{axis = {axis}}}"
    text = f"graph @main(%x: {sizes}) -> ({sizes}) {{ {cumsum} return %y }}"
    return lower_graph(graph.parse(text).main, "sums")


@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 5), 1), ((3, 5, 20), 1), ((3, 7, 20), 2), ((4, 8, 5), 2)]
)
def test_every_plan_of_a_running_sum_keeps_the_answer(check_plans, shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check_plans(
        running_sum(*shape, axis=axis), RECURRENT, SERVER, [x], [(shape, np.float32)], threads=2
    )


def test_threads_share_the_chains_of_a_running_sum():
    decisions = schedule(running_sum(16, 100, 90), SERVER, threads=2).decisions
    (plan,) = [each.plan for each in decisions if each.rule == "recurrent"]
    assert "parallel=rows" in plan
    assert "chains=1" in plan


@pytest.mark.parametrize("shape", [(200, 500), (16, 100, 90), ("n", 16)])
def test_running_sums_are_written_where_they_belong(shape):
    """Not to a buffer that is copied afterwards."""
    made = schedule(running_sum(*shape), SERVER)
    assert made.schedule.function.allocs == ()


def test_chains_are_interleaved_whether_or_not_their_number_divides_them():
    for rows in (42, 44):
        made = schedule(running_sum(5, rows, 64, axis=2), SERVER)
        (plan,) = [each.plan for each in made.decisions if each.rule == "recurrent"]
        assert "beside=0" not in plan
        assert not made.refusals


@pytest.mark.parametrize(("shape", "is_beside"), [((200, 500), True), ((16, 100, 90), False)])
def test_chains_whose_steps_lie_side_by_side_run_by_themselves(shape, is_beside):
    """Their sums are laid out alike: what copies them to the result reads them in order."""
    made = schedule(running_sum(*shape), SERVER)
    (plan,) = [each.plan for each in made.decisions if each.rule == "recurrent"]
    assert ("beside=0" not in plan) is is_beside
    assert ("transpose" not in {each.rule for each in made.decisions}) or not is_beside


def test_chains_that_are_interleaved_stay_in_l1_whatever_the_size_of_rows():
    """Lines of rows of a power of two map to one set."""
    made = schedule(running_sum(64, 4096), SERVER)
    (plan,) = [each.plan for each in made.decisions if each.rule == "recurrent"]
    assert 1 < int(plan.rpartition("beside=")[2]) <= Target.parse(SERVER).machine.l1d.ways // 2


def test_steps_that_mix_elements_are_no_chains():
    plans = [
        each.plan
        for each in schedule(lstm(35, 4, 256), SERVER, threads=2, constants=["r"]).decisions
        if each.rule == "recurrent"
    ]
    assert plans
    assert all("chains=0" in plan for plan in plans)


def test_running_sums_of_dynamic_rows_begin_by_vectors():
    """The loop over the one first step leaves no division behind where it is fused with rows."""
    rules = {each.rule for each in schedule(running_sum("n", 16), SERVER).decisions}
    assert "fallback" not in rules


def test_weights_as_large_as_a_cache_are_walked_over_back_and_forth():
    def alternates(hidden):
        made = schedule(lstm(8, 4, hidden), "x86_64-linux-gnu -mcpu=cascadelake", constants=["r"])
        chosen = next(each for each in made.decisions if each.rule == RECURRENT.name)
        return "alternate=1" in chosen.plan

    assert alternates(256)  # as large as L2, which inputs and states pass through, too
    assert not alternates(128)
