"""Tiles of AMX: GEMM, convolutions and attention, whatever their plans, by the interpreter."""

import re

import ml_dtypes
import numpy as np
import pytest

from tilewright import graph, te
from tilewright.base.bf16x6 import pieces_of
from tilewright.codegen.build import build
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.attention_amx import ATTENTION_AMX
from tilewright.rules.cpu.conv_amx import CONV_AMX
from tilewright.rules.cpu.gemm_amx import GEMM_AMX
from tilewright.tensor.constants import split_constant_blocks
from tilewright.tensor.interp import interpret

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"
FEW = {"plans": 3, "tolerance": 2e-2}  # tiles take the interpreter long; sums are of bf16


def values(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def gemm(m, n, k, *, turned=False):
    a = te.placeholder((k, m) if turned else (m, k), "bf16", name="a")
    b = te.placeholder((k, n), "bf16", name="b")
    r = te.reduce_axis((0, k), name="r")

    def product(i, j):
        left = a[r, i] if turned else a[i, r]
        return te.sum(te.cast(left, "f32") * te.cast(b[r, j], "f32"), axis=r)

    return te.function([a, b, te.compute((m, n), product, name="c")], name="gemm")


@pytest.mark.parametrize("constants", [(), ("b",)])
def test_every_plan_of_a_gemm_keeps_the_answer(check_plans, constants):
    inputs, outputs = [values(21, 32), values(32, 64)], [((21, 64), np.float32)]
    fn = gemm(21, 64, 32)
    check_plans(fn, GEMM_AMX, SERVER, inputs, outputs, constants=constants, **FEW)


def test_an_operand_that_does_not_lie_along_k_is_turned(check_plans):
    inputs, outputs = [values(32, 21), values(32, 64)], [((21, 64), np.float32)]
    fn = gemm(21, 64, 32, turned=True)
    check_plans(fn, GEMM_AMX, SERVER, inputs, outputs, constants=("b",), **FEW)


def packing(target, a, b, total, *, turned):
    """The code of a GEMM whose B is packed by every call."""
    shape = (128, 96) if turned else (96, 128)
    x, y = te.placeholder((64, 96), a, name="x"), te.placeholder(shape, b, name="y")
    k = te.reduce_axis((0, 96), name="k")

    def element(i, j):
        right = y[j, k] if turned else y[k, j]
        return te.sum(te.cast(x[i, k], total) * te.cast(right, total), axis=k)

    fn = te.function([x, y, te.compute((64, 128), element, name="c")], name="gemm")
    return build(schedule(fn, target).schedule.function, target).assembly


TYPES = [("bf16", "bf16", "f32"), ("u8", "i8", "i32")]


@pytest.mark.parametrize("target", [SERVER, "x86_64-linux-gnu -mcpu=cascadelake"])
@pytest.mark.parametrize(("a", "b", "total"), TYPES)
def test_groups_of_k_are_interleaved_in_registers(target, a, b, total):
    text = packing(target, a, b, total, turned=False)
    assert not re.findall(r"^\s+mov[bw]\s.*\(", text, re.MULTILINE)  # of an element alone


@pytest.mark.parametrize(("a", "b", "total"), TYPES)
def test_contiguous_groups_of_k_are_transposed_in_registers(a, b, total):
    assert re.search(r"\bv(perm|punpck)", packing(SERVER, a, b, total, turned=True))


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(("k", "n"), [(64, 32), (70, 40), ("k", 32), (64, "n")])
def test_packing_keeps_the_answer(k, n, layout):
    """Sizes that fill no tile, and dynamic ones."""
    sizes = {"k": 75, "n": 53}
    steps, columns = (te.var(at) if isinstance(at, str) else at for at in (k, n))
    shape = (steps, columns) if layout == "nn" else (columns, steps)
    x, y = te.placeholder((32, steps), "i8", name="x"), te.placeholder(shape, "i8", name="y")
    r = te.reduce_axis((0, steps), name="r")

    def element(i, j):
        right = y[r, j] if layout == "nn" else y[j, r]
        return te.sum(te.cast(x[i, r], "i32") * te.cast(right, "i32"), axis=r)

    fn = te.function([x, y, te.compute((32, columns), element, name="c")], name="gemm")
    k, n = (sizes.get(at, at) for at in (k, n))
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-128, 128, shape, np.int8) for shape in ((32, k), (k, n)))
    got = np.zeros((32, n), np.int32)
    stored = right if layout == "nn" else np.ascontiguousarray(right.T)
    open_sizes = [sizes[var.name] for var in fn.params[3:]]
    interpret(schedule(fn, SERVER).schedule.function, left, stored, got, *open_sizes)
    np.testing.assert_array_equal(got, left.astype(np.int32) @ right.astype(np.int32))


PIECES = """
graph @main(%x: bf16[{m}, 3, {k}], %w: bf16[3, {k}, {n}], %r: f32[{m}, {n}], %b: f32[{n}]) {{
  %product = matmul_pieces(%x, %w)
  %sum = add(%product, %b)
  %y = tanh(%sum)
  %out = add(%y, %r)
  return %out
}}
"""


def pieces(m, n, k):
    """A product of pieces with an epilogue."""
    return lower_graph(graph.parse(PIECES.format(m=m, n=n, k=k)).main, "gemm")


def pieces_and_result(m, n, k):
    """Operands in pieces, and what f64 makes of them."""
    rng = np.random.default_rng(0)
    shapes = ((m, k), (k, n), (m, n), (n,))
    x, w, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    total = x.astype(np.float64) @ w + b
    return [pieces_of(x, -2), pieces_of(w, -3), r, b], np.tanh(total) + r


