"""split_dilations: dilated convolutions as plain ones of several smaller images, or of regions.

Windows with dilation d see every d-th row and column only: an image consists of d x d independent
images, whose convolutions are plain ones, by Winograd. They form a batch, or lie side by side in
one image; transposes before and after make and undo it, and their prices count. Images whose sizes
d does not divide are padded with zeros, and the results cropped. Where windows reach beyond the
image nearly everywhere, regions of the result are convolved with only the weights that they see
(`graph/window_regions.py`).

For channels-last images of static size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

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
from tilewright.graph.window_regions import Cut, multiplied_share, regions
from tilewright.sym import const

DIRECT, BATCH, SIDE_BY_SIDE, REGIONS = "direct", "batch", "side by side", "regions"
Parts = tuple[list[Node], Node, list[Node]]  # before the plain convolution, itself, after it
Maker = Callable[[Cut], list[Node]]


def split_dilations(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x, w) {dilations = (2, 2)}.   After: conv(four images, w), joined again."""
    target, costs = ctx.target, costs_of(ctx)
    if not isinstance(target, Target) or target.kind != CPU or costs is None or costs.is_lowered:
        return module  # no Winograd for other types
    in_cache = weights_stay(module, target)
    return rewrite_matches(module, (partial(split, ctx=ctx, target=target, in_cache=in_cache),))


def split(
    node: Node, scope: Scope, *, ctx: PassContext, target: Target, in_cache: bool
) -> Replacement:
    """The cheapest form, if it is cheaper than the dilated convolution."""
    costs = costs_of(ctx)
    weights = scope.constant(node.inputs[1]) if node.op == "conv" else None
    if costs is None or weights is None:
        return None
    prices, makers = split_forms(node, target, costs, in_cache)
    if not makers:
        return None
    whole, *others = prices
    best = min(others, key=lambda price: price.ns)
    is_faster = best.ns * LEAST_SPEEDUP < whole.ns
    chosen = best.name if is_faster else DIRECT
    note_choice(ctx, "split_dilations", node, "convolution", chosen, prices)
    stored: list[Node] = []

    def cut(part: tuple[slice, ...]) -> Value:
        stored.append(scope.new_constant(np.ascontiguousarray(weights[part]), "weights", node))
        return stored[-1].output

    made = makers[best.name](cut) if is_faster else []
    return (*stored, *made) or None


def split_forms(
    node: Node, target: Target, costs: Costs, in_cache: bool
) -> tuple[tuple[Price, ...], dict[str, Maker]]:
    """The prices of a dilated convolution with constant weights and of its alternatives, and the
    functions that build these, given a function that slices the weights."""
    if prod(node["dilations"]) == 1 or not _is_known(node):
        return (), {}
    direct = Candidate(DIRECT, alone(node), frozenset({1}), in_cache)
    whole = costs.prices((direct,))
    if whole is None:
        return (), {}
    prices, makers = list(whole), dict[str, Maker]()
    forms = {BATCH: partial(_batch, node), SIDE_BY_SIDE: partial(_side_by_side, node)}
    for name, form in forms.items():
        found = _plain_ns(form(), target, costs, in_cache)
        if found is not None:
            prices.append(replace(whole[0], name=name, ns=found))
            makers[name] = partial(_joined, form)
    if multiplied_share(node) * LEAST_SPEEDUP < 1:
        found = _regions_ns(node, costs, in_cache)
        if found is not None:
            prices.append(replace(whole[0], name=REGIONS, ns=found))
            makers[REGIONS] = partial(_by_regions, node)
    return tuple(prices), makers


def _plain_ns(parts: Parts, target: Target, costs: Costs, in_cache: bool) -> float | None:
    """The time of a plain convolution by Winograd with the transposes around it; None if it does
    not apply."""
    before, plain, after = parts
    channels = winograd_channels(plain, target)
    tile, prices = best_tile(plain, channels, costs, True, in_cache) if channels else (0, ())
    moves = (candidate_of("before", before), candidate_of("after", after))
    moved = costs.prices(moves) if tile else None
    if moved is None:
        return None
    return min(price.ns for price in prices) + sum(price.ns for price in moved)


def _regions_ns(node: Node, costs: Costs, in_cache: bool) -> float | None:
    """The time of convolving all regions and concatenating the results."""
    w = node.inputs[1]
    assert w is not None
    shape, of = w.tensor.static_shape or (), w.tensor

    def cut(part: tuple[slice, ...]) -> Value:
        dims = [len(range(size)[taken]) for size, taken in zip(shape, part, strict=True)]
        return Value("weights", replace(of, shape=tuple(map(const, dims))))

    convs, joined = regions(node, cut)
    each = [Candidate(REGIONS, alone(conv), frozenset({1}), in_cache) for conv in convs]
    after = [candidate_of("joined", [concat]) for concat in joined]
    prices = costs.prices((*each, *after))
    return None if prices is None else sum(price.ns for price in prices)


def _joined(form: Callable[[], Parts], cut: Cut) -> list[Node]:
    before, plain, after = form()
    return [*before, plain, *after]


def _by_regions(node: Node, cut: Cut) -> list[Node]:
    convs, joined = regions(node, cut)
    return [*convs, *joined]


