"""When one time is better than another."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.tune.stats import Paired, bound_index, geometric_mean, is_no_slower


def paired(gain, count, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    first = 100.0 * gain * (1 + noise * random.standard_normal(count))
    second = 100.0 * (1 + noise * random.standard_normal(count))
    return Paired(tuple(first), tuple(second))


def test_the_bound_holds_for_any_distribution():
    random = np.random.default_rng(1)
    for count in (5, 9, 15, 37):
        at = bound_index(count)
        drawn = np.sort(random.exponential(size=(4000, count)) ** 3, axis=1)
        above = (drawn[:, at] > np.log(2) ** 3).mean()  # of the true middle
        assert above <= 0.06


def test_few_pairs_tell_nothing():
    assert bound_index(4) is None
    assert not paired(2.0, 4).is_win
    assert paired(2.0, 5).is_win


@pytest.mark.parametrize(
    ("gain", "wins"), [(1.0, False), (1.015, False), (1.03, True), (2.0, True)]
)
def test_a_win_needs_two_percent(gain, wins):
    assert paired(gain, 21).is_win is wins


def test_a_win_needs_confidence():
    assert not paired(1.03, 9, noise=0.3).is_win


def test_equal_programs_hardly_ever_win():
    wins = sum(paired(1.0, 15, noise=0.05, seed=seed).is_win for seed in range(300))
    assert wins <= 15


def test_slower_is_a_loss_and_equal_is_not():
    assert paired(0.9, 15).is_loss
    assert not paired(1.0, 15, noise=0.02).is_loss


def test_pairs_add_up():
    both = paired(1.1, 5) + paired(1.1, 6)
    assert len(both.ratios) == 11
    assert both.gain == pytest.approx(1.1)


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) == 1.0


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([1.03], True),
        ([1.0], False),  # nobody knows how much builds differ
        ([1.03, 1.04, 1.02, 1.05], True),
        ([1.06, 0.99, 1.05, 1.03], True),
        ([1.06, 0.95, 1.09, 1.05], False),  # one of them is much slower
        ([1.0, 1.0, 1.06, 1.0, 1.0, 1.06], True),  # some sizes gain nothing
        ([1.02, 0.985, 1.0, 1.005], False),  # builds differ by more than they gain
        ([], False),
    ],
)
def test_programs_built_anew_are_no_slower(gains, expected):
    assert is_no_slower(gains) is expected
