"""What the scales of a sum become: integers, as short as exactness lets them be."""

import numpy as np
import pytest

from tilewright.accel.intrin import FACTOR_MAX
from tilewright.graph.passes.recognize_integers import MAX_FACTORS, factors

SHORT, LONG = MAX_FACTORS
STEPS = 255  # between the least byte and the greatest


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0.5, 0.25, (2, 1)), (0.25, 0.5, (1, 2)), (0.3, 0.3, (1, 1)), (0.7, 0.05, (14, 1))],
)
def test_factors_are_short_where_they_tell_the_ratio(first, second, expected):
    assert factors(np.float32(first), np.float32(second)) == expected


def test_factors_are_long_where_short_ones_round():
    """2/3 is the nearest ratio of short numbers, a sixth of a step off."""
    a, b = factors(0.66554, 1.0)
    assert SHORT < max(a, b) <= LONG
    assert abs(a / b - 0.66554) * STEPS < 1e-3


def test_long_factors_leave_no_step_in_doubt():
    """The worst of ratios near 1 has no neighbour but 1 itself."""
    ratios = [*np.random.default_rng(0).uniform(1 / 128, 1, 200), 1 - 0.4 / LONG, 1 - 1.5 / LONG]
    for ratio in ratios:
        for a, b in (factors(1.0, ratio), factors(ratio, 1.0)[::-1]):
            assert 0 < b <= a <= LONG <= FACTOR_MAX  # which the accelerator takes
            assert abs(b / a - ratio) * STEPS < 0.02
