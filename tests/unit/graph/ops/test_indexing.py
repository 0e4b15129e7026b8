"""Elements picked and placed by index, against loops that say what that is."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import F32, I64
from tilewright.base.errors import ExecutionError, UserError, UserTypeError
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_gather_takes_slices(run_op, rng, axis, shape):
    x = rng.standard_normal((3, 4, 5))
    indices = rng.integers(-3, 3, shape)
    np.testing.assert_array_equal(
        run_op("gather", x, indices, axis=axis), np.take(x, indices, axis)
    )


def test_an_index_outside_is_a_fault(run_op):
    for bad in (4, -5):
        with pytest.raises(ExecutionError, match="TW1017"):
            run_op("gather", np.zeros(4), np.array([bad]), axis=0)


def test_gather_elements_may_have_fewer_indices_than_data(run_op, rng):
    x = rng.standard_normal((3, 4, 5))
    indices = rng.integers(-4, 4, (2, 6, 1))
    made = run_op("gather_elements", x, indices, axis=1)
    for i, j, k in np.ndindex(indices.shape):
        assert made[i, j, k] == x[i, indices[i, j, k], k]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd_addresses_leading_dimensions(run_op, rng, batch, depth):
    x = rng.standard_normal((2, 3, 4, 5))
    indices = rng.integers(-2, 2, (2, 6, depth))
    made = run_op("gather_nd", x, indices, batch_dims=batch, symbolic=False)
    for b, i in np.ndindex(2, 6):
        lead = (b,) * batch
        np.testing.assert_array_equal(made[b, i], x[(*lead, *indices[b, i])])


def test_how_much_gather_nd_addresses_is_known(run_op):
    builder = Builder()
    x = builder.param("x", TensorType(F32, (const(4), const(5))))
    for shape in ((const(2), const(3)), (const(2), size("k"))):
        i = builder.param("i", TensorType(I64, shape))
        with pytest.raises(UserError, match="TW1307"):
            builder.add("gather_nd", x, i)


# ------------------------------------------------------------------------------------ scatter

UPDATE = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("reduction", UPDATE)
def test_scatter_elements(run_op, rng, reduction):
    x, updates = rng.standard_normal((3, 4)), rng.standard_normal((2, 3))
    indices = np.array([[0, -1, 2], [1, 3, 0]])
    if reduction != "none":
        indices = np.array([[0, 0, 2], [1, -3, 0]])
    made = run_op("scatter_elements", x, indices, updates, axis=1, reduction=reduction)
    want = x.copy()
    for i, j in np.ndindex(2, 3):
        at = i, indices[i, j]
        want[at] = UPDATE[reduction](want[at], updates[i, j])
    np.testing.assert_allclose(made, want)


@pytest.mark.parametrize("reduction", UPDATE)
def test_scatter_nd(run_op, rng, reduction):
    x, updates = rng.standard_normal((4, 5, 2)), rng.standard_normal((3, 2))
    indices = np.array([[0, 1], [-1, 2], [3, 0]])
    made = run_op("scatter_nd", x, indices, updates, reduction=reduction, symbolic=False)
    want = x.copy()
    for row, update in zip(indices, updates, strict=True):
        for k in range(2):
            at = (*row, k)
            want[at] = UPDATE[reduction](want[at], update[k])
    np.testing.assert_allclose(made, want)


def test_sums_of_small_floats_round_once(run_op):
    x = np.zeros(1, ml_dtypes.bfloat16)
    updates = np.full(300, 1.0, ml_dtypes.bfloat16)  # 256 + 1 is 256 in this type
    made = run_op("scatter_elements", x, np.zeros(300, np.int64), updates, axis=0, reduction="add")
    assert made.dtype == ml_dtypes.bfloat16
    assert float(made[0]) == 300.0


def test_scatters_that_cannot_be(run_op):
    x, i, u = np.zeros(4), np.zeros(2, np.int64), np.zeros(2)
    with pytest.raises(UserError, match="TW1308"):
        run_op("scatter_elements", x, i, u, axis=0, reduction="mean")
    with pytest.raises(UserError, match="TW1015"):
        run_op("scatter_elements", x, i, np.zeros(3), axis=0)
    with pytest.raises(UserTypeError, match="TW1012"):
        run_op("scatter_elements", x, i, u.astype(np.float32), axis=0)


# ------------------------------------------------------------------------------------ search


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 0), (1, 2, 3)])
def test_nonzero(run_op, rng, shape):
    x = rng.integers(0, 2, shape).astype(np.float32)
    np.testing.assert_array_equal(run_op("nonzero", x), np.stack(np.nonzero(x)))


def test_nonzero_of_a_scalar_has_no_rows(run_op):
    assert run_op("nonzero", np.array(3.0)).shape == (0, 1)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("in_order", [True, False])
def test_unique(run_op, rng, axis, in_order):
    x = rng.integers(0, 3, (4, 3))
    values, first, inverse, counts = run_op(
        "unique", x, outputs=4, axis=axis, sorted=in_order, symbolic=False
    )
    rows = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
    found = values if axis is None else np.moveaxis(values, axis, 0)
    np.testing.assert_array_equal(found[inverse], rows)
    np.testing.assert_array_equal(rows[first], found)
    assert counts.sum() == len(rows)
    assert all(np.array_equal(np.bincount(inverse), counts) for _ in range(1))
    if not in_order:
        assert (np.diff(first) > 0).all()
    elif axis is None:
        assert (np.diff(values) > 0).all()


def test_unique_gives_as_much_as_asked(run_op):
    assert run_op("unique", np.array([2, 1, 2])).tolist() == [1, 2]
