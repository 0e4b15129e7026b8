"""split_matmuls: products of f32 by weights are sums of six of bf16, where tiles multiply those.

    matmul(%a, %weights)   ->   matmul_pieces(bf16_pieces(%a), %pieces)

It runs where a user asks for it by name. Each number is the sum of three of bf16, which together
have all of its bits (`base/bf16x6.py`): results are as exact as those of f32, since sums stay f32.
Weights are split at compile time and take half as much memory again. Whether six products on tiles
are faster than one on vectors, splitting A included, is told by the table of costs
(`graph/costs.py`): few rows or columns stay as they are, and so does everything on targets without
tiles, and weights that are not finite in bf16.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.base.bf16x6 import pieces_of
from tilewright.base.dtype import BF16, F32
from tilewright.base.passes import PassContext
from tilewright.base.tiles import TileProduct, tile_product
from tilewright.graph.costs import (
    LEAST_SPEEDUP,
    Costs,
    candidate_of,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.types import TensorType


def split_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %w).   After: matmul_pieces(bf16_pieces(%a), %pieces)."""
    tiles, costs = tile_product(ctx.target, BF16.name, BF16.name), costs_of(ctx)
    if tiles is None or costs is None:
        return module
    in_cache = weights_stay(module, ctx.target)
    rule = partial(_split, tiles=tiles, costs=costs, in_cache=in_cache, ctx=ctx)
    return rewrite_matches(module, (rule,))


def _split(
    node: Node, scope: Scope, *, tiles: TileProduct, costs: Costs, in_cache: bool, ctx: PassContext
) -> Replacement:
    a, b = node.inputs if node.op == "matmul" else (None, None)
    if a is None or b is None or a.tensor.dtype is not F32 or len(shape_of(a) or ()) < 2:
        return None
    given = scope.producer(b, "constant")
    weights = scope.constant(b)
    if given is None or weights is None or weights.ndim != 2 or not weights.size:
        return None
    steps = Steps(node, scope)
    rows = steps.add("bf16_pieces", a, multiple=tiles.depth)
    whole = np.pad(weights, [(0, -len(weights) % tiles.depth), (0, 0)])
    pieces = pieces_of(whole, 0)
    if not np.isfinite(pieces.astype(np.float32)).all():
        return None
    steps.add("matmul_pieces", rows, steps.constant(pieces, TensorType(BF16, ()), "pieces"))
    first, *product = steps.nodes
    found = costs.prices(
        (
            candidate_of("f32", [given, node], in_cache),
            candidate_of("pieces", [first]),
            candidate_of("bf16x6", product, in_cache),
        )
    )
    if found is None:
        return None
    plain, *parts = found
    pays = LEAST_SPEEDUP * sum(each.ns for each in parts) < plain.ns
    note_choice(ctx, "split_matmuls", node, "product", "bf16x6" if pays else "f32", found)
    return steps.done() if pays else None
