"""A reduction whose symbolic extent turns out to be zero should give the identity (issue 2)."""

import numpy as np
import pytest

from tilewright import te
from tilewright.tensor import interpret


@pytest.mark.xfail(reason="issue 2: no instance of the block runs, hence no init", strict=True)
def test_an_empty_sum_is_zero():
    n, k = te.var("n"), te.var("k")
    A = te.placeholder((n, k), name="A")
    r = te.reduce_axis((0, k), name="r")
    B = te.compute((n,), lambda i: te.sum(A[i, r], axis=r), name="B")
    out = np.full(3, np.nan, np.float32)
    interpret(te.function([A, B]), np.zeros((3, 0), np.float32), out)
    assert out.tolist() == [0, 0, 0]
