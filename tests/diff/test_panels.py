"""A matrix packed in panels that do not divide its width."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te

SIZES = {"n": 5, "m": 100, "k": 7}


def packed(n, m, k, inside):
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    sch = tw.Schedule(te.function([A, B, C], name="matmul"))
    c = sch.get_block("C")
    panels = sch.cache_read(c, 1, "global")
    i, j, r = sch.get_loops(c)
    jo, ji = sch.split(j, [None, 48])
    sch.reorder(jo, i, r, ji)
    sch.vectorize(ji)
    if inside:
        sch.compute_at(panels, jo)
    sch.transform_layout(panels, ("write", 0), "(k, j) -> (j // 48, k, j % 48)")
    return sch.function


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_panels_left_partly_empty_change_nothing(symbolic, inside):
    sizes = [te.var(name) if symbolic else size for name, size in SIZES.items()]
    function = packed(*sizes, inside)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 7)).astype(np.float32)
    b = rng.standard_normal((7, 100)).astype(np.float32)
    for run in (lambda *args: tw.interpret(function, *args), tw.build(function)):
        c = np.full((5, 100), np.nan, np.float32)
        run(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
