"""Lanes of floats become integers as single floats do: truncated, saturated, NaN to 0."""

import numpy as np
import pytest

from tilewright.tensor import parse

EDGES = [float(2**power + step) for power in (7, 8, 15, 16, 31, 32, 63, 64) for step in (-1, 0)]
VALUES = [0.0, 1.5, 0.999, 2147483520.0, 1e30, np.inf, np.nan, *EDGES]
INTEGERS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_lanes_saturate(source, of, agree):
    values = np.array([*VALUES, *[-x for x in VALUES]], np.float64)
    n = len(values)
    program = parse(
        f"func @f(%x: {source}[{n}], %y: {of}[{n}]) stage scheduled {{"
        f"  for %i in vector 0..{n} {{ block @y(%v: spatial {n} = %i) {{"
        f"    reads %x[%v] writes %y[%v] %y[%v] = {of}(%x[%v]) }} }} }}"
    )
    x = values.astype(np.float32 if source == "f32" else np.float64)
    agree(program, x, np.zeros(n, program.params[1].dtype.numpy))
