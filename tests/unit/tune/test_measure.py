"""What counts as wrong: one element is enough, rounding is not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.tune.measure import tolerance, wrong

RANDOM = np.random.default_rng(0)


def sums(dtype, length=512):
    a = RANDOM.standard_normal((64, length)).astype(np.float32)
    one = a.sum(axis=1, dtype=np.float32).astype(dtype)
    other = a[:, ::-1].cumsum(axis=1, dtype=np.float32)[:, -1].astype(dtype)
    return one, other


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_sums_in_another_order_are_right(dtype):
    assert wrong(*sums(dtype), reduction=512) == ""


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_one_wrong_element_is_found(dtype):
    want = RANDOM.standard_normal((30, 40)).astype(dtype)
    got = want.copy()
    got[7, 9] += 2.0
    assert "off by" in wrong(got, want, reduction=512)


def test_garbage_is_found():
    want = np.ones(8, np.float32)
    assert "not finite" in wrong(np.full(8, np.nan, np.float32), want)
    assert wrong(np.full(8, np.nan, np.float32), np.full(8, np.nan, np.float32)) == ""


def test_whole_numbers_are_equal_and_bytes_may_be_rounded():
    want = np.arange(10)
    assert wrong(want, want) == ""
    assert "off by 1" in wrong(want + (want == 3), want)
    small = want.astype(np.uint8)
    assert wrong(small + np.uint8(1), small) == ""
    assert "off by 2" in wrong(small + np.uint8(2), small)
    truth = want > 4
    assert "off by 1" in wrong(~truth, truth)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.int4, *map(np.dtype, ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"))]
)
def test_differences_of_whole_numbers_do_not_wrap(dtype):
    info = ml_dtypes.iinfo(dtype)
    low, high = (np.array([edge], dtype) for edge in (info.min, info.max))
    for got, want in ((low, high), (high, low)):
        assert wrong(got, want) == f"a whole number is off by {int(info.max) - int(info.min)}"


def test_other_shapes_and_types_are_wrong():
    assert "not float32[3]" in wrong(np.zeros(2, np.float32), np.zeros(3, np.float32))
    assert "not float32[3]" in wrong(np.zeros(3), np.zeros(3, np.float32))


def test_nothing_is_allowed_for_whole_numbers():
    assert tolerance("int32", 100) == 0.0
    assert tolerance("bfloat16", 1) > tolerance("float32", 1) > tolerance("float64", 1)
