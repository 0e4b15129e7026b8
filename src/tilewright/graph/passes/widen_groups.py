"""widen_groups: convolutions of bytes in a few groups become whole ones, zeros between groups.

Groups cannot use tiles, which multiply some forty times as many bytes in a second as what is left
to them: zeros that are multiplied in vain cost less.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.base.tiles import tile_product
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST

MOST_GROUPS = 24  # all but one multiply zeros: forty would gain nothing, and weights grow too


def widen_groups(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w) {groups = 4}.   After: conv_integer(%x, %whole) {groups = 1}."""
    if tile_product(ctx.target, "u8", "i8") is None:
        return module
    return rewrite_matches(module, (widen,))


def widen(node: Node, scope: Scope) -> Replacement:
    """A convolution of integers without zero points, its weights constant."""
    if node.op != "conv_integer" or node.get("layout") != CHANNELS_LAST or any(node.inputs[2:4]):
        return None
    weights, groups = scope.constant(node.inputs[1]), int(node.get("groups", 1))
    if weights is None or node.inputs[1] is None or weights.shape[1] == 1:
        return None
    if not 1 < groups <= MOST_GROUPS:
        return None
    steps = Steps(node, scope)
    whole = steps.constant(whole_weights(weights, groups), node.inputs[1].tensor, "w")
    attributes = {**dict(node.attributes), "groups": 1}
    steps.add("conv_integer", node.inputs[0], whole, *node.inputs[2:], **attributes)
    return steps.done()


def whole_weights(weights: Array, groups: int) -> Array:
    """Weights [out, in of a group, *taps] as [out, in, *taps], 0 for channels of other groups."""
    out, inner, *taps = weights.shape
    parts = weights.reshape(groups, out // groups, inner, *taps)
    whole = np.zeros((groups, out // groups, groups, inner, *taps), weights.dtype)
    for group in range(groups):
        whole[group, :, group] = parts[group]
    return whole.reshape(out, groups * inner, *taps)
