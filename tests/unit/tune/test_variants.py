"""Which kernel runs at which sizes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.tune.record import Variant
from tilewright.tune.variants import MAX_VARIANTS, WORTH, partition, split, winner_of


def test_neighbours_that_like_the_same_share_it():
    assert partition([[1, 1, 2, 2], [2, 2, 1, 1]]) == [0, 0, 1, 1]


def test_a_variant_must_be_worth_its_code():
    assert partition([[1.0, 1.001], [1.001, 1.0]]) == [0, 0]
    assert partition([[1.0, 1.2], [1.2, 1.0]]) == [0, 1]


times = st.integers(1, 4).flatmap(
    lambda sets: st.lists(
        st.lists(st.floats(1.0, 9.0), min_size=sets, max_size=sets), min_size=1, max_size=4
    )
)


@given(times)
def test_no_other_way_with_as_few_variants_takes_less(rows):
    sets = range(len(rows[0]))
    best = [min(row[at] for row in rows) for at in sets]

    def cost(who):
        runs = 1 + sum(a != b for a, b in itertools.pairwise(who))
        total = sum(rows[each][at] / best[at] for at, each in enumerate(who))
        return total + WORTH * len(best) * (runs - 1) if runs <= MAX_VARIANTS else float("inf")

    every = itertools.product(range(len(rows)), repeat=len(best))
    assert cost(partition(rows)) == pytest.approx(min(map(cost, every)))


def test_sets_end_halfway_to_the_next():
    assert split([[1], [8], [9]]) == [2, 8]
    assert split([[2, 4], [16, 32]]) == [8]
    assert split([[0], [1]]) == [0]


@pytest.mark.parametrize("values", [[[1, 5], [4, 9]], [[3], [3]], [[5], [1]], [[], [1]]])
def test_sets_that_overlap_or_fall_cannot_be_told_apart(values):
    assert split(values) is None


def test_neighbours_that_agree_are_one_variant():
    few, many = {"y": "gemm mr=1"}, {"y": "gemm mr=6"}
    made = winner_of([few, few, {}, many], [2.0, 2.0, 1.0, 1.0], 1, [4, 8, 32], "matmul")
    assert made.variants == (Variant(1, 8, few), Variant(1, 32, {}))
    assert made.choices == many
    assert made.gain == pytest.approx(2**0.5)
    assert winner_of([few], [2.0], 0, []).variants == ()
