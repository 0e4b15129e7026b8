"""im2col_convolutions: integer convolutions, and those with few windows, as GEMMs.

Matrix units multiply bytes faster than windows can be gathered: im2col lays the windows out as rows
that are read in order. Convolutions stay if tiles can be loaded from the image itself, or if dot
products read whole groups of channels; see `graph/im2col.py`. If tuning measured all forms of a
convolution, the fastest is used. For other dtypes, a convolution with weights computed at run time
(in training) becomes a GEMM if there are fewer windows than filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.base.multiprocessor import BULK_ROW_BYTES
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA, Target
from tilewright.base.tiles import tile_product
from tilewright.graph.costs import (
    ESTIMATED,
    LEAST_SPEEDUP,
    Candidate,
    candidate_of,
    costs_of,
    note_choice,
)
from tilewright.graph.im2col import (
    constant_weights,
    fills_tiles,
    fits_dots,
    fits_partial_im2col,
    fits_tiles,
    flatten_rows,
    has_fewer_windows,
    im2col,
    im2col_by_inputs,
    partial_im2col,
    prefers_dots,
)
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches

DIRECT, ROWS, IM2COL = "direct", "rows", "im2col"


def im2col_convolutions(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w).   After: reshape(matmul_integer(patches(%x), %w2))."""
    return rewrite_matches(
        module, (partial(integer_convolution, ctx=ctx), few_windows, flatten_rows)
    )


def few_windows(node: Node, scope: Scope) -> Replacement:
    """A convolution whose im2col matrix is smaller than its weights, with no more
    multiplications."""
    if node.op != "conv" or node.get("winograd", 0) or not has_fewer_windows(node, scope):
        return None
    return im2col_by_inputs(Steps(node, scope), node)


def integer_convolution(node: Node, scope: Scope, *, ctx: PassContext) -> Replacement:
    """An integer convolution without zero points."""
    if node.op != "conv_integer" or node.get("winograd", 0):
        return None
    x, zeros, bias = node.inputs[0], node.inputs[2:4], (*node.inputs[4:], None)[0]
    weights = constant_weights(node, scope)
    if x is None or weights is None or any(zeros):
        return None
    is_narrow = not fills_tiles(weights)  # for narrow ones, only measured costs decide
    if is_narrow and _is_gpu(ctx.target):
        return None
    forms = _forms(node, weights, ctx.target)

    def made(form: str, scope: Scope) -> Sequence[Node] | None:
        steps = Steps(node, scope)
        if form == ROWS:
            return partial_im2col(steps, node, x, weights, bias, "conv_integer")
        # Bulk copies of a GPU take rows of whole runs of bytes.
        whole = BULK_ROW_BYTES if _is_gpu(ctx.target) else 1
        return im2col(steps, node, x, weights, bias, "matmul_integer", multiple=whole)

    chosen = forms[0]
    costs = costs_of(ctx)
    if costs is not None and len(forms) > 1 and (is_narrow or costs.has_times):
        scratch = replace(scope, constants=dict(scope.constants))
        nodes = {form: [node] if form == DIRECT else made(form, scratch) for form in forms}
        weighed = [_candidate(form, each, node) for form, each in nodes.items() if each]
        prices = costs.prices(weighed) if is_narrow else costs.measured(weighed)
        if prices is not None:
            first, best = prices[0], min(prices, key=lambda price: price.ns)
            margin = LEAST_SPEEDUP if best.source == ESTIMATED else 1.0
            chosen = best.name if best.ns * margin < first.ns else first.name
        note_choice(ctx, "im2col_convolutions", node, "convolution", chosen, prices or ())
    return None if chosen == DIRECT else made(chosen, scope)


def _candidate(form: str, nodes: Sequence[Node], node: Node) -> Candidate:
    """A form of a convolution as a candidate; in the direct form, weights are an operand."""
    found = candidate_of(form, nodes)
    at = [at for at, value in enumerate(found.kernel.params) if value is node.inputs[1]]
    return replace(found, weights=found.weights | frozenset(at))


def _is_gpu(target: Any) -> bool:
    return isinstance(target, Target) and target.kind == CUDA


def _forms(node: Node, weights: Array, target: Any) -> tuple[str, ...]:
    """The possible forms of a convolution, the most promising first."""
    if _is_gpu(target):
        return (IM2COL,)  # tiles are copied from the image, so the im2col matrix is never stored
    if not fills_tiles(weights):
        return (DIRECT, IM2COL)
    tiles = tile_product(target, "u8", "i8") is not None
    window = any(tap != 1 for tap in weights.shape[2:]) or any(s != 1 for s in node["strides"])
    by_dots = fits_dots(node, weights, target) and prefers_dots(node, weights, target)
    if fits_tiles(node, weights) or by_dots:
        return (DIRECT, IM2COL)
    if not window:
        return (IM2COL,)  # 1x1: a matrix already
    return (ROWS, IM2COL) if tiles and fits_partial_im2col(node, weights) else (IM2COL, DIRECT)
