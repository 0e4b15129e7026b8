"""A data type has a short name, and NumPy's name means the same."""

import numpy as np
import pytest

from tilewright.base.dtype import dtype, is_dtype_name
from tilewright.base.errors import UserError


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("float64", "f64"),
        ("float32", "f32"),
        ("float16", "f16"),
        ("bfloat16", "bf16"),
        ("float8_e4m3fn", "f8e4m3"),
        ("float8_e5m2", "f8e5m2"),
        ("int8", "i8"),
        ("int4", "i4"),
        ("int64", "i64"),
        ("uint8", "u8"),
        ("uint16", "u16"),
        ("bool", "bool"),
        ("float32x16", "f32x16"),
    ],
)
def test_numpy_names_mean_the_same_type(name, short):
    assert dtype(name) is dtype(short)
    assert str(dtype(name)) == short


def test_numpy_types_are_accepted():
    assert dtype(np.float32) is dtype("f32")
    assert dtype(np.dtype("int8")) is dtype("i8")


def test_program_text_keeps_to_the_short_names():
    assert is_dtype_name("f32")
    assert not is_dtype_name("float32")


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="unknown data type 'float31'"):
        dtype("float31")
    for lanes in ("65536", "100000", "1" * 5000):  # DLPack's field has 16 bits
        with pytest.raises(UserError, match="unknown data type"):
            dtype(f"f32x{lanes}")
