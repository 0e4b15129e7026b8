"""merge_window_axes: merge axes over which a convolution's window has extent 1.

3D convolutions are often factored into one over images and one over time. Over images, time is a
batch axis, and there are more algorithms for 2D; over time, an image is one long row, which tiles
divide better:

    [n, t, h, w, c] with windows of 1 x 3 x 3  is  [n * t, h, w, c] with windows of 3 x 3
    [n, t, h, w, c] with windows of 3 x 1 x 1  is  [n, t, h * w, c] with windows of 3 x 1

Only channels-last, where the reshapes are views. Elementwise operators that follow move before the
second reshape, into the epilogue of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, remade, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.passes.sink_transposes import sink_transposes
from tilewright.graph.types import items_of


def merge_window_axes(module: Module, ctx: PassContext) -> Module:
    """Before: conv(%x) of 1 x 3 x 3.   After: reshape(conv(reshape(%x))) of 3 x 3."""
    changed = rewrite_matches(module, (merged,))
    return module if changed is module else sink_transposes(changed, ctx)


def merged(node: Node, scope: Scope) -> Replacement:
    """A convolution with one axis less, between reshapes."""
    if node.op != "conv" or node.get("layout") != CHANNELS_LAST:
        return None
    x, weights, before = node.inputs[0], scope.constant(node.inputs[1]), node.output.tensor.shape
    shape = None if x is None else x.tensor.shape
    if shape is None or before is None or weights is None:
        return None
    _, _, *taps = weights.shape
    if not taps[2:]:
        return None  # 2D convolutions stay
    axis = _free_axis(node, taps)
    if axis is None:
        return None
    near = sym.simplify(sym.mul(shape[axis], shape[axis + 1]))
    items = items_of((*shape[:axis], near, *shape[axis + 2 :]))
    packed = scope.new_constant(weights.squeeze(2 + axis), "weights", node)
    given = make_node("reshape", (x,), {"shape": items}, node.loc)
    attributes = {**dict(node.attributes), **_without(node, axis)}
    inputs = (given.output, packed.output, *node.inputs[2:])
    made = make_node("conv", inputs, attributes, node.loc)
    return packed, given, made, remade(node, "reshape", made.output, shape=items_of(before))


def _free_axis(node: Node, taps: Sequence[int]) -> int | None:
    """The first of two adjacent axes, the batch axis included, over which the window has extent
    1."""
    count = len(taps)
    sides = zip(node["pads"][:count], node["pads"][count:], strict=True)
    free = [
        tap == 1 and step == 1 and side == (0, 0)
        for tap, step, side in zip(taps, node["strides"], sides, strict=True)
    ]
    pairs = zip([True, *free], free, strict=False)
    return next((at for at, pair in enumerate(pairs) if all(pair)), None)


def _without(node: Node, axis: int) -> dict[str, Any]:
    """The attributes of the convolution without one spatial axis."""
    count = len(node["strides"])
    kept = [at for at in range(count) if at != axis]
    pads = node["pads"]
    return {
        "strides": tuple(node["strides"][at] for at in kept),
        "dilations": tuple(node["dilations"][at] for at in kept),
        "pads": tuple(pads[at + side] for side in (0, count) for at in kept),
    }
