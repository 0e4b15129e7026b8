"""Softmax and normalizations on a GPU by plans: interpreted, and what their code looks like."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, te
from tilewright.base.errors import TilewrightError
from tilewright.base.target import Target
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
HOPPER = Target.parse(TARGET)
SMALL = replace(HOPPER, machine=replace(HOPPER.machine, cores=1))  # a wave of few rows
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
BODIES = {
    "softmax": "%y = softmax(%x) {axes = (1,)}",
    "layer_norm": "%y = layer_norm(%x, %s, %b) {axis = 1}",
    "tanh_layer_norm": "%t = tanh(%x) %y = layer_norm(%t, %s, %b) {axis = 1}",
}


def model(name, rows, columns, dtype="f32"):
    row = f"{dtype}[{columns}]"
    text = f"graph @main(%x: {dtype}[{rows}, {columns}], %s: {row}, %b: {row}) {{ {BODIES[name]} "
    return graph.parse(f"{text} return %y }}")


def scheduled(module, plan=None, target=TARGET):
    choices = None if plan is None else {"y": Choice("rows", plan)}
    made = schedule(lower_graph(module.main, "f"), target, choices=choices)
    assert [decision.rule for decision in made.decisions] == ["rows"]
    return made


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    ("columns", "dtype", "plan"),
    [
        (512, "f32", "threads=64 vector=4 rows=1 ahead=0"),
        (512, "f32", "threads=128 vector=1 rows=1 ahead=0"),
        (1024, "bf16", "threads=32 vector=8 rows=1 ahead=0"),
        (64, "bf16", "threads=8 vector=8 rows=16 ahead=0"),
        (128, "f32", "threads=4 vector=4 rows=8 ahead=0"),
        (100, "f32", None),
        (384, "bf16", None),
    ],
)
@pytest.mark.sampled
def test_every_plan_computes_what_numpy_does(name, columns, dtype, plan):
    count = 3 if plan is None or "rows=1 " in plan else 32  # more than a block has
    check(name, count, columns, dtype, plan)


@pytest.mark.parametrize(
    ("name", "columns", "dtype", "threads", "lines"),
    [("softmax", 512, "bf16", 64, 1), ("layer_norm", 1024, "f32", 32, 2)],
)
def test_rows_of_the_next_wave_are_brought_to_l2(name, columns, dtype, threads, lines):
    plan = f"threads={threads} vector={16 // np.dtype(TYPES[dtype]).itemsize} rows=1 ahead=1"
    fn = check(name, 40, columns, dtype, plan, SMALL)
    resident = int(re.search(r"resident = (\d+)", str(fn))[1])
    assert f" + {resident} < 40" in str(fn)  # there is such a row, as many on as run at a time
    ptx = tw.build(fn, TARGET).ptx
    assert ptx.count("prefetch.global.L2") == lines
    assert re.search(r"\.minnctapersm (\d+)", ptx)[1] == str(resident)


def test_one_wave_of_rows_is_brought_to_l2_by_nobody():
    plan = "threads=32 vector=8 rows=1 ahead=1"
    with pytest.raises(TilewrightError, match="TW2702"):
        scheduled(model("softmax", 16, 1024, "bf16"), plan, SMALL)


def check(name, count, columns, dtype, plan, target=TARGET):
    """A plan against the graph's interpreter, as it was scheduled and as it was lowered."""
    module = model(name, count, columns, dtype)
    rng = np.random.default_rng(0)
    shapes = [(count, columns), (columns,), (columns,)]
    given = [rng.standard_normal(shape).astype(TYPES[dtype]) for shape in shapes]
    (want,) = graph.interpret(module, *given)
    fn = scheduled(module, plan, target).schedule.function
    limit = 1e-5 if dtype == "f32" else 2e-2
    for each in (fn, lower(fn, "gpu")):
        out = np.zeros((count, columns), TYPES[dtype])
        tw.interpret(each, *given, out)
        np.testing.assert_allclose(
            out.astype(np.float32), np.asarray(want).astype(np.float32), rtol=limit, atol=limit
        )
    return fn


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("dtype", "vector"), [("f32", 4), ("bf16", 8)])
@pytest.mark.sampled
def test_rows_are_read_once_by_sixteen_bytes_and_stay_in_registers(name, dtype, vector):
    made = scheduled(model(name, 8192, 8192, dtype))
    plan = dict(part.split("=") for part in made.decisions[0].plan.split())
    assert int(plan["vector"]) == vector
    turns = 8192 // vector // int(plan["threads"])
    ptx = tw.build(made.schedule.function, TARGET).ptx
    kinds = re.findall(r"^\s+((?:ld|st)\.global\S*)", ptx, re.M)
    reads = [kind for kind in kinds if kind.startswith("ld")]
    assert all(kind.endswith(".v4.b32") for kind in kinds)
    assert len(reads) == turns * (1 if name == "softmax" else 3)  # scale and bias too
    assert len(kinds) - len(reads) == turns
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) <= 6
    assert not re.search(r"\.local|st\.shared\.v|ld\.shared\.v", ptx)


