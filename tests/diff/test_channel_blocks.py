"""Models that ONNX Runtime wrote with images in blocks of channels (com.microsoft.nchwc)."""

import platform

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.tolerances import check_close

from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.rules.microsoft_blocked import DOMAIN, RULES, channel_block
from tilewright.graph import interpret

ort = pytest.importorskip("onnxruntime")

# Few channels; a channel count that fills no block; depthwise; groups; a sum and activations.
TEXT = """<ir_version: 8, opset_import: ["" : 14]>
g (float[n, 3, h, w] x) => (float[n, 20, p, q] y, float[n, 64, a, b] z, float[n, 32, r, s] u) {
  stem = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w0, b0)
  active = Relu (stem)
  pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (active)
  deep = Conv <group = 32, pads = [1, 1, 1, 1]> (pooled, w1, b1)
  gate = Sigmoid (deep)
  grouped = Conv <group = 2> (gate, w2)
  both = Add (grouped, deep)
  again = Relu (both)
  mean = AveragePool <kernel_shape = [2, 2]> (again)
  y = Conv (mean, w3)
  swish = HardSwish (y)
  bent = Softsign (swish)
  large = Conv (bent, w4)
  whole = GlobalAveragePool (large)
  whole_y = GlobalMaxPool (deep)
  joined = Concat <axis = 1> (whole, whole_y)
  z = Identity (joined)
  u = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
      (deep, , scales)
}"""
SHAPES = {
    "w0": (32, 3, 3, 3),
    "b0": (32,),
    "w1": (32, 1, 3, 3),
    "b1": (32,),
    "w2": (32, 16, 1, 1),
    "w3": (20, 32, 1, 1),
    "w4": (32, 20, 1, 1),
}


def draw(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32) / 4


def test_a_model_optimized_for_this_processor(tmp_path):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    scales = np.array([1, 1, 2, 2], np.float32)
    stored = {name: draw(rng, *shape) for name, shape in SHAPES.items()} | {"scales": scales}
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    model.graph.initializer.extend(tensors)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.onnx")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    written = onnx.load(options.optimized_model_filepath)
    if platform.machine() in ("x86_64", "AMD64"):
        kinds = {node.op_type for node in written.graph.node if node.domain == DOMAIN}
        assert kinds == set(RULES)
    x = draw(rng, 2, 3, 21, 19)
    for got, want in zip(
        interpret(import_model(written), x), session.run(None, {"x": x}), strict=True
    ):
        check_close(got, want, 300)


@pytest.mark.parametrize("block", [8, 16])
def test_weights_in_blocks(block):
    """Packed by hand: the processor that wrote a model is not always this one."""
    rng = np.random.default_rng(1)
    outputs = 3 * block if block == 8 else 32
    w, x = draw(rng, outputs, 2 * block, 3, 3), draw(rng, 1, 2 * block, 5, 5)
    packed = w.reshape(outputs // block, block, 2, block, 3, 3).transpose(0, 2, 4, 5, 3, 1)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=DOMAIN),
        helper.make_node("Conv", ["a", "w"], ["b"], domain=DOMAIN, kernel_shape=[3, 3]),
        helper.make_node("ReorderOutput", ["b"], ["y"], domain=DOMAIN, channels=outputs - 3),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.ascontiguousarray(packed).reshape(w.shape), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, 1)])
    if channel_block(model) != block:
        pytest.skip("sizes that fit either block are taken as this processor's")
    (y,) = interpret(import_model(model), x)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), (1, 2))
    check_close(y[0], np.einsum("chwij,ocij->ohw", windows, w)[: outputs - 3], 18 * block)
