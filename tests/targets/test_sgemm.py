"""GEMM of f32 by asynchronous copies, without a GPU: the interpreter, planted faults, PTX."""

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import ExecutionError, UserError
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled

TARGET = "cuda -arch=sm_90a"
SMALL = "block_m=32 block_n=32 block_k=8 thread_m=4 thread_n=4 stages=3 split_k=1 run_k=4"
DEEP = "block_m=32 block_n=32 block_k=16 thread_m=4 thread_n=4 stages=2 split_k=1 run_k=8"
PARTS = SMALL.replace("stages=3 split_k=1", "stages=2 split_k=2")
WIDE = "block_m=32 block_n=64 block_k=4 thread_m=8 thread_n=8 stages=2 split_k=1 run_k=4"
# The orders of both operands' axes, the batch, whether something follows, the plan.
FORMS = {
    "rows by rows": ("mk", "nk", 0, False, SMALL),
    "rows by columns": ("mk", "kn", 0, False, SMALL.replace("stages=3", "stages=2")),
    "columns by columns": ("km", "kn", 0, True, SMALL),
    "a batch": ("mk", "kn", 2, False, SMALL),
    "an epilogue": ("mk", "nk", 0, True, SMALL.replace("stages=3", "stages=4")),
    "parts of the sum": ("mk", "nk", 0, True, PARTS),
    "parts of rows by columns": ("mk", "kn", 0, False, PARTS),
    "more in a row": ("mk", "nk", 0, False, SMALL.replace("run_k=4", "run_k=8")),
    "many of k": ("mk", "nk", 0, False, DEEP),
    "more of each thread": ("mk", "nk", 0, False, WIDE),
    "a tail of rows": ("mk", "kn", 0, True, SMALL),
    "tails of rows of a batch": ("mk", "nk", 2, False, SMALL),
    "tails and parts of the sum": ("mk", "nk", 0, True, PARTS),
}  # fmt: skip


