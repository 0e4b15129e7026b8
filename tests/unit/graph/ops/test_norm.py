"""Normalization by what it must achieve."""

import numpy as np
import pytest

from tilewright.base.errors import UserError


@pytest.mark.parametrize("axes", [(0,), (2,), (1, 2), (0, 1, 2)])
def test_softmax_is_a_distribution(run_op, rng, axes):
    x = rng.standard_normal((2, 3, 4)).astype(np.float32) * 50
    made = run_op("softmax", x, axes=axes)
    np.testing.assert_allclose(made.sum(axis=axes), 1, rtol=1e-5)
    logs = run_op("log_softmax", x, axes=axes)
    np.testing.assert_allclose(np.exp(logs), made, rtol=1e-4, atol=1e-6)
    one = run_op("hardmax", x, axes=axes)
    assert (one.sum(axis=axes) == 1).all()
    assert (one * x).sum() == x.max(axis=axes).sum(dtype=np.float32)


def test_softmax_at_the_edges(run_op):
    assert run_op("softmax", np.float32([1e30, -1e30, 1e30]), axes=(0,)).tolist() == [0.5, 0, 0.5]
    assert run_op("softmax", np.ones((0, 3), np.float32), axes=(1,)).shape == (0, 3)
    assert run_op("hardmax", np.float32([2, 5, 5]), axes=(0,)).tolist() == [0, 1, 0]


def test_layer_norm(run_op, rng):
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    scale, bias = (rng.standard_normal((4, 5)).astype(np.float32) for _ in range(2))
    made, mean, inverse = run_op("layer_norm", x, scale, bias, outputs=3, axis=2, epsilon=0.0)
    assert mean.shape == inverse.shape == (2, 3, 1, 1)
    plain = (made - bias) / scale
    np.testing.assert_allclose(plain.mean(axis=(2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(plain.std(axis=(2, 3)), 1, rtol=1e-4)
    np.testing.assert_allclose(1 / inverse[..., 0, 0], x.std(axis=(2, 3)), rtol=1e-5)


def test_rms_norm_has_the_type_of_its_scale(run_op, rng):
    x, scale = rng.standard_normal((3, 8)).astype(np.float16), np.full(8, 2, np.float32)
    made = run_op("rms_norm", x, scale, axis=1, epsilon=0.0)
    assert made.dtype == np.float32
    np.testing.assert_allclose((made**2).mean(axis=1), 4, rtol=1e-3)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(run_op, rng, groups):
    x = rng.standard_normal((2, 4, 3, 5))
    made = run_op("group_norm", x, np.ones(4), np.zeros(4), groups=groups, epsilon=0.0)
    flat = made.reshape(2, groups, -1)
    np.testing.assert_allclose(flat.mean(axis=2), 0, atol=1e-9)
    np.testing.assert_allclose(flat.std(axis=2), 1)


def test_batch_norm(run_op, rng):
    x = rng.standard_normal((2, 3, 4, 5))
    scale, bias, mean, variance = np.abs(rng.standard_normal((4, 3)))
    made = run_op("batch_norm", x, scale, bias, mean, variance, epsilon=0.1)
    at = (1, 2, 3, 1)
    want = (x[at] - mean[2]) / np.sqrt(variance[2] + 0.1) * scale[2] + bias[2]
    np.testing.assert_allclose(made[at], want)


def test_lrn_looks_at_neighbouring_channels(run_op):
    x = np.ones((1, 5, 1))
    made = run_op("lrn", x, size=4, alpha=4.0, beta=1.0, bias=0.0)
    seen = [3, 4, 4, 3, 2]  # one before, itself, two behind
    np.testing.assert_allclose(made.ravel(), [1 / count for count in seen])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "error"),
    [
        ("softmax", [(2, 3)], {"axes": (2,)}, "TW1208.*axis 2 of softmax is not one of 2"),
        ("layer_norm", [(2, 3)], {"axis": -1}, "TW1208"),
        ("group_norm", [(2, 4, 3), (3,), (4,)], {"groups": 2}, "TW1015.*channels"),
        ("group_norm", [(2, 4, 3), (4,), (4,)], {"groups": 3}, "TW1205.*3 groups do not divide 4"),
        ("batch_norm", [(2, 4), (4, 1), (4,), (4,), (4,)], {}, "TW1209.*rank 2, not 1"),
        ("lrn", [(4,)], {"size": 3}, "TW1208.*axis 1 of lrn is not one of 1"),
        ("lrn", [(2, 4)], {"size": 0}, "TW1204.*window of 0 channels"),
    ],
)
def test_what_does_not_fit(run_op, op, shapes, attributes, error):
    with pytest.raises(UserError, match=error):
        run_op(op, *(np.ones(shape) for shape in shapes), **attributes)
