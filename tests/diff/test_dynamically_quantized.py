"""Models that quantize what they see on the way: the compiled integers are the interpreter's."""

import platform
from itertools import product

import numpy as np
import pytest
from grids import every_pair
from onnx import numpy_helper, parser

import tilewright as tw
from tilewright.frontends.onnx import import_model
from tilewright.graph.interp import interpret

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text, **initializers):
    made = parser.parse_model(HEAD + text)
    for name, array in initializers.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return made


def weights(of, *shape):
    limits = np.iinfo(of)
    made = np.random.default_rng(0).integers(limits.min, limits.max, shape, endpoint=True)
    return made.astype(of)


def check(made, threads, *calls, **inputs):
    """All integers are the same, in every call; the rest is what they are made of."""
    reference, compiled = import_model(made), tw.compile(made, threads=threads)
    for each in calls or (inputs,):
        want = interpret(reference, *each.values())
        for ours, theirs in zip(compiled(**each), want, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs)
    return compiled


@pytest.mark.parametrize(("of", "zero", "threads"), every_pair((np.int8, np.uint8), (0, 3), (1, 2)))
def test_a_convolution_pads_with_a_zero_point_of_the_run(of, zero, threads):
    made = model(
        "g (float[1, 3, 11, 9] x) => (int32[1, 24, 6, 5] y) {\n"
        "q, s, z = DynamicQuantizeLinear (x)\n"
        "y = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 2]> (q, w, z, wz)\n}",
        w=weights(of, 24, 3, 3, 3),
        wz=np.asarray(of(zero)),
    )
    x = np.random.default_rng(1).normal(0.5, 1, (1, 3, 11, 9)).astype(np.float32)
    check(made, threads, x=x)


@pytest.mark.parametrize("groups", [2, 16])
def test_convolutions_in_groups(groups):
    made = model(
        "g (float[1, 16, 8, 8] x) => (int32[1, 32, 8, 8] y) {\n"
        "q, s, z = DynamicQuantizeLinear (x)\n"
        f"y = ConvInteger <pads = [1, 1, 1, 1], group = {groups}> (q, w, z)\n}}",
        w=weights(np.int8, 32, 16 // groups, 3, 3),
    )
    x = np.random.default_rng(1).normal(0.5, 1, (1, 16, 8, 8)).astype(np.float32)
    check(made, 1, x=x)


@pytest.mark.parametrize("of", [np.int8, np.uint8])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_product_with_a_constant(of, rows):
    made = model(
        f"g (float[{rows}, 50] x) => (int32[{rows}, 36] y) {{\n"
        "q, s, z = DynamicQuantizeLinear (x)\n"
        "y = MatMulInteger (q, w, z, wz)\n}",
        w=weights(of, 50, 36),
        wz=np.asarray(of(100)),
    )
    x = np.random.default_rng(1).normal(0.5, 1, (rows, 50)).astype(np.float32)
    check(made, 1, x=x)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_of_two_that_are_quantized_on_the_way(threads):
    made = model(
        "g (float[3, n, 32] x, float[3, 32, m] y) => (int32[3, n, m] c) {\n"
        "a, s, p = DynamicQuantizeLinear (x)\n"
        "b, t, q = DynamicQuantizeLinear (y)\n"
        "c = MatMulInteger (a, b, p, q)\n}"
    )
    random = np.random.default_rng(1)
    x = random.normal(0.5, 1, (3, 20, 32)).astype(np.float32)
    y = random.normal(-0.5, 2, (3, 32, 17)).astype(np.float32)
    check(made, threads, x=x, y=y)


CHAIN = """
q, s, z = DynamicQuantizeLinear (x)
p = {operator} (q, w, z)
f = Cast <to = 1> (p)
t = Mul (s, u)
m = Mul (f, t)
a = {last} (m)
b, o, zero = DynamicQuantizeLinear (a)
"""
LAYERS = {
    "product": ("float[{n}, 40] x", "uint8[{n}, 36] b", "MatMulInteger", (40, 36)),
    "convolution": (
        "float[1, 8, {n}, 9] x",
        "uint8[1, 24, {n}, 9] b",
        "ConvInteger <pads = [1, 1, 1, 1]>",
        (24, 8, 3, 3),
    ),
    "depthwise": (
        "float[1, 16, {n}, 9] x",
        "uint8[1, 16, {n}, 9] b",
        "ConvInteger <pads = [1, 1, 1, 1], group = 16>",
        (16, 1, 3, 3),
    ),
}


def two_layers(kind, size, last, **constants):
    """A layer whose results are quantized over the range they happen to have.

    The factor `u` of its results is a constant or given with a call.
    """
    given, made, operator, shape = LAYERS[kind]
    given += "" if constants else ", float u"
    chain = CHAIN.format(operator=operator, last=last)
    ends = f"g ({given}) => ({made}, float o, uint8 zero)".replace("{n}", str(size))
    return model(f"{ends} {{{chain}}}", w=weights(np.int8, *shape), **constants)


def shape_of(kind):
    return {"product": (21, 40), "convolution": (1, 8, 11, 9), "depthwise": (1, 16, 11, 9)}[kind]


@pytest.mark.parametrize(
    ("kind", "last", "is_dynamic", "threads"),
    every_pair(tuple(LAYERS), ("Relu", "Identity", "Abs"), (False, True), (1, 2)),
)
def test_the_range_of_a_layer_is_found_where_it_is_made(kind, last, is_dynamic, threads):
    shape = shape_of(kind)
    made = two_layers(kind, "n" if is_dynamic else shape[-2], last, u=np.float32(0.01))
    x = np.random.default_rng(1).normal(0.5, 1, shape).astype(np.float32)
    kernels = [each.kernel for each in check(made, threads, x=x).profile(x=x).events]
    assert any("integer" in name and "reduce" in name for name in kernels)


@pytest.mark.parametrize("kind", LAYERS)
def test_ranges_of_zeros_and_beyond_numbers(kind):
    x = np.random.default_rng(1).normal(0.5, 1, shape_of(kind)).astype(np.float32)
    factors = (0.0, 1e-45, -1e30, 3e38, np.inf, np.nan)
    made = two_layers(kind, shape_of(kind)[-2], "Identity")
    check(made, 1, *({"x": x, "u": np.float32(factor)} for factor in factors))


@pytest.mark.parametrize("factor", [0.0, np.inf, np.nan])
def test_ranges_of_a_constant_factor(factor):
    x = np.random.default_rng(1).normal(0.5, 1, shape_of("product")).astype(np.float32)
    made = two_layers("product", shape_of("product")[-2], "Identity", u=np.float32(factor))
    check(made, 1, {"x": x})


def test_one_number_makes_a_range():
    made = model(
        "g (float[3, 70] x) => (uint8[3, 70] q, float s, uint8 z) {\n"
        "q, s, z = DynamicQuantizeLinear (x)\n}"
    )
    calls = []
    least = 1e-34 if platform.machine() == "x86_64" else 1e-42  # x86 flushes the scale of less
    rests = 1.0, least, 1e37
    for number, rest in product((np.nan, np.inf, -np.inf, 3e38, 1e-45), rests):
        x = np.random.default_rng(1).normal(0.5, 1, (3, 70)) * rest
        x[1, 5] = number
        calls.append({"x": x.astype(np.float32)})
    check(made, 1, *calls)


def test_a_range_of_nothing():
    made = two_layers("product", "n", "Relu", u=np.float32(0.01))
    check(made, 1, x=np.zeros((0, 40), np.float32))
