"""Which nodes of a model run as native code."""

from __future__ import annotations

from tilewright.base.errors import Unsupported
from tilewright.graph.ir import Graph, Module, Node
from tilewright.graph.memory import VIEWS
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, Type
from tilewright.lower import LOWERINGS
from tilewright.lower.sizes import SIZE_RULES, fresh_sizes

CONTROL = ("if", "loop", "scan")


class NoNativeCode(Unsupported):
    """Code generation found nodes that it has no code for."""

    def __init__(self, reason: Unsupported, nodes: frozenset[Node]) -> None:
        super().__init__(reason.code, reason.message, reason.loc, help=reason.help)
        self.nodes = nodes


def without_native_code(module: Module) -> frozenset[Node]:
    """The nodes of the main graph that only the interpreter can run."""
    return frozenset(node for node in module.main.nodes if not is_native(node))


def is_native(node: Node) -> bool:
    """Whether there is code for a node, and for all in its bodies."""
    if node.op == "constant":
        return is_tensor(node.output.type)
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if not all(is_tensor(value.type) for value in values):
        return False
    if node.op in CONTROL:
        return all(_is_native_graph(body) for body in node.bodies)
    if node.op == "fused":
        (body,) = node.bodies
        return all(inner.op == "constant" or _has_code(inner) for inner in body.nodes)
    return _has_code(node)


def _is_native_graph(graph: Graph) -> bool:
    return all(is_tensor(param.type) for param in graph.params) and all(
        is_native(node) for node in graph.nodes
    )


def _has_code(node: Node) -> bool:
    if node.op not in VIEWS and (node.op not in LOWERINGS or not OPS[node.op].native):
        return False
    return node.op in SIZE_RULES or not fresh_sizes(node)


def is_tensor(of: Type) -> bool:
    """Whether values of a type lie in memory of a known number of dimensions."""
    return isinstance(of, TensorType) and of.shape is not None and not of.dtype.is_str
