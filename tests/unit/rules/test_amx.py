"""Tiles of AMX: GEMM, convolutions and attention, whatever their plans, by the interpreter."""

import ml_dtypes
import numpy as np
import pytest

from tilewright import graph, te
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu.attention_amx import ATTENTION_AMX
from tilewright.rules.cpu.conv_amx import CONV_AMX
from tilewright.rules.cpu.gemm_amx import GEMM_AMX

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"
ROUNDED = 2e-2  # of bf16


def values(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def gemm(m, n, k):
    a, b = (
        te.placeholder(shape, "bf16", name=name) for shape, name in (((m, k), "a"), ((k, n), "b"))
    )
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype("f32") * b[r, j].astype("f32"), axis=r), name="c"
    )
    return te.function([a, b, c], name="gemm")


@pytest.mark.parametrize("constants", [(), ("b",)])
def test_every_plan_of_a_gemm_keeps_the_answer(check_plans, constants):
    inputs, outputs = [values(37, 64), values(64, 96)], [((37, 96), np.float32)]
    check_plans(
        gemm(37, 96, 64), GEMM_AMX, SERVER, inputs, outputs, constants=constants, tolerance=ROUNDED
    )


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


@pytest.mark.parametrize("stride", [1, 2])
def test_every_plan_of_a_convolution_keeps_the_answer(check_plans, stride):
    size = 16 * stride
    inputs = [values(1, size, size, 32), values(32, 32, 3, 3)]
    outputs = [((1, 16, 16, 32), np.float32)]
    fn = conv(size, 32, 32, stride)
    check_plans(fn, CONV_AMX, SERVER, inputs, outputs, constants=["w"], tolerance=ROUNDED)


def test_weights_beyond_l2_are_taken_in_blocks_of_channels():
    few, many = (
        schedule(conv(16, size, size), SERVER, threads=2, constants=["w"]).decisions[0].plan
        for size in (64, 512)
    )
    assert few.endswith("parallel=m")
    assert "strips=1 " in many
    assert many.endswith("parallel=n")


def test_every_plan_of_attention_keeps_the_answer(check_plans):
    shape = "bf16[1, 2, 32, 32]"
    module = graph.parse(
        f"graph @main(%q: {shape}, %k: {shape}, %v: {shape}) -> (f32[1, 2, 32, 32]) {{"
        "%y = attention(%q, %k, %v) {rounded = true, to = dtype f32} return %y }"
    )
    fn, inputs = lower_graph(module.main, "k"), [values(1, 2, 32, 32) for _ in range(3)]
    outputs = [((1, 2, 32, 32), np.float32)]
    check_plans(fn, ATTENTION_AMX, SERVER, inputs, outputs, tolerance=ROUNDED)
