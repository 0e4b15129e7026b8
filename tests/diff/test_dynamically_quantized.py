"""Models that quantize what they see on the way: the compiled integers are the interpreter's."""

import numpy as np
import pytest
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


def check(made, threads, **inputs):
    """All integers are the same; the rest is what they are made of."""
    want = interpret(import_model(made), *inputs.values())
    got = tw.compile(made, threads=threads)(**inputs)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("of", [np.int8, np.uint8])
@pytest.mark.parametrize("zero", [0, 3])
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
