"""quantize_by_reciprocals: quantize by multiplication with the reciprocal scale.

The result differs from that of division only in rare ties, and division is slower than everything
else that is done with a sum. Only where the user asks for integer arithmetic by name.
"""

from __future__ import annotations

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, remade, rewrite_matches


def quantize_by_reciprocals(module: Module, ctx: PassContext) -> Module:
    """Before: quantize(%x, %scale).   After: quantize(%x, %scale) {reciprocal = true}."""
    return rewrite_matches(module, (quantize,))


def quantize(node: Node, scope: Scope) -> Replacement:
    """quantize as a multiplication."""
    if node.op != "quantize" or node.get("reciprocal", False):
        return None
    of = node.inputs[0]
    assert of is not None
    if of.tensor.dtype is not F32 or node.output.tensor.dtype.bits != 8:
        return None
    attributes = {**dict(node.attributes), "reciprocal": True}
    return [remade(node, "quantize", *node.inputs, **attributes)]
