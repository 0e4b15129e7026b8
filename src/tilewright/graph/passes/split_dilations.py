"""split_dilations: dilated convolutions become plain ones of several smaller images.

Windows whose elements are d apart see every d-th row and column only: an image is d x d images that
have nothing to do with each other, and of these a convolution is a plain one, for which Winograd's
method serves. It is one batch, made by a transpose and undone by another, whose prices count.

For images channels last, whose sizes and padding d divides.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.costs import (
    LEAST_SPEEDUP,
    Candidate,
    alone,
    candidate_of,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.passes.choose_winograd import best_tile, winograd_channels

DIRECT, SPLIT = "direct", "split"


def split_dilations(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x, w) {dilations = (2, 2)}.   After: conv(four images, w), joined again."""
    target, costs = ctx.target, costs_of(ctx)
    if not isinstance(target, Target) or target.kind != CPU or costs is None or costs.is_lowered:
        return module  # products of fewer bits are direct ones
    in_cache = weights_stay(module, target)
    return rewrite_matches(module, (partial(split, ctx=ctx, target=target, in_cache=in_cache),))


def split(
    node: Node, scope: Scope, *, ctx: PassContext, target: Target, in_cache: bool
) -> Replacement:
    """Where plain convolutions by Winograd's method, with both transposes, take less time."""
    costs = costs_of(ctx)
    if node.op != "conv" or prod(node["dilations"]) == 1 or costs is None:
        return None
    steps = _steps(node, scope)
    plain = next((each for each in steps or () if each.op == "conv"), None)
    if steps is None or plain is None:
        return None
    channels = winograd_channels(plain, target)
    is_fixed = scope.constant(node.inputs[1]) is not None
    if not channels or not is_fixed:
        return None
    tile, prices = best_tile(plain, channels, costs, is_fixed, in_cache)
    direct = Candidate(DIRECT, alone(node), frozenset({1}), in_cache)
    moves = [candidate_of(each.op, [each]) for each in steps if each.op == "transpose"]
    others = costs.prices((direct, *moves))
    if not tile or others is None:
        return None
    before, *moved = others
    after = min(price.ns for price in prices) + sum(price.ns for price in moved)
    is_faster = after * LEAST_SPEEDUP < before.ns
    weighed = (before, replace(before, name=SPLIT, ns=after))
    chosen = SPLIT if is_faster else DIRECT
    note_choice(ctx, "split_dilations", node, "convolution", chosen, weighed)
    return steps if is_faster else None


def _steps(node: Node, scope: Scope) -> list[Node] | None:
    """A plain convolution of the images that a dilated one sees, between two transposes; None
    where these are not all of one size."""
    x, apart = node.inputs[0], node["dilations"]
    assert x is not None
    shape, result = x.tensor.static_shape, node.output.tensor.static_shape
    if node.get("layout") != CHANNELS_LAST or shape is None or result is None or 0 in shape:
        return None
    if any(step != 1 for step in node["strides"]) or len(apart) != 2:
        return None
    sizes = (*shape[1:3], *node["pads"])
    if any(size % d for size, d in zip(sizes, 3 * apart, strict=True)):
        return None
    (n, height, width, channels), (down, across) = shape, apart
    steps = Steps(node, scope)
    rows = (n, height // down, down, width // across, across, channels)
    apart_first = steps.add(
        "transpose", steps.add("reshape", x, shape=rows), perm=(0, 2, 4, 1, 3, 5)
    )
    images = (n * down * across, height // down, width // across, channels)
    seen = steps.add("reshape", apart_first, shape=images)
    pads = tuple(pad // d for pad, d in zip(node["pads"], 2 * apart, strict=True))
    attributes = {**dict(node.attributes), "dilations": (1, 1), "pads": pads}
    made = steps.add("conv", seen, *node.inputs[1:], **attributes)
    _, height, width, channels = result
    tiles = (n, down, across, height // down, width // across, channels)
    joined = steps.add(
        "transpose", steps.add("reshape", made, shape=tiles), perm=(0, 3, 1, 4, 2, 5)
    )
    steps.add("reshape", joined, shape=result)
    return steps.done()
