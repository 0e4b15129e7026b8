"""How many steps of a sum are taken at a time."""

from __future__ import annotations

from tilewright import te
from tilewright.rules import default_schedule
from tilewright.rules.cpu.gemm_model import BODY_FMAS, unrolled_steps
from tilewright.tensor.ir import UNROLL, For
from tilewright.tensor.visit import walk


def test_steps_divide_the_sum_and_keep_the_code_short() -> None:
    assert unrolled_steps(768, 24) == 4
    assert unrolled_steps(6, 24) == 2
    assert unrolled_steps(197, 24) == 1
    assert unrolled_steps(768, BODY_FMAS // 2) == 2
    assert unrolled_steps(768, BODY_FMAS) == 1
    assert unrolled_steps(768, 24, most=1) == 1


def test_a_product_takes_several_steps_and_asks_for_weights_ahead() -> None:
    A, B = te.placeholder((96, 768), name="A"), te.placeholder((768, 512), name="B")
    r = te.reduce_axis((0, 768), name="r")
    C = te.compute((96, 512), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    fn = te.function([A, B, C], name="matmul")
    found = default_schedule(fn, "x86_64-linux-gnu -mcpu=skylake-avx512", constants=["B"]).function
    unrolled = [loop for loop in walk(found.body) if isinstance(loop, For) and loop.kind == UNROLL]
    assert any(loop.var.name == "r_1" for loop in unrolled)
    assert "prefetch(address(%B_global" in str(found)
