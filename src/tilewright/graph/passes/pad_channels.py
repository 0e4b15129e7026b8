"""pad_channels: zero-pad channels of integer convolutions to what instructions need.

Dot products sum over four adjacent channels (two of i16). With three channels, a fourth one of
zeros adds a third to the multiplications, but windows can be read in place. Matrix units need a
full tile row of channels; multiplying zeros wastes work, but im2col would write and read several
times the size of the image.
"""

from __future__ import annotations

from functools import partial

from tilewright.base.dots import dots_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tiles import tile_product
from tilewright.graph.im2col import (
    constant_weights,
    fills_tiles,
    fits_padded_tiles,
    prefers_dots,
    with_channels,
)
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches

MAX_PADDED_RATIO = 1.5  # beyond this factor of additional work, im2col is used instead


def pad_channels(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w) of 3 channels.   After: conv_integer(pad(%x), %w4) of 4."""
    target = ctx.target
    if not isinstance(target, Target):
        return module
    return rewrite_matches(module, (partial(pad, target=target),))


def pad(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """An integer convolution without zero points or groups, with constant weights."""
    weights = constant_weights(node, scope) if node.op == "conv_integer" else None
    if weights is None or any(node.inputs[2:4]):
        return None
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    missing = _missing_channels(node, weights, x, w, target)
    if missing == 0:
        return None
    steps = Steps(node, scope)
    more, filled, attributes = with_channels(steps, node, x, weights, missing)
    factor = steps.constant(filled, w.tensor, "w")
    steps.add(node.op, more, factor, *node.inputs[2:], **attributes)
    return steps.done()


def _missing_channels(node: Node, weights: Array, x: Value, w: Value, target: Target) -> int:
    """How many channels to add: up to whole tile rows if there are enough filters for tiles, else
    up to whole groups of a dot product."""
    types = x.tensor.dtype.name, w.tensor.dtype.name
    _, inner, *taps = weights.shape
    tile = tile_product(target, *types)
    dots = dots_of(target, *types, "i32")
    if tile is not None and fills_tiles(weights):
        if fits_padded_tiles(node, weights, tile.depth, target.machine):
            return int(-inner % tile.depth)
        if not prefers_dots(node, weights, target):
            return 0
    if not dots or all(tap == 1 for tap in taps):
        return 0
    missing = -inner % dots[0].group
    return missing if inner + missing <= MAX_PADDED_RATIO * inner else 0
