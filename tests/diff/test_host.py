"""The host program: control flow, sizes that the run tells, views, results, against the meaning."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import TilewrightError, UserError

F = np.float32


def check(text: str, *args: np.ndarray, natively: bool = True) -> None:
    module = graph.parse(text)
    compiled = tw.compile(module, threads=1)
    assert bool(compiled.fallbacks) != natively
    for _ in range(2):
        got = compiled(*args)
        for a, b in zip(got, graph.interpret(module, *args), strict=True):
            assert np.asarray(a).dtype == b.dtype
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)


BRANCHES = """
graph @main(%c: bool[], %x: f32[n, 3]) {
  %y: f32[m, 3] = if(%c, %x) do {
    graph(%a: f32[n, 3]) {
      %s: f32[2, 3] = slice(%a) {starts = (0,), ends = (2,), axes = (0,)}
      return %s
    }
    graph(%b: f32[n, 3]) {
      %t: f32[n, 3] = mul(%b, %b)
      return %t
    }
  }
  %z: f32[m, 3] = neg(%y)
  return %z, %y
}
"""


@pytest.mark.parametrize("cond", [True, False])
@pytest.mark.parametrize("rows", [2, 7])
def test_branches_may_give_different_sizes(cond, rows):
    check(BRANCHES, np.array(cond), np.arange(rows * 3, dtype=F).reshape(rows, 3))


COUNTED = """
graph @main(%n: i64[], %a: f32[2], %b: f32[2]) {
  %f: f32[2], %rows: f32[k, 2] = loop(%n, none, %a, %b) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %s: f32[2], %d: f32[2]) {
      %t: f32[2] = add(%s, %d)
      %q: f32[2] = mul(%s, %s)
      return %go, %t, %q
    }
  }
  return %f, %rows
}
"""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loops_count_and_stack(count):
    check(COUNTED, np.array(count), np.array([1, 2], F), np.array([1, 0.5], F))


def test_a_list_of_one_number_counts_loops():
    text = COUNTED.replace("%n: i64[], ", "").replace("loop(%n,", "loop(none,")
    text = text.replace("carried = 1", "carried = 1, trip = (3,)").replace("f32[k, 2]", "f32[3, 2]")
    check(text, np.array([1, 2], F), np.array([1, 0.5], F))


SWAPPED = """
graph @main(%n: i64[], %a: f32[2], %b: f32[2]) {
  %f: f32[2], %g: f32[2] = loop(%n, none, %a, %b) {carried = 2} do {
    graph(%i: i64[], %go: bool[], %s: f32[2], %t: f32[2]) {
      return %go, %t, %s
    }
  }
  return %f, %g
}
"""


@pytest.mark.parametrize("count", [1, 2])
def test_carried_values_may_change_places(count):
    check(SWAPPED, np.array(count), np.array([1, 2], F), np.array([3, 4], F))


GROWING = """
graph @main(%a: f32[q], %b: f32[2], %limit: f32[]) {
  %f: f32[r] = loop(none, none, %a, %b, %limit) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %s: f32[k], %d: f32[2], %l: f32[]) {
      %t: f32[k + 2] = concat(%s, %d) {axis = 0}
      %sum: f32[] = reduce_sum(%t) {keepdims = false}
      %on: bool[] = less(%sum, %l)
      return %on, %t
    }
  }
  return %f
}
"""


def test_what_a_loop_carries_may_grow():
    check(GROWING, np.array([1, 2], F), np.array([1, 1], F), np.array(40, F))


SCANNED = """
graph @main(%s: f32[2], %x: f32[n, 2]) {
  %f: f32[2], %y: f32[n, 2] = scan(%s, %x) {states = 1, inputs = 1} do {
    graph(%a: f32[2], %e: f32[2]) {
      %t: f32[2] = add(%a, %e)
      return %t, %t
    }
  }
  return %f, %y
}
"""


@pytest.mark.parametrize("length", [0, 4])
def test_scans_run_over_rows(length):
    check(SCANNED, np.zeros(2, F), np.arange(length * 2, dtype=F).reshape(length, 2))


def test_sizes_come_from_data():
    text = """
    graph @main(%x: f32[a, b]) {
      %i: i64[2, k] = nonzero(%x)
      %t: i64[k, 2] = transpose(%i) {perm = (1, 0)}
      return %t
    }
    """
    check(text, np.eye(5, dtype=F))
    check(text, np.zeros((3, 2), F))


RESHAPED = """
graph @main(%x: f32[a, b], %s: i64[2]) {
  %y: f32[c, d] = reshape(%x, %s)
  %z: f32[c, d] = relu(%y)
  return %z
}
"""


def test_reshapes_to_run_time_shapes():
    check(RESHAPED, np.eye(4, dtype=F), np.array([2, -1]))


def test_shapes_that_do_not_fit_are_errors():
    compiled = tw.compile(graph.parse(RESHAPED))
    with pytest.raises(UserError, match="TW4012"):
        compiled(np.eye(4, dtype=F), np.array([3, 5]))
    np.testing.assert_array_equal(
        np.asarray(compiled(np.eye(2, dtype=F), np.array([4, 1]))[0]).ravel(), [1, 0, 0, 1]
    )


def test_inputs_constants_and_values_may_be_results_twice():
    text = """
    graph @main(%x: f32[2, 3]) {
      %c = constant() {data = f32[2](1.0, 2.0)}
      %y = neg(%x)
      %r = reshape(%y) {shape = (6,)}
      return %x, %c, %y, %r, %y
    }
    """
    check(text, np.arange(6, dtype=F).reshape(2, 3))


def test_what_has_no_native_code_runs_between_native_parts():
    text = """
    graph @main(%x: f32[2, n]) {
      %a = exp(%x)
      %s: seq<f32[2, n]> = sequence(%a, %x)
      %i = constant() {data = i64[](0)}
      %b: f32[2, n] = sequence_at(%s, %i)
      %c = neg(%b)
      return %c
    }
    """
    check(text, np.ones((2, 3), F), natively=False)


def test_caller_supplied_outputs_are_filled_and_checked():
    compiled = tw.compile(graph.parse("graph @main(%x: f32[n]) { %y = neg(%x) return %y }"))
    out = np.zeros(3, F)
    compiled(np.ones(3, F), out=(out,))
    assert (out == -1).all()
    with pytest.raises(UserError, match="dimension 0 is 3, expected 4"):
        compiled(np.ones(4, F), out=(out,))
    with pytest.raises(TypeError, match="TW4001"):
        compiled(np.ones(3, F), out=(np.zeros(3, np.float64),))


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_beyond_64_bits_are_more_than_memory_and_not_few(threads):
    text = f"""
    graph @main(%x: i64[m]) {{
      %a: i64[m, 1] = reshape(%x) {{shape = (expr m, 1)}}
      %e: i64[m, {1 << 58}] = expand(%a) {{shape = (expr m, {1 << 58})}}
      %n: i64[m, {1 << 58}] = neg(%e)
      %z: i64[m] = reduce_max(%n) {{axes = (1,), keepdims = false}}
      return %z
    }}"""
    compiled = tw.compile(graph.parse(text), threads=threads, without=("fuse",))
    with pytest.raises(TilewrightError, match="TW4011"):
        compiled(np.zeros(32, np.int64))  # 32 * 2**58 elements of 8 bytes are 2**66
