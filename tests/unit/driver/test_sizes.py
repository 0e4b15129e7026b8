"""Sizes that users fix, or bound."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.driver.sizes import sizes_to_measure

MODEL = "graph @main(%x: f32[batch, 4], %y: f32[batch, n]) { %z = neg(%x) return %z, %y }"


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_sizes_in_range_pass_and_others_are_refused():
    module = tw.compile(graph.parse(MODEL), dynamic={"batch": (1, 3), "n": (0, 2)})
    for batch, n in ((1, 0), (3, 2)):
        made, _ = module(ones(batch, 4), ones(batch, n))
        assert made.shape == (batch, 4)
    with pytest.raises(UserError, match=r"the size batch is not in 1\.\.3"):
        module(ones(4, 4), ones(4, 1))
    with pytest.raises(UserError, match=r"the size n is not in 0\.\.2"):
        module(ones(1, 4), ones(1, 3))


def test_a_fixed_size_is_a_number():
    module = tw.compile(graph.parse(MODEL), dynamic={"batch": 2})
    assert [spec.shape for spec in module.inputs] == [(2, 4), (2, "n")]
    with pytest.raises(UserError, match="TW4003"):
        module(ones(3, 4), ones(3, 1))


@pytest.mark.parametrize("dynamic", [{"rows": 1}, {"batch": (3, 1)}, {"batch": -1}])
def test_absurd_sizes_are_refused(dynamic):
    with pytest.raises(UserError, match="TW6005"):
        tw.compile(graph.parse(MODEL), dynamic=dynamic)


def test_ranges_are_measured_at_their_ends_and_their_middle():
    assert sizes_to_measure({"n": (1, 64), "m": 4, "k": (7, 7)}) == {"n": (1, 8, 64), "k": (7,)}
    assert sizes_to_measure(None) == {}
    assert sizes_to_measure({"n": (0, 9)}) == {"n": (1, 3, 9)}
