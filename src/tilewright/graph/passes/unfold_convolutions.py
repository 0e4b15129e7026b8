"""unfold_convolutions: convolutions of bytes become products of matrices.

The machine multiplies bytes by tiles, faster than it can gather them from windows: laid out as rows
they are read in order. Where tiles can be loaded from the image itself, or dot products read whole
groups of its channels, convolutions stay as they are. See `graph/unfold.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.base.passes import PassContext
from tilewright.base.tiles import tile_product
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.unfold import (
    fits_dots,
    fits_rows,
    fits_tiles,
    flatten_rows,
    foldable_weights,
    in_rows,
    unfolded,
)


def unfold_convolutions(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w).   After: reshape(matmul_integer(patches(%x), %w2))."""
    return rewrite_matches(module, (partial(unfold, target=ctx.target), flatten_rows))


def unfold(node: Node, scope: Scope, *, target: Any) -> Replacement:
    """A convolution of integers without zero points."""
    if node.op != "conv_integer":
        return None
    x, zeros, bias = node.inputs[0], node.inputs[2:4], (*node.inputs[4:], None)[0]
    weights = foldable_weights(node, scope)
    if x is None or weights is None or any(zeros):
        return None
    tiles = tile_product(target, "u8", "i8") is not None
    if fits_tiles(node, weights) or (not tiles and fits_dots(node, weights, target)):
        return None
    if tiles and fits_rows(node, weights):
        return in_rows(Steps(node, scope), node, x, weights, bias, "conv_integer")
    return unfolded(Steps(node, scope), node, x, weights, bias, "matmul_integer")
