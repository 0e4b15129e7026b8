"""Where the greatest or least element is, on a GPU: a reduction of two values by all threads."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.passes import PassContext
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
FORMS = {  # shape, attributes
    "rows": ("3, 200", "axis = 1"),
    "columns": ("100, 5", "axis = 0"),
    "the last of equals": ("2, 130", "axis = 1, last = true"),
    "few": ("70, 4", "axis = 1"),
    "one axis of three": ("2, 70, 3", "axis = 1, keepdims = false"),
}


def model(shape, op, attributes, more=""):
    result = "%z" if more else "%y"
    return graph.parse(f"""graph @main(%x: f32[{shape}]) {{
      %y = {op}(%x) {{{attributes}}}
      {more}
      return {result}
    }}""")


def check(module, shape):
    made = schedule(lower_graph(module.main, "arg"), TARGET)
    assert [decision.rule for decision in made.decisions] == ["reduction"]
    x = np.random.default_rng(0).integers(-9, 9, [int(n) for n in shape.split(",")])
    x = x.astype(np.float32)
    x.flat[x.size // 2] = np.nan
    (want,) = graph.interpret(module, x)
    out = np.full(np.shape(want), -5, np.asarray(want).dtype)
    tw.interpret(lower(made.schedule.function, "gpu"), x, out)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("op", ["arg_max", "arg_min"])
@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_numpy(form, op):
    """NaN comes before all, of equals the first or the last."""
    shape, attributes = FORMS[form]
    check(model(shape, op, attributes), shape)


@pytest.mark.parametrize("shape", ["3, 200", "70, 4"])
def test_what_follows_is_done_at_once(shape):
    """By a block of threads for each result, by a thread for each."""
    check(model(shape, "arg_max", "axis = 1", "%z = cast(%y) {to = dtype i32}"), shape)


def test_many_threads_share_a_long_row():
    made = schedule(lower_graph(model("64, 50257", "arg_max", "axis = 1").main, "arg"), TARGET)
    assert "per_result=256" in made.decisions[0].plan


def test_blocks_share_the_long_rows_of_few():
    made = schedule(lower_graph(model("8, 50257", "arg_max", "axis = 1").main, "arg"), TARGET)
    assert "parts=1 " not in made.decisions[0].plan + " "


@pytest.mark.parametrize(("shape", "turns"), [("64, 50257", "0..24 "), ("2, 2048", None)])
def test_a_thread_asks_for_several_elements_before_it_waits(shape, turns):
    fn = lower_graph(model(shape, "arg_max", "axis = 1").main, "arg")
    made = str(lower(schedule(fn, TARGET).schedule.function, "gpu", PassContext()))
    first, _ = made.split("barrier.shared", 1)
    assert (turns in first) if turns else ("for %ax" not in first.split("threadIdx.x")[1])
    assert first.count("i64 = ") >= 8
