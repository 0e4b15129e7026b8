"""Which nodes are views of their first input."""

import pytest

from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.graph.views import is_view


@pytest.mark.parametrize(("steps", "expected"), [("(1,)", True), ("(2,)", False)])
def test_a_slice_without_steps_is_a_view(steps, expected):
    bounds = "axes = (0,), ends = (3,), starts = (0,)"
    text = f"graph @main(%x: f32[4]) {{ %y = slice(%x) {{{bounds}, steps = {steps}}} return %y }}"
    (node,) = graph.parse(text).main.nodes
    assert is_view(node) is expected


def test_a_slice_takes_lists():
    bounds = "axes = (0,), ends = (3,), starts = (0,), steps = 1"
    with pytest.raises(UserError, match="TW1304"):
        graph.parse(f"graph @main(%x: f32[4]) {{ %y = slice(%x) {{{bounds}}} return %y }}")