def _is_known(node: Node) -> bool:
    """Whether a channels-last convolution has static sizes and stride 1."""
    x = node.inputs[0]
    assert x is not None
    shape, result = x.tensor.static_shape, node.output.tensor.static_shape
    if node.get("layout") != CHANNELS_LAST or shape is None or result is None:
        return False
    is_plain = len(shape) == 4 and all(step == 1 for step in node["strides"])
    return is_plain and 0 not in (*shape, *result)


class _Steps:
    """Nodes that replace a dilated convolution."""

    def __init__(self, node: Node) -> None:
        self.node, self.made = node, list[Node]()
        self.pads, more = _padding(node)
        x = node.inputs[0]
        assert x is not None
        if any(more):
            x = self.add("pad", x, pads=more, axes=(1, 2))
        n, height, width, channels = x.tensor.static_shape or ()
        down, across = node["dilations"]
        self.sizes = (height // down, width // across)
        rows = (n, self.sizes[0], down, self.sizes[1], across, channels)
        self.images, self.rows = n, self.add("reshape", x, shape=rows)

    def add(self, op: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        self.made.append(make_node(op, inputs, attributes, self.node.loc))
        return self.made[-1].output

    def conv(self, x: Value, pads: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
        """Add the plain convolution; returns its result and shape."""
        attributes = {**dict(self.node.attributes), "dilations": (1, 1), "pads": pads}
        value = self.add("conv", x, *self.node.inputs[1:], **attributes)
        return value, value.tensor.static_shape or ()

    def done(self, joined: Value) -> Parts:
        """Finish with a result of shape [n, rows, phases, columns, phases, channels]."""
        n, height, down, width, across, channels = joined.tensor.static_shape or ()
        whole = (n, height * down, width * across, channels)
        value, result = self.add("reshape", joined, shape=whole), self.node.output
        shape = result.tensor.static_shape or ()
        if whole != shape:
            self.add("slice", value, starts=(0, 0), ends=shape[1:3], axes=(1, 2))
        self.made[-1] = replace(self.made[-1], outputs=(result,))
        at = next(at for at, node in enumerate(self.made) if node.op == "conv")
        return self.made[:at], self.made[at], self.made[at + 1 :]


def _batch(node: Node) -> Parts:
    """The smaller images as a batch."""
    steps, (down, across) = _Steps(node), node["dilations"]
    phases = steps.add("transpose", steps.rows, perm=(0, 2, 4, 1, 3, 5))
    *_, channels = phases.tensor.static_shape or ()
    images = (steps.images * down * across, *steps.sizes, channels)
    small, shape = steps.conv(steps.add("reshape", phases, shape=images), steps.pads)
    tiles = (steps.images, down, across, *shape[1:])
    apart = steps.add("reshape", small, shape=tiles)
    return steps.done(steps.add("transpose", apart, perm=(0, 3, 1, 4, 2, 5)))


def _side_by_side(node: Node) -> Parts:
    """The smaller images side by side in one, separated by zeros that pad both neighbours: Winograd
    tiles may span two of them, and weights are read once for all."""
    steps, apart = _Steps(node), node["dilations"]
    w = node.inputs[1]
    assert w is not None
    reach = [tap - 1 for tap in (w.tensor.static_shape or ())[2:]]
    low, high = steps.pads[:2], steps.pads[2:]
    gaps = [max(pads) if d > 1 else 0 for *pads, d in zip(low, high, apart, strict=True)]
    phases = steps.add("transpose", steps.rows, perm=(0, 2, 1, 4, 3, 5))
    if any(gaps):
        phases = steps.add("pad", phases, pads=(0, 0, *gaps), axes=(2, 4))
    n, down, height, across, width, channels = phases.tensor.static_shape or ()
    image = steps.add("reshape", phases, shape=(n, down * height, across * width, channels))
    # Every row of the image has a result; those of windows across zeros are unused.
    below = [b if d == 1 else far - a for a, b, far, d in zip(low, high, reach, apart, strict=True)]
    small, (_, height, width, channels) = steps.conv(image, (*low, *below))
    rows = (n, down, height // down, across, width // across, channels)
    value = steps.add("reshape", small, shape=rows)
    kept = [
        size + a + b - far for size, a, b, far in zip(steps.sizes, low, high, reach, strict=True)
    ]
    if (rows[2], rows[4]) != tuple(kept):
        value = steps.add("slice", value, starts=(0, 0), ends=tuple(kept), axes=(2, 4))
    return steps.done(steps.add("transpose", value, perm=(0, 2, 1, 4, 3, 5)))


def _padding(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding of the smaller images, and of the whole image before: to multiples of the
    dilation, and all of it if it is no multiple itself or exceeds a window."""
    x, w, apart, pads = *node.inputs[:2], node["dilations"], node["pads"]
    assert x is not None
    assert w is not None
    sizes, taps = (x.tensor.static_shape or ())[1:3], (w.tensor.static_shape or ())[2:]
    inside = tuple(pad // d for pad, d in zip(pads, 2 * apart, strict=True))
    added = (0,) * len(pads)
    is_multiple = all(pad == own * d for pad, own, d in zip(pads, inside, 2 * apart, strict=True))
    if not is_multiple or any(own >= tap for own, tap in zip(inside, 2 * taps, strict=True)):
        added, inside = pads, added
    low, high = added[:2], added[2:]
    whole = [size + a + b for size, a, b in zip(sizes, low, high, strict=True)]
    missing = [-size % d for size, d in zip(whole, apart, strict=True)]
    return inside, (*low, *(b + more for b, more in zip(high, missing, strict=True)))
