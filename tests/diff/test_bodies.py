"""Bodies of numbers and choices among many, as native code, against the interpreter."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.passes import PassContext
from tilewright.graph import interpret, parse
from tilewright.graph.passes.nest_switches import nest_switches
from tilewright.graph.verify import verify

SORT = """
graph @main(%k: f32[n, 5], %v: i64[n, 5]) {
  %a, %b = sort(%k, %v) {axis = 1} do {
    graph(%a0: f32[], %b0: f32[], %a1: i64[], %b1: i64[]) {
      %two = constant() {data = f32[](2.0)}
      %x = floor(%a0)
      %y = floor(%b0)
      %z = mul(%y, %two)
      %w = mul(%x, %two)
      %l = greater(%w, %z)
      return %l
    }
  }
  return %a, %b
}
"""
# The greatest of each window, and where it is: what one result is decides the other.
WINDOWS = """
graph @main(%x: f32[n, 7], %i: i64[n, 7]) {
  %s = constant() {data = f32[](-9.0)}
  %t = constant() {data = i64[](-1)}
  %a, %b = reduce_window(%x, %i, %s, %t) {window = (1, 3), strides = (1, 2), dilations = (1, 1),
                                          pads = (0, 1, 0, 1)} do {
    graph(%a: f32[], %j: i64[], %b: f32[], %k: i64[]) {
      %c = greater(%b, %a)
      %v = where(%c, %b, %a)
      %w = where(%c, %k, %j)
      return %v, %w
    }
  }
  return %a, %b
}
"""
SLICES = """
graph @main(%x: f32[n, 7], %s: i64[3, 2], %u: f32[3, 2]) {
  %a = scatter_slices(%x, %s, %u) {axes = (0, 1), inserted = (0,)} do {
    graph(%a: f32[], %b: f32[]) {
      %c = sub(%a, %b)
      return %c
    }
  }
  %b = gather_slices(%a, %s) {sizes = (1, 4), axes = (0, 1), collapsed = (0,)}
  %c = neg(%b)
  return %a, %c
}
"""
SWITCH = """
graph @main(%i: i64[], %x: f32[n]) {
  %y = switch(%i, %x) do {
    graph(%v: f32[n]) {
      %a = neg(%v)
      return %a
    }
    graph(%v: f32[n]) {
      %a = concat(%v, %v) {axis = 0}
      return %a
    }
    graph(%v: f32[n]) {
      %a = relu(%v)
      return %a
    }
  }
  return %y
}
"""


def same(module, *args):
    """Native code without fallbacks gives what the interpreter gives."""
    verify(module)
    compiled = tw.compile(module, threads=1)
    assert not compiled.fallbacks
    want = interpret(module, *args, check=True)
    for made, right in zip(compiled(*args), want, strict=True):
        np.testing.assert_array_equal(np.asarray(made), right)


@pytest.fixture
def x():
    return np.random.default_rng(0).uniform(-3, 3, (3, 7)).astype(np.float32)


def test_sort(x):
    same(parse(SORT), np.ascontiguousarray(x[:, :5]), np.arange(15).reshape(3, 5))


def test_windows(x):
    same(parse(WINDOWS), x, np.arange(21).reshape(3, 7))


def test_slices(x):
    same(parse(SLICES), x, np.array([[0, 1], [2, 6], [1, -1]]), np.ascontiguousarray(x[:, :2]))


def test_switch(x):
    module = parse(SWITCH)
    compiled, nested = tw.compile(module, threads=1), nest_switches(module, PassContext())
    verify(nested)
    assert not compiled.fallbacks
    for index in (-1, 0, 1, 2, 5):
        at = np.int64(index)
        (want,) = interpret(module, at, x[0], check=True)
        np.testing.assert_array_equal(interpret(nested, at, x[0], check=True)[0], want)
        np.testing.assert_array_equal(np.asarray(compiled(at, x[0])[0]), want)


def test_a_switch_of_a_known_index_is_its_body(x):
    text = SWITCH.replace("(%i: i64[], %x", "(%x")
    text = text.replace("  %y =", "  %i = constant() {data = i64[](7)}\n  %y =")
    module = parse(text)
    (made,) = tw.compile(module, threads=1)(x[0])
    np.testing.assert_array_equal(np.asarray(made), np.maximum(x[0], 0))


@pytest.mark.parametrize("chosen", [True, False])
def test_a_choice_inside_a_choice_leaves_sizes_of_the_run_as_they_were(x, chosen):
    module = parse("""
    graph @main(%c: bool[], %x: f32[n]) {
      %i = nonzero(%x)
      %y = if(%c, %c, %i) do {
        graph(%c: bool[], %i: i64[1, nonzero]) {
          %a = if(%c, %i) do {
            graph(%i: i64[1, nonzero]) {
              return %i
            }
            graph(%i: i64[1, nonzero]) {
              %b = abs(%i)
              return %b
            }
          }
          %b = neg(%a)
          return %b
        }
        graph(%c: bool[], %i: i64[1, nonzero]) {
          return %i
        }
      }
      %z = concat(%i, %y) {axis = 0}
      return %z
    }
    """)
    same(module, np.bool_(chosen), np.maximum(x[0], 0))
