"""Quantized models with `precision="int8"`: products of integers give what real numbers would."""

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import tilewright as tw
from tilewright.frontends.onnx import import_model
from tilewright.graph.interp import interpret

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
STEP = 0.045  # of the result
STEPS = {"x": (0.02, 0), "a": (0.03, 0), "b": (0.04, 0), "c": (0.05, 117), "r": (0.06, 125)}


def initializers(shapes):
    """Weights in bytes with a scale per channel, and the scales and zero points of values."""
    random = np.random.default_rng(3)
    for name, shape in shapes.items():
        yield f"{name}_q", random.integers(-127, 128, shape).astype(np.int8)
        scale = random.uniform(0.3, 1.0, shape[0]) * 0.3 / np.sqrt(np.prod(shape[1:])) / 64
        yield f"{name}_s", scale.astype(np.float32)
        yield f"{name}_z", np.zeros(shape[0], np.int8)
    for name, (step, zero) in {**STEPS, "y": (STEP, 0)}.items():
        yield f"{name}_s", np.float32(step)
        yield f"{name}_z", np.uint8(zero)


def conv(x, w, y, pads=0, relu=True):
    """A convolution of `x`, quantized and read back as the value `y`."""
    after = f"{y}_f = Relu ({y}_p)\n" if relu else f"{y}_f = Identity ({y}_p)\n"
    return (
        f"{w} = DequantizeLinear <axis = 0> ({w}_q, {w}_s, {w}_z)\n"
        f"{y}_p = Conv <pads = [{pads}, {pads}, {pads}, {pads}]> ({x}, {w})\n{after}{quantized(y)}"
    )


def quantized(name):
    return (
        f"{name}_i = QuantizeLinear ({name}_f, {name}_s, {name}_z)\n"
        f"{name} = DequantizeLinear ({name}_i, {name}_s, {name}_z)\n"
    )


def bottleneck(size, wide):
    """A residual block: what was quantized is added, and quantized again."""
    body = (
        quantized("x")
        + conv("x", "wa", "a")
        + conv("a", "wb", "b", pads=1)
        + conv("b", "wc", "c", relu=False)
        + conv("x", "wr", "r", relu=False)
        + "sum = Add (c, r)\ny_f = Relu (sum)\n"
        + quantized("y")
    )
    model = parser.parse_model(
        f"{HEAD}g (float[1, 64, {size}, {size}] x_f) => (float[1, {wide}, {size}, {size}] y)"
        f" {{\n{body}}}"
    )
    shapes = {"wa": (64, 64, 1, 1), "wb": (64, 64, 3, 3), "wc": (wide, 64, 1, 1)}
    for name, array in initializers({**shapes, "wr": (wide, 64, 1, 1)}):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return helper.make_model(model.graph, opset_imports=model.opset_import, ir_version=8)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "wide"), [(8, 128), (5, 48)])
def test_a_residual_block_is_what_its_real_numbers_round_to(size, wide, threads):
    model = bottleneck(size, wide)
    x = np.random.default_rng(0).uniform(0, 5, (1, 64, size, size)).astype(np.float32)
    (want,) = interpret(import_model(model), x)
    got = np.asarray(tw.compile(model, threads=threads, precision="int8")(x_f=x)[0])
    apart = np.abs(np.rint((got - want) / STEP))
    assert np.unique(want).size > 20
    assert apart.max() <= 1  # where a tie is rounded to the other side
    assert (apart > 0).mean() < 0.01


@pytest.mark.parametrize("depth", [16, 24, 40, 72])
def test_a_product_of_short_rows(depth):
    model = parser.parse_model(
        f"{HEAD}g (float[50, {depth}] x_f) => (float[50, 80] y) {{\n{quantized('x')}"
        "w = DequantizeLinear <axis = 1> (w_q, w_s, w_z)\n"
        f"y_f = MatMul (x, w)\n{quantized('y')}}}"
    )
    for name, array in initializers({"w": (80, depth)}):
        moved = array.T.copy() if name == "w_q" else np.asarray(array)
        model.graph.initializer.append(numpy_helper.from_array(moved, name))
    x = np.random.default_rng(0).uniform(0, 5, (50, depth)).astype(np.float32)
    (want,) = interpret(import_model(model), x)
    got = np.asarray(tw.compile(model, threads=1, precision="int8")(x_f=x)[0])
    apart = np.abs(np.rint((got - want) / STEP))
    assert np.unique(want).size > 10
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01
