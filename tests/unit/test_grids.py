"""Small grids of parameters have every pair of values, and few rows."""

import sys
from itertools import combinations, product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from grids import every_pair


@pytest.mark.parametrize(
    ("sizes", "largest"), [((3, 3, 2, 2), 9), ((6, 4, 2), 24), ((2, 2, 6, 3), 18), ((2, 2, 2), 4)]
)
def test_any_two_values_stand_in_a_row(sizes, largest):
    axes = [[(axis, value) for value in range(size)] for axis, size in enumerate(sizes)]
    rows = every_pair(*axes)
    pairs = {pair for row in rows for pair in combinations(row, 2)}
    assert pairs == {pair for row in product(*axes) for pair in combinations(row, 2)}
    assert len(set(rows)) == len(rows) <= largest