def test_pairs_of_bf16_are_taken_apart_once_and_by_one_instruction_each():
    ptx = tw.build(scheduled(model("layer_norm", 8192, 8192, "bf16")).schedule.function, TARGET).ptx
    assert "cvt.u32.u16" not in ptx
    low, high = (
        len(re.findall(r"shl\.b32.*, 16;", ptx)),
        len(re.findall(r"and\.b32.*, -65536;", ptx)),
    )
    assert low == high == 3 * ptx.count("st.global.v4.b32") * 4  # of the row, its scale and bias


def test_what_is_rounded_to_bf16_and_used_again_is_never_packed():
    """The upper half of a pair with 0, which is an f32."""
    fn = scheduled(model("tanh_layer_norm", 8192, 8192, "bf16")).schedule.function
    ptx = tw.build(fn, TARGET).ptx
    stored = 4 * ptx.count("st.global.v4.b32")
    assert ptx.count("cvt.rn.bf16x2.f32") == 3 * stored
    assert "cvt.u32.u16" not in ptx


def test_a_row_that_takes_all_room_for_rows_is_one_kernel():
    """A maximum and a sum, of which every thread has the same, take no part of it."""
    fn = scheduled(model("softmax", 4096, 16384)).schedule.function
    scopes = {buffer.name: buffer.scope for buffer in fn.allocs}
    assert {scopes["x_local"], scopes["y_exp"]} == {"local"}


def test_rows_that_registers_have_no_room_for_go_through_shared_memory():
    fn = scheduled(
        model("softmax", 4, 8192), "threads=128 vector=4 rows=1 ahead=0"
    ).schedule.function
    assert {buffer.name: buffer.scope for buffer in fn.allocs}["y_exp"] != "local"


def of_two_stages(width, row, shift):
    """Rows of a matrix times their sums; the second stage reads them some elements on."""
    x = te.placeholder((3, width), "f32", name="x")
    at = te.placeholder((3,), "i64", name="at")
    k = te.reduce_axis((0, 512), name="k")
    sums = te.compute((3,), lambda i: te.sum(x[row(at, i), k], axis=k), name="sums")
    y = te.compute((3, 512), lambda i, j: x[row(at, i), j + shift] * sums[i], name="y")
    return te.function([x, at, y], name="f")


@pytest.mark.parametrize(
    ("width", "row", "shift", "is_kept"),
    [
        (512, lambda at, i: i, 0, True),
        (1024, lambda at, i: i, 0, False),  # a part of each row
        (1024, lambda at, i: i, 1, False),  # elements of other threads
        (512, lambda at, i: te.min(te.max(te.cast(at[i], "index"), 0), 2), 0, False),  # any row
    ],
)
def test_what_threads_keep_is_what_they_read_themselves(width, row, shift, is_kept):
    made = schedule(of_two_stages(width, row, shift), TARGET)
    assert [decision.rule for decision in made.decisions] == ["rows"]
    assert is_kept == any(buffer.name == "x_local" for buffer in made.schedule.function.allocs)
    x = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)
    out = np.zeros((3, 512), np.float32)
    tw.interpret(lower(made.schedule.function, "gpu"), x, np.arange(3), out)
    want = x[:, shift : shift + 512] * x[:, :512].sum(1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1 << 17, "n"])
