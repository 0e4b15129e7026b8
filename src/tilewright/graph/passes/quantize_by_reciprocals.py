"""quantize_by_reciprocals: quantization multiplies by the reciprocal of its scale.

That differs from the quotient in rare ties alone, and a division takes longer than all else that
happens to a sum. It is for those who asked for integers by name.
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
    """A quotient that becomes a product."""
    if node.op != "quantize" or node.get("reciprocal", False):
        return None
    of = node.inputs[0]
    assert of is not None
    if of.tensor.dtype is not F32 or node.output.tensor.dtype.bits != 8:
        return None
    return [remade(node, "quantize", *node.inputs, **dict(node.attributes), reciprocal=True)]
