"""Numbers of f32 in three pieces of bf16, and the six products of those that count."""

import itertools

import numpy as np
import pytest

from tilewright.base.bf16x6 import PRODUCTS, left_piece, pieces_of, right_piece

LEAST = float(np.finfo(np.float32).tiny)  # that is not subnormal
LARGEST_BF16 = 3.3895313892515355e38


def summed(x):
    pieces = pieces_of(np.float32(x), 0).astype(np.float64)
    return pieces.sum(axis=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_pieces_lose_nothing_of_ordinary_numbers(sign):
    rng = np.random.default_rng(0)
    exponents = rng.uniform(-100, 127, 10_000)
    x = np.float32(sign * rng.uniform(0.5, 1, 10_000) * np.exp2(exponents))
    assert (summed(x) == x).all()


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -1.0, LARGEST_BF16, -LARGEST_BF16, LEAST])
def test_numbers_of_bf16_are_their_first_piece(x):
    first, *others = pieces_of(np.float32([x]), 0).astype(np.float32)
    assert first[0] == np.float32(x)
    assert np.signbit(first[0]) == np.signbit(np.float32(x))
    assert not any(each.any() for each in others)


def test_what_is_below_the_numbers_of_bf16_is_lost():
    x = np.float32(LEAST * (1 + 2.0**-20))
    assert abs(summed(x) - x) <= 2.0**-133


@pytest.mark.parametrize("x", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max])
def test_what_is_not_finite_in_bf16_becomes_nan(x):
    assert np.isnan(pieces_of(np.float32(x), 0).astype(np.float32)).any()


def test_products_are_those_of_pieces_that_count():
    pairs = [(left_piece(at), right_piece(at)) for at in range(PRODUCTS)]
    assert sorted(pairs) == [(i, j) for i in range(3) for j in range(3 - i)]


def test_neighbouring_products_share_a_piece():
    pairs = [(left_piece(at), right_piece(at)) for at in range(PRODUCTS)]
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(pairs))
