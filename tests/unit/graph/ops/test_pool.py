"""Pooling against loops that say what it is."""

import itertools

import numpy as np
import pytest

from tilewright.base.errors import UserError


def kinds_of(rng, rank):
    return {
        "kernel": tuple(rng.integers(2, 4, rank).tolist()),
        "strides": tuple(rng.integers(1, 4, rank).tolist()),
        "dilations": tuple(rng.integers(1, 3, rank).tolist()),
        "pads": tuple(rng.integers(0, 2, 2 * rank).tolist()),
        "ceil_mode": bool(rng.integers(0, 2)),
    }


def windows(x, kernel, strides, dilations, pads, ceil_mode):
    """For each place of the result: the elements its window sees, and how many pads."""
    rank, spatial = x.ndim - 2, x.shape[2:]
    counts = []
    for a in range(rank):
        room = spatial[a] + pads[a] + pads[a + rank] - (kernel[a] - 1) * dilations[a] - 1
        count = (-(-room // strides[a]) if ceil_mode else room // strides[a]) + 1
        while ceil_mode and (count - 1) * strides[a] >= spatial[a] + pads[a]:
            count -= 1
        counts.append(count)
    for at in itertools.product(*map(range, counts)):
        inside, padded = [], 0
        for tap in itertools.product(*map(range, kernel)):
            place = [
                i * s + t * d - pads[a]
                for a, (i, s, t, d) in enumerate(zip(at, strides, tap, dilations, strict=True))
            ]
            if all(0 <= p < n for p, n in zip(place, spatial, strict=True)):
                inside.append(tuple(place))
            elif all(-pads[a] <= p < spatial[a] + pads[a + rank] for a, p in enumerate(place)):
                padded += 1
        yield at, inside, padded


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("case", range(6))
@pytest.mark.sampled
def test_pools(run_op, rng, rank, case):
    kinds = kinds_of(rng, rank)
    x = rng.standard_normal((2, 3, *rng.integers(6, 9, rank)))
    top, index = run_op("max_pool", x, outputs=2, **kinds)
    mean = run_op("avg_pool", x, **kinds)
    whole = run_op("avg_pool", x, include_pad=True, **kinds)
    norm = run_op("lp_pool", x, p=3, **kinds)
    images = x.reshape(6, *x.shape[2:])
    flat = [made.reshape(6, *made.shape[2:]) for made in (top, index, mean, whole, norm)]
    for (at, inside, padded), (n, image) in itertools.product(
        windows(x, **kinds), enumerate(images)
    ):
        seen = np.array([image[place] for place in inside])
        got = [made[(n, *at)] for made in flat]
        assert got[0] == seen.max()
        assert x.ravel()[got[1]] == seen.max()
        np.testing.assert_allclose(got[2], seen.mean())
        np.testing.assert_allclose(got[3], seen.sum() / (len(seen) + padded))
        np.testing.assert_allclose(got[4], (np.abs(seen) ** 3).sum() ** (1 / 3))


def test_indices_count_columns_first_if_asked(run_op):
    x = np.arange(1.0, 26).reshape(1, 1, 5, 5)
    kinds = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0,) * 4}
    _, index = run_op("max_pool", x, outputs=2, column_major=True, **kinds)
    assert index.ravel().tolist() == [6, 16, 8, 18]


def test_max_pool_of_integers_and_nan(run_op):
    kinds = {"kernel": (2,), "strides": (1,), "dilations": (1,), "pads": (1, 0)}
    assert run_op("max_pool", np.int8([[[-128, -5, 3]]]), **kinds).ravel().tolist() == [-128, -5, 3]
    made = run_op("max_pool", np.float32([[[1, np.nan, 3]]]), **kinds)
    assert np.isnan(made).ravel().tolist() == [False, True, True]


def test_max_unpool_undoes_max_pool(run_op, rng):
    x = rng.standard_normal((2, 3, 6, 6)) + 10
    kinds = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0,) * 4}
    top, index = run_op("max_pool", x, outputs=2, **kinds)
    back = run_op("max_unpool", top, index, **kinds)
    assert back.shape == x.shape
    assert (back[back != 0] == x[back != 0]).all()
    assert (back != 0).sum() == top.size
    large = run_op("max_unpool", top, index, np.array([2, 3, 7, 8]), **kinds, symbolic=False)
    assert (large[:, :, :6, :6] == back).all()


def test_roi_align_of_a_plane_is_the_plane(run_op):
    """Between pixels of a linear image, bins hold their centres' values."""
    image = np.add.outer(np.arange(10.0), 2 * np.arange(12.0))[None, None]
    rois = np.array([[2.0, 3.0, 6.0, 7.0]])
    kinds = {"size": (2, 2), "sampling_ratio": 2}
    made = run_op("roi_align", image, rois, np.array([0]), **kinds)
    rows, columns = np.array([3.5, 5.5]), np.array([2.5, 4.5])
    np.testing.assert_allclose(made[0, 0], np.add.outer(rows, 2 * columns))


def test_max_roi_pool(run_op):
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    made = run_op("max_roi_pool", x, np.array([[0.0, 1, 1, 4, 4]]), size=(2, 2))
    assert made.ravel().tolist() == [14, 16, 26, 28]


def test_what_does_not_fit(run_op):
    kinds = {"kernel": (2,), "strides": (1,), "dilations": (1,), "pads": (0, 0)}
    with pytest.raises(UserError, match=r"TW1204.*strides of max_pool needs 2"):
        run_op("max_pool", np.ones((1, 1, 4, 4)), **kinds)
    with pytest.raises(UserError, match=r"TW1204.*kernel of avg_pool needs 1 values, got 2"):
        run_op("avg_pool", np.ones((1, 1, 4)), **{**kinds, "kernel": (2, 2)})
    with pytest.raises(UserError, match="TW1207"):
        run_op("max_roi_pool", np.ones((1, 4, 4)), np.ones((1, 5)), size=(2, 2))
