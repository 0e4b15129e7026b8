"""int8 models for benchmarks of the accelerator: chains of layers with random weights.

Cycles depend on shapes alone, so that nothing has to be downloaded, trained or quantized. Graphs
are what `recognize_integers` makes of the quantized models of the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import I8
from tilewright.graph import Builder, Graph, TensorType, Value
from tilewright.sym import const

Array = np.ndarray[Any, Any]


class Net:
    """A chain of layers of bytes under construction."""

    def __init__(self, channels: int, size: int) -> None:
        self.random = np.random.default_rng(0)
        self.builder = Builder()
        shape = (1, channels, size, size)
        self.x = self.builder.param("x", TensorType(I8, tuple(map(const, shape))))
        self.weights: dict[Value, Array] = {}
        self.nodes: list[Any] = []

    def constant(self, array: Array) -> Value:
        value = self.builder.constant(array)
        self.weights[value] = array
        return value

    def _parameters(self, outs: int) -> list[Value]:
        numbers = (0, 1 << 30, 38)
        return [self.constant(np.full(outs, number, np.int32)) for number in numbers]

    def conv(
        self, x: Value, outs: int, kernel: int, stride: int = 1, groups: int = 1, pad: int = -1
    ) -> Value:
        ins = x.tensor.static_shape[1] if x.tensor.static_shape else 0
        shape = (outs, ins // groups, kernel, kernel)
        w = self.constant(self.random.integers(-127, 128, shape).astype(np.int8))
        around = (kernel // 2 if pad < 0 else pad,) * 4
        return self.builder.add(
            "quantized_conv", x, w, *self._parameters(outs), strides=(stride,) * 2, pads=around,
            dilations=(1, 1), groups=groups,
        )  # fmt: skip

    def add(self, x: Value, y: Value) -> Value:
        return self.builder.add(
            "quantized_add", x, y, a=5, b=4, bias=0, multiplier=1 << 30, shift=33
        )

    def pool(self, x: Value) -> Value:
        return self.builder.add(
            "quantized_max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1)
        )

    def classify(self, x: Value, classes: int) -> Value:
        shape = x.tensor.static_shape or ()
        x = self.conv(x, shape[1], shape[2], groups=shape[1], pad=0)
        w = self.constant(self.random.integers(-127, 128, (shape[1], classes)).astype(np.int8))
        return self.builder.add("quantized_matmul", x, w, *self._parameters(classes))

    def graph(self, result: Value) -> tuple[Graph, dict[Value, Array]]:
        """The layers, constants as parameters, and the constants."""
        made = self.builder.graph(result)
        layers = tuple(node for node in made.nodes if node.op != "constant")
        return Graph("part", (self.x, *self.weights), layers, (result,)), self.weights


def resnet(
    depths: tuple[int, ...], wide: bool, inner: bool = False
) -> tuple[Graph, dict[Value, Array]]:
    """ResNet-18 (basic blocks) or ResNet-50 (wide: bottlenecks, the stride in their 3x3).

    `inner`: from the first pool to the last, that is blocks alone.
    """
    net = Net(64, 56) if inner else Net(3, 224)
    x = net.x if inner else net.pool(net.conv(net.x, 64, 7, 2))
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            outs = width * 4 if wide else width
            if wide:
                y = net.conv(net.conv(net.conv(x, width, 1), width, 3, stride), outs, 1)
            else:
                y = net.conv(net.conv(x, width, 3, stride), outs, 3)
            changes = stride > 1 or (x.tensor.static_shape or ())[1] != outs
            x = net.add(y, net.conv(x, outs, 1, stride) if changes else x)
    return net.graph(x if inner else net.classify(x, 1000))


def mobilenet() -> tuple[Graph, dict[Value, Array]]:
    """MobileNet-V2: expand, depthwise, project."""
    net = Net(3, 224)
    x = net.conv(net.x, 32, 3, 2)
    for factor, outs, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(count):
            stride = 1 if block else first
            ins = (x.tensor.static_shape or ())[1]
            wide = ins * factor
            y = net.conv(x, wide, 1) if factor > 1 else x
            y = net.conv(net.conv(y, wide, 3, stride, groups=wide), outs, 1)
            x = net.add(x, y) if stride == 1 and ins == outs else y
    return net.graph(net.classify(net.conv(x, 1280, 1), 1000))


MODELS = {
    "ResNet-18, pool to pool": (lambda: resnet((2, 2, 2, 2), False, inner=True), 7.1),
    "ResNet-18": (lambda: resnet((2, 2, 2, 2), False), 8.2),
    "ResNet-50": (lambda: resnet((3, 4, 6, 3), True), 18.4),
    "MobileNet-V2": (mobilenet, 3.6),
}
