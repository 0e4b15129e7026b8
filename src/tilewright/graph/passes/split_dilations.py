"""split_dilations: dilated convolutions become plain ones of several smaller images.

Windows whose elements are d apart see every d-th row and column only: an image is d x d images that
have nothing to do with each other, and of these a convolution is a plain one, for which Winograd's
method serves. It is one batch, made by a transpose and undone by another, whose prices count.
Images whose sizes d does not divide are extended by zeros, and the results cut.

For images channels last of known sizes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.build import make_node
from tilewright.graph.costs import (
    LEAST_SPEEDUP,
    Candidate,
    Costs,
    Price,
    alone,
    candidate_of,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import Replacement, Scope, rewrite_matches
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
    if costs is None or node.op != "conv" or scope.constant(node.inputs[1]) is None:
        return None
    found = apart(node, target, costs, in_cache)
    if found is None:
        return None
    made, whole, parts = found
    is_faster = parts.ns * LEAST_SPEEDUP < whole.ns
    chosen = parts if is_faster else whole
    note_choice(ctx, "split_dilations", node, "convolution", chosen.name, (whole, parts))
    return made if is_faster else None


def apart(
    node: Node, target: Target, costs: Costs, in_cache: bool
) -> tuple[list[Node], Price, Price] | None:
    """A dilated convolution of constant weights as a plain one by Winograd's method, and the prices
    of both; None where it is not dilated, or there is no such form."""
    parts = _parts(node) if prod(node["dilations"]) > 1 else None
    if parts is None:
        return None
    before, plain, after = parts
    channels = winograd_channels(plain, target)
    if not channels:
        return None
    tile, prices = best_tile(plain, channels, costs, True, in_cache)
    direct = Candidate(DIRECT, alone(node), frozenset({1}), in_cache)
    others = costs.prices((direct, candidate_of("before", before), candidate_of("after", after)))
    if not tile or others is None:
        return None
    whole, *moved = others
    ns = min(price.ns for price in prices) + sum(price.ns for price in moved)
    return [*before, plain, *after], whole, replace(whole, name=SPLIT, ns=ns)


def _parts(node: Node) -> tuple[list[Node], Node, list[Node]] | None:
    """What takes the images apart that a dilated convolution sees, the plain convolution of them,
    and what joins the results; None where sizes are unknown."""
    x, steps = node.inputs[0], node["dilations"]
    assert x is not None
    shape, result = x.tensor.static_shape, node.output.tensor.static_shape
    if node.get("layout") != CHANNELS_LAST or shape is None or result is None or 0 in shape:
        return None
    if any(step != 1 for step in node["strides"]) or len(steps) != 2 or 0 in result:
        return None
    made: list[Node] = []

    def add(op: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        made.append(make_node(op, inputs, attributes, node.loc))
        return made[-1].output

    pads, more = _padding(shape[1:3], node["pads"], steps)
    if any(more):
        x = add("pad", x, pads=more, axes=(1, 2))
    n, height, width, channels = x.tensor.static_shape or shape
    down, across = steps
    rows = (n, height // down, down, width // across, across, channels)
    phases = add("transpose", add("reshape", x, shape=rows), perm=(0, 2, 4, 1, 3, 5))
    images = (n * down * across, height // down, width // across, channels)
    seen = add("reshape", phases, shape=images)
    at = len(made)
    attributes = {**dict(node.attributes), "dilations": (1, 1), "pads": pads}
    small = add("conv", seen, *node.inputs[1:], **attributes)
    _, height, width, channels = small.tensor.static_shape or result
    tiles = (n, down, across, height, width, channels)
    whole = (n, height * down, width * across, channels)
    joined = add("transpose", add("reshape", small, shape=tiles), perm=(0, 3, 1, 4, 2, 5))
    value = add("reshape", joined, shape=whole)
    if whole != result:
        add("slice", value, starts=(0, 0), ends=result[1:3], axes=(1, 2))
    made[-1] = replace(made[-1], outputs=node.outputs)
    return made[:at], made[at], made[at + 1 :]


def _padding(
    sizes: tuple[int, ...], pads: tuple[int, ...], apart: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding of the smaller images, and that of the whole one before: what makes its sizes
    multiples, and all where the padding is no multiple itself."""
    if any(pad % d for pad, d in zip(pads, 2 * apart, strict=True)):
        added, inside = pads, (0,) * len(pads)
    else:
        added = (0,) * len(pads)
        inside = tuple(pad // d for pad, d in zip(pads, 2 * apart, strict=True))
    low, high = added[:2], added[2:]
    whole = [size + a + b for size, a, b in zip(sizes, low, high, strict=True)]
    missing = [-size % d for size, d in zip(whole, apart, strict=True)]
    return inside, (*low, *(b + more for b, more in zip(high, missing, strict=True)))
