"""Conversion between element types."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.base.errors import UserError

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("values", "of", "to", "want"),
    [
        # Floats to integers truncate and saturate; NaN becomes 0.
        ([1.9, -1.9, 300.0, -300.0, NAN, INF], "f32", "i8", [1, -1, 127, -128, 0, 127]),
        ([-1.0, 3e9, 5e9], "f64", "u32", [0, 3000000000, 4294967295]),
        ([1e30, -1e30], "f32", "i64", [2**63 - 1, -(2**63)]),
        ([1e30, -1e30], "f32", "u64", np.uint64([2**64 - 1, 0])),
        # Integers keep their low bits.
        ([200, -200, 5], "i16", "i8", [-56, 56, 5]),
        ([200, 9, -1], "i16", "u4", [8, 9, 15]),
        ([8, 7, -9], "i8", "i4", [-8, 7, 7]),
        ([2, 3, -1], "i8", "i2", [-2, -1, -1]),
        # Anything but zero is true.
        ([0.0, -0.0, 0.1, NAN], "f32", "bool", [False, False, True, True]),
        ([True, False], "bool", "f16", [1.0, 0.0]),
        # Floats round to the nearest even and overflow to infinity.
        ([65519.0, 65520.0, 1e-8], "f32", "f16", [65504.0, INF, 0.0]),
        # Eight-bit floats saturate.
        ([500.0, -500.0, INF, 0.3], "f32", "f8e4m3", [448.0, -448.0, 448.0, 0.3125]),
        ([1e6, -INF, 3.0], "f32", "f8e5m2", [57344.0, -57344.0, 3.0]),
        # Powers of two round up.
        ([0.0, 0.124, 1.0, 1.1, INF], "f32", "f8e8m0", [2.0**-127, 0.125, 1.0, 2.0, 2.0**127]),
    ],
)  # fmt: skip
def test_cast(run_op, values, of, to, want):
    x = np.array(values).astype(dtype(of).numpy)
    made = run_op("cast", x, to=dtype(to))
    assert made.dtype == dtype(to).numpy
    np.testing.assert_array_equal(made, np.array(want).astype(dtype(to).numpy))


def test_cast_need_not_saturate(run_op):
    made = run_op("cast", np.float32([500, INF, 1]), to=dtype("f8e4m3"), saturate=False)
    assert np.isnan(made.astype(np.float32)).tolist() == [True, True, False]
    made = run_op("cast", np.float32([1e6, -INF]), to=dtype("f8e5m2"), saturate=False)
    assert made.astype(np.float32).tolist() == [INF, -INF]


@pytest.mark.parametrize(
    ("mode", "want"), [("up", [4, 4, 2]), ("down", [2, 2, 2]), ("nearest", [2, 4, 2])]
)
def test_powers_of_two_round_as_asked(run_op, mode, want):
    made = run_op("cast", np.float32([2.9, 3.0, 2.0]), to=dtype("f8e8m0"), round_mode=mode)
    assert made.astype(np.float32).tolist() == want


@pytest.mark.parametrize("of", ["f16", "bf16", "f8e4m3", "f8e4m3fnuz", "f8e5m2", "f4e2m1", "i4"])
def test_small_types_go_to_f32_and_back(run_op, of):
    bits = np.arange(256 if dtype(of).bits >= 8 else 1 << dtype(of).bits)
    x = bits.astype(np.uint16 if dtype(of).bits == 16 else np.uint8).view(dtype(of).numpy)
    wide = run_op("cast", x, to=dtype("f32"))
    if dtype(of).is_int:
        wide = wide.astype(np.int8)
    back = run_op("cast", wide, to=dtype(of), saturate=False)
    same = (back == x) | np.isnan(wide)
    assert same.all()


def test_numbers_are_written_and_read(run_op):
    x = np.float32([0.1, 1e10, 123456.789, 1e-5, NAN, INF, -INF, 3])
    made = run_op("cast_text", x, to=dtype("str"))
    want = ["0.1", "1e+10", "123456.79", "9.9999997e-06", "NaN", "INF", "-INF", "3"]
    assert made.tolist() == want
    back = run_op("cast_text", made, to=dtype("f32"))
    np.testing.assert_allclose(back, x, rtol=1e-7)
    whole = np.array(["42", "-7", "100.5"], object)
    assert run_op("cast_text", whole, to=dtype("i32")).tolist() == [42, -7, 100]


def test_bitcast_reads_the_same_bits(run_op):
    x = np.float32([1.0, -0.0, NAN])
    made = run_op("bitcast", x, to=dtype("u32"))
    assert made.tolist() == x.view(np.uint32).tolist()
    small = np.array([1, -1], ml_dtypes.int4)
    assert run_op("bitcast", small, to=dtype("u4")).astype(int).tolist() == [1, 15]


def test_bitcast_keeps_the_width(run_op):
    with pytest.raises(UserError, match=r"TW1201.*of 32 bits to f16 of 16"):
        run_op("bitcast", np.zeros(2, np.float32), to=dtype("f16"))
