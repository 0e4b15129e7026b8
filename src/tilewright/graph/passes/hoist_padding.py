"""hoist_padding: pad in the transpose before a convolution.

A convolution copies what it pads, row by row. An image that is copied anyway, such as a transposed
input of the model, gets its padding in that copy.
"""

from __future__ import annotations

from tilewright.base.passes import PassContext
from tilewright.graph.im2col import is_padded
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST


def hoist_padding(module: Module, ctx: PassContext) -> Module:
    """Before: conv(transpose(%x)) {pads = (1, 1, 1, 1)}.   After: conv(pad(transpose(%x)))."""
    return rewrite_matches(module, (pad_first,))


def pad_first(node: Node, scope: Scope) -> Replacement:
    """A convolution of an image without other readers."""
    if node.op != "conv" or node.get("layout") != CHANNELS_LAST or node.get("groups", 1) != 1:
        return None
    x, pads = node.inputs[0], tuple(node.get("pads", ()))
    if x is None or not is_padded(pads) or node.get("winograd", 0):
        return None
    if scope.producer(x, "transpose") is None or not scope.is_used_once(x):
        return None
    steps = Steps(node, scope)
    padded = steps.add("pad", x, pads=pads, axes=tuple(range(1, 1 + len(pads) // 2)))
    attributes = {**dict(node.attributes), "pads": (0,) * len(pads)}
    steps.add("conv", padded, *node.inputs[1:], **attributes)
    return steps.done()
