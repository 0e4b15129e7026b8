"""im2col_convolutions: integer convolutions, and those with few windows, in another form.

Matrix units and dot products multiply bytes faster than windows can be gathered: im2col lays the
windows out as rows that are read in order, zeros beside the channels let windows be read in place.
The cheapest form is used (`graph/conv_forms.py`). For other dtypes, a convolution with weights
computed at run time (in training) becomes a GEMM if there are fewer windows than filters.
"""

from __future__ import annotations

from functools import partial

from tilewright.base.multiprocessor import BULK_ROW_BYTES
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA
from tilewright.graph.conv_forms import FormPrices, Problem
from tilewright.graph.im2col import (
    constant_weights,
    fills_tiles,
    flatten_rows,
    has_fewer_windows,
    im2col,
    im2col_by_inputs,
)
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import MatchRule, Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.visit import Instead


def im2col_convolutions(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w).   After: reshape(matmul_integer(patches(%x), %w2))."""
    gpu = ctx.target is not None and ctx.target.kind == CUDA
    by_price = partial(unfold, prices=FormPrices(module, ctx, "im2col_convolutions"))
    rule: MatchRule = unfold_gpu if gpu else by_price
    return rewrite_matches(module, (rule, unfold_few_windows, flatten_rows))


def unfold_few_windows(node: Node, scope: Scope) -> Replacement:
    """A convolution whose im2col matrix is smaller than its weights, with no more
    multiplications."""
    if node.op != "conv" or node.get("winograd", 0) or not has_fewer_windows(node, scope):
        return None
    return im2col_by_inputs(Steps(node, scope), node)


def unfold(node: Node, scope: Scope, *, prices: FormPrices) -> Replacement:
    """An integer convolution without zero points, in the cheapest form."""
    problem = _problem(node, scope)
    nodes = None if problem is None else prices.cheapest(Steps(node, scope), problem)
    if nodes is None or nodes[-1] is node:
        return None
    return Instead(tuple(nodes), node.outputs)  # a convolution in another form keeps it


def unfold_gpu(node: Node, scope: Scope) -> Replacement:
    """The same on a GPU: tiles are copied from the image, so that the im2col matrix is never
    stored; bulk copies take rows of whole runs of bytes."""
    problem = _problem(node, scope)
    if problem is None or not fills_tiles(problem.weights):
        return None
    return im2col(Steps(node, scope), *problem.operands, "matmul_integer", multiple=BULK_ROW_BYTES)


def _problem(node: Node, scope: Scope) -> Problem | None:
    weights = constant_weights(node, scope) if node.op == "conv_integer" else None
    if weights is None or any(node.inputs[2:4]) or node.get("winograd", 0):
        return None
    x, bias = node.inputs[0], (*node.inputs[4:], None)[0]
    return None if x is None else Problem(node, x, weights, bias)
