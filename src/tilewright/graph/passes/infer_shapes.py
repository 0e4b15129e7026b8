"""infer_shapes: infer types again, following the contents of integer tensors.

Passes may have learnt more about inputs than was known at import. Then dimensions that were dynamic
sizes of their own become numbers or expressions, in types and attributes of all later nodes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph.build import make_call
from tilewright.graph.contents import Contents, fold_inputs
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, Type, sizes_of
from tilewright.graph.visit import Edit, Instead, Rule, first_capture, map_graphs, rewrite_by
from tilewright.sym import Const, Expr, Size, Var, free_vars


def infer_shapes(module: Module, ctx: PassContext) -> Module:
    """Before: %y: f32[d] = reshape(%x, %s).   After: %y: f32[12] = reshape(%x) {shape = (12,)}."""

    def make_rule(graph: Graph) -> Rule:
        contents = Contents()
        seen: set[Var] = set()
        for param in graph.params:
            seen.update(sizes_of(param.type))

        def rule(node: Node) -> Instead | None:
            made = _inferred(node, contents, seen, module)
            for value in node.outputs if made is None else made.values:
                seen.update(sizes_of(value.type))
            return made

        return rule

    return map_graphs(module, lambda graph: rewrite_by(graph, make_rule, _with_known_captures))


def _with_known_captures(node: Node) -> Node:
    """Bodies whose captured parameters have the types of the actual arguments."""
    values = node.inputs[first_capture(node) :]
    bodies = []
    for body in node.bodies:
        edit = Edit()
        lead = len(body.params) - len(values)
        params = list(body.params)
        for at, value in enumerate(values):
            param = params[lead + at]
            if value is not None and value.type != param.type:
                params[lead + at] = edit.values[param] = Value(param.name, value.type)
        bodies.append(edit.body(replace(body, params=tuple(params))) if edit.values else body)
    if all(a is b for a, b in zip(bodies, node.bodies, strict=True)):
        return node
    return replace(node, bodies=tuple(bodies))


def _inferred(node: Node, contents: Contents, seen: set[Var], module: Module) -> Instead | None:
    if node.op == "constant":
        contents.learn(node.output, module.constants[node["data"]])
        return None
    op = OPS.get(node.op)
    if op is None:
        return None
    inputs, attributes = fold_inputs(op, node.inputs, dict(node.attributes), contents)
    folded = len(attributes) > len(node.attributes)
    op, call = make_call(
        node.op,
        inputs,
        attributes,
        *contents.of(inputs),
        bodies=node.bodies,
        loc=node.loc,
        outputs=len(node.outputs),
    )
    sizes: dict[Var, Expr] = {}
    types = [
        refined(value.type, of, seen, sizes)
        for value, of in zip(node.outputs, op.gives(call), strict=True)
    ]
    same = all(of is value.type for of, value in zip(types, node.outputs, strict=True))
    if same and not folded:
        contents.follow(op, call, node.outputs)
        return None
    outputs = tuple(
        value if of is value.type else Value(value.name, of)
        for value, of in zip(node.outputs, types, strict=True)
    )
    pairs = tuple(sorted(attributes.items()))
    made = replace(node, inputs=inputs, attributes=pairs, outputs=outputs)
    contents.follow(op, call, outputs)
    return Instead((made,), outputs, sizes)


def refined(have: Type, of: Type, seen: set[Var], sizes: dict[Var, Expr]) -> Type:
    """The more precise of two types of a value; `sizes` records what its own sizes are equal to.

    A dimension expressed in existing sizes is more precise than a new dynamic size.
    """
    if not isinstance(have, TensorType) or not isinstance(of, TensorType):
        return have
    if of.shape is None or (have.shape is not None and len(have.shape) != len(of.shape)):
        return have
    if have.shape is None:
        return of
    dims: list[Expr] = []
    for old, new in zip(have.shape, of.shape, strict=True):
        is_told = all(variable in seen for variable in free_vars(new))
        if isinstance(old, Size) and old not in seen and is_told and sizes.get(old, new) is new:
            sizes[old] = new
            dims.append(new)
        elif isinstance(new, Const) and not isinstance(old, Const):
            dims.append(new)
        else:
            dims.append(old)
    if all(a is b for a, b in zip(dims, have.shape, strict=True)):
        return have
    return TensorType(have.dtype, tuple(dims))
