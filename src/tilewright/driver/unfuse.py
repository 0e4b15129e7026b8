"""Fused nodes that hold an operator without native code, taken apart.

%y = fused(%x) { exp, bitcast }     becomes     %a = fused(%x) { exp };  %y = bitcast(%a)

Fusion knows operators by their patterns; whether a use of one has native code is known where the
lowerings are. Only such operators go to the interpreter, not what they were fused with.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.ir import Module, Node
from tilewright.graph.visit import Edit, Instead, rewrite_module
from tilewright.lower.native import why_not_native


def unfuse_foreign(module: Module) -> Module:
    """The module with such nodes as they were before fusion; the same object if there are none."""
    return rewrite_module(module, _taken_apart)


def _taken_apart(node: Node) -> Instead | None:
    if node.op != "fused" or not why_not_native(node):
        return None
    (body,) = node.bodies
    given = [value for value in node.inputs if value is not None]
    edit = Edit(dict(zip(body.params, given, strict=True)))
    nodes = tuple(replace(edit.node(inner), loc=node.loc) for inner in body.nodes)
    return Instead(nodes, tuple(edit.value(result) for result in body.results))
