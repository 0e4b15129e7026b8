"""Control flow: bodies, states, what is stacked, and the types of all that."""

import numpy as np
import pytest

from tilewright.base.errors import UserError, UserTypeError
from tilewright.graph import interpret, parse
from tilewright.graph.verify import verify


def run(text, *args):
    module = parse(text)
    verify(module)
    assert parse(str(module), module.constants) == module
    return interpret(module, *args, check=True)


IF = """
graph @main(%c: bool[], %x: f32[n]) {
  %y = if(%c, %x) do {
    graph(%v: f32[n]) {
      %a = neg(%v)
      return %a
    }
    graph(%v: f32[n]) {
      %a = concat(%v, %v) {axis = 0}
      return %a
    }
  }
  return %y
}
"""


def test_branches_may_give_different_shapes():
    x = np.ones(3, np.float32)
    assert run(IF, np.bool_(True), x)[0].tolist() == [-1, -1, -1]
    assert run(IF, np.bool_(False), x)[0].shape == (6,)
    (of,) = (value.type for value in parse(IF).main.results)
    assert str(of).startswith("f32[")
    assert "n" not in str(of).replace("f32", "")


FACTORIAL = """
graph @main(%n: i64[]) {
  %one = constant() {data = i64[](1)}
  %r, %all = loop(%n, none, %one) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %f: i64[]) {
      %one = constant() {data = i64[](1)}
      %k = add(%i, %one)
      %g = mul(%f, %k)
      return %go, %g, %g
    }
  }
  return %r, %all
}
"""


def test_a_loop_carries_states_and_stacks():
    last, every = run(FACTORIAL, np.int64(5))
    assert last == 120
    assert every.tolist() == [1, 2, 6, 24, 120]
    last, every = run(FACTORIAL, np.int64(0))
    assert last == 1
    assert every.shape == (0,)


COUNTED = FACTORIAL.replace("graph @main(%n: i64[])", "graph @main()").replace(
    "loop(%n, none, %one) {carried = 1}", "loop(none, none, %one) {carried = 1, trip = 4}"
)


def test_the_count_of_a_loop_that_only_counts_is_known():
    module = parse(COUNTED)
    assert [str(value.type) for value in module.main.results] == ["i64[]", "i64[4]"]
    assert run(COUNTED)[1].tolist() == [1, 2, 6, 24]


WHILE = """
graph @main(%x: f32[]) {
  %yes = constant() {data = bool[](true)}
  %y = loop(none, %yes, %x) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %v: f32[]) {
      %half = constant() {data = f32[](0.5)}
      %one = constant() {data = f32[](1.0)}
      %w = mul(%v, %half)
      %more = greater(%w, %one)
      return %more, %w
    }
  }
  return %y
}
"""


def test_a_loop_ends_when_its_body_says_so():
    assert run(WHILE, np.float32(100.0))[0] == np.float32(0.78125)


GROWING = """
graph @main(%x: f32[1]) {
  %y = loop(none, none, %x) {carried = 1, trip = 3} do {
    graph(%i: i64[], %go: bool[], %v: f32[d]) {
      %w = concat(%v, %v) {axis = 0}
      return %go, %w
    }
  }
  return %y
}
"""


def test_a_state_may_grow():
    assert run(GROWING, np.ones(1, np.float32))[0].shape == (8,)


SCAN = """
graph @main(%s: f32[2], %x: f32[n, 2], %w: f32[2]) {
  %last, %sums = scan(%s, %x, %w) {states = 1, inputs = 1} do {
    graph(%a: f32[2], %b: f32[2], %c: f32[2]) {
      %t = mul(%b, %c)
      %u = add(%a, %t)
      return %u, %u
    }
  }
  return %last, %sums
}
"""


def test_a_scan_runs_over_the_first_axis():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    last, sums = run(SCAN, np.zeros(2, np.float32), x, np.full(2, 2, np.float32))
    np.testing.assert_array_equal(sums, np.cumsum(2 * x, axis=0))
    np.testing.assert_array_equal(last, sums[-1])
    assert [str(value.type) for value in parse(SCAN).main.results] == ["f32[2]", "f32[n, 2]"]
    _, none = run(SCAN, np.zeros(2, np.float32), x[:0], x[0])
    assert none.shape == (0, 2)


FIBONACCI = """
graph @main(%n: i64[]) {
  %r: i64[] = call(%n) {graph = @fib}
  return %r
}
graph @fib(%n: i64[]) {
  %two = constant() {data = i64[](2)}
  %small = less(%n, %two)
  %r: i64[] = if(%small, %n) do {
    graph(%k: i64[]) {
      return %k
    }
    graph(%k: i64[]) {
      %one = constant() {data = i64[](1)}
      %two = constant() {data = i64[](2)}
      %a = sub(%k, %one)
      %b = sub(%k, %two)
      %p: i64[] = call(%a) {graph = @fib}
      %q: i64[] = call(%b) {graph = @fib}
      %s = add(%p, %q)
      return %s
    }
  }
  return %r
}
"""


def test_graphs_call_themselves():
    assert run(FIBONACCI, np.int64(10))[0] == 55


def test_sizes_of_a_called_graph_are_its_own():
    text = """
graph @main(%x: f32[n]) {
  %y: f32[m] = call(%x) {graph = @cut}
  %z: f32[k] = call(%y) {graph = @cut}
  return %z
}
graph @cut(%x: f32[a]) {
  %y = slice(%x) {axes = (0,), ends = (-1,), starts = (0,)}
  return %y
}
"""
    assert run(text, np.zeros(5, np.float32))[0].shape == (3,)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("if(%c, %x)", "if(%c)", "TW1312"),
        ("return %a\n    }\n  }", "return\n    }\n  }", "TW1312"),
    ],
)
def test_bodies_that_do_not_fit(old, new, code):
    with pytest.raises(UserError) as caught:
        parse(IF.replace(old, new))
    assert caught.value.code == code


def test_branches_give_one_element_type():
    text = IF.replace("%a = neg(%v)", "%a = cast(%v) {to = dtype i64}")
    with pytest.raises(UserTypeError, match="TW1309"):
        parse(text)
