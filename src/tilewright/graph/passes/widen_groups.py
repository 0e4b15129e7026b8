"""widen_groups: convolutions of bytes get fewer groups, with zeros between what was apart.

Groups cannot use tiles, which multiply some forty times as many bytes in a second as what is left
to them: zeros that are multiplied in vain cost less. Dot products fill the lanes of a register with
channels of one group: of smaller ones several become one, as long as an instruction still does more
than one of plain multiplications.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.base.dots import dots_of, multiplies_bytes
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tiles import tile_product
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST

MOST_GROUPS = 24  # all but one multiply zeros: forty would gain nothing, and weights grow too


def widen_groups(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w) {groups = 4}.   After: conv_integer(%x, %whole) {groups = 1}."""
    target = ctx.target
    if not isinstance(target, Target) or not multiplies_bytes(target):
        return module
    return rewrite_matches(module, (partial(widen, target=target),))


def widen(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """A convolution of integers without zero points, its weights constant."""
    if node.op != "conv_integer" or node.get("layout") != CHANNELS_LAST or any(node.inputs[2:4]):
        return None
    weights, groups = scope.constant(node.inputs[1]), int(node.get("groups", 1))
    if weights is None or node.inputs[1] is None or weights.shape[1] == 1:
        return None
    merged = _merged_groups(node, weights, groups, target)
    if merged == 1:
        return None
    steps = Steps(node, scope)
    parts = np.split(weights, groups // merged)
    made = np.concatenate([whole_weights(part, merged) for part in parts])
    whole = steps.constant(made, node.inputs[1].tensor, "w")
    attributes = {**dict(node.attributes), "groups": groups // merged}
    steps.add("conv_integer", node.inputs[0], whole, *node.inputs[2:], **attributes)
    return steps.done()


def _merged_groups(node: Node, weights: Array, groups: int, target: Target) -> int:
    """How many groups become one."""
    if tile_product(target, "u8", "i8") is not None:
        return groups if groups <= MOST_GROUPS else 1
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    dots = dots_of(target, x.tensor.dtype.name, w.tensor.dtype.name, "i32")
    dots = dots or dots_of(target, "i16", "i16", "i32")
    out = weights.shape[0] // groups
    if not dots or dots[0].lanes % out:
        return 1
    merged = dots[0].lanes // out
    return merged if merged <= dots[0].group and groups % merged == 0 else 1


def whole_weights(weights: Array, groups: int) -> Array:
    """Weights [out, in of a group, *taps] as [out, in, *taps], 0 for channels of other groups."""
    out, inner, *taps = weights.shape
    parts = weights.reshape(groups, out // groups, inner, *taps)
    whole = np.zeros((groups, out // groups, groups, inner, *taps), weights.dtype)
    for group in range(groups):
        whole[group, :, group] = parts[group]
    return whole.reshape(out, groups * inner, *taps)
