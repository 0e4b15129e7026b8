"""recognize_segments: scatter-reductions into a neutral table as segment reductions.

    scatter_nd(expand(0), %i, %u) {reduction = "add"}   becomes   segment_reduce(%u, %i)

The gradient of an embedding is one. The table of zeros is then neither stored by one kernel nor
copied by the next. Likewise for products into ones, and for minima and maxima into the type's
extremes. Indices have been checked; negative ones count from the end.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.base.dtype import I64
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, remade, rewrite_matches
from tilewright.graph.ops.indexing import neutral
from tilewright.graph.types import TensorType
from tilewright.sym import ONE


def recognize_segments(module: Module, ctx: PassContext) -> Module:
    return rewrite_matches(module, (sum_segments,))


def sum_segments(node: Node, scope: Scope) -> Replacement:
    """A scatter of whole rows into a table filled with the reduction's neutral element."""
    if node.op != "scatter_nd" or node.get("runs") or node.get("by_results"):
        return None
    x, indices, updates = node.inputs
    filled = scope.producer(x, "expand")
    reduction = node.get("reduction", "none")
    if filled is None or reduction == "none" or x is None or indices is None or updates is None:
        return None
    shape, where = x.tensor.static_shape, indices.tensor.static_shape
    if shape is None or where is None or where[-1] != 1 or 0 in (*shape, *where):
        return None
    number = scope.number(filled.inputs[0])
    if number is None or x.tensor.dtype.is_bool or not _is_neutral(number, reduction, x.tensor):
        return None
    steps, many = Steps(node, scope), math.prod(where)
    rows = steps.add("reshape", updates, shape=(many, *shape[1:]))
    at = steps.add("cast", steps.add("reshape", indices, shape=(many,)), to=I64)
    zero = steps.constant(0, TensorType(I64, ()), "zero")
    count = steps.constant([shape[0]], TensorType(I64, (ONE,)), "count")
    ahead = steps.add("where", steps.add("less", at, zero), steps.add("add", at, count), at)
    return [*steps.nodes, remade(node, "segment_reduce", rows, ahead, count, reduction=reduction)]


def _is_neutral(number: float, reduction: str, of: TensorType) -> bool:
    """Whether a number is neutral to a reduction; -0.0 is not, since -0.0 + 0.0 is 0.0."""
    same = np.asarray(number, of.dtype.numpy) == neutral(reduction, of.dtype)
    return bool(same) and (number != 0 or math.copysign(1.0, number) > 0)
