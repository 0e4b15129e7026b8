"""simplify_shapes: replace subgraphs that compute shapes by their results.

An integer tensor whose contents are known, as numbers or expressions of sizes, becomes a constant
or a list of sizes (`dims`); an input with known contents becomes an attribute. The nodes that
computed it are then dead. Reshapes get explicit dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.build import make_call
from tilewright.graph.contents import Contents, array_of, fold_inputs, numbers_of
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, items_of
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by
from tilewright.sym import Const


def simplify_shapes(module: Module, ctx: PassContext) -> Module:
    """Before: %s = shape(%x); %n = gather(%s, 0).   After: %n = dims {values = expr n}."""
    constants = dict(module.constants)

    def make_rule(graph: Graph) -> Rule:
        contents = Contents()
        return lambda node: _simplified(node, contents, constants)

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return module if changed is module else replace(changed, constants=constants)


def _simplified(
    node: Node, contents: Contents, constants: dict[str, np.ndarray[Any, Any]]
) -> Instead | None:
    if node.op == "constant":
        contents.learn(node.output, constants[node["data"]])
        return None
    op = OPS.get(node.op)
    if op is None:
        return None
    inputs, attributes = fold_inputs(op, node.inputs, dict(node.attributes), contents)
    if node.op == "reshape" and "shape" in attributes:
        attributes["shape"] = _dims_of(node.output)
    made = node
    if attributes != dict(node.attributes):
        made = replace(node, inputs=inputs, attributes=ir.attributes(**attributes))
    op, call = make_call(
        made.op,
        made.inputs,
        dict(made.attributes),
        *contents.of(made.inputs),
        bodies=made.bodies,
        loc=made.loc,
        outputs=len(made.outputs),
    )
    contents.follow(op, call, made.outputs)
    known = None
    if len(made.outputs) == 1 and isinstance(made.outputs[0].type, TensorType):
        known = _restated(made.output, contents, constants, node)
    if known is not None:
        return Instead((known,), known.outputs)
    return None if made is node else Instead((made,), made.outputs)


def _dims_of(value: Value) -> Attribute:
    return items_of(value.tensor.shape or ())


def _restated(
    value: Value, contents: Contents, constants: dict[str, np.ndarray[Any, Any]], node: Node
) -> Node | None:
    """A constant or a list of sizes in place of a value with known contents."""
    known, shape = contents.known.get(value), value.tensor.static_shape
    if known is None or shape is None or node.op == "dims":
        return None
    numbers = numbers_of(known)
    if numbers is not None:
        name, count = value.name, 0
        while name in constants:
            count += 1
            name = f"{value.name}_{count}"
        constants[name] = array_of(numbers, value.tensor.dtype).reshape(shape)
        return Node("constant", (), (value,), ir.attributes(data=name), (), node.loc)
    if len(shape) > 1:
        return None
    items = tuple(int(x.value) if isinstance(x, Const) else x for x in known)
    values: Attribute = items if len(shape) == 1 else items[0]
    to = value.tensor.dtype
    return Node("dims", (), (value,), ir.attributes(values=values, to=to), (), node.loc)