def test_a_prologue_that_rows_have_no_registers_for_is_a_kernel_of_its_own(columns):
    fn = lower_graph(model("tanh_layer_norm", 256, columns, "bf16").main, "f")
    made = {decision.block: decision.rule for decision in schedule(fn, TARGET).decisions}
    assert made == {"t": "elementwise", "y": "rows"}


@pytest.mark.parametrize(("count", "columns"), [(8, 1 << 18), (2, 1 << 15)])
def test_sums_of_few_long_rows_are_shared_by_blocks(count, columns):
    fn = lower_graph(model("layer_norm", count, columns).main, "f")
    rules = [decision.rule for decision in schedule(fn, TARGET).decisions]
    assert rules == ["reduction", "reduction", "elementwise"]


def test_rows_across_memory_are_left_to_others():
    module = graph.parse("""graph @main(%x: f32[8, 3136, 96]) {
      %m = reduce_mean(%x) {axes = (1,), keepdims = true}
      %y = sub(%x, %m)
      return %y
    }""")
    made = schedule(lower_graph(module.main, "f"), TARGET)
    assert [decision.rule for decision in made.decisions] == ["columns"]


@pytest.mark.parametrize("tokens", [7, 49, 56, 197])
def test_rows_of_a_block_divide_an_axis(tokens):
    """So that none of them is found by a quotient, and what they keep is as small as they are."""
    module = graph.parse(f"""graph @main(%x: f32[8, {tokens}, 64], %s: f32[64], %b: f32[64]) {{
      %y = layer_norm(%x, %s, %b) {{axis = 2}}
      return %y
    }}""")
    fn = scheduled(module).schedule.function
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, np.float32) for shape in ((8, tokens, 64), 64, 64)]
    (want,) = graph.interpret(module, *given)
    tw.interpret(lower(fn, "gpu"), *given, out := np.zeros((8, tokens, 64), np.float32))
    np.testing.assert_allclose(out, np.asarray(want), rtol=1e-5, atol=1e-5)
    assert tw.build(fn, TARGET).ptx


@pytest.mark.parametrize(("name", "count"), [("softmax", 0), ("layer_norm", 1), ("softmax", 40)])
def test_rows_of_a_number_that_calls_tell_stay_in_registers(name, count):
    """As those of a known number do: only the length of a row says what a thread has of it."""
    module = model(name, "n", 256)
    fn = scheduled(module, "threads=32 vector=4 rows=1 ahead=0").schedule.function
    assert "alloc %x_local: " in str(fn)  # one copy, which all stages read
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, np.float32) for shape in ((count, 256), 256, 256)]
    (want,) = graph.interpret(module, *given)
    for each in (fn, lower(fn, "gpu")):
        tw.interpret(each, *given, out := np.zeros((count, 256), np.float32), count)
        np.testing.assert_allclose(out, np.asarray(want), rtol=1e-5, atol=1e-5)
    ptx = tw.build(fn, TARGET).ptx
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) == 2 * (1 if name == "softmax" else 3)
    assert ".local" not in ptx


def test_rows_that_a_block_shares_divide_an_axis_that_is_known():
    module = graph.parse("""graph @main(%x: f32[b, 12, 64], %s: f32[64], %t: f32[64]) {
      %y = layer_norm(%x, %s, %t) {axis = 2}
      return %y
    }""")
    made = scheduled(module)
    plan = dict(part.split("=") for part in made.decisions[0].plan.split())
    assert 12 % int(plan["rows"]) == 0
    assert int(plan["rows"]) > 1
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, np.float32) for shape in ((3, 12, 64), 64, 64)]
    (want,) = graph.interpret(module, *given)
    fn = made.schedule.function
    tw.interpret(lower(fn, "gpu"), *given, out := np.zeros((3, 12, 64), np.float32), 3)
    np.testing.assert_allclose(out, np.asarray(want), rtol=1e-5, atol=1e-5)


def test_the_tuner_may_search_rows():
    (offer,) = scheduled(model("softmax", 64, 4096)).offers
    assert offer.is_open
    columns = offer.space.columns()
    assert len(columns["threads"]) > 5
    assert (offer.cost(columns).cycles > 0).all()


def test_vectors_that_do_not_divide_a_row_are_no_plan():
    (offer,) = scheduled(model("softmax", 64, 100)).offers
    assert set(offer.space.columns()["vector"]) == {1}
