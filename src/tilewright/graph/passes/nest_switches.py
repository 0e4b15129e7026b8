"""nest_switches: a switch with many branches as nested ifs.

For targets and formats that have only the latter: CUDA graphs, ONNX.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.match import Scope, rewrite_matches
from tilewright.graph.passes.fold_constants import inlined
from tilewright.graph.visit import Instead


def nest_switches(module: Module, ctx: PassContext) -> Module:
    """Before: switch(%i, %x) do {a, b, c}.   After: if(%i = 0) do {a, if(%i = 1) do {b, c}}."""
    return rewrite_matches(module, (_nested,))


def _nested(node: Node, scope: Scope) -> Instead | None:
    if node.op != "switch":
        return None
    return inlined(node, _from(node, 0, scope), node.inputs)


def _from(node: Node, at: int, scope: Scope) -> Graph:
    """graph(index, *values): the switch restricted to branches from number `at` on."""
    index = node.inputs[0]
    assert index is not None
    is_last = at == len(node.bodies) - 1 or at > np.iinfo(index.tensor.dtype.numpy).max
    body = node.bodies[-1 if is_last else at]
    chooser = Value("index", index.type)
    if is_last:
        return Graph(body.name, (chooser, *body.params), body.nodes, body.results, body.loc)
    params = (chooser, *(Value(param.name, param.type) for param in body.params))
    number = scope.new_constant(np.array(at, index.tensor.dtype.numpy), "at", node)
    cond = make_node("equal", (chooser, number.output), {}, node.loc)
    here = Graph(
        body.name, (Value("index", index.type), *body.params), body.nodes, body.results, body.loc
    )
    chosen = make_node(
        "if",
        (cond.output, *params),
        {},
        node.loc,
        hints=[value.name for value in node.outputs],
        bodies=(here, _from(node, at + 1, scope)),
    )
    return Graph(body.name, params, (number, cond, chosen), chosen.outputs, body.loc)
