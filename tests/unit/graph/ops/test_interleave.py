"""Tensors in turn along axes."""

import numpy as np
import pytest

from tilewright.base.errors import UserError


def test_elements_take_turns(run_op):
    a, b = np.array([[1, 3, 5]]), np.array([[2, 4, 6]])
    made = run_op("interleave", a, b, axes=(1,), factors=(2,), sizes=(5,), symbolic=False)
    assert made.tolist() == [[1, 2, 3, 4, 5]]


def test_the_last_axis_runs_fastest(run_op, rng):
    parts = [rng.standard_normal((2, 3, 2)) for _ in range(6)]
    made = run_op("interleave", *parts, axes=(0, 2), factors=(2, 3), sizes=(4, 6), symbolic=False)
    for i, j, k in np.ndindex(*made.shape):
        assert made[i, j, k] == parts[i % 2 * 3 + k % 3][i // 2, j, k // 3]


@pytest.mark.parametrize(
    ("factors", "sizes", "message"),
    [((3,), (6,), "takes 3 tensors"), ((2,), (), "a size for each")],
)
def test_factors_and_sizes_fit(run_op, factors, sizes, message):
    x = np.ones((1, 2))
    with pytest.raises(UserError, match=message):
        run_op("interleave", x, x, axes=(1,), factors=factors, sizes=sizes)
