"""Values of the interpreter: one at a time or many at once, they are converted alike."""

import math

import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.tensor.interp.values import convert

EDGES = [0.0, -0.0, 0.5, -0.9, 1.5, -2.5, math.inf, -math.inf, math.nan, 1e30, -1e30]
LIMITS = [sign * (2.0**bits + by) for bits in range(65) for by in (-1, 0, 0.5) for sign in (1, -1)]


@pytest.mark.parametrize("of", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("to", ["i2", "u2", "i4", "u4", "i8", "u8", "i32", "u32", "i64", "u64"])
def test_one_float_is_truncated_as_many_are(of, to):
    source, target = dtype(of), dtype(to)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array([*EDGES, *LIMITS]).astype(source.numpy)
        many = convert(values, source, target)
        single = [convert(value, source, target) for value in values]
    assert {type(one) for one in single} == {target.numpy.type}
    assert list(map(int, single)) == list(map(int, many))
