"""trim_windows: remove weights of a convolution that are only multiplied by padding.

Windows that reach far beyond a small image, as in atrous pyramids after a deep backbone, multiply
padding by all but a few of their weights.
"""

from __future__ import annotations

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.sym import Const


def trim_windows(module: Module, ctx: PassContext) -> Module:
    """Before: conv(%x: [1, c, 7, 7], %w: [o, c, 3, 3]) {dilations = (9, 9), pads = (9, 9, 9, 9)}.
    After: conv(%x, %w[:, :, 1:2, 1:2])."""
    return rewrite_matches(module, (trim,))


def trim(node: Node, scope: Scope) -> Replacement:
    """A channels-first convolution of static size with constant weights."""
    if node.op != "conv" or node.get("layout") is not None or node.get("winograd", 0):
        return None
    x, weights = node.inputs[0], scope.constant(node.inputs[1])
    pads = tuple(node.get("pads", ()))
    if x is None or weights is None or not all(isinstance(pad, int) for pad in pads):
        return None
    inside, outside = (shape_of(x) or ())[2:], (shape_of(node.output) or ())[2:]
    sizes = [int(dim.value) for dim in (*inside, *outside) if isinstance(dim, Const)]
    rank = len(inside)
    if len(sizes) != 2 * rank or len(pads) != 2 * rank or min(sizes) < 1:
        return None
    cut, low, high = [slice(None), slice(None)], list(pads[:rank]), list(pads[rank:])
    for axis in range(rank):
        step, reach = node["strides"][axis], node["dilations"][axis]
        taps = weights.shape[2 + axis]
        last = (sizes[rank + axis] - 1) * step
        seen = [
            tap
            for tap in range(taps)
            if tap * reach - low[axis] < sizes[axis] and last + tap * reach - low[axis] >= 0
        ]
        if not seen:
            return None
        first = min(seen[0], low[axis] // reach)
        end = max(seen[-1], taps - 1 - high[axis] // reach) + 1
        cut.append(slice(first, end))
        low[axis] -= first * reach
        high[axis] -= (taps - end) * reach
    if weights[tuple(cut)].shape == weights.shape or node.inputs[1] is None:
        return None
    steps = Steps(node, scope)
    kept = steps.constant(weights[tuple(cut)], node.inputs[1].tensor, "trimmed")
    attributes = {**dict(node.attributes), "pads": (*low, *high)}
    steps.add("conv", x, kept, *node.inputs[2:], **attributes)
    return steps.done()
