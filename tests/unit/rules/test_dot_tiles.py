"""Register tiles of dot products: few rows of A meet columns of B that lie along k."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule
from tilewright.rules.cpu.dot_tiles import DOT_TILES
from tilewright.tensor.ir import Function

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def dots(m: int, n: int, k: int) -> Function:
    A, B = te.placeholder((m, k), name="A"), te.placeholder((n, k), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[j, r], axis=r), name="C")
    D = te.compute((m, n), lambda i, j: te.max(C[i, j], 0.0), name="D")
    return te.function([A, B, D], name="layer")


def test_every_plan_keeps_the_answer(check_plans) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((5, 64), (13, 64)))
    outputs = [((5, 13), np.float32)]
    check_plans(
        dots(5, 13, 64), DOT_TILES, "x86_64-linux-gnu -mcpu=haswell", [a, b], outputs, plans=12
    )


@pytest.mark.parametrize(
    ("fn", "constants", "rule"),
    [
        (dots(8, 64, 128), (), "dot_tiles"),
        (dots(8, 64, 128), ("B",), "gemm"),  # packed once
        (dots(64, 64, 128), (), "gemm"),  # rows enough to pay for packing
        (dots(2, 64, 128), (), "dot_tiles"),
        (dots(1, 64, 128), (), "fused_reductions"),
        (dots(8, 64, 127), (), "gemm"),  # no whole vectors
    ],
    ids=["few rows", "constant", "many rows", "two rows", "one row", "odd k"],
)
def test_few_rows_of_a_b_that_changes_take_dot_products(fn, constants, rule) -> None:
    made = schedule(fn, SERVER, constants=constants)
    assert rule in [each.rule for each in made.decisions]


@pytest.mark.parametrize(
    ("fn", "rule"),
    [
        (dots(32, 512, 512), "dot_tiles"),
        (dots(128, 512, 512), "gemm"),
        (dots(49, 49, 32), "gemm"),  # lanes of sums outnumber their steps
    ],
    ids=["turned for few rows", "turned for many", "short sums"],
)
def test_b_is_turned_where_rows_or_short_sums_pay_for_it(fn, rule) -> None:
    made = schedule(fn, "x86_64-linux-gnu -mcpu=cascadelake")
    assert rule in [each.rule for each in made.decisions]
