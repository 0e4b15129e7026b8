"""GEMM on Hopper without a GPU: behaviour interpreted, PTX assembled, roles shown."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, te
from tilewright.base.errors import ExecutionError, TilewrightError, Unsupported, UserError
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tf32 import round_tf32
from tilewright.codegen.nvptx import emit_kernels
from tilewright.intrin import hopper
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.gpu import gemm_hopper
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.dependent_launch import WEIGHTS
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.ir import annotated
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import fetched, on_host

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
TARGET = "cuda -arch=sm_90a"
ALONE = "cluster=1 along=k resident=1 pingpong=0 evict_first=0"
STREAM_K = "cluster=1 along=stream_k resident=1 pingpong=0 evict_first=0"
PINGPONG = "cluster=1 along=k resident=1 pingpong=1 evict_first=0"


def small_gpu(multiprocessors):
    """A target on which few tiles are several waves."""
    target = Target.parse(TARGET)
    return replace(target, machine=replace(target.machine, cores=multiprocessors))


def gemm(m, n, k, dtype="bf16", rounded=True, batch=(), epilogue=False, along_n=False):
    A = te.placeholder((*batch, m, k), dtype, name="A")
    B = te.placeholder((*batch, k, n) if along_n else (n, k), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def right(i):
        return B[(*i[:-2], r, i[-1])] if along_n else B[i[-1], r]

    C = te.compute(
        (*batch, m, n),
        lambda *i: te.sum(te.cast(A[(*i[:-1], r)], "f32") * te.cast(right(i), "f32"), axis=r),
        name="C",
    )
    if epilogue:
        bias = te.placeholder((n,), "f32", name="bias")
        residual = te.placeholder((*batch, m, n), dtype, name="residual")
        D = te.compute(
            (*batch, m, n),
            lambda *i: te.cast(te.max(C[i] + bias[i[-1]], 0) + te.cast(residual[i], "f32"), dtype),
            name="D",
        )
        return te.function([A, B, bias, residual, D], name="gemm")
    if not rounded:
        return te.function([A, B, C], name="gemm")
    D = te.compute((*batch, m, n), lambda *i: te.cast(C[i], dtype), name="D")
    return te.function([A, B, D], name="gemm")


@cache
def planned(m, n, k, dtype="bf16", rounded=True, *, split=1, boxes=1, **form):
    """Scheduled by the rule, with a plan that suits a small problem."""
    slots, groups = 4 if boxes < 4 else 3, 2 if m >= 128 else 1
    plan = f"groups={groups} block_n=64 slots={slots} span=1 split_k={split} boxes={boxes} {ALONE}"
    choices = {"C": Choice("gemm_hopper", plan)} if m <= 256 else None
    made = schedule(gemm(m, n, k, dtype, rounded, **form), TARGET, choices=choices)
    assert made.decisions[0].rule == "gemm_hopper"
    assert len(made.decisions) == (2 if split > 1 else 1)
    return made.schedule.function


def operands(m, n, k, dtype="bf16", batch=(), epilogue=False, along_n=False):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, m, k)).astype(TYPES[dtype])
    b = rng.standard_normal((*batch, k, n) if along_n else (n, k)).astype(TYPES[dtype])
    more = []
    want = a.astype(np.float32) @ (b if along_n else b.T).astype(np.float32)
    if epilogue:
        more = [rng.standard_normal(n, np.float32)]
        more.append(rng.standard_normal((*batch, m, n)).astype(TYPES[dtype]))
        want = np.maximum(want + more[0], 0) + more[1].astype(np.float32)
    return [a, b, *more], want


def close(got, want, dtype):
    limit = 1e-5 if dtype == np.float32 else 1e-2
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=limit, atol=50 * limit)


FORMS = {
    "rows that no tile divides": {"m": 100, "n": 64, "k": 64},
    "columns that no tile divides": {"m": 64, "n": 88, "k": 64},
    "columns by no vector": {"m": 64, "n": 70, "k": 64},
    "a sum that no tile divides": {"m": 64, "n": 64, "k": 72},
    "nothing divides": {"m": 100, "n": 90, "k": 136},
    "few rows": {"m": 5, "n": 64, "k": 128},
    "an epilogue": {"m": 128, "n": 64, "k": 64, "epilogue": True},
    "an epilogue at edges": {"m": 72, "n": 88, "k": 72, "epilogue": True},
    "a batch": {"m": 64, "n": 64, "k": 64, "batch": (3,)},
    "neighbours along n": {"m": 64, "n": 64, "k": 128, "along_n": True},
    "a batch along n": {"m": 40, "n": 72, "k": 72, "batch": (2,), "along_n": True},
    "a batch of edges": {"m": 40, "n": 72, "k": 64, "batch": (2,), "epilogue": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_shape_is_computed(form):
    given, want = operands(**FORMS[form])
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(lower(planned(**FORMS[form]), "gpu"), *given, out, seed=1)
    close(out, want, out.dtype)


# Before they are lowered, products are added up element by element: some forms always.
ALWAYS = ("few rows", "an epilogue at edges", "a batch along n")
OFTEN = [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.fuzz) for each in FORMS]


@pytest.mark.parametrize("form", OFTEN)
def test_schedules_of_every_shape_compute_it(form):
    given, want = operands(**FORMS[form])
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(planned(**FORMS[form]), *given, out, seed=1)
    close(out, want, out.dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sampled
def test_every_shape_has_code_without_local_memory(form):
    run = tw.build(planned(**FORMS[form]), TARGET)
    assert not re.search(r"^\s*call", run.ptx, re.MULTILINE)
    assert ".local" not in run.ptx
    assert len(run.kernels) == 1  # nothing is padded or cropped beside it


def weighted(m, n, k, slots, target=TARGET, **form):
    """The GEMM of a weight, as a model has it, lowered for kernels that start early."""
    plan = f"groups=1 block_n=64 slots={slots} span=1 split_k=1 boxes=1 {ALONE}"
    fn = gemm(m, n, k, **form)
    fn = replace(fn, attrs=annotated(fn.attrs, WEIGHTS, (1,)))
    made = schedule(fn, target, choices={"C": Choice("gemm_hopper", plan)}).schedule.function
    return lower(made, "gpu", PassContext(target=Target.parse(TARGET)))


@pytest.mark.parametrize(
    ("sizes", "slots"),
    [((5, 64, 128), 4), ((40, 200, 640), 3), ((70, 130, 576), 2)],
    ids=["fewer steps than slots", "a tile for each block", "rows and columns"],
)
def test_weights_are_on_their_way_before_a_kernel_waits_for_others(sizes, slots):
    made = weighted(*sizes, slots)
    given, want = operands(*sizes)
    for seed in range(2):
        out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
        tw.interpret(made, *given, out, seed=seed)
        close(out, want, out.dtype)
    before, after = str(made).split("eval grid.wait()")
    assert re.findall(r"tma\.load:.*?, address\(%(\w)\[", before) == ["B"]
    steps = min(slots, -(-sizes[2] // 64))
    assert re.search(rf"for %first in 0\.\.{steps} ", before)
    assert "A" in re.findall(r"tma\.load:.*?, address\(%(\w)\[", after)


@pytest.mark.parametrize(("steps", "slots", "last"), [(20, 3, 11), (5, 3, 5), (3, 3, 0)])
def test_some_weights_beyond_the_slots_are_brought_as_far_as_l2(steps, slots, last):
    """64 KB, of 8 in each step."""
    before, after = str(weighted(40, 256, 64 * steps, slots)).split("eval grid.wait()")
    assert re.findall(r"tma\.prefetch:.*?, address\(%(\w)\[", before) == ["B"] * (last > 0)
    assert bool(re.search(rf"for %later in {slots}\.\.{last} ", before)) == (last > 0)
    assert "tma.prefetch" not in after


@pytest.mark.parametrize("rows", [40, 130])
def test_blocks_without_a_tile_copy_no_weights(rows):
    """Calls tell how many rows there are: those of few leave blocks with nothing to do."""
    made = weighted(te.size_var("m"), 128, 192, 2, small_gpu(3))
    before, _ = str(made).split("eval grid.wait()")
    assert re.findall(r"tma\.load:.*?, address\(%(\w)\[", before) == ["B"]
    given, want = operands(rows, 128, 192)
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(made, *given, out, seed=rows)
    close(out, want, out.dtype)


def test_operands_that_are_no_weights_are_copied_behind_the_wait():
    fn = gemm(40, 200, 640)
    made = schedule(fn, TARGET).schedule.function
    text = str(lower(made, "gpu", PassContext(target=Target.parse(TARGET))))
    assert "tma.load" not in text.split("eval grid.wait()")[0]


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("fault", ["a slot too few", "bytes of weights alone", "copied again"])
def test_a_fault_in_copies_ahead_is_found(fault, slots):
    good = str(weighted(40, 64, 640, slots))
    first = "for %first in 0.."
    bad = {
        "a slot too few": good.replace(f"{first}{slots} ", f"{first}{slots - 1} "),
        "bytes of weights alone": re.sub(r"(expect:\w+\(\S+%first\]\), )\d+", r"\g<1>8192", good),
        "copied again": re.sub(rf"(for %r_0_\d in ){slots}\.\.10", r"\g<1>1..10", good),
    }[fault]
    assert bad != good
    given, want = operands(40, 64, 640)
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *given, np.zeros(want.shape, TYPES["bf16"]), seed=0)
    assert caught.value.code in ("TW2427", "TW2428", "TW2429", "TW2430")


def test_functions_with_bulk_copies_start_early():
    run = tw.build(planned(64, 64, 128), TARGET)
    assert [kernel.can_start_early for kernel in run.kernels] == [True]
    plain = te.placeholder((64,), "f32", name="x")
    twice = te.compute((64,), lambda i: plain[i] * 2, name="y")
    made = schedule(te.function([plain, twice], name="twice"), TARGET).schedule.function
    assert [kernel.can_start_early for kernel in tw.build(made, TARGET).kernels] == [False]


LOW = f"groups=1 block_n=32 slots={{}} span=1 split_k=1 boxes=4 {ALONE}"


def test_low_tiles_fit_with_the_slots_behind_them():
    """Where products read behind the last slot there is another, also of four boxes."""
    target = Target.parse("cuda -arch=sm_90a")
    chosen = {"C": Choice("gemm_hopper", LOW.format(4))}
    made = schedule(gemm(49, 256, 2048), target, choices=chosen)
    _, (launch,) = emit_kernels(lower(made.schedule.function, "gpu"), target)
    assert target.shared_bytes // 2 < launch.kernel.shared_bytes <= target.shared_bytes
    with pytest.raises(TilewrightError) as caught:
        schedule(gemm(49, 256, 2048), target, choices={"C": Choice("gemm_hopper", LOW.format(5))})
    assert caught.value.code == "TW2702"


def test_a_left_operand_is_as_low_as_its_matrix():
    made = weighted(5, 64, 128, 4)
    assert "tile.low:bool(address(%A_pad_shared.b128[0]), 8)" in str(made)
    assert "alloc %A_pad_shared.b128: bf16[5632]" in str(made)  # 4 slots of 8 rows, 56 behind
    assert "tile.clear" not in str(made)


def byte_gemm(m, n, k, dtype, requantized):
    A = te.placeholder((m, k), dtype, name="A")
    B = te.placeholder((n, k), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def dot(i, j):
        return te.sum(te.cast(A[i, r], "i32") * te.cast(B[j, r], "i32"), axis=r)

    C = te.compute((m, n), dot, name="C")
    if not requantized:
        return te.function([A, B, C], name="gemm")
    scale = te.placeholder((n,), "f32", name="scale")

    def byte(i, j):
        return te.min(te.max(te.round(te.cast(C[i, j], "f32") * scale[j]), -128.0), 127.0)

    D = te.compute((m, n), lambda i, j: te.cast(byte(i, j), "i8"), name="D")
    return te.function([A, B, scale, D], name="gemm")


BYTES = {
    "sums": ((64, 64, 128), "i8", False, 1, ALONE),
    "requantized at edges": ((40, 48, 144), "u8", True, 1, ALONE),
    "a split sum": ((16, 32, 256), "i8", True, 2, ALONE),
    "stream-K": ((64, 96, 512), "i8", True, 1, STREAM_K),
    "pingpong": ((128, 96, 256), "i8", True, 1, PINGPONG),
}


@pytest.mark.parametrize("name", BYTES)
def test_products_of_bytes_are_exact(name):
    (m, n, k), dtype, requantized, split, blocks = BYTES[name]
    plan = f"groups=1 block_n=32 slots=3 span=1 split_k={split} boxes=1 {blocks}"
    made = schedule(
        byte_gemm(m, n, k, dtype, requantized),
        small_gpu(2),
        choices={"C": Choice("gemm_hopper", plan)},
    )
    assert made.decisions[0].rule == "gemm_hopper"
    rng = np.random.default_rng(0)
    span = np.iinfo({"i8": np.int8, "u8": np.uint8}[dtype])
    a, b = (rng.integers(span.min, span.max + 1, (rows, k), span.dtype) for rows in (m, n))
    given, want = [a, b], a.astype(np.int32) @ b.astype(np.int32).T
    if requantized:
        given.append(rng.random(n, np.float32) * np.float32(1e-3))
        rounded = np.rint(want.astype(np.float32) * given[2])
        want = np.clip(rounded, -128, 127).astype(np.int8)
    fn = made.schedule.function
    out = np.zeros(want.shape, want.dtype)
    tw.interpret(lower(fn, "gpu"), *given, out, seed=1)
    np.testing.assert_array_equal(out, want)
    kind = {"i8": "s8", "u8": "u8"}[dtype]
    ptx = tw.build(fn, TARGET).ptx
    assert re.search(rf"m64n32k32\.s32\.{kind}\.{kind} \{{[^}}]*\}}, a, b, 1;", ptx)


@pytest.mark.parametrize("boxes", [2, 4])
@pytest.mark.parametrize("form", ["few rows", "a sum that no tile divides", "a batch of edges"])
def test_products_of_several_boxes_wait_once(form, boxes):
    sizes = {**FORMS[form], "k": 448 + (FORMS[form]["k"] % 64 or 64)}  # eight boxes
    given, want = operands(**sizes)
    scheduled = planned(**sizes, boxes=boxes)
    for fn in (lower(scheduled, "gpu"), *([scheduled] if form == "few rows" else ())):
        out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
        tw.interpret(fn, *given, out, seed=2)
        close(out, want, out.dtype)
    ptx = tw.build(scheduled, TARGET).ptx
    assert ptx.count("wgmma.mma_async") == 4 * boxes * ptx.count("wgmma.wait_group")


def test_every_box_begins_inside_of_a_row():
    with pytest.raises(UserError) as caught:
        planned(64, 64, 136, boxes=2)  # of three boxes, the fourth would begin behind the last
    assert caught.value.code == "TW2702"


def test_rows_that_no_copy_fills_are_zero():
    """Of right operands; left ones are as low as their matrix."""
    good = str(lower(planned(64, 5, 128), "gpu"))
    copied = re.search(r"tma\.load:bool\(address\(%B.*?\]\), (\d+), \d+, ad", good)
    assert copied is not None
    assert copied[1] == "8"
    bad = re.sub(r"\n[^\n]*tile\.clear[^\n]*", "", good)
    assert bad != good
    given, want = operands(64, 5, 128)
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *given, np.zeros(want.shape, TYPES["bf16"]))
    assert caught.value.code == "TW2427"


def test_parts_of_a_sum_are_added_up():
    given, want = operands(16, 64, 512)
    scheduled = planned(16, 64, 512, split=4)
    assert len(tw.build(scheduled, TARGET).kernels) == 2
    for fn in (scheduled, lower(scheduled, "gpu")):
        out = np.full((16, 64), np.nan).astype(TYPES["bf16"])
        tw.interpret(fn, *given, out)
        close(out, want, out.dtype)


def test_steps_of_an_epilogue_are_one_kernel():
    A, B = (te.placeholder((64, 64), "bf16", name=name) for name in "AB")
    r = te.reduce_axis((0, 64), name="r")
    C = te.compute(
        (64, 64),
        lambda i, j: te.sum(te.cast(A[i, r], "f32") * te.cast(B[j, r], "f32"), axis=r),
        name="C",
    )
    X = te.compute((64, 64), lambda i, j: C[i, j] + 1.0, name="X", tag="kept apart")
    D = te.compute((64, 64), lambda i, j: te.tanh(X[i, j]) * X[i, j], name="D")
    made = schedule(te.function([A, B, D], name="gemm"), TARGET)
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper"]
    given, sums = operands(64, 64, 64)
    out = np.zeros((64, 64), np.float32)
    tw.interpret(lower(made.schedule.function, "gpu"), *given, out)
    close(out, np.tanh(sums + 1) * (sums + 1), out.dtype)


def test_few_rows_share_out_the_sum():
    made = schedule(gemm(64, 1024, 4096), TARGET)
    assert "split_k=1" not in made.decisions[0].plan
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper", "reduction"]


def test_a_thread_reads_sums_of_its_own_only():
    text = str(lower(planned(64, 64, 64, epilogue=True), "gpu"))
    moved = text.replace("%C[ramp(", "%C[ramp(8 + ", 1)
    assert moved != text
    with pytest.raises(Unsupported) as caught:
        tw.build(parse(moved), TARGET)
    assert caught.value.code == "TW3056"


@pytest.mark.parametrize(("m", "n"), [(8, 8), (16, 8), (4, 8), (8, 64)])
def test_results_of_fewer_rows_and_columns_than_a_warp_holds_are_its_own(m, n):
    """Of the few rows one warp has all, of eight columns one thread of four: both conditions stand
    around the store, and either may simplify its index."""
    module = graph.parse(
        f"graph @main(%a: f16[3, {m}, 256], %b: f16[3, 256, {n}]) "
        "{ %y = matmul(%a, %b) return %y }"
    )
    made = schedule(lower_graph(module.main, "f"), TARGET, only=("gemm_hopper",))
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper"]
    assert "wgmma.mma_async" in tw.build(made.schedule.function, TARGET).ptx


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rounded", [True, False])
def test_the_schedule_computes_what_numpy_does(dtype, rounded):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 128)).astype(TYPES[dtype]) for rows in (128, 192))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    out = np.zeros((128, 192), TYPES[dtype] if rounded else np.float32)
    tw.interpret(planned(128, 192, 128, dtype, rounded), a, b, out)
    close(out, want, out.dtype)


def rounded_gemm(m, n, k, kind):
    """Operands of eight bits, or of f32 rounded to tf32."""
    dtype = {"tf32": "f32", "fp8": "f8e4m3"}[kind]
    A, B = (te.placeholder((rows, k), dtype, name=name) for rows, name in ((m, "A"), (n, "B")))
    r = te.reduce_axis((0, k), name="r")

    def read(x):
        return te.round_tf32(x) if kind == "tf32" else te.cast(x, "f32")

    C = te.compute((m, n), lambda i, j: te.sum(read(A[i, r]) * read(B[j, r]), axis=r), name="C")
    return te.function([A, B, C], name="gemm")


@pytest.mark.parametrize(
    ("kind", "numbers", "code"),
    [
        ("tf32", np.float32, r"m64n\d+k8\.f32\.tf32\.tf32 \{[^}]*\}, a, b, [01], 1, 1;"),
        (
            "fp8",
            ml_dtypes.float8_e4m3fn,
            r"m64n\d+k32\.f32\.e4m3\.e4m3 \{[^}]*\}, a, b, [01], 1, 1;",
        ),
    ],
)
@pytest.mark.parametrize("sizes", [(64, 64, 128), (100, 72, 176)])
def test_other_types_are_multiplied(kind, numbers, code, sizes):
    m, n, k = sizes
    made = schedule(rounded_gemm(m, n, k, kind), TARGET)
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(numbers) for rows in (m, n))
    read = round_tf32 if kind == "tf32" else (lambda x: x.astype(np.float32))
    for fn in (made.schedule.function, lower(made.schedule.function, "gpu")):
        out = np.full((m, n), np.nan, np.float32)
        tw.interpret(fn, a, b, out)
        close(out, read(a) @ read(b).T, out.dtype)
    assert re.search(code, tw.build(made.schedule.function, TARGET).ptx)


def test_products_of_f32_are_not_rounded_unasked():
    A, B = (te.placeholder((64, 64), "f32", name=name) for name in "AB")
    r = te.reduce_axis((0, 64), name="r")
    C = te.compute((64, 64), lambda i, j: te.sum(A[i, r] * B[j, r], axis=r), name="C")
    made = schedule(te.function([A, B, C], name="gemm"), TARGET)
    assert "gemm_hopper" not in [decision.rule for decision in made.decisions]


def test_roles_wait_for_each_other():
    text = str(lower(planned(512, 512, 256), "gpu"))
    consumer, producer = text.split("} else {")
    ring = int(re.search(r"mbarrier.init:bool\(address\(%full\[0\]\), (\d+), 1\)", text)[1])
    assert 2 <= ring <= 6
    assert consumer.index("mbarrier.wait:bool(address(%full") < consumer.index("wgmma.tile")
    assert consumer.index("wgmma.tile") < consumer.index("mbarrier.arrive:bool(address(%empty")
    assert consumer.index("mbarrier.arrive") < consumer.index("wgmma.round")
    assert producer.index("mbarrier.wait:bool(address(%empty") < producer.index("mbarrier.expect")
    assert producer.index("mbarrier.expect") < producer.index("tma.load")
    assert "tma.load" not in consumer
    assert "wgmma" not in producer


@pytest.mark.parametrize("boxes", [1, 2])
def test_the_producer_expects_every_byte_that_is_copied(boxes):
    text = str(lower(planned(256, 256, 256, boxes=boxes), "gpu"))
    expected = int(re.search(r"mbarrier.expect:bool\(address\(%full\[[^]]*\]\), (\d+)\)", text)[1])
    rows = [int(found) for found in re.findall(r"tma\.load:bool\(.*?\]\), (\d+), \d+, ad", text)]
    assert expected == sum(rows) * boxes * hopper.ROW_BYTES


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2048, 2048, 2048), (128, 4096, 4096)])
def test_blocks_stay_for_all_tiles(shape):
    (kernel,) = tw.build(planned(*shape), TARGET).kernels
    grid, block = (tuple(int(str(dim)) for dim in dims) for dims in (kernel.grid, kernel.block))
    assert grid[0] <= 132
    assert block[0] == 128
    assert len(kernel.maps) == 2
    assert kernel.shared_bytes > 48 * 1024


def test_the_code_has_what_hopper_needs():
    ptx = tw.build(planned(512, 512, 256), TARGET).ptx
    for wanted in (
        r"\.extern \.shared \.align 1024",
        r"\.maxntid 384|\.maxntid 256",
        r"\.minnctapersm 1",
        r"mbarrier\.init\.shared",
        r"mbarrier\.try_wait\.parity",
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile",
        r"setmaxnreg\.inc",
        r"setmaxnreg\.dec",
        r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
        r"cvt\.rn\.bf16x2\.f32",
    ):
        assert re.search(wanted, ptx), wanted
    assert not re.search(r"^\s*call", ptx, re.MULTILINE)  # names that LLVM does not know
    assert ".local" not in ptx


def test_an_operand_that_one_wave_reads_leaves_l2_first():
    """B of few rows; A, which every block reads, stays."""
    made = schedule(gemm(64, 512, 256), TARGET)
    assert "evict_first=1" in made.decisions[0].plan
    ptx = tw.build(made.schedule.function, TARGET).ptx
    policies = re.findall(r"createpolicy\.fractional\.L2::evict_first\.b64 (%rd\d+), 1\.0;", ptx)
    copies = re.findall(r"cp\.async\.bulk\.tensor.*complete_tx::bytes(\S*) .*?(%rd\d+)?;", ptx)
    assert {hint for hint, _ in copies} == {"", ".L2::cache_hint"}
    assert {policy for hint, policy in copies if hint} == set(policies)


@pytest.mark.parametrize("sizes", [(512, 512, 256), (256, 512, 256)], ids=str)
def test_an_operand_that_later_waves_read_stays_in_l2(sizes):
    """As many rows as columns, or tiles of a column that are not beside each other."""
    plan = f"groups=1 block_n=64 slots=4 span=1 split_k=1 boxes=1 {ALONE}"
    first = {"C": Choice("gemm_hopper", plan.replace("evict_first=0", "evict_first=1"))}
    with pytest.raises(UserError):
        schedule(gemm(*sizes), TARGET, choices=first)
    assert schedule(gemm(*sizes), TARGET, choices={"C": Choice("gemm_hopper", plan)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_the_assembler_finds_no_fault_and_spills_nothing(dtype, tmp_path):
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not installed (it comes with NVIDIA's CUDA toolkit)")
    source = tmp_path / "kernel.ptx"
    source.write_text(tw.build(planned(4096, 4096, 4096, dtype), TARGET).ptx)
    done = subprocess.run(
        ["ptxas", "-arch=sm_90a", "-v", source, "-o", tmp_path / "kernel.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    for trouble in ("serialized", "setmaxnreg", "C75"):
        assert trouble not in done.stderr


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width_is_declared(n):
    behavior = hopper.dot_of("bf16", n).behavior
    assert [str(dim) for dim in behavior.buffers[2].shape] == ["64", str(n)]


@pytest.mark.parametrize(
    ("name", "parameters", "code"),
    [
        ("wgmma_bf16", {"n": 12}, "TW2011"),
        ("wgmma_bf16", {"n": 264}, "TW2011"),
        ("tma_load_bf16", {"rows": 7}, "TW2011"),
        ("wgmma_f64", {"n": 64}, "TW2010"),
    ],
)
def test_what_the_hardware_does_not_have_is_not_declared(name, parameters, code):
    with pytest.raises(UserError) as caught:
        intrinsic(name, **parameters)
    assert caught.value.code == code


def test_rows_that_no_bulk_copy_can_read_go_elsewhere():
    made = schedule(gemm(100, 90, 70), TARGET)  # of 140 bytes, not a multiple of 16
    assert made.decisions[0].rule == "gemm"


LAYOUTS = {
    "A as [k, m]": (True, True, 144, 90),
    "A as [k, m], B as [n, k]": (True, False, 144, 88),
    "rows of k by no copy": (False, False, 142, 88),
    "rows of k by no copy, B as [k, n]": (False, True, 141, 88),
    "rows of n by no copy": (False, True, 144, 90),
    "no rows by any copy": (True, True, 141, 91),
}


def laid_out(name, kind):
    """A GEMM of operands that lie as they like."""
    (turns_a, turns_b, k, n), m = LAYOUTS[name], 100
    A = te.placeholder((k, m) if turns_a else (m, k), kind, name="A")
    B = te.placeholder((k, n) if turns_b else (n, k), kind, name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(i, j):
        a, b = A[(r, i) if turns_a else (i, r)], B[(r, j) if turns_b else (j, r)]
        return te.sum(te.cast(a, "f32") * te.cast(b, "f32"), axis=r)

    C = te.compute((m, n), product, name="C")
    return te.function([A, B, C], name="gemm")


KM = {
    "A as [k, m]": {"m": 104, "n": 88, "k": 144},
    "A as [k, m], B as [k, n]": {"m": 64, "n": 128, "k": 72, "along_n": True},
    "two groups": {"m": 256, "n": 64, "k": 128},
    "an epilogue": {"m": 136, "n": 72, "k": 64, "along_n": True},
}


def km_gemm(m, n, k, along_n=False):
    A = te.placeholder((k, m), "bf16", name="A")
    B = te.placeholder((k, n) if along_n else (n, k), "bf16", name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(i, j):
        right = B[(r, j) if along_n else (j, r)]
        return te.sum(te.cast(A[r, i], "f32") * te.cast(right, "f32"), axis=r)

    C = te.compute((m, n), product, name="C")
    D = te.compute((m, n), lambda i, j: te.cast(te.max(C[i, j], 0), "bf16"), name="D")
    return te.function([A, B, D], name="gemm")


@pytest.mark.parametrize("name", KM)
def test_tensor_cores_read_a_as_columns_where_it_lies(name):
    """No copy of A is stored, and tiles are turned by the products."""
    sizes = KM[name]
    m, n, k = (sizes[axis] for axis in "mnk")
    along_n = sizes.get("along_n", False)
    plan = f"groups={2 if m > 128 else 1} block_n=64 slots=3 span=1 split_k=1 boxes=1 {ALONE}"
    choices = {"C": Choice("gemm_hopper", plan)}
    made = schedule(km_gemm(**sizes), TARGET, choices=choices)
    assert [each.rule for each in made.decisions] == ["gemm_hopper"]
    rng = np.random.default_rng(0)
    a = rng.standard_normal((k, m)).astype(TYPES["bf16"])
    b = rng.standard_normal((k, n) if along_n else (n, k)).astype(TYPES["bf16"])
    right = (b if along_n else b.T).astype(np.float32)
    want = np.maximum(a.astype(np.float32).T @ right, 0)
    for fn in (made.schedule.function, lower(made.schedule.function, "gpu")):
        out = np.full((m, n), np.nan).astype(TYPES["bf16"])
        tw.interpret(fn, a, b, out, seed=1)
        close(out, want, out.dtype)
    ptx = tw.build(made.schedule.function, TARGET).ptx
    forms = set(re.findall(r"wgmma\.mma_async[^;]*?, (\d, \d);", ptx))
    assert forms == {f"1, {int(along_n)}"}


def test_a_sum_of_less_than_a_tile_is_not_read_by_columns():
    """Behind the last row of k a tile would not be zeros: A is stored anew, or left to others."""
    made = schedule(km_gemm(128, 64, 48), TARGET)
    assert "wgmma" not in str(lower(made.schedule.function, "gpu")) or len(made.decisions) > 1


@pytest.mark.parametrize(
    ("sizes", "rule"), [((252, 252, 250), "gemm"), ((2044,) * 3, "gemm_hopper")]
)
def test_operands_are_stored_anew_for_many_products(sizes, rule):
    m, n, k = sizes
    A, B = (te.placeholder((k, rows), "f16", name=name) for rows, name in ((m, "A"), (n, "B")))
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (m, n), lambda i, j: te.sum(te.cast(A[r, i], "f32") * te.cast(B[r, j], "f32"), axis=r),
        name="C",
    )  # fmt: skip
    assert schedule(te.function([A, B, C], name="gemm"), TARGET).decisions[0].rule == rule


@pytest.mark.parametrize("kind", ["f16", "f8e4m3"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.sampled
def test_operands_are_stored_anew_where_tensor_cores_are_worth_it(name, kind, monkeypatch):
    monkeypatch.setattr(gemm_hopper, "_is_repacking_worthwhile", lambda *of: True)
    fn = laid_out(name, kind)
    made = schedule(fn, TARGET)
    assert made.decisions[0].rule == "gemm_hopper"
    assert {each.rule for each in made.decisions[1:]} <= {"transpose", "elementwise"}
    turns_a, turns_b, *_ = LAYOUTS[name]
    rng = np.random.default_rng(0)
    numbers = np.float16 if kind == "f16" else ml_dtypes.float8_e4m3fn
    shapes = [tuple(int(str(dim)) for dim in param.shape) for param in fn.params]
    a, b = (rng.standard_normal(shape).astype(numbers) for shape in shapes[:2])
    left, right = (x.astype(np.float32) for x in (a.T if turns_a else a, b if turns_b else b.T))
    out = np.full(shapes[2], np.nan, np.float32)
    tw.interpret(lower(made.schedule.function, "gpu"), a, b, out, seed=1)
    close(out, left @ right, out.dtype)
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert re.search(r"wgmma\.mma_async", ptx)
    assert not re.search(r"^\s*call", ptx, re.MULTILINE)


def test_quantized_floats_of_eight_bits_are_multiplied_as_they_are():
    """Where less precision than that of f32 is asked for."""
    model = graph.parse("""graph @main(%x: f32[n, 128], %w: f8e4m3[64, 128],
                                       %s: f32[], %t: f32[64]) {
      %q = quantize(%x, %s) {axis = 1, block_size = 0, saturate = true, to = dtype f8e4m3}
      %a = dequantize(%q, %s) {axis = 1, block_size = 0, to = dtype f32}
      %b0 = dequantize(%w, %t) {axis = 0, block_size = 0, to = dtype f32}
      %b = transpose(%b0) {perm = (1, 0)}
      %y = matmul(%a, %b)
      return %y
    }""")
    for precision, rule in (("f16", "gemm_hopper"), ("f32", "gemm")):
        made = tw.compile(model, target=TARGET, precision=precision, cache=False)
        rules = [each.rule for k in made.program.kernels.values() for each in k.decisions]
        assert rule in rules
        rng = np.random.default_rng(0)
        w = rng.standard_normal((64, 128)).astype(ml_dtypes.float8_e4m3fn)
        scales = [np.float32(0.02), rng.random(64, np.float32)]
        given = [rng.standard_normal((70, 128), np.float32), w, *scales]
        (want,) = graph.interpret(model, *given)
        (got,) = fetched(made, on_host(made)(*given))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_older_gpus_go_elsewhere():
    made = schedule(gemm(512, 512, 256), "cuda -arch=sm_80")
    assert made.decisions[0].rule != "gemm_hopper"
