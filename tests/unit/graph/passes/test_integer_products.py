"""Integer products in the form that a target multiplies: the same bits, of the right types."""

import numpy as np
import pytest

from tilewright.base.dots import multiplies
from tilewright.base.dtype import F32, I8, U8
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes import (
    fold_zero_points,
    im2col_convolutions,
    match_signs,
    merge_common_subexpressions,
    remove_dead_nodes,
    upcast_bytes,
)
from tilewright.sym import const

TARGETS = {
    "vnni": "x86_64-linux-gnu -mcpu=cascadelake",
    "avx2": "x86_64-linux-gnu -mcpu=haswell",
    "amx": "x86_64-linux-gnu -mcpu=sapphirerapids",
    "neon": "aarch64-linux-gnu -mcpu=neoverse-n1",
    "i8mm": "aarch64-linux-gnu -mcpu=neoverse-v1",
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
ONCE = (merge_common_subexpressions, remove_dead_nodes)
PASSES = (match_signs, fold_zero_points, im2col_convolutions, upcast_bytes, *ONCE)
PRODUCTS = ("matmul_integer", "conv_integer")
BYTES = {np.uint8: U8, np.int8: I8}


def values(of, *shape):
    limits = np.iinfo(of)
    made = np.random.default_rng(0).integers(limits.min, limits.max, shape, endpoint=True)
    return made.astype(of)


def param(b, name, array):
    dims = tuple(map(const, array.shape))
    return b.param(name, TensorType(BYTES.get(array.dtype.type, F32), dims))


def check(module, target, *arrays):
    """The module's answers after all passes; the types that are multiplied are the target's."""
    changed = run_passes(module, PASSES, PassContext(target=Target.parse(target)))
    for node in changed.main.nodes:
        if node.op in PRODUCTS:
            a, b = (value.tensor.dtype.name for value in node.inputs[:2])
            assert multiplies(Target.parse(target), a, b)
            assert not any(node.inputs[2:4])
    for got, want in zip(interpret(changed, *arrays), interpret(module, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return changed


@every_target
@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_product_of_any_bytes_with_zero_points_of_the_run(target, left, right, is_constant):
    a, w = values(left, 5, 24), values(right, 24, 20)
    b = Builder()
    x = param(b, "a", a)
    weights = b.constant(w) if is_constant else param(b, "w", w)
    zeros = np.asarray(left(77)), np.asarray(right(99))
    p, q = (param(b, name, zero) for name, zero in zip("pq", zeros, strict=True))
    module = b.module(b.add("matmul_integer", x, weights, p, q))
    check(module, target, a, *([] if is_constant else [w]), *zeros)


@every_target
@pytest.mark.parametrize("zero", [0, 3, 128])
def test_what_quantizes_gives_the_other_bytes(target, zero):
    x = np.random.default_rng(0).normal(0, 40, (6, 32)).astype(np.float32)
    b = Builder()
    given = param(b, "x", x)
    scale, point = b.constant(np.float32(0.5)), b.constant(np.uint8(zero))
    q = b.add("quantize", given, scale, point, to=U8)
    y = b.add("matmul_integer", q, b.constant(values(np.int8, 32, 16)), point)
    module = b.module(y, b.add("dequantize", q, scale, point, to=F32))
    changed = check(module, target, x)
    assert sum(node.op == "quantize" for node in changed.main.nodes) == 1


@every_target
@pytest.mark.parametrize("channels", [3, 4, 10])
@pytest.mark.parametrize("pads", [0, 1])
def test_convolutions_of_few_channels(target, channels, pads):
    x, w = values(np.uint8, 1, 6, 6, channels), values(np.int8, 16, channels, 3, 3)
    b = Builder()
    given = param(b, "x", x)
    window = {"strides": (1, 1), "pads": (pads,) * 4, "dilations": (1, 1), "groups": 1}
    image = b.add("transpose", given, perm=(0, 3, 1, 2))
    y = b.add("conv_integer", image, b.constant(w), b.constant(np.uint8(7)), **window)
    check(b.module(y), target, x)


def test_a_target_without_dot_products_is_left_alone():
    b = Builder()
    x = b.param("x", TensorType(U8, (const(4), const(8))))
    module = b.module(b.add("matmul_integer", x, b.constant(values(np.int8, 8, 16))))
    context = PassContext(target=Target.parse("aarch64-linux-gnu -mcpu=cortex-a53"))
    assert run_passes(module, (match_signs, upcast_bytes), context) is module


@every_target
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("zero", [77, [3, 250, 0, 128, 90, 131, 7, 255]], ids=["one", "each"])
@pytest.mark.parametrize("is_known", [True, False])
def test_convolutions_whose_weights_need_nine_bits_without_their_zero_point(
    target, groups, zero, is_known
):
    x, w = values(np.uint8, 2, 8, 7, 5), values(np.uint8, 8, 8 // groups, 3, 2)
    b = Builder()
    given = param(b, "x", x)
    point = b.constant(np.uint8(7)) if is_known else param(b, "p", np.uint8(7).reshape(()))
    zeros = b.constant(np.asarray(zero, np.uint8))
    window = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": groups}
    y = b.add("conv_integer", given, b.constant(w), point, zeros, **window)
    check(b.module(y), target, x, *([] if is_known else [np.asarray(np.uint8(7))]))


@every_target
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("kept", [True, False], ids=["weights", "given"])
def test_gemms_whose_columns_need_nine_bits_without_their_zero_points(target, is_known, kept):
    x, w = values(np.uint8, 3, 8), values(np.uint8, 8, 16)
    zeros = values(np.uint8, 16)
    b = Builder()
    given = param(b, "x", x)
    point = b.constant(np.uint8(7)) if is_known else param(b, "p", np.uint8(7).reshape(()))
    right = (b.constant(w), b.constant(zeros)) if kept else (param(b, "w", w), param(b, "z", zeros))
    y = b.add("matmul_integer", given, right[0], point, right[1])
    arrays = [x, *([] if is_known else [np.asarray(np.uint8(7))]), *([] if kept else [w, zeros])]
    check(b.module(y), target, *arrays)
