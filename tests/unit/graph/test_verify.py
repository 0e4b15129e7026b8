"""Every invariant in the list at the top of verify.py, broken."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtype import F32, I64
from tilewright.graph import Module, Value, ir, parse
from tilewright.graph.types import OptionalType, SequenceType, TensorType
from tilewright.graph.verify import VerifyError, agree, verify
from tilewright.sym import const, size

GOOD = """
graph @main(%c: bool[], %x: f32[n, 4]) {
  %w = constant() {data = f32[4](1.0, 2.0, 3.0, 4.0)}
  %y = mul(%x, %w)
  %places = nonzero(%y)
  %count = shape(%places)
  %z = if(%c, %y) do {
    graph(%v: f32[n, 4]) {
      %e = exp(%v)
      return %e
    }
    graph(%v: f32[n, 4]) {
      return %v
    }
  }
  %r: f32[n, 4] = call(%z) {graph = @other}
  return %r, %count
}
graph @other(%x: f32[m, 4]) {
  return %x
}
"""


def good():
    return parse(GOOD)


def failure(module: Module | str) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(parse(module) if isinstance(module, str) else module)
    return caught.value


def with_main(module, **fields):
    return replace(module, graphs={**module.graphs, "main": replace(module.main, **fields)})


def with_node(op, **fields):
    """The good module with the first node of an operator changed."""
    module = good()
    nodes = [replace(node, **fields) if node.op == op else node for node in module.main.nodes]
    return with_main(module, nodes=tuple(nodes))


def test_the_good_module_is_good():
    verify(good())


def test_1_stages_and_names():
    assert failure(replace(good(), stage="done")).code == "TW1401"
    module = good()
    assert failure(replace(module, graphs={"a": module.main})).code == "TW1401"


def test_2_one_definition():
    module = good()
    twice = (*module.main.params, module.main.params[0])
    assert failure(with_main(module, params=twice)).code == "TW1402"
    first = module.main.nodes[0]
    assert failure(with_main(module, nodes=(first, first))).code == "TW1402"
    plain = parse("graph @main(%x: f32[4]) { return %x }")
    shared = {"main": plain.main, "other": replace(plain.main, name="other")}
    assert failure(replace(plain, graphs=shared)).code == "TW1402"


def test_3_definition_before_use():
    module = good()
    nodes = module.main.nodes
    assert failure(with_main(module, nodes=nodes[1:])).code == "TW1403"
    assert failure(with_main(module, nodes=(nodes[1], nodes[0], *nodes[2:]))).code == "TW1403"
    assert failure(with_main(module, results=(Value("v", TensorType(F32, ())),))).code == "TW1403"


def test_3_bodies_see_parameters_only():
    module = good()
    (branch,) = (node for node in module.main.nodes if node.op == "if")
    outside = module.main.params[1]
    leaking = replace(branch.bodies[1], results=(outside,))
    error = failure(with_node("if", bodies=(branch.bodies[0], leaking)))
    assert error.code == "TW1403"


@pytest.mark.parametrize(
    "line",
    [
        "%y: f32[4] = no_such_operator(%x)",
        "%y: f32[4] = exp(%x, %x)",
        "%y: f32[4] = add(%x)",
        "%y: f32[4] = logical_not(%x)",
        "%y: f32[4] = exp(%x) do { graph(%v: f32[4]) { return %v } }",
        "%y: f32[4] = if(%x)",
    ],
)
def test_4_nodes_fit_their_operators(line):
    error = failure(f"graph @main(%x: f32[4]) {{\n  {line}\n  return %y\n}}")
    assert error.code == "TW1404"
    assert error.excerpt is not None


def test_4_as_many_outputs_as_the_operator_gives():
    text = "graph @main(%x: f32[4]) {\n  %y: f32[4], %z: f32[4] = exp(%x)\n  return %y\n}"
    assert failure(text).code == "TW1404"


@pytest.mark.parametrize(
    "line",
    [
        "%y: f32[4] = exp(%x) {axis = 1}",
        "%y: f32[1] = reduce_sum(%x) {keepdims = 1}",
        "%y: f32[4] = transpose(%x)",
    ],
)
def test_5_attributes_fit(line):
    assert failure(f"graph @main(%x: f32[4]) {{\n  {line}\n  return %y\n}}").code == "TW1405"


def test_5_attributes_are_sorted_data():
    twice = (("axis", 0), ("axis", 0))
    assert failure(with_node("nonzero", attributes=twice)).code == "TW1405"
    unsorted = (("b", 1), ("a", 1))
    assert failure(with_node("nonzero", attributes=unsorted)).code == "TW1405"
    held = (("fn", (lambda: 1,)),)
    assert failure(with_node("nonzero", attributes=held)).code == "TW1405"


@pytest.mark.parametrize(
    "line",
    [
        "%y: f32[5] = exp(%x)",
        "%y: i64[4] = exp(%x)",
        "%y: f32[4, 1] = exp(%x)",
        "%y: seq<f32[4]> = exp(%x)",
        "%y: f32[n] = add(%x, %m)",
        "%y: f32[2, 3] = reshape(%x) {shape = (2, 3)}",
    ],
)
def test_6_types_agree(line):
    text = f"graph @main(%x: f32[4], %n: f32[n], %m: f32[m, 4]) {{\n  {line}\n  return %y\n}}"
    assert failure(text).code == "TW1406"


def test_6_sizes_of_parameters_differ():
    line = "%y: f32[n, m] = transpose(%x) {perm = (1, 0)}"
    text = f"graph @main(%x: f32[n, m]) {{\n  {line}\n  return %y\n}}"
    assert failure(text).code == "TW1406"


def test_6_contents_are_followed():
    text = """
