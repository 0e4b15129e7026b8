"""Placement: which device runs which node, asked before anything is compiled."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import CompilerBug, Unsupported
from tilewright.base.target import Target
from tilewright.driver import lowering
from tilewright.driver.placement import INTERPRETER, Device, placement
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.lower import LOWERINGS, REFUSALS
from tilewright.lower.graph import lower_node
from tilewright.lower.native import why_not_native
from tilewright.te import placeholder

CPU = Target.host()


def placed(text):
    return placement(graph.parse(text), CPU)


MIXED = """
graph @main(%x: str[n], %y: f32[n]) {
  %t: str[n] = string_concat(%x, %x)
  %z: f32[n] = neg(%y)
  return %t, %z
}
"""


def test_text_goes_to_the_interpreter_and_numbers_to_the_target():
    found = placed(MIXED)
    assert list(found.devices.values()) == [INTERPRETER, Device("cpu")]
    assert not found.is_native
    assert found.fallbacks == ("string_concat",)
    assert found.counts() == {"interpreter": 1, "cpu": 1}
    assert str(found) == "interpreter: %t = string_concat  // %x is str[n]\ncpu: %z = neg"


def test_a_model_of_numbers_is_native():
    found = placed("graph @main(%x: f32[n]) { %y = neg(%x) return %y }")
    assert found.is_native
    assert found.fallbacks == ()


BODIES = """
graph @main(%n: i64[], %s: seq<f32[3]>, %x: f32[3]) {
  %f: seq<f32[3]>, %g: f32[3] = loop(%n, none, %s, %x) {carried = 2} do {
    graph(%i: i64[], %go: bool[], %t: seq<f32[3]>, %v: f32[3]) {
      BODY
    }
  }
  return %f, %g
}
"""
INSERT = "%u: seq<f32[3]> = sequence_insert(%t, %v, none)"


def test_nodes_in_bodies_are_placed_on_their_own():
    found = placed(BODIES.replace("BODY", f"{INSERT} %w = tanh(%v) return %go, %u, %w"))
    assert str(found).splitlines() == [
        "cpu: %f, %g = loop",
        "  interpreter: %u = sequence_insert  // %t is seq<f32[3]>",
        "  cpu: %w = tanh",
    ]


def test_control_flow_without_native_nodes_goes_whole():
    found = placed(BODIES.replace("BODY", f"{INSERT} return %go, %u, %v"))
    assert str(found) == "interpreter: %f, %g = loop  // nothing in it has native code"
    assert found.fallbacks == ("loop", "sequence_insert")


def test_rows_of_text_take_their_loop_along():
    text = """
    graph @main(%n: i64[], %x: str[2]) {
      %rows: str[k, 2] = loop(%n, none, %x) {carried = 0} do {
        graph(%i: i64[], %go: bool[], %s: str[2]) { %j = neg(%i) return %go, %s }
      }
      return %rows
    }
    """
    assert "// %rows is str[k, 2]" in str(placed(text))


def test_values_that_are_tensors_on_one_side_only_take_their_branch_along():
    text = """
    graph @main(%c: bool[], %x: f32[4]) {
      %y: f32[*] = if(%c, %x) do {
        graph(%a: f32[4]) { %p = neg(%a) return %p }
        graph(%b: f32[4]) { return %b }
      }
      return %y
    }
    """
    assert "// %p is f32[4] in a body, f32[*] outside" in str(placed(text))
    assert placement(graph.parse(text), CPU, open_ends=True).is_native  # the caller reads it
    read = text.replace("return %y\n    }", "%z: f32[*] = exp(%y) return %z\n    }")
    assert not placement(graph.parse(read), CPU, open_ends=True).is_native


# Uses that a lowering refuses: the operator, a graph with it, inputs.
REFUSED = {
    "bitcast": (
        "graph @main(%x: f16[4]) { %y: bf16[4] = bitcast(%x) {to = dtype bf16} return %y }",
        [np.arange(4, dtype=np.float16)],
    ),
    "quantize": (
        "graph @main(%x: f32[4]) { %s = constant() {data = f32[](2.0)} "
        "%y: f8e8m0[4] = quantize(%x, %s) {to = dtype f8e8m0} return %y }",
        [np.arange(4, dtype=np.float32)],
    ),
    "conv_integer": (
        "graph @main(%x: u8[1, 2, 3, 3], %w: u8[1, 2, 1, 1], %z: u8[1, 2, 1, 1]) { "
        "%y: i32[1, 1, 3, 3] = conv_integer(%x, %w, %z) "
        "{dilations = (1, 1), groups = 1, pads = (0, 0, 0, 0), strides = (1, 1)} return %y }",
        [
            np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3),
            np.full((1, 2, 1, 1), 3, np.uint8),
            np.array([1, 2], np.uint8).reshape(1, 2, 1, 1),
        ],
    ),
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_a_lowering_refuses_is_known_beforehand(op):
    text, _ = REFUSED[op]
    (node,) = [node for node in graph.parse(text).main.nodes if node.op == op]
    assert why_not_native(node)
    tensors = [placeholder(v.tensor.shape, v.tensor.dtype, name=v.name) for v in node.inputs]
    with pytest.raises(Unsupported, match="TW1501"):
        lower_node(node, tensors)


@pytest.mark.parametrize("op", ["bitcast", "conv_integer"])
def test_what_a_lowering_refuses_runs_all_the_same(op):
    text, inputs = REFUSED[op]
    compiled = tw.compile(graph.parse(text), threads=1)
    assert compiled.fallbacks == (op,)
    (want,) = graph.interpret(graph.parse(text), *inputs)
    np.testing.assert_array_equal(np.asarray(compiled(*inputs)[0]).view(want.dtype), want)


FUSED = """
graph @main(%x: f16[4]) {
  %a = neg(%x)
  %b: bf16[4] = bitcast(%a) {to = dtype bf16}
  %c: f32[4] = cast(%b) {to = dtype f32}
  %d = exp(%c)
  return %d
}
"""


def test_what_is_fused_with_an_operator_without_code_stays_native():
    compiled = tw.compile(graph.parse(FUSED), threads=1)
    assert compiled.fallbacks == ("bitcast",)
    assert compiled.inside.placement.counts() == {"cpu": 3, "interpreter": 1}
    x = np.array([0, 1, -2, 3], np.float16)
    (want,) = graph.interpret(graph.parse(FUSED), x)
    np.testing.assert_allclose(np.asarray(compiled(x)[0]), want, rtol=1e-6)


def test_a_model_of_native_nodes_is_left_alone():
    module = graph.parse("graph @main(%x: f32[4]) { %y = neg(%x) return %y }")
    assert unfuse_foreign(module) is module


def test_refusals_are_of_operators_with_lowerings():
    assert REFUSALS.keys() <= LOWERINGS.keys()


def test_a_list_of_unknown_length_has_no_code():
    text = """
    graph @main(%x: f32[2, 3], %axes: i64[k]) {
      %y: f32[a, b] = reduce_sum(%x, %axes) {keepdims = true}
      return %y
    }
    """
    assert "the length of a list is known only at run time" in str(placed(text))
    x, axes = np.ones((2, 3), np.float32), np.array([1])
    compiled = tw.compile(graph.parse(text), threads=1)
    assert np.asarray(compiled(x, axes)[0]).tolist() == [[3.0], [3.0]]


def test_sizes_that_nothing_computes_have_no_code():
    text = """
    graph @main(%x: f32[4]) {
      %y: f32[n] = relu(%x)
      return %y
    }
    """
    assert "nothing computes the size n" in str(placed(text))


def test_code_that_is_missing_all_the_same_is_our_mistake(monkeypatch):
    def refuse(jobs, packer_of, **_):
        return [Unsupported("TW3011", "no code for the function gamma") for _ in jobs], {}

    monkeypatch.setattr(lowering, "compile_all", refuse)
    module = graph.parse("graph @main(%x: f32[7]) { %y = tanh(%x) return %y }")
    with pytest.raises(CompilerBug, match="TW3011") as caught:
        tw.compile(module, threads=1, cache=False)
    assert caught.value.code == "TW6006"
