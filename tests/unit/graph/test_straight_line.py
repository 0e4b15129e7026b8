"""Graphs that run as calls one after the other."""

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError, UserError
from tilewright.graph import interpret, parse
from tilewright.graph.interp import straight_line


def straight(text):
    module = parse(text)
    return module, straight_line(module, module.graphs["main"])


def test_a_graph_without_sizes_runs_as_calls_one_after_the_other():
    module, run = straight("""graph @main(%x: f32[n, 4]) {
      %c: f32[] = constant() {data = f32[](2.0)}
      %y = mul(%x, %c)
      %a, %b = top_k(%y) {k = (2,), axis = 1}
      return %b, %y, %x
    }""")
    assert run is not None
    for rows in (3, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        for have, want in zip(run([x]), interpret(module, x), strict=True):
            np.testing.assert_array_equal(have, want)


def test_sizes_are_those_of_the_arguments_of_each_run():
    module, run = straight("""graph @main(%x: f32[n, 4], %s: str[n]) {
      %y = reshape(%x) {shape = (expr n * 2, 2)}
      %t = reshape(%s) {shape = (1, expr n)}
      return %y, %t
    }""")
    assert run is not None
    for rows in (3, 1, 3):
        x, words = np.ones((rows, 4), np.float32), np.array(["a"] * rows, object)
        for have, want in zip(run([x, words]), interpret(module, x, words), strict=True):
            assert have.shape == want.shape
    with pytest.raises(UserError, match="%s of @main"):
        run([np.ones((3, 4), np.float32), np.array(["a"] * 2, object)])


def test_what_goes_wrong_in_it_is_told_with_its_node():
    _, run = straight("""graph @main(%x: f32[4], %i: i64[n]) {
      %y = gather(%x, %i) {axis = 0}
      return %y
    }""")
    assert run is not None
    assert run([np.ones(4, np.float32), np.array([-4, 3])])[0].tolist() == [1, 1]
    with pytest.raises(ExecutionError, match="gather: index 4 is outside a dimension of 4"):
        run([np.ones(4, np.float32), np.array([0, 4])])


@pytest.mark.parametrize(
    "body",
    [
        """%i: i64[k, 1] = argwhere(%b)
        %y = expand(%x) {shape = (expr k, 4)}""",
        """%y = if(%b, %x) do {
          graph(%p: f32[n, 4]) { return %p }
          graph(%p: f32[n, 4]) { return %p }
        }""",
    ],
)
def test_graphs_that_ask_for_sizes_of_their_own_or_have_bodies_do_not(body):
    _, run = straight(f"graph @main(%x: f32[n, 4], %b: bool[]) {{ {body} return %y }}")
    assert run is None
