"""Small grids of parameters have every pair of values, and few rows."""

import sys
from itertools import combinations, product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from grids import every_pair, sample


@pytest.mark.parametrize(
    ("sizes", "largest"), [((3, 3, 2, 2), 9), ((6, 4, 2), 24), ((2, 2, 6, 3), 18), ((2, 2, 2), 4)]
)
def test_any_two_values_stand_in_a_row(sizes, largest):
    axes = [[(axis, value) for value in range(size)] for axis, size in enumerate(sizes)]
    rows = every_pair(*axes)
    pairs = {pair for row in rows for pair in combinations(row, 2)}
    assert pairs == {pair for row in product(*axes) for pair in combinations(row, 2)}
    assert len(set(rows)) == len(rows) <= largest


def test_a_sample_has_every_value_of_two_parameters_in_turns():
    rows = list(product(range(6), range(2)))
    kept = [rows[at] for at in sorted(sample(rows))]
    assert [a for a, _ in kept] == list(range(6))
    assert [b for _, b in kept].count(0) == 3


def test_a_sample_has_every_pair_of_values_of_three_parameters():
    rows = list(product(range(5), range(2), range(2)))
    kept = {rows[at] for at in sample(rows)}
    assert len(kept) == 10
    for axes in combinations(range(3), 2):
        assert len({tuple(row[axis] for axis in axes) for row in kept}) == len(
            {tuple(row[axis] for axis in axes) for row in rows}
        )


def test_parameters_of_one_list_are_one():
    assert sample([(0, 0), (1, 1), (2, 2)]) == {0, 1, 2}
    assert sample([(0,), (1,)]) == {0, 1}
    assert sample([()]) == {0}
    joint = [(a, a, b) for a, b in product(range(3), range(2))]
    assert len(sample(joint)) == 3