@pytest.mark.parametrize("constants", [(), ("w",)])
def test_every_plan_of_a_product_of_pieces_keeps_the_answer(check_plans, constants):
    fn, (inputs, want) = pieces(18, 20, 32), pieces_and_result(18, 20, 32)
    checked = {"plans": 3, "tolerance": 1e-5}
    check_plans(
        fn, GEMM_AMX, SERVER, inputs, [(want.shape, np.float32)], constants=constants, **checked
    )


@pytest.mark.parametrize("rows", [33, "rows"])
def test_products_of_pieces_are_as_exact_as_f32(rows):
    made = schedule(pieces(rows, 35, 32), SERVER, constants=["w"])
    assert made.decisions[0].rule == GEMM_AMX.name
    inputs, want = pieces_and_result(33, 35, 32)
    got = np.zeros(want.shape, np.float32)
    interpret(made.schedule.function, *inputs, got, *([33] if rows == "rows" else []))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_step_of_pieces_has_six_products_of_each_pair_of_tiles():
    made = schedule(pieces(128, 128, 768), SERVER, constants=["w"])
    text = build(split_constant_blocks(made.schedule.function).kernel, SERVER).assembly
    assert text.count("tdpbf16ps") == 24
    assert text.count("tilestored") == 4
    assert text.count("tileloadd") == 14  # what a tile holds is not loaded again


@pytest.mark.parametrize("which", ["memory", "rows", "k"])
def test_other_indices_are_no_terms(which):
    """Memory, rows or steps of k may say which matrix is multiplied: there are no tiles."""
    shapes = {"a": (4, 64, 96), "b": (96, 64)}
    a, b = (te.placeholder(shape, "bf16", name) for name, shape in shapes.items())
    at = te.placeholder((2,), "i64", "at")

    def element(i, j):
        k = te.reduce_axis((0, 96), name="k")
        known = te.min(te.max(te.cast(at[0], "index"), 0), 3)
        matrix = {"memory": known, "rows": i // 16, "k": k % 4}[which]
        return te.sum(te.cast(a[matrix, i, k], "f32") * te.cast(b[k, j], "f32"), axis=[k])

    fn = te.function([a, b, at, te.compute((64, 64), element, name="c")])
    made = schedule(fn, SERVER, constants=["b"])
    assert made.decisions[0].rule != GEMM_AMX.name


def test_tiles_run_along_rows_that_are_many_for_sure():
    """Of few sequences, tiles along those would be padding for the most part."""
    module = graph.parse(
        "graph @main(%x: bf16[33, batch, 32], %w: bf16[32, 64]) -> (f32[33, batch, 64])"
        "{ %y = matmul(%x, %w) {to = dtype f32} return %y }"
    )
    fn = lower_graph(module.main, "gemm")
    made = schedule(fn, SERVER, constants=["w"])
    assert made.decisions[0].rule == GEMM_AMX.name
    x, w = values(33, 2, 32), values(32, 64)
    got, want = np.zeros((2, 33, 2, 64), np.float32)
    for function, result in ((made.schedule.function, got), (fn, want)):
        interpret(function, x, w, result, 2)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_tiles_have_as_many_rows_as_divide_m_well():
    plans = [
        schedule(gemm(m, 768, 768), SERVER, constants=["b"]).decisions[0].plan
        for m in (128, 196, 8)
    ]
    assert [plan.split()[0] for plan in plans] == ["tile_rows=16", "tile_rows=14", "tile_rows=8"]


def test_few_rows_prefetch_weights_by_steps_and_many_by_blocks():
    few, many = (
        schedule(gemm(m, 768, 768), SERVER, constants=["b"]).decisions[0].plan for m in (16, 512)
    )
    assert "prefetch_b=2" in few
    assert "prefetch_b=0" in many


def conv(size, channels, filters, stride=1):
    out = (size - 1) // stride + 1
    module = graph.parse(
        f"graph @main(%x: bf16[1, {size}, {size}, {channels}], "
        f"%w: bf16[{filters}, {channels}, 3, 3]) -> (f32[1, {out}, {out}, {filters}]) {{"
        f"%y = conv(%x, %w) {{strides = ({stride}, {stride}), pads = (1, 1, 1, 1), "
        'dilations = (1, 1), layout = "channels_last", to = dtype f32} return %y }'
    )
    return lower_graph(module.main, "conv")


@pytest.mark.parametrize("filters", [16, 24])
def test_every_plan_of_a_convolution_keeps_the_answer(check_plans, filters):
    inputs, outputs = (
        [values(1, 8, 8, 32), values(filters, 32, 3, 3)],
        [((1, 8, 8, filters), np.float32)],
    )
    check_plans(conv(8, 32, filters), CONV_AMX, SERVER, inputs, outputs, constants=["w"], **FEW)


def test_weights_beyond_l2_are_taken_in_blocks_of_channels():
    few, many = (
        schedule(conv(56, size, size), SERVER, threads=2, constants=["w"]).decisions[0].plan
        for size in (64, 512)
    )
    assert few.endswith("parallel=m")
    assert "strips=1 " in many
    assert many.endswith("parallel=n")


def test_every_plan_of_attention_keeps_the_answer(check_plans):
    shape = "bf16[1, 1, 32, 32]"
    module = graph.parse(
        f"graph @main(%q: {shape}, %k: {shape}, %v: {shape}) -> (f32[1, 1, 32, 32]) {{"
        "%y = attention(%q, %k, %v) {round_weights = true, to = dtype f32} return %y }"
    )
    fn, inputs = lower_graph(module.main, "k"), [values(1, 1, 32, 32) for _ in range(3)]
    outputs = [((1, 1, 32, 32), np.float32)]
    check_plans(fn, ATTENTION_AMX, SERVER, inputs, outputs, **FEW)
