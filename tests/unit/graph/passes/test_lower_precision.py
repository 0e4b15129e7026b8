"""Where products are rounded, and where not; what the passes write is in tests/ir."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright import graph
from tilewright.base.dtype import F16, F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.base.tf32 import round_tf32
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType
from tilewright.graph.passes import (
    LOWER_PRECISION_F16,
    UPCAST_F16,
    lower_precision,
    lower_precision_f16,
    lower_precision_tf32,
)
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.verify import verify
from tilewright.sym import const

TILES = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids"))
PRICED = replace(TILES, costs=KernelCosts(KernelSetting(TILES.target, 1)))
NO_TILES = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=skylake-avx512"))


def heads(rows="40", features=32):
    """Queries, keys and values as parts of one matrix."""
    parts = "\n".join(
        f"%{name}0 = slice(%x) {{starts = ({64 * at},), ends = ({64 * at + 64},), axes = (2,)}}\n"
        f"%{name}1 = reshape(%{name}0) "
        f"{{shape = (1, expr {rows}, {64 // features}, {features})}}\n"
        f"%{name} = transpose(%{name}1) {{perm = (0, 2, 1, 3)}}"
        for at, name in enumerate("qkv")
    )
    return graph.parse(
        f"graph @main(%x: f32[1, {rows}, 192]) {{ {parts} %y = attention(%q, %k, %v) return %y }}"
    )


def test_attention_reads_what_is_rounded_before_it_is_cut():
    before = heads()
    after = lower_precision(before, TILES)
    verify(after)
    (made,) = [node for node in after.main.nodes if node.op == "attention"]
    assert made["round_weights"]
    assert [str(value.tensor.dtype) for value in made.inputs] == ["bf16"] * 3
    casts = [node for node in after.main.nodes if node.op == "cast"]
    assert {node.inputs[0].name for node in casts} == {"x"}
    x = np.random.default_rng(0).standard_normal((1, 40, 192)).astype(np.float32)
    (want,), (got,) = graph.interpret(before, x), graph.interpret(after, x)
    np.testing.assert_allclose(got, want, atol=0.03)


@pytest.mark.parametrize(
    ("module", "ctx"),
    [(heads(), NO_TILES), (heads(rows="n"), TILES), (heads("8"), TILES), (heads("40", 8), TILES)],
    ids=["no tiles", "a number of rows not known", "few rows", "few features"],
)
def test_attention_that_tiles_do_not_serve_stays(module, ctx):
    after = lower_precision(module, ctx)
    assert not any(node.op == "cast" for node in after.main.nodes)


def test_f16_rounds_to_f16():
    before = graph.parse(
        "graph @main(%x: f32[64, 64], %w: f32[64, 64]) { %y = matmul(%x, %w) return %y }"
    )
    after = lower_precision_f16(before, PassContext())
    casts = [node["to"] for node in after.main.nodes if node.op == "cast"]
    assert casts == [F16, F16]


MATMUL = """graph @main(%x: f32[4, 64], %w: f32[64, 32]) {
  %y = matmul(%x, %w)
  return %y
}"""


def test_tf32_is_an_attribute_of_products():
    module = lower_precision_tf32(graph.parse(MATMUL), PassContext(target=Target.parse("cuda")))
    (node,) = module.main.nodes
    assert node["tf32"]
    assert lower_precision_tf32(module, PassContext(target=Target.parse("cuda"))) is module
    x, w = (np.random.default_rng(0).standard_normal(s).astype("f4") for s in ((4, 64), (64, 32)))
    (got,) = graph.interpret(module, x, w)
    np.testing.assert_array_equal(got, round_tf32(x) @ round_tf32(w))


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
def test_without_such_tensor_cores_f32_stays_f32(target):
    module = graph.parse(MATMUL)
    assert lower_precision_tf32(module, PassContext(target=Target.parse(target))) is module


def test_what_was_widened_is_read_as_it_was():
    module = graph.parse(
        """graph @main(%x: f16[4, 64], %w: f32[64, 32]) {
          %wide = cast(%x) {to = dtype f32}
          %y = matmul(%wide, %w)
          return %y
        }"""
    )
    after = lower_precision_f16(module, PassContext())
    (product,) = [node for node in after.main.nodes if node.op == "matmul"]
    assert product.inputs[0] is after.main.params[0]


GPU = PassContext(target=Target.parse("cuda -arch=sm_90a"))


def convolution(shape, weights, strides, pads):
    """A convolution of an image, channels last, with constant weights."""
    b = Builder()
    x = b.param("x", TensorType(F32, tuple(map(const, shape))))
    w = b.constant(weights)
    window = {"strides": strides, "pads": pads, "dilations": (1, 1), "layout": "channels_last"}
    return b.module(b.add("conv", x, w, **window))


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads"),
    [
        ((2, 20, 18, 3), (7, 7), (2, 2), (3, 3, 3, 3)),
        ((1, 21, 17, 4), (7, 7), (2, 1), (3, 2, 2, 3)),
        ((2, 23, 20, 4), (8, 8), (4, 4), (0, 0, 0, 0)),
    ],
    ids=["first layer of a ResNet", "strides that differ", "lines that no window sees"],
)
def test_windows_of_few_channels_are_windows_of_bands(shape, kernel, strides, pads):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((32, shape[-1], *kernel)).astype(np.float32) / 8
    before = convolution(shape, weights, strides, pads)
    after = lower_precision_f16(before, GPU)
    verify(after)
    bands, windows = (node for node in after.main.nodes if node.op == "patches")
    assert bands["kernel"] == (strides[0], kernel[1])
    assert windows["kernel"] == (-(-kernel[0] // strides[0]), 1)
    assert windows.inputs[0].tensor.static_shape[-1] % 64 == 0
    x = rng.standard_normal(shape).astype(np.float32)
    (want,), (got,) = graph.interpret(before, x), graph.interpret(after, x)
    np.testing.assert_allclose(got, want, atol=0.02)


@pytest.mark.parametrize(
    ("channels", "kernel", "strides"),
    [(3, (3, 3), (2, 2)), (64, (3, 3), (1, 1)), (3, (7, 7), (7, 7))],
    ids=["small windows", "pixels that are rows of tiles", "windows side by side"],
)
def test_windows_that_are_no_more_than_bands_stay(channels, kernel, strides):
    weights = np.ones((32, channels, *kernel), np.float32)
    module = convolution((1, 28, 28, channels), weights, strides, (0, 0, 0, 0))
    after = lower_precision_f16(module, GPU)
    (windows,) = [node for node in after.main.nodes if node.op == "patches"]
    assert windows["kernel"] == kernel


RESIDUAL = """graph @main(%x: f32[8, 64], %w: f32[64, 64]) {
  %r = relu(%x)
  %p = matmul(%r, %w)
  %s = reshape(%r) {shape = (1, 8, 64)}
  %q = reshape(%p) {shape = (1, 8, 64)}
  %y = add(%q, %s)
  return %y
}"""


@pytest.mark.parametrize(("target", "kept"), [(GPU, "f16"), (NO_TILES, "f32")])
def test_on_a_gpu_sums_read_what_products_read(target, kept):
    after = lower_precision_f16(graph.parse(RESIDUAL), target)
    verify(after)
    (total,) = [node for node in after.main.nodes if node.op == "add"]
    made_by = {value: node for node in after.main.nodes for value in node.outputs}
    residual = made_by[total.inputs[1]]
    assert str((residual.inputs[0] if residual.op == "cast" else residual.output).tensor.dtype) == (
        kept
    )


def test_the_greatest_of_numbers_that_products_and_sums_read_is_of_rounded_ones():
    weights = np.ones((64, 64, 3, 3), np.float32)
    b = Builder()
    x = b.param("x", TensorType(F32, tuple(map(const, (1, 8, 8, 64)))))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    window |= {"layout": "channels_last"}
    pooled = b.add("max_pool", x, kernel=(3, 3), **window)
    made = b.add("conv", pooled, b.constant(weights), **window)
    after = run_passes(b.module(b.add("add", made, pooled)), LOWER_PRECISION_F16, GPU)
    verify(after)
    assert {
        str(node.inputs[0].tensor.dtype) for node in after.main.nodes if node.op == "max_pool"
    } == {"f16"}


def test_convolutions_of_a_model_of_fewer_bits_are_products_of_windows_too():
    random = np.random.default_rng(0)
    b = Builder()
    x = b.param("x", TensorType(F16, tuple(map(const, (1, 8, 8, 64)))))
    weights = b.constant(random.standard_normal((32, 64, 3, 3)).astype(np.float16) / 24)
    bias = b.constant(random.standard_normal(32).astype(np.float16))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    before = b.module(b.add("conv", x, weights, bias, layout="channels_last", **window))
    after = run_passes(before, (*UPCAST_F16, fold_constants, *LOWER_PRECISION_F16), GPU)
    verify(after)
    assert not any(node.op == "conv" for node in after.main.nodes)
    (made,) = [node for node in after.main.nodes if node.op == "matmul"]
    assert [str(value.tensor.dtype) for value in (*made.inputs, made.output)] == [
        "f16",
        "f16",
        "f32",
    ]
    given = random.standard_normal((1, 8, 8, 64)).astype(np.float16)
    (want,), (got,) = graph.interpret(before, given), graph.interpret(after, given)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, atol=0.02)


def test_attention_of_fewer_bits_is_streamed_or_split():
    """Heads of 28 features are filled up for copies; those of 320 no kernel streams."""
    for features in (28, 320):
        shape = f"f16[1, 2, 40, {features}]"
        before = graph.parse(
            f"graph @main(%q: {shape}, %k: {shape}, %v: {shape}) "
            "{ %y = attention(%q, %k, %v) return %y }"
        )
        after = run_passes(before, (*UPCAST_F16, fold_constants, *LOWER_PRECISION_F16), GPU)
        verify(after)
        made = [node for node in after.main.nodes if node.op in ("attention", "matmul")]
        assert [node.op for node in made] == (["attention"] if features == 28 else ["matmul"] * 2)
        assert all(str(value.tensor.dtype) == "f16" for node in made for value in node.inputs[:2])
        given = np.random.default_rng(0).standard_normal((3, 1, 2, 40, features))
        given = given.astype(np.float16)
        (want,), (got,) = graph.interpret(before, *given), graph.interpret(after, *given)
        np.testing.assert_allclose(got, want, atol=0.02)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_channels_become_whole_tiles_where_that_takes_less_than_unfolding(strides):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 60, 3, 3)).astype(np.float32) / 16
    before = convolution((1, 32, 32, 60), weights, strides, (1, 0, 1, 2))
    after = lower_precision(before, PRICED)
    verify(after)
    (node,) = (node for node in after.main.nodes if node.op == "conv")
    assert node.inputs[1].tensor.static_shape == (64, 64, 3, 3)
    x = rng.standard_normal((1, 32, 32, 60)).astype(np.float32)
    (want,), (got,) = graph.interpret(before, x), graph.interpret(after, x)
    np.testing.assert_allclose(got, want, atol=0.1)
