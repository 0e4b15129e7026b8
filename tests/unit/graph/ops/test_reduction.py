"""Reductions and running sums, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError, UserTypeError
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size

NUMPY = {
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
}


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("axes", [(0,), (1, -1), (0, 1, 2), ()])
def test_reductions(run_op, rng, op, keep, axes):
    x = rng.standard_normal((2, 3, 4))
    want = NUMPY[op](x, axis=axes, keepdims=keep)
    np.testing.assert_allclose(run_op(op, x, axes=axes, keepdims=keep), want)
    by_data = run_op(op, x, np.array(axes, np.int64), keepdims=keep)
    np.testing.assert_allclose(by_data, want)


@pytest.mark.parametrize("op", NUMPY)
def test_without_axes_all_are_meant(run_op, rng, op):
    x = rng.standard_normal((2, 3))
    np.testing.assert_allclose(run_op(op, x, keepdims=False), NUMPY[op](x))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("reduce_sum", 0.0),
        ("reduce_prod", 1.0),
        ("reduce_max", -np.inf),
        ("reduce_min", np.inf),
        ("reduce_mean", np.nan),
    ],
)
def test_of_nothing(run_op, op, want):
    made = run_op(op, np.zeros((2, 0, 3), np.float32), axes=(1,), keepdims=False)
    assert made.shape == (2, 3)
    np.testing.assert_array_equal(made, np.full((2, 3), want, np.float32))


def test_extremes_of_nothing_in_integers_and_truth_values(run_op):
    assert run_op("reduce_max", np.zeros(0, np.int8), axes=(0,)).tolist() == [-128]
    assert run_op("reduce_min", np.zeros(0, np.uint16), axes=(0,)).tolist() == [65535]
    assert run_op("reduce_max", np.zeros(0, bool), axes=(0,)).tolist() == [False]
    assert run_op("reduce_min", np.zeros(0, bool), axes=(0,)).tolist() == [True]


def test_nan_wins(run_op):
    x = np.array([1.0, np.nan, 2.0])
    assert np.isnan(run_op("reduce_max", x)).all()
    assert np.isnan(run_op("reduce_min", x)).all()


def test_integers_wrap_and_small_floats_round_once(run_op):
    assert run_op("reduce_sum", np.full(3, 100, np.int8)).tolist() == [44]
    x = np.full(300, 1.0, ml_dtypes.bfloat16)
    assert float(run_op("reduce_sum", x)[0]) == 300.0
    assert run_op("reduce_mean", np.array([-3, 2], np.int32)).tolist() == [0]


def test_products_of_shapes_are_followed():
    n = size("n")
    builder = Builder()
    x = builder.param("x", TensorType(F32, (n, const(3), n)))
    total = builder.add("reduce_prod", builder.add("shape", x), axes=(0,), keepdims=False)
    (known,) = builder.known[total]
    assert str(known) in ("n * n * 3", "3 * n * n", "n * 3 * n")


def test_axes_that_cannot_be(run_op):
    for axes in ((3,), (0, 0), (0, -2)):
        with pytest.raises(UserError, match="TW1301"):
            run_op("reduce_sum", np.zeros((2, 3)), axes=axes)
    with pytest.raises(UserTypeError, match="TW1008"):
        run_op("reduce_sum", np.zeros(2), keepdims=1)


@pytest.mark.parametrize(("op", "fn"), [("arg_max", np.argmax), ("arg_min", np.argmin)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keep", [True, False])
def test_places_of_extremes(run_op, rng, op, fn, axis, keep):
    x = rng.integers(0, 3, (4, 5))
    made = run_op(op, x, axis=axis, keepdims=keep)
    np.testing.assert_array_equal(made, fn(x, axis=axis, keepdims=keep))
    last = run_op(op, x, axis=axis, keepdims=False, last=True)
    flipped = x.shape[axis] - 1 - fn(np.flip(x, axis), axis=axis)
    np.testing.assert_array_equal(last, flipped)


@pytest.mark.parametrize(
    ("op", "fn", "start"), [("cumsum", np.cumsum, 0), ("cumprod", np.cumprod, 1)]
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running(run_op, rng, op, fn, start, reverse, exclusive):
    x = rng.standard_normal((3, 4))
    turned = x[:, ::-1] if reverse else x
    want = fn(turned, axis=1)
    if exclusive:
        want = np.concatenate([np.full((3, 1), start), want[:, :-1]], axis=1)
    want = want[:, ::-1] if reverse else want
    flags = {"reverse": reverse, "exclusive": exclusive}
    np.testing.assert_allclose(run_op(op, x, axis=1, **flags), want)
    np.testing.assert_allclose(run_op(op, x, np.array(-1), **flags), want)


def test_running_over_nothing(run_op):
    assert run_op("cumsum", np.zeros((2, 0)), axis=1, exclusive=True).shape == (2, 0)
