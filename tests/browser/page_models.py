"""Models whose reports are looked at: MobileNet-V2, a BERT, and one with control flow.

Built with the `onnx` package alone, in their published sizes, with random weights.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

OPSETS = [helper.make_opsetid("", 17)]
FLOAT = TensorProto.FLOAT


class Net:
    """Nodes and weights as they are written down, each node with a name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int, scale: float = 0.05) -> str:
        values = scale * self.random.standard_normal(shape, dtype=np.float32)
        return self.constant(values)

    def constant(self, values) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def __call__(self, op: str, *inputs: str, **attributes) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def model(self, inputs, outputs) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def mobilenet_v2() -> onnx.ModelProto:
    """Sandler and others 2018, table 2: an image of 224 x 224, 1,000 classes."""
    net = Net()

    def conv(x: str, inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> str:
        pad = size // 2
        return net(
            "Conv",
            x,
            net.weight(outputs, inputs // groups, size, size),
            net.weight(outputs),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
            group=groups,
        )

    six, zero = net.constant(np.float32(6)), net.constant(np.float32(0))

    def relu6(x: str) -> str:
        return net("Clip", x, zero, six)

    y, channels = relu6(conv("image", 3, 32, 3, 2)), 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for expansion, outputs, count, first in (*table, (6, 160, 3, 2), (6, 320, 1, 1)):
        for at in range(count):
            stride, inside, x = first if at == 0 else 1, channels * expansion, y
            if expansion > 1:
                y = relu6(conv(y, channels, inside, 1, 1))
            y = relu6(conv(y, inside, inside, 3, stride, inside))
            y = conv(y, inside, outputs, 1, 1)
            if stride == 1 and channels == outputs:
                y = net("Add", x, y)
            channels = outputs
    y = relu6(conv(y, channels, 1280, 1, 1))
    y = net("Flatten", net("GlobalAveragePool", y))
    y = net("Gemm", y, net.weight(1280, 1000), net.weight(1000))
    image = helper.make_tensor_value_info("image", FLOAT, (1, 3, 224, 224))
    return net.model([image], [helper.make_tensor_value_info(y, FLOAT, (1, 1000))])


def bert(layers: int = 12, width: int = 384, heads: int = 12, words: int = 30_522):
    """MiniLM-L12-H384, a BERT of twelve layers, as exporters write it; 32 tokens."""
    net, tokens = Net(), 32
    size = width // heads

    def dense(x: str, inputs: int, outputs: int) -> str:
        return net("Add", net("MatMul", x, net.weight(inputs, outputs)), net.weight(outputs))

    def norm(x: str) -> str:
        ones = net.constant(np.ones(width, np.float32))
        return net("LayerNormalization", x, ones, net.weight(width), epsilon=1e-12)

    split = net.constant(np.array([0, 0, heads, size]))
    join = net.constant(np.array([0, 0, width]))
    root, half, one, two = (
        net.constant(np.float32(value)) for value in (size**0.5, 0.5, 1.0, 2.0**0.5)
    )

    def head(x: str, perm: list[int]) -> str:
        return net("Transpose", net("Reshape", dense(x, width, width), split), perm=perm)

    y = norm(net("Gather", net.weight(words, width), "tokens"))
    for _ in range(layers):
        query, key = head(y, [0, 2, 1, 3]), head(y, [0, 2, 3, 1])
        value = head(y, [0, 2, 1, 3])
        weights = net("Softmax", net("Div", net("MatMul", query, key), root), axis=-1)
        mixed = net("Transpose", net("MatMul", weights, value), perm=[0, 2, 1, 3])
        y = norm(net("Add", dense(net("Reshape", mixed, join), width, width), y))
        wide = dense(y, width, 4 * width)
        gate = net("Add", net("Erf", net("Div", wide, two)), one)
        y = norm(net("Add", dense(net("Mul", net("Mul", wide, gate), half), 4 * width, width), y))
    inputs = helper.make_tensor_value_info("tokens", TensorProto.INT64, (1, tokens))
    return net.model([inputs], [helper.make_tensor_value_info(y, FLOAT, (1, tokens, width))])


def control_flow() -> onnx.ModelProto:
    """A loop that sums rows, inside one branch of a condition."""
    return parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
net (float[8, 64] x, bool c) => (float[64] y) {
  steps = Constant <value_int = 8> ()
  axes = Constant <value_ints = [0]> ()
  zeros = Constant <value_floats = [0.0]> ()
  start = ReduceSum <keepdims = 0> (x, axes)
  y = If (c) <
    then_branch = then () => (float[64] a) {
      go = Constant <value_int = 1> ()
      condition = Cast <to = 9> (go)
      a = Loop (steps, condition, start) <body = body (int64 i, bool go_in, float[64] s)
          => (bool go_out, float[64] t) {
        go_out = Identity (go_in)
        row = Gather <axis = 0> (x, i)
        grown = Tanh (s)
        t = Add (grown, row)
      }>
    },
    else_branch = other () => (float[64] b) { b = Exp (start) }
  >
}""")
