"""pad_channels: convolutions of bytes get channels of zeros: dot products need whole groups.

A dot product adds the products of four neighbouring channels (of i16: two). Of an image of three,
a fourth of zeros costs a third more sums, and windows are read from where they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tilewright.base.dots import dots_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tiles import tile_product
from tilewright.graph.im2col import constant_weights, fills_tiles
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of

MAX_PADDED_RATIO = 1.5  # times the sums: more, and rows of whole windows are made instead


def pad_channels(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w) of 3 channels.   After: conv_integer(pad(%x), %w4) of 4."""
    target = ctx.target
    if not isinstance(target, Target):
        return module
    return rewrite_matches(module, (partial(pad, target=target),))


def pad(node: Node, scope: Scope, *, target: Any) -> Replacement:
    """A convolution of integers without zero points, in one group, its weights constant; where
    there are tiles, one that does not fill them."""
    weights = constant_weights(node, scope) if node.op == "conv_integer" else None
    if weights is None or (tile_product(target, "u8", "i8") and fills_tiles(weights)):
        return None
    x, w = node.inputs[:2]
    if x is None or w is None or any(node.inputs[2:4]):
        return None
    dots = dots_of(target, x.tensor.dtype.name, w.tensor.dtype.name, "i32")
    _, inner, *taps = weights.shape
    if not dots or all(tap == 1 for tap in taps):
        return None
    group = dots[0].group
    missing = -inner % group
    if missing == 0 or inner + missing > MAX_PADDED_RATIO * inner:
        return None
    steps = Steps(node, scope)
    rank = len(shape_of(x) or ())
    more = steps.add("pad", x, pads=(0, missing), axes=(rank - 1,))
    filled = np.pad(weights, [(0, 0), (0, missing), *[(0, 0)] * len(taps)])
    factor = steps.constant(filled, w.tensor, "w")
    steps.add(node.op, more, factor, *node.inputs[2:], **dict(node.attributes))
    return steps.done()
