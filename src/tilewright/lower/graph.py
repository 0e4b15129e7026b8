"""Lower a graph to one tensor function.

    lower_graph(graph, "k0", module.constants) -> func @k0(inputs..., outputs..., sizes...)

The graph is the body of a `fused` node. Its constants have one element and become numbers. Sizes in
types and attributes are passed as scalars: kernels are called by the model, which knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright import te
from tilewright.base.errors import Unsupported
from tilewright.base.text import Names
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Edit, attribute_sizes
from tilewright.lower import LOWERINGS, REQUIREMENTS
from tilewright.lower.base import copied, shape_of, use_of
from tilewright.lower.native import refusal_of
from tilewright.sym import Expr, Size, Var, free_vars, rebuild, rewrite
from tilewright.te import Tensor
from tilewright.tensor.ir import Function

Array = np.ndarray[Any, Any]


def lower_graph(
    graph: Graph,
    name: str,
    constants: Mapping[str, Array] | None = None,
    fixed: Mapping[Var, Expr] | None = None,
) -> Function:
    """The tensor function that computes a graph's results from its parameters.

    `fixed` sizes are parameters like others, but unused."""
    sizes = sizes_of(graph)
    if fixed:
        graph = Edit(sizes=fixed).body(graph)
    tensors: dict[Value, Tensor] = {}
    params: list[Tensor | Var] = []
    names = Names()  # rules identify weights by name
    for value in graph.params:
        of = value.tensor
        tensors[value] = te.placeholder(shape_of(of), of.dtype, name=names(value, value.name))
        params.append(tensors[value])
    for node in graph.nodes:
        if node.op == "constant":
            tensors[node.output] = _number(node, (constants or {})[node["data"]])
            continue
        inputs = [None if v is None else tensors[v] for v in node.inputs]
        made = lower_node(node, inputs, constants)
        tensors.update(zip(node.outputs, made, strict=True))
    requires = [
        cond
        for node in graph.nodes
        if node.op in REQUIREMENTS
        for cond in REQUIREMENTS[node.op](use_of(node))
    ]
    results: list[Tensor] = []
    for value in graph.results:
        tensor = tensors[value]
        if tensor in params or tensor in results:  # a result needs its own memory
            tensor = copied(tensor, value.name)
        results.append(tensor)
    return te.function([*params, *results, *sizes], name=name, requires=requires)


def _number(node: Node, array: Array) -> Tensor:
    """A constant of one element, as a literal."""
    assert array.size == 1, "larger constants are parameters"
    of = node.output.tensor
    value = te.const(array.item(), of.dtype)
    return te.compute(shape_of(of), lambda *_: value, name=node.output.name)


def lower_node(
    node: Node, inputs: list[Tensor | None], constants: Mapping[str, Array] | None = None
) -> tuple[Tensor, ...]:
    """The tensors of a node's outputs."""
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        raise Unsupported("TW1502", f"no native code for the operator {node.op}", node.loc)
    use = use_of(node)
    refused = refusal_of(use)
    if refused:
        raise use.unsupported(refused)
    if node.bodies:
        bodies = (partial(_of_numbers, body, constants or {}) for body in node.bodies)
        use = replace(use, bodies=tuple(bodies))
    made = lowering(use, *inputs, *[None] * (len(use.call.types) - len(inputs)))
    return made if isinstance(made, tuple) else (made,)


def _of_numbers(body: Graph, constants: Mapping[str, Array], *values: Expr) -> tuple[Expr, ...]:
    """Apply a body of element-wise operators on scalars to expressions."""
    tensors: dict[Value, Tensor] = {}
    known: dict[Expr, Expr] = {}
    for param, value in zip(body.params, values, strict=True):
        tensors[param] = te.placeholder((), param.tensor.dtype, name=param.name)
        known[tensors[param].as_expr()] = value
    for node in body.nodes:
        if node.op == "constant":
            made: tuple[Tensor, ...] = (_number(node, constants[node["data"]]),)
        else:
            inputs = [None if v is None else tensors[v] for v in node.inputs]
            made = lower_node(node, inputs, constants)
        for output, tensor in zip(node.outputs, made, strict=True):
            assert isinstance(tensor.op, te.ComputeOp)
            tensors[output] = tensor
            inner = tensor.op.body[tensor.value_index]
            known[tensor.as_expr()] = rewrite(inner, rebuild, known)
    return tuple(known[tensors[value].as_expr()] for value in body.results)


def sizes_of(graph: Graph) -> list[Size]:
    """The sizes in types and attributes of the graph, in order."""
    values = [*graph.params, *(value for node in graph.nodes for value in node.outputs)]
    found: dict[Var, None] = {}
    for value in values:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            found.update(free_vars(*value.type.shape))
    for node in graph.nodes:
        found.update(attribute_sizes(node))
    return [size for size in found if isinstance(size, Size)]
