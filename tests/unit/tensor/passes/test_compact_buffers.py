"""Buffers of sizes that may be empty."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te, tensor
from tilewright.tensor import Schedule
from tilewright.tensor.passes import lower


@pytest.mark.parametrize("sizes", [(5, 0), (0, 3), (0, 0), (5, 3)])
def test_no_size_divides_by_an_empty_one(sizes):
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((6, n, m), "i32", name="A")
    s = te.compute((6, n, m), lambda i, j, k: a[i, j, k] * 0, name="S")
    sch = Schedule(te.function([a, s]))
    block = sch.get_block("S")
    copy = sch.cache_write(block, 0, "local")
    sch.transform_layout(block, ("write", 0), "(i, j, k) -> (k, j // 4, i, j % 4)")
    for each in (block, copy):
        _, j, k = sch.get_loops(each)
        sch.fuse(j, k)
    flat = lower(sch.function, "cpu")
    given = np.ones((6, *sizes), np.int32)
    made = np.full((6, *sizes), 7, np.int32)
    tensor.interpret(flat, given, made)
    assert (made == 0).all()
