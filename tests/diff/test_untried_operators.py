"""Operators that neither the suite of ONNX nor ONNX Runtime is asked about, against NumPy."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.verify import verify

OPSETS = [
    helper.make_opsetid("", 17),
    helper.make_opsetid("com.microsoft", 1),
    helper.make_opsetid("ai.onnx.ml", 3),
]
F = np.float32


def run_nodes(nodes, inputs, given):
    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "test", inputs, results)
    module = import_model(helper.make_model(graph, opset_imports=OPSETS, ir_version=9))
    verify(module)
    return interpret(module, *given, check=True)


def run(op, *given, domain="", **attributes):
    """One node over arrays."""
    names = [f"x{at}" for at in range(len(given))]
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in zip(names, given, strict=True)
    ]
    (made,) = run_nodes([node], infos, given)
    return made


def microsoft(op, *given, **attributes):
    return run(op, *given, domain="com.microsoft", **attributes)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def close(have, want):
    np.testing.assert_allclose(have, np.asarray(want).astype(have.dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool_is_a_norm_over_the_image(rng, p):
    x = rng.standard_normal((2, 3, 4, 5)).astype(F)
    want = (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p)
    close(run("GlobalLpPool", x, p=p), want)


def test_random_normal_like_has_the_shape_and_the_moments(rng):
    x = np.zeros((64, 64), F)
    made = run("RandomNormalLike", x, mean=3.0, scale=0.5, seed=1.0)
    assert made.shape == x.shape
    assert made.dtype == x.dtype
    assert abs(made.mean() - 3) < 0.05
    assert abs(made.std() - 0.5) < 0.05


def test_optional_holds_what_it_is_given():
    x = np.arange(3, dtype=F)
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    (made,) = run_nodes(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,))], [x])
    np.testing.assert_array_equal(made, x)


@pytest.mark.parametrize("at", [0, 1, -1])
def test_sequence_erase_takes_one_out(at):
    given = [np.full(2, value, F) for value in (1, 2, 3)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in "abc"]
    infos.append(helper.make_tensor_value_info("at", TensorProto.INT64, ()))
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b", "c"], ["s"]),
        helper.make_node("SequenceErase", ["s", "at"], ["e"]),
        helper.make_node("ConcatFromSequence", ["e"], ["y"], axis=0),
    ]
    (made,) = run_nodes(nodes, infos, [*given, np.array(at)])
    del given[at]
    np.testing.assert_array_equal(made, np.concatenate(given))


def test_zip_map_and_dict_vectorizer_are_each_others_reverse():
    x = np.array([[0.25, 0.75]], F)
    nodes = [
        helper.make_node(
            "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"]
        )
    ]
    (made,) = run_nodes(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))], [x])
    assert made == [{"no": 0.25, "yes": 0.75}]
    node = helper.make_node(
        "DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["yes", "no", "else"]
    )
    (row,) = run_nodes([node], [map_input(TensorProto.STRING)], [made[0]])
    np.testing.assert_array_equal(np.ravel(row), np.array([0.75, 0.25, 0], F))


def map_input(key):
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    return helper.make_value_info("m", kind)


def test_cast_map_fills_up_what_a_sparse_map_lacks():
    node = helper.make_node(
        "CastMap", ["m"], ["y"], domain="ai.onnx.ml", map_form="SPARSE", max_map=4
    )
    (row,) = run_nodes([node], [map_input(TensorProto.INT64)], [{0: 1.0, 2: 3.0}])
    np.testing.assert_array_equal(np.ravel(row), np.array([1, 0, 3, 0], F))


def test_bias_add_adds_a_bias_and_a_skip(rng):
    x, bias, skip = (rng.standard_normal(s).astype(F) for s in ((2, 5, 8), (8,), (2, 5, 8)))
    close(microsoft("BiasAdd", x, bias, skip), x + bias + skip)


def test_bias_split_gelu_multiplies_halves(rng):
    x, bias = rng.standard_normal((2, 3, 8)).astype(F), rng.standard_normal(8).astype(F)
    left, right = np.split(x + bias, 2, axis=2)
    close(microsoft("BiasSplitGelu", x, bias), left * gelu(right))


def test_bias_softmax_normalizes_the_sum(rng):
    x, bias = (rng.standard_normal(s).astype(F) for s in ((2, 3, 6), (1, 3, 6)))
    summed = np.exp(x + bias)
    want = summed / summed.sum((1, 2), keepdims=True)
    close(microsoft("BiasSoftmax", x, bias, axis=1, is_inner_broadcast=0), want)


@pytest.mark.parametrize("op", ["TransposeMatMul", "FusedMatMulActivation"])
def test_fused_matmuls_transpose_scale_and_activate(rng, op):
    a, b = rng.standard_normal((5, 3)).astype(F), rng.standard_normal((5, 4)).astype(F)
    more = {"activation": "Relu"} if op == "FusedMatMulActivation" else {}
    want = 0.5 * (a.T @ b)
    made = microsoft(op, a, b, transA=1, transB=0, alpha=0.5, **more)
    close(made, np.maximum(want, 0) if more else want)


def test_qlinear_reduce_mean_is_the_mean_of_what_bytes_mean(rng):
    x = rng.integers(0, 256, (2, 6), np.uint8)
    scale, zero, out_scale, out_zero = F(0.1), np.uint8(7), F(0.05), np.uint8(3)
    scalars = [np.array(value) for value in (scale, zero, out_scale, out_zero)]
    made = microsoft("QLinearReduceMean", x, *scalars, axes=[1], keepdims=0)
    real = ((x.astype(F) - 7) * scale).mean(1)
    want = np.clip(np.round(real / out_scale) + 3, 0, 255)
    assert np.abs(made.astype(int) - want).max() <= 1
