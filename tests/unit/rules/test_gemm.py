"""GEMM in register tiles: its plans keep the answer; how far it is unrolled, what is packed."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.base.dtype import F32, F64, I32
from tilewright.base.target import Target
from tilewright.rules import Choice, default_schedule, schedule
from tilewright.rules.cpu.gemm import GEMM
from tilewright.rules.cpu.gemm_model import longest_chain, shortest_part, unrolled_steps
from tilewright.sym import Expr
from tilewright.tensor.interp import interpret
from tilewright.tensor.ir import PARALLEL, UNROLL, For, Function
from tilewright.tensor.visit import walk

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def test_steps_divide_the_sum_and_keep_the_code_short() -> None:
    machine = Target.parse(SERVER).machine
    most = machine.loop_body_instructions
    assert unrolled_steps(768, 24, machine) == 4
    assert unrolled_steps(6, 24, machine) == 2
    assert unrolled_steps(197, 24, machine) == 1
    assert unrolled_steps(768, most // 2, machine) == 2
    assert unrolled_steps(768, most, machine) == 1
    assert unrolled_steps(768, 1, machine) == machine.fma_latency_cycles == 4


def product(m: int, n: int, k: int, *, along_k: bool = False) -> Function:
    A, B = te.placeholder((m, k), name="A"), te.placeholder((n, k) if along_k else (k, n), name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(A[i, r] * (B[j, r] if along_k else B[r, j]), axis=r)

    C = te.compute((m, n), element, name="C")
    return te.function([A, B, C], name="matmul")


def test_every_plan_keeps_the_answer(check_plans) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((27, 19), (19, 40)))
    outputs = [((27, 40), np.float32)]
    check_plans(
        product(27, 40, 19), GEMM, "x86_64-linux-gnu -mcpu=haswell", [a, b], outputs, plans=16
    )


@pytest.mark.parametrize(("n", "k"), [(40, 24), (37, 24), (40, 19)], ids=["even", "odd n", "odd k"])
def test_every_plan_of_a_b_along_k_keeps_the_answer(check_plans, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((27, k), (n, k)))
    outputs = [((27, n), np.float32)]
    fn = product(27, n, k, along_k=True)
    check_plans(fn, GEMM, "x86_64-linux-gnu -mcpu=haswell", [a, b], outputs, plans=12)


def test_b_along_k_is_packed_by_squares_of_its_blocks_of_k() -> None:
    given = "parallel=none m_chunks=1 pack_a=0 pack_b=panel"
    rest = "nc_panels=1 pad_n=0 k_unroll=1 prefetch_b=0 prefetch_next_panel=0 prefetch_a=0"
    for k, kc, is_square in (
        (256, 0, True),
        (250, 0, False),
        (1000, 200, True),
        (1000, 250, False),
    ):
        plan = f"mr=8 nr=2 {given} kc={kc} kc_outermost=0 {rest} alternate=0"
        fn, target = product(64, 64, k, along_k=True), "x86_64-linux-gnu -mcpu=cascadelake"
        made = schedule(fn, target, choices={"C": Choice("gemm", plan)})
        assert ("alloc %B_local" in str(made.schedule.function)) == is_square


def test_rows_of_a_tile_are_packed_where_their_stride_would_crowd_one_set() -> None:
    fn, target = product(64, 64, 1024), "x86_64-linux-gnu -mcpu=cascadelake"
    made = schedule(fn, target)
    decided = made.decisions[0]
    tall = decided.plan.replace("pack_a=0", "pack_a=1").replace(decided.plan.split()[0], "mr=12")
    tall = tall.replace(decided.plan.split()[1], "nr=2").replace("k_unroll=4", "k_unroll=2")
    given = {decided.block: Choice("gemm", tall)}
    packed = schedule(fn, target, choices=given).schedule.function
    assert "align(0, 32, 16)" in str(packed)


def test_parts_of_k_leave_several_chunks_of_n_to_every_thread() -> None:
    fn, target = product(64, 3072, 768), "x86_64-linux-gnu -mcpu=haswell"
    made = schedule(fn, target, threads=2, constants=("B",))
    assert "kc_outermost=1" in made.decisions[0].plan
    loops = [each for each in walk(made.schedule.function.body) if isinstance(each, For)]
    assert [str(each.extent) for each in loops if each.kind == PARALLEL] == ["16"]


@pytest.mark.parametrize("m", [16, 32, 64])
def test_few_rows_read_b_in_place_in_parts_that_stay_in_l2(m: int) -> None:
    """Packing B takes longer than the multiply-adds of so few rows."""
    target = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    for n, k in ((512, 512), (768, 768)):
        made = schedule(product(m, n, k), target)
        plan = dict(each.split("=") for each in made.decisions[0].plan.split())
        columns = 16 * int(plan["nr"]) * int(plan["nc_panels"])
        assert plan["pack_b"] == "none"
        assert (int(plan["kc"]) or k) <= target.machine.l2.kept_rows(4 * n, 4 * columns)


def test_many_rows_read_packed_panels() -> None:
    for mcpu in ("cascadelake", "haswell"):
        made = schedule(product(1000, 1000, 1000), f"x86_64-linux-gnu -mcpu={mcpu}")
        assert "pack_b=panel" in made.decisions[0].plan


@pytest.mark.parametrize("mcpu", ["cascadelake", "emeraldrapids"])
def test_a_sum_that_half_of_l2_holds_is_not_cut(mcpu: str) -> None:
    made = schedule(product(1024, 1024, 1024), f"x86_64-linux-gnu -mcpu={mcpu}")
    assert "kc=0" in made.decisions[0].plan


@pytest.mark.parametrize("mcpu", ["cascadelake", "haswell"])
def test_a_tile_leaves_registers_to_the_rest_of_its_loop(mcpu: str) -> None:
    target = Target.parse(f"x86_64-linux-gnu -mcpu={mcpu}")
    made = schedule(product(198, 768, 768), target, constants=("B",))
    plan = dict(each.split("=") for each in made.decisions[0].plan.split())
    rows, vectors = int(plan["mr"]), int(plan["nr"])
    assert rows * vectors + vectors < target.vector_registers - target.spare_registers


def transposed(m: int, n: int, k: int) -> Function:
    A, B = te.placeholder((k, m), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[r, i] * B[r, j], axis=r), name="C")
    return te.function([A, B, C], name="gradient")


def test_columns_of_a_are_packed_where_steps_of_k_are_many_lines() -> None:
    few = default_schedule(transposed(96, 64, 8), SERVER).function
    many = default_schedule(transposed(384, 64, 2048), SERVER).function  # A exceeds half of L2
    assert "%A_global" not in str(few)
    assert "%A_global" in str(many)


def test_columns_of_a_are_packed_where_their_lines_compete_for_few_sets() -> None:
    arm = "aarch64-linux-gnu -mcpu=neoverse-n1"
    for m, is_packed in ((256, True), (240, False)):
        made = schedule(transposed(m, 2304, 392), arm)
        (plan,) = [each.plan for each in made.decisions if each.rule == GEMM.name]
        assert ("pack_a=1" in plan) is is_packed


def test_every_plan_of_a_transposed_operand_keeps_the_answer(check_plans) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((19, 27), (19, 40)))
    outputs = [((27, 40), np.float32)]
    check_plans(
        transposed(27, 40, 19), GEMM, "x86_64-linux-gnu -mcpu=haswell", [a, b], outputs, plans=12
    )


def test_every_plan_of_a_batch_of_transposed_operands_keeps_the_answer(check_plans) -> None:
    A, B = te.placeholder((3, 19, 27), name="A"), te.placeholder((3, 19, 40), name="B")
    r = te.reduce_axis((0, 19), name="r")
    C = te.compute((3, 27, 40), lambda b, i, j: te.sum(A[b, r, i] * B[b, r, j], axis=r), name="C")
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal(shape).astype(np.float32) for shape in ((3, 19, 27), (3, 19, 40))
    )
    fn, outputs = te.function([A, B, C], name="batch"), [((3, 27, 40), np.float32)]
    check_plans(fn, GEMM, "x86_64-linux-gnu -mcpu=haswell", [a, b], outputs, plans=12)


def packing_a(mr: int, nr: int) -> Choice:
    """A plan that packs columns of A."""
    rest = "pack_b=none kc=0 kc_outermost=0 nc_panels=1 pad_n=0 k_unroll=1 prefetch_b=0"
    return Choice(
        "gemm",
        f"mr={mr} nr={nr} parallel=none m_chunks=1 pack_a=1 {rest} prefetch_next_panel=0 "
        "prefetch_a=0 alternate=0",
    )


def test_columns_of_a_batch_are_packed_one_matrix_at_a_time() -> None:
    A, B = te.placeholder((8, 64, 64), name="A"), te.placeholder((8, 64, 64), name="B")
    r = te.reduce_axis((0, 64), name="r")
    C = te.compute((8, 64, 64), lambda b, i, j: te.sum(A[b, r, i] * B[b, r, j], axis=r), name="C")
    made = schedule(te.function([A, B, C], name="batch"), SERVER, choices={"C": packing_a(8, 2)})
    text = str(made.schedule.function)
    assert "block @A_global" in text
    assert sum(line.startswith("  for ") for line in text.splitlines()) == 1  # over the batch


def test_columns_of_a_are_packed_beside_few_columns_of_b() -> None:
    fn = schedule(transposed(8, 8, 577), SERVER, choices={"C": packing_a(4, 1)}).schedule.function
    assert "%A_global" in str(fn)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((577, 8)).astype(np.float32) for _ in range(2))
    made = np.zeros((8, 8), np.float32)
    interpret(fn, a, b, made)
    np.testing.assert_allclose(made, a.T @ b, rtol=1e-4, atol=1e-4)


def test_a_product_takes_several_steps_and_asks_for_weights_ahead() -> None:
    fn = product(96, 512, 768)
    found = default_schedule(fn, "x86_64-linux-gnu -mcpu=skylake-avx512", constants=["B"]).function
    unrolled = [loop for loop in walk(found.body) if isinstance(loop, For) and loop.kind == UNROLL]
    assert any(loop.var.name == "r_1" for loop in unrolled)
    assert "prefetch(address(%B_global" in str(found)


@pytest.mark.parametrize("mcpu", ["emeraldrapids", "cascadelake", "haswell"])
def test_a_sum_of_very_many_floats_is_cut(mcpu: str) -> None:
    """In one chain 12,544 terms are off five times as far as in parts of a few hundred."""
    decided = schedule(product(64, 256, 12544), f"x86_64-linux-gnu -mcpu={mcpu}").decisions[0]
    assert 0 < int(decided.plan.split("kc=")[1].split()[0]) <= longest_chain(F32)


@pytest.mark.parametrize("mcpu", ["apple-m1", "neoverse-v2"])
@pytest.mark.parametrize(("constants", "along_k"), [((), False), ((), True), (("B",), False)])
def test_a_sum_of_very_many_floats_is_cut_where_l2_would_hold_its_panels(
    mcpu: str, constants: tuple[str, ...], along_k: bool
) -> None:
    target = f"aarch64-linux-gnu -mcpu={mcpu}"
    fn = product(256, 256, 5000, along_k=along_k)
    decided = schedule(fn, target, constants=constants).decisions[0]
    assert decided.rule == "gemm"
    assert 0 < int(decided.plan.split("kc=")[1].split()[0]) <= longest_chain(F32)


@pytest.mark.parametrize("mcpu", ["emeraldrapids", "cascadelake", "haswell"])
def test_a_long_sum_of_a_single_row_is_added_up_in_parts(mcpu: str) -> None:
    """In one chain 4,096 terms are off four times as far, and the registers are there."""
    target = f"x86_64-linux-gnu -mcpu={mcpu}"
    fn = default_schedule(product(1, 256, 4096), target, constants=["B"]).function
    assert f"part_terms = {shortest_part()}" in str(fn)
    short = default_schedule(product(1, 256, 128), target, constants=["B"]).function
    assert "part_terms" not in str(short)


def test_how_many_terms_lose_a_quarter_of_the_digits() -> None:
    assert longest_chain(F32) == 4096
    assert longest_chain(F64) == 1 << 26
    assert longest_chain(I32) > 1 << 31
