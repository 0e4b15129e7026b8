"""The judge of random models tells what rounding may change from what it may not."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

from onnx_rounding import moved_by_rounding

from tilewright.graph import parse

PART = 2.0**-21
LOGS = parse("""
graph @main(%x: f64[4]) {
  %s = reduce_sum(%x) {axes = (0,), keepdims = true}
  %y = log(%s)
  return %y
}
""")


def moved(values, got, want):
    return moved_by_rounding(LOGS, [np.array(values)], 0, np.array([got]), np.array([want]), PART)


def test_the_logarithm_of_a_rest_turns_on_rounding():
    assert moved([1.0, 1.0, -1.0, -1.0 + 1e-7], -np.inf, -16.0).all()


def test_the_logarithm_of_a_sum_does_not():
    assert not moved([1.0, 1.0, 1.0, 1.0], -np.inf, 1.3862943).any()
    assert not moved([1.0, 1.0, 1.0, 1.0], 1.3864, 1.3862943).any()
