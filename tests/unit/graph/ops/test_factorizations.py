"""Factors of matrices: what they multiply to."""

import numpy as np
import pytest

from tilewright.base.errors import UserError


@pytest.fixture
def square(rng):
    return rng.standard_normal((2, 5, 5))


def turned(x):
    return np.swapaxes(x, -1, -2)


def test_cholesky_multiplies_back(run_op, square):
    positive = square @ turned(square) + np.eye(5)
    lower, info = run_op("cholesky", positive, outputs=2, symbolic=False)
    np.testing.assert_allclose(lower @ turned(lower), positive, rtol=1e-12)
    np.testing.assert_array_equal(info, 0)


def test_cholesky_tells_where_no_root_is(run_op):
    _, info = run_op("cholesky", np.diag([1.0, -1.0, 2.0]), outputs=2, symbolic=False)
    assert info == 2


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 3), (3, 5)])
def test_lu_multiplies_back(run_op, rng, shape):
    x = rng.standard_normal(shape)
    packed, pivots, info = run_op("lu", x, outputs=3, symbolic=False)
    least = min(shape[-2:])
    lower = np.tril(packed[..., :least], -1) + np.eye(shape[-2], least)
    made = lower @ np.triu(packed[..., :least, :])
    for at in np.ndindex(*shape[:-2]):
        for step in reversed(range(least)):
            row = pivots[(*at, step)] - 1
            made[at][[step, row]] = made[at][[row, step]]
    np.testing.assert_allclose(made, x, atol=1e-12)
    np.testing.assert_array_equal(info, 0)


@pytest.mark.parametrize("lower", [True, False])
def test_triangular_solve_solves(run_op, rng, square, lower):
    a, b = square + 4 * np.eye(5), rng.standard_normal((2, 5, 3))
    x = run_op("triangular_solve", a, b, lower=lower, symbolic=False)
    np.testing.assert_allclose((np.tril(a) if lower else np.triu(a)) @ x, b, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 3)])
def test_reflections_multiply_back(run_op, rng, shape):
    x = rng.standard_normal(shape)
    packed, tau = run_op("householder", x, outputs=2, symbolic=False)
    q = run_op("householder_product", packed, tau, symbolic=False)
    np.testing.assert_allclose(
        turned(q) @ q, np.broadcast_to(np.eye(shape[-1]), (turned(q) @ q).shape), atol=1e-12
    )
    np.testing.assert_allclose(q @ np.triu(packed)[..., : shape[-1], :], x, atol=1e-12)


def test_eigenvectors_diagonalise(run_op, square):
    x = square + turned(square)
    values, vectors = run_op("eigh", x, outputs=2, symbolic=False)
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=1e-12)
    assert (np.diff(values) >= 0).all()


def test_singular_vectors_multiply_back(run_op, rng):
    x = rng.standard_normal((2, 6, 4))
    u, s, v = run_op("svd", x, outputs=3, symbolic=False)
    np.testing.assert_allclose((u * s[..., None, :]) @ turned(v), x, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "shapes", "error"),
    [
        ("cholesky", [(2, 3)], "TW1015.*sides"),
        ("lu", [(3,)], "TW1202"),
        ("svd", [(2, 3)], "TW1202.*rows"),
        ("triangular_solve", [(3, 3), (4, 2)], "TW1015"),
        ("triangular_solve", [(2, 3, 3), (3, 2)], "TW1202.*broadcast"),
    ],
)
def test_shapes_that_do_not_fit(run_op, op, shapes, error):
    with pytest.raises(UserError, match=error):
        run_op(op, *(np.ones(shape) for shape in shapes), symbolic=False)
