"""split_matmuls: bf16x6, f32 matmuls by weights as six bf16 matmuls on matrix tiles.

    matmul(%a, %weights)   ->   matmul_pieces(bf16_pieces(%a), %pieces)

It runs only if a user asks for this precision. Each f32 is the sum of three bf16 terms, which
together have all of its bits (`base/bf16x6.py`), and sums are f32: results are as accurate as in
f32. Weights are split at compile time and take 1.5 times the memory. The cost table
(`graph/costs.py`) decides whether six matmuls on tiles, including the split of A, are faster than
one on vectors. Matmuls with few rows or columns stay in f32, as does everything on targets without
tiles, and weights that are not finite in bf16. Long reductions are split along k, so that rows of A
stay in L2; a kernel of its own adds the partial results, with their epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from math import inf

import numpy as np

from tilewright.base.bf16x6 import PIECES, pieces_of
from tilewright.base.dtype import BF16, F32
from tilewright.base.passes import PassContext
from tilewright.base.tiles import TileProduct, tile_product
from tilewright.graph.build import make_node
from tilewright.graph.costs import (
    LEAST_SPEEDUP,
    Candidate,
    Costs,
    Price,
    alone,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.definitions import Array
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.types import TensorType
from tilewright.sym import Const, const, mul, simplify


def split_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %w).   After: matmul_pieces(bf16_pieces(%a), %pieces)."""
    tiles, costs = tile_product(ctx.target, BF16.name, BF16.name), costs_of(ctx)
    if tiles is None or costs is None:
        return module
    in_cache = weights_stay(module, ctx.target)
    rule = partial(_split, tiles=tiles, costs=costs, in_cache=in_cache, ctx=ctx)
    return rewrite_matches(module, (rule,))


@dataclass(frozen=True)
class Split:
    """A GEMM with k split into parts of equal length."""

    k: int
    n: int
    parts: int
    depth: int  # steps of k in a tile

    @property
    def length(self) -> int:
        tiles = -(-self.k // self.depth)
        return -(-tiles // self.parts) * self.depth

    @property
    def name(self) -> str:
        return f"bf16x6 in {self.parts} parts" if self.parts > 1 else "bf16x6"

    def weights(self, b: Array) -> Array:
        """The bf16 terms of B: [parts, 3, length, n], or [3, length, n] for one part."""
        padded = np.pad(b, [(0, self.parts * self.length - self.k), (0, 0)])
        by_parts = padded.reshape(self.parts, self.length, self.n)
        return np.asarray(pieces_of(by_parts if self.parts > 1 else padded, -3))

    def nodes(self, a: Value, b: Value, like: Node) -> list[Node]:
        """The nodes that compute it, given the terms of B."""
        sizes = {"length": self.length, "parts": self.parts}
        rows = make_node("bf16_pieces", (a,), sizes, like.loc)
        made = [rows, make_node("matmul_pieces", (rows.output, b), {}, like.loc)]
        if self.parts > 1:
            whole: dict[str, Attribute] = {"axes": (0,), "keepdims": False}
            made.append(make_node("reduce_sum", (made[-1].output,), whole, like.loc))
        return made

    def candidates(self, a: Value, like: Node, in_cache: bool) -> list[Candidate]:
        """The kernels that compute it; dynamic row dimensions are merged to one axis, as in
        kernels."""
        stack = (const(self.parts),) if self.parts > 1 else ()
        shape = (*stack, const(PIECES), const(self.length), const(self.n))
        *lead, k = a.tensor.shape or ()
        if lead and not isinstance(lead[-1], Const):
            rows = simplify(reduce(mul, lead))
            a = Value(a.name, TensorType(F32, (rows, k)))
        split, product, *total = self.nodes(a, Value("pieces", TensorType(BF16, shape)), like)
        return [
            Candidate("pieces", alone(split)),
            Candidate(self.name, alone(product), frozenset({1}), in_cache),
            *(Candidate("sum", alone(node)) for node in total),
        ]


def _split(
    node: Node, scope: Scope, *, tiles: TileProduct, costs: Costs, in_cache: bool, ctx: PassContext
) -> Replacement:
    a, b = node.inputs if node.op == "matmul" else (None, None)
    if a is None or b is None or len(shape_of(a) or ()) < 2:
        return None
    if a.tensor.dtype is not F32 or node.output.tensor.dtype is not F32:
        return None
    weights = scope.constant(b)
    if weights is None or weights.ndim != 2 or not weights.size:
        return None
    best, prices = _cheapest(node, a, weights, tiles, costs, in_cache)
    if not prices:
        return None
    pieces = None if best is None else best.weights(weights)
    if pieces is not None and not np.isfinite(pieces.astype(np.float32)).all():
        best = None
    chosen = "f32" if best is None else best.name
    note_choice(ctx, "split_matmuls", node, "product", chosen, prices)
    if best is None or pieces is None:
        return None
    steps = Steps(node, scope)
    given = steps.constant(pieces, TensorType(BF16, ()), "pieces")
    steps.nodes += best.nodes(a, given, node)
    return steps.done()


def _cheapest(
    node: Node, a: Value, weights: Array, tiles: TileProduct, costs: Costs, in_cache: bool
) -> tuple[Split | None, tuple[Price, ...]]:
    """The cheapest split, or None if plain f32 is cheaper; and the prices.

    More parts are tried as long as they are certainly cheaper.
    """
    plain = Candidate("f32", alone(node), frozenset({1}), in_cache)
    best: Split | None = None
    told: list[Price] = []
    limit_ns, parts = inf, 1
    while parts * tiles.depth <= len(weights):
        k, n = weights.shape
        split = Split(k, n, parts, tiles.depth)
        found = costs.prices((plain, *split.candidates(a, node, in_cache)))
        if found is None:
            break
        before, *made = found
        total_ns = sum(each.ns for each in made)
        told = [*(told or [before]), Price(split.name, total_ns, before.source)]
        limit_ns = min(limit_ns, before.ns)
        if LEAST_SPEEDUP * total_ns < limit_ns:
            best, limit_ns = split, total_ns
        elif parts > 1:
            break
        parts *= 2
    return best, tuple(told)
