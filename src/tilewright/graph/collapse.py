"""Rows of a matmul along several axes as rows along one, where all that a kernel touches agrees.

    matmul(x: [steps, batch, k], w: [k, n]) + b: [n]      is computed as
    matmul(x: [steps * batch, k], w: [k, n]) + b: [n]

Nothing moves: row-major tensors are the same in memory. A register tile takes rows of the innermost
axis; where that is dynamic there may be few of them, one of a batch say, however many there are of
the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from tilewright import sym
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.op import BROADCAST, ELEMENTWISE
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType
from tilewright.graph.visit import attribute_sizes
from tilewright.sym import Const, Expr

Shape = tuple[Expr, ...]
AXES = ("axis", "axes")  # attributes that count axes


def collapse_rows(graph: Graph) -> Graph:
    """The body of a kernel on collapsed rows; the same graph where that is not possible."""
    product = next((node for node in graph.nodes if node.op == "matmul"), None)
    lead = None if product is None else _lead(product)
    if product is None or lead is None or not all(_keeps_rows(n, product) for n in graph.nodes):
        return graph
    made: dict[Value, Value] = {}
    for value in (*graph.params, *(out for node in graph.nodes for out in node.outputs)):
        new = value if value is product.inputs[1] else _collapsed(value, lead)
        if new is None:
            return graph
        made[value] = new
    nodes = [
        replace(
            node,
            inputs=tuple(None if value is None else made[value] for value in node.inputs),
            outputs=tuple(made[value] for value in node.outputs),
        )
        for node in graph.nodes
    ]
    return replace(
        graph,
        params=tuple(made[value] for value in graph.params),
        nodes=tuple(nodes),
        results=tuple(made[value] for value in graph.results),
    )


def _lead(product: Node) -> Shape | None:
    """The axes of a matmul's rows, if there are several and the innermost is dynamic."""
    a, b = product.inputs[0], product.inputs[1]
    if a is None or b is None or a is b or len(b.tensor.shape or ()) != 2:
        return None
    *lead, _ = a.tensor.shape or (sym.ONE,)
    return tuple(lead) if len(lead) > 1 and not isinstance(lead[-1], Const) else None


def _keeps_rows(node: Node, product: Node) -> bool:
    """Whether a node computes every row from the same row of its operands."""
    if node is product or node.op == "constant":
        return True
    is_map = OPS[node.op].pattern in (ELEMENTWISE, BROADCAST) and not node.bodies
    names = {name for name, _ in node.attributes}
    return is_map and not names & set(AXES) and not attribute_sizes(node)


def _collapsed(value: Value, lead: Shape) -> Value | None:
    """A value with its rows along one axis; itself if it has none, None if it has others."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return None
    if len(of.shape) <= 1:
        return value
    rows, rest = of.shape[: len(lead)], of.shape[len(lead) :]
    if len(rest) != 1 or not all(sym.equal(a, b) for a, b in zip(rows, lead, strict=True)):
        return None
    total = sym.simplify(reduce(sym.mul, rows))
    return Value(value.name, replace(of, shape=(total, *rest)))
