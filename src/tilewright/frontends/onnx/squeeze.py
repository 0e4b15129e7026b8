"""Squeeze without axes on dynamic dimensions: an If for each.

    y = Squeeze(x)                                 x: f32[n, 1, 8]
becomes
    y = If(n == 1) {Squeeze(x, [0, 1])} else {Squeeze(x, [1])}

so that every rank is known in each branch; `branches` handles the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright import sym
from tilewright.graph import Value
from tilewright.graph.types import TensorType
from tilewright.sym import EMPTY, ONE, Const, Expr

AXES_AS_INPUT = 13  # opset since which the axes are an input
MAX_UNCLEAR = 4  # dynamic dimensions per tensor: each doubles the continuation


def squeeze_apart(
    node: onnx.NodeProto, scope: Mapping[str, Value], opset: int
) -> tuple[list[onnx.NodeProto], list[str]] | None:
    """Nodes that replace a Squeeze with unknown axes, and the name of their result."""
    if node.op_type != "Squeeze" or node.domain not in ("", "ai.onnx") or _has_axes(node):
        return None
    x = scope.get(node.input[0]) if node.input else None
    if x is None or not isinstance(x.type, TensorType) or x.type.shape is None:
        return None
    dims = x.type.shape
    unclear = [at for at, dim in enumerate(dims) if _may_be_one(dim)]
    if not unclear or len(unclear) > MAX_UNCLEAR:
        return None
    gone = [at for at, dim in enumerate(dims) if dim is ONE]
    made = _Nodes(node, opset)
    nodes = made.branches(unclear, gone, made.name("result"))
    return [*made.head, *nodes], [made.name("result")]


def _has_axes(node: onnx.NodeProto) -> bool:
    given = len(node.input) > 1 and bool(node.input[1])
    return given or any(attribute.name == "axes" for attribute in node.attribute)


def _may_be_one(dim: Expr) -> bool:
    if isinstance(dim, Const):
        return False
    return not sym.prove(sym.lt(1, dim), EMPTY)


class _Nodes:
    """The nodes under construction. Their names derive from the Squeeze's unique name."""

    def __init__(self, node: onnx.NodeProto, opset: int) -> None:
        self.node = node
        self.opset = opset
        self.head = [
            helper.make_node("Shape", [node.input[0]], [self.name("shape")], name=node.name),
            _constant(self.name("one"), [1]),
        ]

    def name(self, what: str) -> str:
        return f"{self.node.output[0]}/squeeze_{what}"

    def branches(
        self, unclear: Sequence[int], gone: Sequence[int], result: str
    ) -> list[onnx.NodeProto]:
        """The tensor squeezed by the known axes, and by those that turn out to be one."""
        if not unclear:
            return self._squeeze(sorted(gone), result)
        axis, rest = unclear[0], unclear[1:]
        label = f"{axis}_{'_'.join(map(str, gone))}"
        at, dim, is_one = (self.name(f"{word}_{label}") for word in ("at", "dim", "is_one"))
        bodies = {}
        for word, more in (("then_branch", (*gone, axis)), ("else_branch", tuple(gone))):
            inner = self.name(f"{word}_{label}")
            nodes = self.branches(rest, more, inner)
            out = helper.make_value_info(inner, onnx.TypeProto())
            bodies[word] = helper.make_graph(nodes, word, [], [out])
        return [
            _constant(at, [axis]),
            helper.make_node("Gather", [self.name("shape"), at], [dim]),
            helper.make_node("Equal", [dim, self.name("one")], [is_one]),
            helper.make_node("If", [is_one], [result], name=self.node.name, **bodies),
        ]

    def _squeeze(self, axes: Sequence[int], result: str) -> list[onnx.NodeProto]:
        source, name = self.node.input[0], self.node.name
        if not axes:
            return [helper.make_node("Identity", [source], [result], name=name)]
        if self.opset < AXES_AS_INPUT:
            return [helper.make_node("Squeeze", [source], [result], name=name, axes=axes)]
        listed = f"{result}_axes"
        return [
            _constant(listed, axes),
            helper.make_node("Squeeze", [source, listed], [result], name=name),
        ]


def _constant(name: str, numbers: Sequence[int]) -> onnx.NodeProto:
    value = numpy_helper.from_array(np.array(numbers, np.int64))
    return helper.make_node("Constant", [], [name], value=value)
