"""choose_winograd: choose Winograd tiles for convolutions with small windows.

Winograd's algorithm needs fewer multiplications, but transforms inputs and outputs and reads more
weights. The costs of `graph/costs.py` decide which tile size pays, if any. Larger tiles round more;
they are allowed only for sums over many channels, where the error stays within what a different
order of summation may cause.

Weights stay in L2 between runs only if those of the whole model fit. In larger models every layer
reads its weights from memory, so that four times as many weights take time.

Integer convolutions have exact tiles in 16 bits, for processors without byte dot products, where
direct convolutions would be widened to 16 bits, too (`upcast_bytes`).

On CPUs the schedules are channels-last, with channels in vectors; weights that are not constant are
transformed at run time. On GPUs they are channels-first, with adjacent tiles on adjacent threads.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dots import dots_of, multiplies
from tilewright.base.dtype import F32, I16
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, CUDA, Target
from tilewright.graph import ir
from tilewright.graph.costs import (
    ESTIMATED,
    LEAST_SPEEDUP,
    Candidate,
    Costs,
    Price,
    alone,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops.layout import CHANNELS_FIRST, CHANNELS_LAST
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by
from tilewright.graph.winograd import FORMS, INTEGERS

LAYOUTS = {CPU: CHANNELS_LAST, CUDA: CHANNELS_FIRST}
MIN_CHANNELS = {6: 64}  # least channels by the tile's input size, for the sake of accuracy


def choose_winograd(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x, w).   After: conv(x, w) {winograd = 4}."""
    target, costs = ctx.target, costs_of(ctx)
    if not isinstance(target, Target) or target.kind not in LAYOUTS or costs is None:
        return module
    if target.lanes(32) < 4:
        return module
    in_cache = weights_stay(module, target)

    def make_rule(graph: Graph) -> Rule:
        constants: dict[Value, None] = {}

        def rule(node: Node) -> Instead | None:
            if node.op == "constant":
                constants.update(dict.fromkeys(node.outputs))
            channels = winograd_channels(node, target)
            is_fixed = channels > 0 and node.inputs[1] in constants
            if not channels or (not is_fixed and (target.kind != CPU or node.op != "conv")):
                return None
            tile, prices = best_tile(node, channels, costs, is_fixed, in_cache)
            chosen = f"winograd {tile}" if tile else "direct"
            note_choice(ctx, "choose_winograd", node, "convolution", chosen, prices)
            if not tile:
                return None
            made = with_tile(node, tile)
            return Instead((made,), made.outputs)

        return rule

    return map_graphs(module, lambda graph: rewrite_by(graph, make_rule))


def winograd_channels(node: Node, target: Target) -> int:
    """The channels that a convolution sums over; 0 if Winograd does not apply."""
    if node.op not in ("conv", "conv_integer") or node.get("winograd", 0):
        return 0
    x, w = node.inputs[0], node.inputs[1]
    assert x is not None
    assert w is not None
    if node.get("layout", CHANNELS_FIRST) != LAYOUTS[target.kind]:
        return 0
    if x.tensor.dtype is not F32 and not _serves_integers(node, x, w, target):
        return 0
    if any(step != 1 for step in (*node["strides"], *node["dilations"])):
        return 0
    weights = w.tensor.static_shape
    groups = node.get("groups", 1)
    if weights is None or not _serves_window(weights[2:], node, target):
        return 0
    if groups != 1 and target.kind != CPU:
        return 0
    if weights[0] % (groups * target.lanes(32)):
        return 0  # channels must fill vectors
    return weights[1]


def _serves_window(window: tuple[int, ...], node: Node, target: Target) -> bool:
    """Whether there are tiles for a window size: on GPUs, and for integers, for 3x3 only."""
    if len(window) != 2 or all(window != (form.window,) * 2 for form in FORMS):
        return False
    return window == (3, 3) or (target.kind == CPU and node.op == "conv")


def _serves_integers(node: Node, x: Value, w: Value, target: Target) -> bool:
    """Whether an integer convolution is exact in 16-bit tiles, on a target with dot products for 16
    bits but not for bytes."""
    if node.op != "conv_integer" or any(node.inputs[2:4]) or node.get("groups", 1) != 1:
        return False
    shape = w.tensor.static_shape
    if shape is None or multiplies(target, x.tensor.dtype.name, w.tensor.dtype.name):
        return False
    dots = dots_of(target, "i16", "i16", "i32")
    if not dots or shape[1] % dots[0].group:
        return False
    return INTEGERS.serves(x.tensor.dtype, w.tensor.dtype, INTEGERS.tile, shape[1])


def _tiles(node: Node, channels: int) -> list[int]:
    """The tile sizes that apply to a convolution."""
    if node.op == "conv_integer":
        return [INTEGERS.tile]
    window = _window(node)
    return [
        form.tile
        for form in FORMS
        if form.window == window and channels >= MIN_CHANNELS.get(form.size, 1)
    ]


def _window(node: Node) -> int:
    w = node.inputs[1]
    assert w is not None
    shape = w.tensor.static_shape
    assert shape is not None
    return shape[-1]


def _direct(node: Node) -> Graph:
    """The kernel without Winograd: for integers, in 16 bits."""
    if node.op != "conv_integer":
        return alone(node)
    wide = {
        value: Value(value.name, TensorType(I16, value.tensor.shape))
        for value in node.inputs[:2]
        if value is not None
    }
    inputs = tuple(None if value is None else wide.get(value, value) for value in node.inputs)
    return alone(replace(node, inputs=inputs))


def best_tile(
    node: Node, channels: int, costs: Costs, is_fixed: bool, in_cache: bool
) -> tuple[int, tuple[Price, ...]]:
    """The fastest tile size, 0 for none; and the prices of all candidates."""
    tiles = _tiles(node, channels)
    weights = frozenset({1} if is_fixed else ())

    def candidate(name: str, kernel: Graph) -> Candidate:
        return Candidate(name, kernel, weights, in_cache)

    weighed: tuple[Candidate, ...] = (candidate("direct", _direct(node)),)
    prices: tuple[Price, ...] = ()
    for tile in tiles:
        if prices and _cannot_win(tile, _window(node), prices):
            break
        more = (*weighed, candidate(f"winograd {tile}", alone(with_tile(node, tile))))
        found = costs.prices(more)
        if found is None:
            break
        weighed, prices = more, found
    if not prices:
        return 0, ()
    direct, *others = prices
    best = min(others, key=lambda price: price.ns)
    tile = tiles[others.index(best)]
    return (tile if best.ns * LEAST_SPEEDUP < direct.ns else 0), prices


def _cannot_win(tile: int, window: int, prices: tuple[Price, ...]) -> bool:
    """Whether the multiplications of a tile size alone are expected to take longer than the best so
    far."""
    fewer = (window * tile / (tile + window - 1)) ** 2  # multiplications
    is_estimate = prices[0].source == ESTIMATED
    return is_estimate and prices[0].ns / fewer > min(each.ns for each in prices[1:])


def with_tile(node: Node, tile: int) -> Node:
    """The convolution by Winograd's algorithm."""
    return replace(node, attributes=ir.attributes(**{**dict(node.attributes), "winograd": tile}))