def gemm(m, n, k, left="mk", right="nk", batch=0, epilogue=False):
    sizes, outer = {"m": m, "n": n, "k": k}, (batch,) if batch else ()
    A = te.placeholder((*outer, *(sizes[axis] for axis in left)), name="A")
    B = te.placeholder((*outer, *(sizes[axis] for axis in right)), name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(*at):
        *first, i, j = at
        places = {"m": i, "n": j, "k": r}
        return te.sum(
            A[(*first, *(places[axis] for axis in left))]
            * B[(*first, *(places[axis] for axis in right))],
            axis=r,
        )

    C = te.compute((*outer, m, n), product, name="C")
    if not epilogue:
        return te.function([A, B, C], name="gemm")
    bias = te.placeholder((n,), name="bias")
    D = te.compute((*outer, m, n), lambda *at: te.max(C[at] + bias[at[-1]], 0), name="D")
    return te.function([A, B, bias, D], name="gemm")


def sizes_of(form):
    """m, n, k"""
    m, n = 45 if "tail" in form else 32, 37 if "tails" in form else 32
    return (32, 64, 8) if FORMS[form][-1] is WIDE else (m, n, 32)


@cache
def scheduled(form):
    left, right, batch, epilogue, plan = FORMS[form]
    m, n, k = sizes_of(form)
    fn = gemm(m, n, k, left, right, batch, epilogue)
    made = schedule(fn, TARGET, choices={"C": Choice("sgemm", plan)})
    assert made.decisions[0].rule == "sgemm"
    return made.schedule.function


def given_of(form):
    left, right, batch, epilogue, _ = FORMS[form]
    m, n, k = sizes_of(form)
    rng, outer = np.random.default_rng(5), (batch,) if batch else ()
    a = rng.standard_normal((*outer, m, k)).astype(np.float32)
    b = rng.standard_normal((*outer, k, n)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    wanted = np.maximum(a @ b + bias, 0) if epilogue else a @ b
    a = a if left == "mk" else a.swapaxes(-1, -2).copy()
    b = b if right == "kn" else b.swapaxes(-1, -2).copy()
    return [a, b, *([bias] if epilogue else [])], wanted


def check(fn, form):
    given, wanted = given_of(form)
    out = np.full_like(wanted, np.nan)
    tw.interpret(fn, *given, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_numpy(form):
    check(scheduled(form), form)
    check(lower(scheduled(form), "gpu"), form)


@pytest.mark.parametrize("form", ["columns by columns", "parts of rows by columns"])
def test_operands_along_m_or_n_are_copied_sixteen_bytes_at_a_time(form):
    text = str(lower(scheduled(form), "gpu"))
    copies = re.findall(r"cp\.async\.run:bool\(address\(%([AB])_[^\n]*, (\d)\)", text)
    widths = {("A", "4" if FORMS[form][0] == "km" else "1"), ("B", "4")}
    assert set(copies) == widths


def without(pattern, which=0):
    """A program without one of the statements that match."""

    def plant(text):
        found = list(re.finditer(rf"\n *eval {pattern}[^\n]*", text))
        place = found[which]
        return text[: place.start()] + text[place.end() :]

    return plant


def changed(old, new):
    def plant(text):
        made = re.sub(old, new, text, count=1)
        assert made != text
        return made

    return plant


FAULTS = {
    "no wait in the loop": without(r"cp\.async\.wait"),
    "no wait for the last": without(r"cp\.async\.wait", -1),
    "a wait for older copies": changed(r"cp\.async\.wait:bool\(1\)", "cp.async.wait:bool(2)"),
    "no barrier behind the wait": without(r"barrier\.shared", 2),
    "no group": without(r"cp\.async\.commit"),
    "a copy is missing": without(r"cp\.async\.run"),
    "one word of four": changed(r"(cp\.async\.run:bool\([^\n]*), 4\)", r"\1, 2)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_copies_is_found(fault):
    """A step, and the copies of later ones, on 32 threads."""
    form = "columns by columns"
    text = str(lower(scheduled(form), "gpu"))
    with pytest.raises(ExecutionError):
        check(parse(FAULTS[fault](text)), form)


def test_words_are_turned_one_at_a_time():
    ptx = tw.build(scheduled("rows by rows"), TARGET).ptx
    assert set(re.findall(r"cp\.async\.(c\w)\.shared\.global .*, (\d+);", ptx)) == {("ca", "4")}


def test_large_sizes_take_it_and_spill_nothing():
    made = schedule(gemm(4096, 4096, 4096), TARGET)
    assert made.decisions[0].rule == "sgemm"
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert set(re.findall(r"cp\.async\.c\w\.shared\.global .*, (\d+);", ptx)) == {"4"}
    assert "ld.shared.v4" in ptx
    assert re.findall(r"st\.global\S*", ptx) == ["st.global.v4.b32"] * 16
    assert not re.search(r"^\s*call", ptx, re.MULTILINE)
    told = assembled(ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in told
    assert int(re.search(r"Used (\d+) registers", told).group(1)) <= 128  # room for two blocks


@pytest.mark.parametrize(
    ("sizes", "left", "right"),
    [((4096, 4096, 98), "mk", "nk"), ((1000, 1024, 64), "km", "nk"), ((64, 1000, 64), "mk", "kn")],
)
def test_tails_of_k_and_of_rows_along_memory_are_left_to_others(sizes, left, right):
    assert schedule(gemm(*sizes, left, right), TARGET).decisions[0].rule == "gemm"


def test_tails_guard_stores_alone():
    made = schedule(gemm(197, 1000, 768), TARGET)
    assert made.decisions[0].rule == "sgemm"
    guarded = re.findall(r"block @(\w+)\([^\n]*\n *where", str(made.schedule.function))
    assert set(guarded) == {"C_crop"}
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert "local" not in ptx


def test_operands_that_are_made_on_the_way_are_left_to_others():
    A, B = te.placeholder((128, 128), name="A"), te.placeholder((128, 128), name="B")
    P = te.compute((128, 128), lambda i, k: A[i, k] * 2.0, name="P")
    r = te.reduce_axis((0, 128), name="r")
    C = te.compute((128, 128), lambda i, j: te.sum(P[i, r] * B[j, r], axis=r), name="C")
    made = schedule(te.function([A, B, C], name="scaled"), TARGET)
    assert made.decisions[0].rule == "gemm"


@pytest.mark.parametrize("axis", ["m", "k"])
def test_diagonals_are_left_to_others(axis):
    """The box around a tile of them would exceed shared memory."""
    r = te.reduce_axis((0, 64), name="r")
    x = te.placeholder((64, 64, 64), "f32", name="x")
    w = te.placeholder((64, 64), "f32", name="w")

    def product(i, j):
        return te.sum(x[i if axis == "m" else r, i, r] * w[r, j], axis=r)

    fn = te.function([x, w, te.compute((64, 64), product, name="c")], name="f")
    made = schedule(fn, TARGET)
    assert not {each.rule for each in made.decisions} & {"gemm", "sgemm"}
    assert tw.build(made.schedule.function, TARGET).ptx


def test_older_gpus_have_other_rules():
    assert schedule(gemm(256, 256, 256), "cuda -arch=sm_75").decisions[0].rule == "gemm"


def test_a_plan_with_more_stages_than_steps_is_refused():
    with pytest.raises(UserError):
        schedule(
            gemm(32, 32, 16), TARGET, choices={"C": Choice("sgemm", SMALL)}
        )  # fmt: skip


def places_of(form):
    """The row and column of the first result of each thread of a warp."""
    text = str(scheduled(form))
    block = re.search(r"block @C\w*\(([^\n]*reduce[^\n]*)\)", text)[1]
    exprs = re.findall(r"spatial \d+ = ([^,]+)", block)[-2:]
    (thread,) = re.findall(r"for %(\w+) in thread\(threadIdx\.x\)", text)[:1]

    def value(expr, lane):
        return eval(re.sub(r"%(\w+)", lambda m: str(lane if m[1] == thread else 0), expr))

    return [tuple(value(expr, lane) for expr in exprs) for lane in range(32)]


@pytest.mark.parametrize("form", ["rows by rows", "columns by columns"])
def test_one_of_two_neighbours_loads_what_the_other_does(form):
    """Then a load of 16 bytes takes two turns of the banks for each operand, else four."""
    places = places_of(form)
    assert len(set(places)) == 32
    for side in range(2):
        alike = [
            all(places[lane][side] == places[lane ^ apart][side] for lane in range(32))
            for apart in (1, 2)
        ]
        assert any(alike)


@pytest.mark.parametrize(
    ("plan", "blocks"),
    [
        ("block_m=64 block_n=64 block_k=16 thread_m=8 thread_n=4 stages=4", 5),
        ("block_m=64 block_n=32 block_k=16 thread_m=4 thread_n=4 stages=3", 8),
        ("block_m=128 block_n=64 block_k=16 thread_m=8 thread_n=8 stages=3", 4),
    ],
)
def test_registers_leave_room_for_the_blocks_that_the_cost_counts(plan, blocks):
    """Also where rows are left over and something follows."""
    fn = gemm(1576, 1536, 384, "mk", "kn", epilogue=True)
    choice = Choice("sgemm", f"{plan} split_k=1 run_k=16")
    told = assembled(
        tw.build(schedule(fn, TARGET, choices={"C": choice}).schedule.function, TARGET).ptx
    )
    assert "0 bytes spill stores, 0 bytes spill loads" in told
    sizes = dict(part.split("=") for part in plan.split())
    rows, columns = (int(sizes[f"block_{at}"]) // int(sizes[f"thread_{at}"]) for at in "mn")
    registers = int(re.search(r"Used (\d+) registers", told)[1])
    assert blocks * rows * columns * -(-registers // 8) * 8 <= 65536


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        # Five blocks fit a multiprocessor; the next smaller tile would need a second wave.
        ((1576, 1536, 384), "block_m=64 block_n=64 block_k=16 thread_m=8 thread_n=4 stages=4"),
        ((1024, 3072, 768), "block_m=128 block_n=64 block_k=16 thread_m=8 thread_n=8 stages=3"),
        ((2048, 2304, 768), "block_m=64 block_n=64 block_k=16 thread_m=8 thread_n=4 stages=4"),
    ],
)
def test_the_plan_that_measured_fastest_is_priced_lowest(sizes, plan):
    (decision,) = schedule(gemm(*sizes, "mk", "kn"), TARGET).decisions
    assert decision.plan.startswith(plan)
    assert "split_k=1" in decision.plan
