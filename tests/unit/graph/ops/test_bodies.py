"""Sorts, windows and scatters with a body of numbers; slices at places that a tensor tells."""

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.graph import interpret, parse
from tilewright.graph.verify import verify


def run(text, *args):
    module = parse(text)
    verify(module)
    assert parse(str(module), module.constants) == module
    return interpret(module, *args, check=True)


SORT = """
graph @main(%k: f32[n, 5], %v: i64[n, 5]) {
  %a, %b = sort(%k, %v) {axis = AXIS} do {
    graph(%a0: f32[], %b0: f32[], %a1: i64[], %b1: i64[]) {
      %x = floor(%a0)
      %y = floor(%b0)
      %l = greater(%x, %y)
      return %l
    }
  }
  return %a, %b
}
"""


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_sort_is_stable_and_moves_all_its_operands(axis):
    keys = np.random.default_rng(0).uniform(0, 3, (4, 5)).astype(np.float32)
    places = np.arange(20).reshape(4, 5)
    order = np.argsort(-np.floor(keys), axis=axis, kind="stable")
    made = run(SORT.replace("AXIS", str(axis)), keys, places)
    np.testing.assert_array_equal(made[0], np.take_along_axis(keys, order, axis))
    np.testing.assert_array_equal(made[1], np.take_along_axis(places, order, axis))


WINDOW = """
graph @main(%x: f32[n, 7]) {
  %s = constant() {data = f32[](0.5)}
  %a = reduce_window(%x, %s) {window = (1, 3), strides = (1, 2), dilations = (1, 2),
                              pads = (0, 1, 0, 2)} do {
    graph(%a: f32[], %b: f32[]) {
      %c = neg(%a)
      %d = add(%c, %b)
      return %d
    }
  }
  return %a
}
"""


def test_a_window_joins_its_elements_in_order_and_does_not_see_pads():
    x = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)
    (made,) = run(WINDOW, x)
    want = np.empty((2, 3), np.float32)
    for row, at in np.ndindex(2, 3):
        joined = np.float32(0.5)
        for place in (2 * at - 1, 2 * at + 1, 2 * at + 3):
            if 0 <= place < 7:
                joined = -joined + x[row, place]
        want[row, at] = joined
    np.testing.assert_array_equal(made, want)


SCATTER = """
graph @main(%x: f32[n, 7], %s: i64[3, 2], %u: f32[3, 2]) {
  %a = scatter_slices(%x, %s, %u) {axes = (0, 1), inserted = (0,)} do {
    graph(%a: f32[], %b: f32[]) {
      %c = sub(%a, %b)
      return %c
    }
  }
  return %a
}
"""


def test_a_scatter_leaves_out_what_lies_outside():
    x, updates = np.zeros((3, 7), np.float32), np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    (made,) = run(SCATTER, x, np.array([[0, 1], [0, 2], [2, 6]]), updates)
    want = x.copy()
    want[0, 1:4] = -1, -2 - 3, -4
    want[2, 6] = -5
    np.testing.assert_array_equal(made, want)


SLICES = """
graph @main(%x: f32[4, 7], %s: i64[3, 2]) {
  %a = gather_slices(%x, %s) {sizes = (1, 4), axes = (0, 1), collapsed = (0,)}
  return %a
}
"""


def test_slices_are_moved_so_that_they_lie_inside():
    x = np.arange(28, dtype=np.float32).reshape(4, 7)
    (made,) = run(SLICES, x, np.array([[0, 1], [9, 5], [-1, -3]]))
    np.testing.assert_array_equal(made, [x[0, 1:5], x[3, 3:], x[0, :4]])


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("graph(%a: f32[], %b: f32[])", "graph(%a: f32[1], %b: f32[])", "TW1312"),
        ("window = (1, 3)", "window = (3,)", "TW1204"),
        ("reduce_window(%x, %s)", "reduce_window(%x)", "TW1312"),
        ("f32[](0.5)", "f64[](0.5)", "TW1312"),
    ],
)
def test_windows_that_do_not_fit(old, new, code):
    with pytest.raises(UserError, match=code):
        parse(WINDOW.replace(old, new))


@pytest.mark.parametrize(
    ("text", "old", "new", "code"),
    [
        (SORT, "return %l", "return %x", "TW1312"),
        (SORT, "[n, 5]", "[]", "TW1301"),
        (SORT, "%v: i64[n, 5]", "%v: i64[n, 6]", "TW1015"),
        (SCATTER, "inserted = (0,)", "inserted = ()", "TW1307"),
        (SLICES, "sizes = (1, 4)", "sizes = (1, 9)", "TW1307"),
        (SLICES, "collapsed = (0,)", "collapsed = (1,)", "TW1307"),
        (SLICES, "axes = (0, 1)", "axes = (0,)", "TW1307"),
    ],
)
def test_operands_that_do_not_fit(text, old, new, code):
    with pytest.raises(UserError, match=code):
        parse(text.replace("AXIS", "1").replace(old, new))


def test_a_sort_without_a_body_is_refused():
    with pytest.raises(UserError, match="TW1312"):
        parse("graph @main(%x: f32[4]) {\n  %a = sort(%x) {axis = 0}\n  return %a\n}")
