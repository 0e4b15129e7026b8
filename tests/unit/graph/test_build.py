"""Building graphs: inputs that become attributes, contents that are followed, checks."""

import numpy as np
import pytest

from tilewright.base.dtype import BOOL, F32, I64, STR
from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.build import is_numeric, make_node
from tilewright.graph.contents import KNOWN_ELEMENTS
from tilewright.sym import const, size

N = size("n")
MATRIX = TensorType(F32, (N, const(4)))


def test_known_inputs_become_attributes():
    builder = Builder()
    x = builder.param("x", MATRIX)
    builder.add("reduce_sum", x, builder.constant(np.array([1])))
    node = builder.nodes[-1]
    assert node.inputs == (x,)
    assert node["axes"] == (1,)


def test_unknown_inputs_stay_inputs():
    builder = Builder()
    x, axes = builder.param("x", MATRIX), builder.param("axes", TensorType(I64, (const(1),)))
    y = builder.add("reduce_sum", x, axes, keepdims=False)
    assert builder.nodes[-1].inputs == (x, axes)
    (made,) = interpret(builder.module(y), np.ones((3, 4), np.float32), np.array([0]), check=True)
    assert made.tolist() == [3, 3, 3, 3]


def test_an_empty_list_is_known():
    builder = Builder()
    x, axes = builder.param("x", MATRIX), builder.param("axes", TensorType(I64, (const(0),)))
    y = builder.add("reduce_sum", x, axes)
    assert builder.nodes[-1]["axes"] == ()
    assert y.type == MATRIX


def test_a_parameter_is_given_once():
    builder = Builder()
    x, axes = builder.param("x", MATRIX), builder.param("axes", TensorType(I64, (const(1),)))
    with pytest.raises(UserError, match="given twice"):
        builder.add("reduce_sum", x, axes, axes=(0,))


def test_large_contents_are_not_followed():
    builder = Builder()
    c = builder.constant(np.arange(KNOWN_ELEMENTS + 1))
    assert c not in builder.known
    small = builder.constant(np.arange(4))
    tiled = builder.add("tile", small, repeats=(1 << 40,))
    assert tiled not in builder.known
    assert tiled.tensor.static_shape == (1 << 42,)


def test_values_of_an_outer_graph_are_stated_again():
    outer = Builder()
    x = outer.param("x", MATRIX)
    weights = outer.constant(np.zeros(5000, np.float32), "w")
    shape = outer.add("shape", x)
    inner = Builder(outer=outer)
    assert [inner.can_restate(value) for value in (x, weights, shape)] == [False, True, True]
    assert inner.restate(weights).type == weights.type
    assert inner.nodes[-1]["data"] == outer.nodes[0]["data"]
    assert inner.known[inner.restate(shape)] == (N, const(4))


def test_nodes_are_checked_against_declarations():
    builder = Builder()
    x = builder.param("x", MATRIX)
    with pytest.raises(Unsupported, match="TW1005"):
        builder.add("no_such_operator", x)
    with pytest.raises(UserError, match="TW1001"):
        builder.add("exp", x, axis=1)
    with pytest.raises(UserError, match="TW1002"):
        builder.add("transpose", x)
    with pytest.raises(UserTypeError, match="TW1008"):
        builder.add("transpose", x, perm=1)
    with pytest.raises(UserError, match="TW1006"):
        builder.add("exp")
    with pytest.raises(UserTypeError, match="TW1007"):
        builder.add("logical_not", x)
    with pytest.raises(Unsupported, match="TW1004"):
        builder.add("shape", builder.param("y", TensorType(F32, None)))


def test_text_and_maps_are_for_fallbacks():
    builder = Builder()
    x, words = builder.param("x", MATRIX), builder.param("w", TensorType(STR, (N,)))
    builder.add("exp", x)
    builder.add("gather", words, builder.constant(np.array([0])), axis=0)
    builder.add("zip_map", x, keys=("a", "b", "c", "d"))
    made = {node.op: is_numeric(node) for node in builder.nodes}
    assert made == {"exp": True, "constant": True, "gather": False, "zip_map": False}


def test_nodes_alone():
    builder = Builder()
    x = builder.param("x", MATRIX)
    node = make_node("reduce_sum", (x,), {"axes": (1,)}, hints=("total",))
    assert str(node.output.type) == "f32[n, 1]"
    assert node.output.name == "total"


def test_a_dimension_must_fit_64_bits():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (const(5),)))
    with pytest.raises(UserError, match="TW1018"):
        builder.add("pad", x, builder.constant(np.array([0, (1 << 63) - 1])), mode="constant")


def test_the_bytes_of_a_tensor_must_fit_64_bits():
    builder = Builder()
    half = const(1 << 31)
    builder.param("most", TensorType(BOOL, (half, const((1 << 32) - 1))))
    with pytest.raises(UserError, match=r"TW1018.*more bytes"):
        builder.param("x", TensorType(F32, (half, half)))
    x = builder.param("y", TensorType(F32, ()))
    with pytest.raises(UserError, match="TW1018"):
        builder.add("expand", x, shape=(1 << 40, 1 << 40))


def test_a_tensor_has_at_most_64_dimensions():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (const(1),)))
    builder.add("reshape", x, shape=(1,) * 64)
    with pytest.raises(Unsupported, match="TW1019"):
        builder.add("reshape", x, shape=(1,) * 65)