graph @main(%x: f32[n, 12]) {
  %s: i64[2] = constant() {data = i64[2](-1, 4)}
  %y: f32[n * 2, 4] = reshape(%x, %s)
  return %y
}
"""
    assert failure(text).code == "TW1406"
    verify(parse(text.replace("n * 2", "n * 3")))


def test_7_bodies_take_what_they_are_given():
    text = GOOD.replace("%z = if(%c, %y)", "%z: f32[n, 4] = if(%c, %w)")
    assert failure(text).code == "TW1407"


def test_8_calls_fit():
    assert failure(GOOD.replace("graph = @other", "graph = @none")).code == "TW1408"
    assert failure(GOOD.replace("%x: f32[m, 4]", "%x: f32[m, 5]")).code == "TW1408"
    assert failure(with_node("call", inputs=())).code == "TW1408"


def test_9_constants_are_stored():
    module = good()
    assert failure(replace(module, constants={})).code == "TW1409"
    (name,) = module.constants
    other = {name: np.zeros(4, np.float64)}
    assert failure(replace(module, constants=other)).code == "TW1409"


@pytest.mark.parametrize(
    "text",
    [
        "graph @main(%x: f32[n * 2]) { return %x }",
        "graph @main(%x: f32[4]) {\n  %y: i64[1] = dims() {values = (expr k,)}\n  return %y\n}",
        "graph @main(%x: f32[4]) {\n  %y: i64[1, k + 1] = nonzero(%x)\n  return %y\n}",
    ],
)
def test_10_sizes_are_defined(text):
    assert failure(text).code == "TW1410"


def test_an_error_shows_the_place():
    text = "graph @main(%x: f32[4]) {\n  %y: f32[5] = exp(%x)\n  return %y\n}"
    shown = str(failure(text))
    assert "%y: f32[5] = exp(%x)" in shown
    assert "^^^" in shown
    assert "@main, stage imported" in shown


def test_types_that_agree():
    n, m = size("n"), size("m")
    tensor = TensorType(F32, (n, const(2)))
    assert agree(tensor, TensorType(F32, None), {})
    assert agree(tensor, TensorType(F32, (m, const(2))), {n: None})
    assert not agree(tensor, TensorType(F32, (m, const(2))), {n: None, m: None})
    assert not agree(tensor, TensorType(I64, (n, const(2))), {})
    assert agree(SequenceType(tensor), SequenceType(tensor), {})
    assert agree(OptionalType(tensor), tensor, {})
    assert not agree(tensor, SequenceType(tensor), {})


def test_stages_are_known():
    for stage in ir.STAGES:
        verify(replace(good(), stage=stage))
