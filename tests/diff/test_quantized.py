"""Quantized models: products of integers give what real numbers would, asked for or by default."""

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import tilewright as tw
from tilewright.base.dots import multiplies_bytes
from tilewright.base.target import Target
from tilewright.driver.compiled import products_of
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


def layer(rows, depth):
    """A layer of random bytes and the sums that it should give, exact but for one rounding."""
    random = np.random.default_rng(depth)
    model = parser.parse_model(
        f"{HEAD}g (uint8[{rows}, {depth}] x_q) => (float[{rows}, 80] y) {{\n"
        "x = DequantizeLinear (x_q, x_s, x_z)\n"
        "w = DequantizeLinear <axis = 1> (w_q, w_s, w_z)\ny = MatMul (x, w)\n}"
    )
    given = {
        "x_s": np.float32(0.031), "x_z": np.uint8(131),
        "w_q": random.integers(-128, 128, (depth, 80)).astype(np.int8),
        "w_s": random.uniform(0.001, 0.01, 80).astype(np.float32), "w_z": np.zeros(80, np.int8),
    }  # fmt: skip
    for name, array in given.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    x = random.integers(0, 256, (rows, depth)).astype(np.uint8)
    sums = (x.astype(np.int64) - 131) @ given["w_q"].astype(np.int64)
    return model, x, sums * (np.float64(given["x_s"]) * given["w_s"].astype(np.float64))


@pytest.mark.parametrize("depth", [27, 512, 4096])
def test_integers_are_the_default_and_no_less_accurate(depth):
    model, x, want = layer(33, depth)
    chosen = tw.compile(model, threads=1)
    floats = tw.compile(model, threads=1, without=("prefer_integers",))
    told = [products_of(each.inside.placement.graph) for each in (chosen, floats)]
    is_faster = multiplies_bytes(Target.host())
    assert told == [
        {"integers": int(is_faster), "floats": int(not is_faster)},
        {"integers": 0, "floats": 1},
    ]
    wrong = [np.abs(np.asarray(each(x)[0]) - want).max() for each in (chosen, floats)]
    assert wrong[0] <= wrong[1]


def test_sums_that_could_leave_i32_are_of_floats():
    model, x, want = layer(1, 33_030)
    made = tw.compile(model, threads=1)
    assert products_of(made.inside.placement.graph)["integers"] == 0
    np.testing.assert_allclose(np.asarray(made(x)[0]), want, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("size", "wide"), [(8, 128), (5, 48)])
def test_a_residual_block_by_default_rounds_as_real_numbers_do(size, wide):
    model = bottleneck(size, wide)
    x = np.random.default_rng(0).uniform(0, 5, (1, 64, size, size)).astype(np.float32)
    (want,) = interpret(import_model(model), x)
    made = tw.compile(model, threads=1)
    apart = np.abs(np.rint((np.asarray(made(x_f=x)[0]) - want) / STEP))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01
    if multiplies_bytes(Target.host()):
        assert products_of(made.inside.placement.graph) == {"integers": 4, "floats": 0}
