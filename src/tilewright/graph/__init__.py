"""The model IR: text, operators, shape inference, interpreter, passes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tilewright.graph.build import Builder
from tilewright.graph.interp import interpret
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.parser import parse
from tilewright.graph.printer import format_module
from tilewright.graph.types import MapType, OptionalType, SequenceType, TensorType, Type


def to_onnx(module: Module, name: str = "model") -> Any:
    """A graph of any stage as a valid ONNX model, like `tilewright.to_onnx`.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[n]) { %y = relu(%x) return %y }")
        >>> [node.op_type for node in graph.to_onnx(module).graph.node]
        ['Relu', 'Identity']
    """
    # A front end lies above this layer, which does not depend on it.
    return import_module("tilewright.frontends.onnx.export").to_onnx(module, name)
