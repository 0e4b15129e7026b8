"""separate_padding: what a convolution pads is a node of its own, for a schedule to place.

A GPU brings tiles of the image into fast memory anyway: the pad is written there with them, and the
convolution itself reads without asking where the image ends.
"""

from __future__ import annotations

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.unfold import is_padded


def separate_padding(module: Module, ctx: PassContext) -> Module:
    """Before: conv(%x) {pads = (1, 1, 1, 1)}.   After: conv(pad(%x))."""
    return rewrite_matches(module, (pad_apart,))


def pad_apart(node: Node, scope: Scope) -> Replacement:
    """A convolution of all channels whose pads are numbers."""
    if node.op != "conv" or node.get("groups", 1) != 1 or node.get("winograd", 0):
        return None
    x, pads = node.inputs[0], tuple(node.get("pads", ()))
    if x is None or not is_padded(pads):
        return None
    first = 1 if node.get("layout") == CHANNELS_LAST else 2
    steps = Steps(node, scope)
    padded = steps.add("pad", x, pads=pads, axes=tuple(range(first, first + len(pads) // 2)))
    attributes = {**dict(node.attributes), "pads": (0,) * len(pads)}
    steps.add("conv", padded, *node.inputs[1:], **attributes)
    return steps.done()
