"""choose_winograd: convolutions of 3 x 3 windows get the tile of results that is computed fastest.

Winograd's method multiplies less, but transforms images and results and reads more weights; which
tile pays, if any, follows from an estimate of cycles on the target. Larger tiles round more: they
are for sums that are long enough for that to stay within what any order of summation may be off.

Weights wait in the second cache from one run to the next only if those of the whole model fit: of a
larger model even the least layer fetches its weights anew, and four times as many cost their time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops.layout import CHANNELS_LAST, channels_first
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by
from tilewright.sym import Const

LEAST_CHANNELS = {2: 1, 4: 64}  # summed over, for each tile, for the sake of accuracy
WORTH = 1.1  # how many times faster the method must be
EFFICIENCY = 0.9  # of products, of the peak
TRANSFORMS = {2: (45, 30), 4: (220, 120)}  # cycles per tile and vector: of images, of results
PADDING = 3.0  # cycles per vector of the image that is copied


@dataclass(frozen=True)
class Shape:
    """A convolution of one image: the weights come by for each."""

    channels: int
    out: int
    height: int  # of the result
    width: int
    waiting: bool = True  # the weights of the whole model fit the second cache


def choose_winograd(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x, w).   After: conv(x, w) {winograd = 4}."""
    target = ctx.target
    if not isinstance(target, Target) or target.kind != CPU or target.lanes(32) < 4:
        return module
    waiting = sum(array.nbytes for array in module.constants.values()) <= target.l2_bytes

    def make_rule(graph: Graph) -> Rule:
        constants: dict[Value, None] = {}

        def rule(node: Node) -> Instead | None:
            if node.op == "constant":
                constants.update(dict.fromkeys(node.outputs))
            return _chosen(node, constants, target, waiting)

        return rule

    return map_graphs(module, lambda graph: rewrite_by(graph, make_rule))


def _chosen(
    node: Node, constants: dict[Value, None], target: Target, waiting: bool
) -> Instead | None:
    if node.op != "conv" or node.get("winograd", 0) or node.inputs[1] not in constants:
        return None
    shape = _shape(node)
    if shape is None:
        return None
    tile = best_tile(replace(shape, waiting=waiting), target)
    if not tile:
        return None
    attributes = ir.attributes(**{**dict(node.attributes), "winograd": tile})
    made = replace(node, attributes=attributes)
    return Instead((made,), made.outputs)


def _shape(node: Node) -> Shape | None:
    """The convolution, if the method serves it and its sizes are known."""
    x, w = node.inputs[0], node.inputs[1]
    assert x is not None
    assert w is not None
    if node.get("layout") != CHANNELS_LAST or x.tensor.dtype is not F32:
        return None
    if any(step != 1 for step in (*node["strides"], *node["dilations"])):
        return None
    weights = w.tensor.static_shape
    if node.get("groups", 1) != 1 or weights is None or weights[2:] != (3, 3):
        return None
    height, width = channels_first(node.outputs[0].tensor.shape or ())[2:]
    if not isinstance(height, Const) or not isinstance(width, Const):
        return None
    return Shape(weights[1], weights[0], int(height.value), int(width.value))


def best_tile(shape: Shape, target: Target) -> int:
    """The tile that is computed in the fewest cycles; 0 for none."""
    if shape.out % target.lanes(32):
        return 0  # vectors of channels that are not full would be made element by element
    direct = direct_cycles(shape, target)
    costs = {
        tile: tiled_cycles(shape, tile, target)
        for tile, least in LEAST_CHANNELS.items()
        if shape.channels >= least
    }
    best = min(costs, key=lambda tile: costs[tile], default=0)
    return best if best and costs[best] * WORTH < direct else 0


def direct_cycles(shape: Shape, target: Target) -> float:
    terms = 9 * shape.channels * shape.out
    work = shape.height * shape.width * terms
    return max(work / _rate(target), _far(4 * terms, shape, target))


def tiled_cycles(shape: Shape, tile: int, target: Target) -> float:
    side = tile + 2
    tiles = -(-shape.height // tile) * -(-shape.width // tile)
    terms = side * side * shape.channels * shape.out
    # A few tiles leave the pipelines of multiply-adds partly empty.
    products = max(tiles, 6) * terms / _rate(target)
    lanes = target.lanes(32)
    image, result = TRANSFORMS[tile]
    moved = tiles * (image * -(-shape.channels // lanes) + result * -(-shape.out // lanes))
    area = (shape.height + 2) * (shape.width + 2)
    padding = PADDING * area * -(-shape.channels // lanes)
    return max(products, _far(4 * terms, shape, target)) + moved + padding


def _rate(target: Target) -> float:
    """Multiply-adds per cycle of a good kernel."""
    return EFFICIENCY * target.lanes(32) * target.fma_units


def _far(size_bytes: int, shape: Shape, target: Target) -> float:
    """Cycles to fetch weights that the second cache does not hold."""
    near = shape.waiting and size_bytes <= target.l2_bytes
    return 0.0 if near else size_bytes / target.machine.scattered_bytes_per_cycle
