"""Kernels at the same time: which, in which order, in memory of their own, with equal answers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import F32
from tilewright.driver.inter_op import overlapped
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import plan_memory
from tilewright.graph.types import TensorType
from tilewright.sym import const

LONG = {"forward", "backward", "third"}  # names of nodes that are worth a thread


def tensor(name: str) -> Value:
    return Value(name, TensorType(F32, (const(16),)))


def node(name: str, *inputs: Value, op: str = "kernel", **more: object) -> Node:
    return Node(op, inputs, (tensor(name),), ir.attributes(**more))


def is_long(each: Node) -> bool:
    return each.output.name in LONG


def shown(made: Graph) -> str:
    """Nodes in order; `|` before one that runs with the one before it."""
    marks = ["| " if each.get("concurrent") else "" for each in made.nodes]
    return " ".join(mark + each.output.name for mark, each in zip(marks, made.nodes, strict=True))


def two_directions(between: str = "kernel") -> Graph:
    x = tensor("x")
    forward = node("forward", x, in_place=((0, 0),))
    project = node("project", x, op=between)
    backward = node("backward", project.output, in_place=((0, 0),))
    both = node("both", forward.output, backward.output)
    return Graph("main", (x,), (forward, project, backward, both), both.outputs)


def test_what_a_partner_needs_comes_before_both():
    made = overlapped(two_directions(), is_long, 2)
    assert shown(made) == "project forward | backward both"
    assert [each.get("in_place") for each in made.nodes[1:3]] == [(), ()]


def test_nothing_moves_over_a_node_that_does_more_than_compute():
    assert shown(overlapped(two_directions("sizes"), is_long, 2)) == "forward project backward both"


def test_a_node_that_waits_for_another_stays_behind_it():
    x = tensor("x")
    forward = node("forward", x)
    short = node("short", forward.output)
    backward = node("backward", short.output)
    third = node("third", x)
    made = Graph("main", (x,), (forward, short, backward, third), (*backward.outputs,))
    assert shown(overlapped(made, is_long, 2)) == "forward | third short backward"


def test_no_more_at_a_time_than_there_are_threads():
    x = tensor("x")
    nodes = [node(name, x) for name in ("forward", "backward", "third")]
    made = Graph("main", (x,), tuple(nodes), nodes[-1].outputs)
    assert shown(overlapped(made, is_long, 2)) == "forward | backward third"
    assert shown(overlapped(made, is_long, 3)) == "forward | backward | third"


def test_concurrent_kernels_share_no_memory():
    made = overlapped(two_directions(), is_long, 2)
    plan = plan_memory(made)
    spans = {slot.value.name: (slot.first, slot.last) for slot in plan.slots}
    assert plan.offsets is not None
    places = dict(zip(spans, plan.offsets, strict=True))
    assert spans["forward"][0] == spans["backward"][0] == spans["project"][1]
    assert len({places[name] for name in ("project", "forward", "backward")}) == 3


def bidirectional(folder: object) -> str:
    """Two directions of a GRU of a dynamic number of sequences and steps, as ONNX has it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(15)
    weights = {"w": (2, 144, 48), "r": (2, 144, 48), "b": (2, 288)}
    gru = helper.make_node("GRU", ["x", *weights], ["y"], hidden_size=48, direction="bidirectional")
    built = helper.make_graph(
        [gru],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["t", 2, "n", 48])],
        [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 8, name)
            for name, shape in weights.items()
        ],
    )
    path = f"{folder}/gru.onnx"
    onnx.save(helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_reductions_that_threads_share_out_stay_apart():
    """The block that is decided about is the sum of what threads have found."""
    made = graph.parse("""graph @main(%x: f32[2048, 1024], %y: f32[2048, 1024]) {
      %a = reduce_sum(%x) {axes = (0, 1), keepdims = false}
      %b = reduce_sum(%y) {axes = (0, 1), keepdims = false}
      return %a, %b
    }""")
    nodes = tw.compile(made, threads=4).inside.program.module.main.nodes
    assert not any(each.get("concurrent", False) for each in nodes)


@pytest.mark.parametrize("batch", [1, 3])
def test_both_directions_of_a_layer_run_at_the_same_time(batch, tmp_path):
    pytest.importorskip("onnx")
    path = bidirectional(tmp_path)
    together, alone = (tw.compile(path, threads=threads) for threads in (2, 1))
    assert sum(each.get("concurrent", False) for each in together.inside.program.module.main.nodes)
    x = np.random.default_rng(16).standard_normal((9, batch, 48)).astype(np.float32)
    np.testing.assert_array_equal(together(x=x), alone(x=x))
    together.save(tmp_path / "gru.so")
    np.testing.assert_array_equal(tw.load(tmp_path / "gru.so")(x=x), alone(x=x))
    calls = {each.kernel: each.calls for each in together.profile(x=x).kernels()}
    assert calls == {each.kernel: each.calls for each in alone.profile(x=x).kernels()}
