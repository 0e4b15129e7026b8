"""Convolutions as products of matrices."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, Module, interpret
from tilewright.graph.passes import FUSED, im2col_convolutions, lower_precision, remove_dead_nodes
from tilewright.graph.types import TensorType
from tilewright.graph.verify import verify
from tilewright.sym import const, size


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


WINDOWS = [
    {"kernel": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)},
    {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)},
    {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 2), "pads": (0, 1, 2, 0)},
    {"kernel": (1, 1), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0)},
]


def model(op: str, of: str, window: dict, weights: np.ndarray, **more: np.ndarray) -> Module:
    """relu(conv(x) + x2) on images of any batch."""
    b = Builder()
    x = b.param("x", TensorType(dtype(of), (size("n"), const(9), const(8), const(16))))
    extra = [b.constant(array, name) for name, array in more.items()]
    inputs = [None] * (2 if op == "conv_integer" else 0) if extra else []
    attributes = {key: value for key, value in window.items() if key != "kernel"}
    y = b.add(op, x, b.constant(weights, "w"), *inputs, *extra, layout="channels_last",
              groups=1, **attributes)  # fmt: skip
    z = b.add("add", y, b.add("neg", y))
    return b.module(b.add("relu", y), z)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", [1, 2])
def test_convolutions_of_bytes_are_products_of_rows(window, batch, rng):
    w = rng.integers(-128, 127, (24, 16, *window["kernel"])).astype(np.int8)
    bias = rng.integers(-100, 100, 24).astype(np.int32)
    before = model("conv_integer", "u8", window, w, bias=bias)
    after = im2col_convolutions(before, PassContext())
    verify(after)
    ops = [node.op for node in after.main.nodes]
    assert "matmul_integer" in ops
    assert "conv_integer" not in ops
    x = rng.integers(0, 255, (batch, 9, 8, 16)).astype(np.uint8)
    for a, b in zip(interpret(before, x), interpret(after, x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("window", WINDOWS)
def test_convolutions_in_bf16_are_products_of_rounded_rows(window, rng):
    w = rng.standard_normal((16, 16, *window["kernel"])).astype(np.float32)
    before = model("conv", "f32", window, w, bias=rng.standard_normal(16).astype(np.float32))
    after = lower_precision(before, PassContext())
    verify(after)
    (product,) = [node for node in after.main.nodes if node.op == "matmul"]
    assert [str(value.tensor.dtype) for value in product.inputs] == ["bf16", "bf16"]
    x = rng.standard_normal((2, 9, 8, 16)).astype(np.float32)
    for a, b in zip(interpret(before, x), interpret(after, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.02 * np.abs(w).sum() / 16)


def test_what_follows_is_done_on_rows(rng):
    w = rng.integers(-9, 9, (16, 16, 1, 1)).astype(np.int8)
    after = im2col_convolutions(model("conv_integer", "u8", WINDOWS[0], w), PassContext())
    shapes = {node.op: node.output.tensor.rank for node in after.main.nodes}
    assert shapes["relu"] == shapes["neg"] == shapes["add"] == 3


def test_groups_stay(rng):
    b = Builder()
    x = b.param("x", TensorType(dtype("f32"), tuple(map(const, (1, 8, 8, 32)))))
    w = b.constant(rng.standard_normal((32, 1, 3, 3)).astype(np.float32), "w")
    y = b.add("conv", x, w, layout="channels_last", groups=32, strides=(1, 1), dilations=(1, 1),
              pads=(1, 1, 1, 1))  # fmt: skip
    module = b.module(y)
    assert lower_precision(module, PassContext()) is module


@pytest.mark.parametrize(("images", "rows"), [(const(4), "1, 288, 144"), (size("n"), "n, 72, 144")])
def test_rows_of_known_images_are_counted_together(images, rows, rng):
    b = Builder()
    x = b.param("x", TensorType(dtype("u8"), (images, const(9), const(8), const(16))))
    w = b.constant(rng.integers(-128, 127, (24, 16, 3, 3)).astype(np.int8), "w")
    y = b.add("conv_integer", x, w, layout="channels_last", groups=1, strides=(1, 1),
              dilations=(1, 1), pads=(1, 1, 1, 1))  # fmt: skip
    after = im2col_convolutions(b.module(b.add("relu", y)), PassContext())
    verify(after)
    assert f"u8[{rows}]" in str(after)


def on(processor: str) -> PassContext:
    """A context with prices for one thread of a processor."""
    target = Target.parse(f"x86_64-linux-gnu -mcpu={processor}")
    return PassContext(target=target, costs=KernelCosts(KernelSetting(target, 1)))


# an image, output channels and a window; the operators, besides casts, that it becomes
FORMS = {
    "few channels": ((16, 16, 3), 32, {"kernel": (7, 7), "strides": (2, 2), "dilations": (1, 1),
                     "pads": (3, 3, 3, 3)}, ["pad", "reshape", "conv"]),
    "few channels, taps apart in height": ((18, 34, 4), 16, {"kernel": (3, 5), "strides": (1, 2),
                     "dilations": (2, 1), "pads": (2, 0, 1, 1)}, ["pad", "reshape", "conv"]),
    "short lines": ((7, 7, 128), 128, {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1),
                    "pads": (1, 1, 1, 1)}, ["pad", "patches", "reshape", "conv", "reshape"]),
    "short lines, taps apart": ((11, 11, 64), 64, {"kernel": (2, 3), "strides": (1, 2),
                    "dilations": (2, 1), "pads": (2, 0, 0, 0)},
                    ["pad", "patches", "reshape", "conv", "reshape"]),
    "too much in vain": ((6, 6, 40), 128, {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1),
                    "pads": (1, 1, 1, 1)}, ["pad", "patches", "reshape", "matmul", "reshape"]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("images", [const(2), size("n")], ids=str)
def test_where_tiles_read_images_convolutions_take_a_form_for_them(form, images, rng):
    shape, columns, window, ops = FORMS[form]
    b = Builder()
    x = b.param("x", TensorType(dtype("f32"), (images, *map(const, shape))))
    w = rng.integers(-8, 9, (columns, shape[-1], *window["kernel"])).astype(np.float32)
    attributes = {key: value for key, value in window.items() if key != "kernel"}
    y = b.add("conv", x, b.constant(w, "w"), layout="channels_last", groups=1, **attributes)
    before = b.module(y)
    after = lower_precision(before, on("sapphirerapids"))
    verify(after)
    assert [node.op for node in after.main.nodes if node.op not in ("cast", "constant")] == ops
    values = rng.integers(-8, 9, (2, *shape)).astype(np.float32)
    np.testing.assert_array_equal(*[interpret(m, values)[0] for m in (before, after)])
    plain = lower_precision(before, PassContext())
    assert "matmul" in [node.op for node in plain.main.nodes]


@pytest.mark.parametrize("images", [const(2), size("n")], ids=str)
def test_bytes_of_short_lines_are_unfolded_along_them_alone(images, rng):
    b = Builder()
    x = b.param("x", TensorType(dtype("u8"), (images, const(7), const(7), const(128))))
    w = rng.integers(-128, 127, (256, 128, 3, 3)).astype(np.int8)
    bias = b.constant(rng.integers(-99, 99, 256).astype(np.int32), "bias")
    y = b.add("conv_integer", x, b.constant(w, "w"), None, None, bias, layout="channels_last",
              groups=1, strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1))  # fmt: skip
    before = b.module(y)
    after = im2col_convolutions(before, on("sapphirerapids"))
    verify(after)
    assert {"patches", "conv_integer"} <= {node.op for node in after.main.nodes}
    values = rng.integers(0, 255, (2, 7, 7, 128)).astype(np.uint8)
    np.testing.assert_array_equal(*[interpret(m, values)[0] for m in (before, after)])


SIDES = (const(3), const(6), const(6))


@pytest.mark.parametrize("op", ["batch_norm", "dequantize"])
def test_values_of_channels_stay_with_their_axis(op, rng):
    b = Builder()
    x = b.param("x", TensorType(dtype("f32" if op == "batch_norm" else "i8"), SIDES))
    image = b.add("reshape", x, shape=(1, 3, 6, 6))
    values = [b.constant(rng.random(3).astype(np.float32) + 0.5, name) for name in "abcd"]
    more = {"to": dtype("f32"), "axis": 1} if op == "dequantize" else {}
    made = b.add(op, image, *(values[:1] if more else values), **more)
    before = b.module(made)
    after = im2col_convolutions(before, PassContext())
    verify(after)
    given = (10 * rng.standard_normal((3, 6, 6))).astype(x.tensor.dtype.numpy)
    np.testing.assert_array_equal(*(interpret(each, given)[0] for each in (before, after)))


@pytest.mark.parametrize("window", WINDOWS[1:3])
@pytest.mark.parametrize(("filters", "op"), [(145, "matmul"), (24, "conv")])
def test_few_windows_become_rows_where_a_run_computes_the_weights(window, filters, op, rng):
    shape = (filters, 4, *window["kernel"])
    b = Builder()
    x = b.param("x", TensorType(dtype("f32"), tuple(map(const, (2, 9, 8, 4)))))
    w = b.param("w", TensorType(dtype("f32"), tuple(map(const, shape))))
    bias = b.param("bias", TensorType(dtype("f32"), (const(filters),)))
    attributes = {key: value for key, value in window.items() if key != "kernel"}
    before = b.module(b.add("conv", x, w, bias, layout="channels_last", groups=1, **attributes))
    after = im2col_convolutions(before, PassContext())
    verify(after)
    assert op in [node.op for node in after.main.nodes]
    given = [rng.normal(size=shape).astype(np.float32) for shape in ((2, 9, 8, 4), shape, filters)]
    np.testing.assert_allclose(
        interpret(after, *given)[0], interpret(before, *given)[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("images", "channels"), [(2, 0), (0, 4)])
def test_windows_of_nothing_stay(images, channels):
    b = Builder()
    shapes = (images, 4, 4, channels), (145, channels, 3, 3)
    x, w = (
        b.param(name, TensorType(dtype("f32"), tuple(map(const, shape))))
        for name, shape in zip("xw", shapes, strict=True)
    )
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    made = b.add("conv", x, w, layout="channels_last", groups=1, **window)
    module = b.module(made)
    assert im2col_convolutions(module, PassContext()) is module


def test_a_sum_of_rows_and_an_image_is_done_where_rows_are(rng):
    """A residual block: the shortcut stays a convolution, its bytes are what goes to memory."""
    b = Builder()
    x = b.param("x", TensorType(dtype("u8"), tuple(map(const, (1, 8, 8, 16)))))
    small = b.param("y", TensorType(dtype("u8"), tuple(map(const, (1, 4, 4, 16)))))
    scale = b.constant(np.float32(0.01), "scale")
    filters = [
        b.constant(rng.integers(-9, 9, (32, 16, 1, 1)).astype(np.int8), n) for n in ("v", "w")
    ]
    window = {"dilations": (1, 1), "pads": (0,) * 4, "groups": 1, "layout": "channels_last"}
    made = []
    for image, w, strides in ((x, filters[0], (2, 2)), (small, filters[1], (1, 1))):
        sums = b.add("conv_integer", image, w, strides=strides, **window)
        real = b.add("mul", b.add("cast", sums, to=dtype("f32")), scale)
        stored = b.add("quantize", real, to=dtype("u8"))
        made.append(b.add("dequantize", stored, scale, to=dtype("f32")))
    before = b.module(b.add("quantize", b.add("add", *made), to=dtype("u8")))
    context = on("cascadelake")
    after = run_passes(before, (im2col_convolutions, remove_dead_nodes, *FUSED), context)
    verify(after)
    bodies = [node.bodies[0] for node in after.main.nodes if node.bodies]
    ops = [[node.op for node in body.nodes] for body in bodies]
    assert not any("conv_integer" in each and "add" in each for each in ops)
    assert any("matmul_integer" in each and "add" in each for each in ops)
    (shortcut,) = (body for body, each in zip(bodies, ops, strict=True) if "conv_integer" in each)
    assert [value.tensor.dtype.name for value in shortcut.results] == ["u8"]
    images = [rng.integers(0, 255, (1, n, n, 16)).astype(np.uint8) for n in (8, 4)]
    np.testing.assert_array_equal(interpret(before, *images)[0], interpret(after, *images)[0])


def test_windows_read_bytes_that_were_made_once(rng):
    b = Builder()
    x = b.param("x", TensorType(dtype("f32"), tuple(map(const, (1, 16, 16, 3)))))
    scale = b.constant(np.float32(0.01), "scale")
    image = b.add("quantize", x, scale, to=dtype("u8"))
    seen = b.add("patches", image, kernel=(3, 3), strides=(2, 2), dilations=(1, 1))
    context = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids"))
    after = run_passes(b.module(seen), FUSED, context)
    ops = [[n.op for n in node.bodies[0].nodes] for node in after.main.nodes if node.bodies]
    assert not any("quantize" in each and "patches" in each for each in ops)


@pytest.mark.parametrize(
    ("processor", "is_inside"), [("cascadelake", True), ("neoverse-n1", False)]
)
def test_padding_by_a_zero_point_is_a_part_of_the_convolution(processor, is_inside, rng):
    """Where moving bytes takes longer than asking whether they are there."""
    b = Builder()
    x = b.param("x", TensorType(dtype("u8"), tuple(map(const, (1, 80, 80, 32)))))
    made = []
    w = b.constant(rng.integers(-9, 9, (32, 32, 1, 1)).astype(np.int8), "v")
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "layout": "channels_last"}
    scale, zero = b.constant(np.float32(40.0), "scale"), b.constant(np.uint8(7), "zero")
    sums = b.add("conv_integer", x, w, groups=1, **window)
    image = b.add("quantize", b.add("cast", sums, to=dtype("f32")), scale, zero, to=dtype("u8"))
    padded = b.add("pad", image, None, zero, pads=(0, 1, 1, 0, 0, 1, 1, 0))
    taps = b.constant(rng.integers(-9, 9, (32, 1, 3, 3)).astype(np.int8), "w")
    before = b.module(b.add("conv_integer", padded, taps, groups=32, **window))
    arch = "aarch64" if processor.startswith("neoverse") else "x86_64"
    context = PassContext(target=Target.parse(f"{arch}-linux-gnu -mcpu={processor}"))
    after = run_passes(before, FUSED, context)
    verify(after)
    made = [[n.op for n in node.bodies[0].nodes] for node in after.main.nodes if node.bodies]
    assert any("pad" in each and "conv_integer" in each for each in made) == is_inside
    image = rng.integers(0, 255, (1, 80, 80, 32)).astype(np.uint8)
    np.testing.assert_array_equal(interpret(before, image)[0], interpret(after, image)[0])


def test_a_window_that_sees_the_whole_image_is_no_window(rng):
    w = rng.standard_normal((24, 16, 9, 8)).astype(np.float32)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    before = model("conv", "f32", window, w)
    after = run_passes(
        before, (lower_precision, remove_dead_nodes), PassContext(target=Target.parse("cuda"))
    )
    assert "patches" not in [node.op for node in after.main.nodes]
    x = rng.standard_normal((2, 9, 8, 16)).astype(np.float32)
    for made, want in zip(interpret(after, x), interpret(before, x), strict=True):
        np.testing.assert_allclose(made, want, rtol=0.02, atol=0.5)
