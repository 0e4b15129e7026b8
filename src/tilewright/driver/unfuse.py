"""Split fused nodes that contain an operator without native code.

%y = fused(%x) { exp, bitcast }     becomes     %a = fused(%x) { exp };  %y = bitcast(%a)

Fusion looks only at operators' patterns, not at whether a particular use has native code. After the
split, only the operator without native code goes to the interpreter.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.ir import Module, Node
from tilewright.graph.visit import Edit, Instead, rewrite_module
from tilewright.lower.native import why_not_native


def unfuse_foreign(module: Module) -> Module:
    """The module with such nodes replaced by their bodies; the same object if there are none."""
    return rewrite_module(module, _split)


def _split(node: Node) -> Instead | None:
    if node.op != "fused" or not why_not_native(node):
        return None
    (body,) = node.bodies
    given = [value for value in node.inputs if value is not None]
    edit = Edit(dict(zip(body.params, given, strict=True)))
    nodes = tuple(replace(edit.node(inner), loc=node.loc) for inner in body.nodes)
    return Instead(nodes, tuple(edit.value(result) for result in body.results))
