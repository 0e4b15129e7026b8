"""Lists that loops append to, as exporters write them, against ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import graph

ort = pytest.importorskip("onnxruntime")


def appending(axis, new_axis):
    """Rows of x, doubled, appended to a list one by one, beside a sum and rows that are stacked."""
    tensor, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    sequence = helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
            helper.make_node("Mul", ["row", "two"], ["twice"]),
            helper.make_node("Unsqueeze", ["twice", "zero"], ["item"]),
            helper.make_node("SequenceInsert", ["list", "item"], ["longer"]),
            helper.make_node("Identity", ["cond"], ["more"]),
            helper.make_node("Add", ["sum", "twice"], ["next"]),
        ],
        "body",
        [
            tensor("i", TensorProto.INT64, []),
            tensor("cond", TensorProto.BOOL, []),
            sequence("list", f32, None),
            tensor("sum", f32, None),
        ],
        [
            tensor("more", TensorProto.BOOL, []),
            sequence("longer", f32, None),
            tensor("next", f32, None),
            tensor("twice", f32, None),
        ],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
        helper.make_node("Squeeze", ["shape"], ["n"]),
        helper.make_node("Loop", ["n", "", "empty", "zeros"], ["lists", "sums", "rows"], body=body),
        helper.make_node(
            "ConcatFromSequence", ["lists"], ["joined"], axis=axis, new_axis=int(new_axis)
        ),
        helper.make_node("Relu", ["joined"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "appending",
        [tensor("x", f32, ["n", "k"])],
        [tensor(name, f32, None) for name in ("y", "sums", "rows")],
        [
            numpy_helper.from_array(np.float32(2), "two"),
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.zeros(3, np.float32), "zeros"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("axis", "new_axis"), [(0, False), (-2, False), (1, False), (-1, True)])
def test_lists_that_loops_append_to_are_native(axis, new_axis):
    model = appending(axis, new_axis)
    session = ort.InferenceSession(model.SerializeToString())
    compiled = tw.compile(model, threads=1)
    assert compiled.fallbacks == ()
    rng = np.random.default_rng(0)
    for count in (4, 1):
        x = rng.standard_normal((count, 3)).astype(np.float32)
        for made, want in zip(compiled(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(np.asarray(made), want, rtol=1e-6)


ROWS_OF_ANY_LENGTH = """graph @main(%n: i64[], %x: f32[k]) {
  %rows = loop(%n, none, %x) {carried = 0} do {
    graph(%i: i64[], %c: bool[], %x: f32[k]) {
      %from = cast(%i) {to = dtype f32}
      %is_behind = RELATION(%x, %from)
      %at: i64[1, q] = nonzero(%is_behind)
      return %c, %at
    }
  }
  return %rows
}"""


@pytest.mark.parametrize("relation", ["greater", "less"])  # shorter from one to the next, or longer
def test_rows_of_different_shapes_are_refused(relation):
    module = graph.parse(ROWS_OF_ANY_LENGTH.replace("RELATION", relation))
    compiled, x = tw.compile(module, threads=1), np.arange(1000, dtype=np.float32)
    (made,) = compiled(np.int64(1), x)
    np.testing.assert_array_equal(np.asarray(made), graph.interpret(module, np.int64(1), x)[0])
    with pytest.raises(tw.TilewrightError, match="rows of different shapes"):
        compiled(np.int64(900), x)
