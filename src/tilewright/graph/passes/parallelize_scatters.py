"""parallelize_scatters: parallel scatters for targets with many threads.

    scatter_nd(%x, %at, %u)  becomes  scatter_nd(%x, %at, %u) {by_results = true}
                                  or  scatter_nd(%x, %at, %u) {runs = (64, 16)}

Either each result searches all updates for its own, or updates are sorted by index. The first is
cheaper with few updates; with a dynamic number of them the second is used.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright.base.multiprocessor import Multiprocessor, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.graph.passes.parallelize_sorts import runs_of
from tilewright.sym import Const, Expr

SCATTERS = ("scatter_nd", "scatter_elements", "segment_reduce")


def parallelize_scatters(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    return rewrite_matches(module, (partial(side_by_side, ctx.target),))


def side_by_side(target: Target, node: Node, scope: Scope) -> Replacement:
    if node.op not in SCATTERS or node.get("by_results") or node.get("runs"):
        return None
    if any(value is None or shape_of(value) is None for value in node.inputs[:3]):
        return None
    shapes = [shape_of(value) or () for value in node.inputs[:3] if value is not None]
    if node.op == "scatter_nd" and not isinstance(shapes[1][-1], Const):
        return None
    dims = [[_known(dim) for dim in shape] for shape in shapes]
    if any(0 in own for own in dims):
        return None  # no elements
    sm = multiprocessor_of(target)
    lines, many = _updates(node, dims)
    runs, ordered = runs_of(1 if many is None else lines or 1, many, sm)
    looked = _search_cycles(node, dims, many, sm)
    how = {"runs": runs} if looked is None or ordered < looked else {"by_results": True}
    return [replace(node, attributes=attributes(**dict(node.attributes), **how))]


def _known(dim: Expr) -> int | None:
    return int(dim.value) if isinstance(dim, Const) else None


def _product(dims: list[int | None]) -> int | None:
    known = [dim for dim in dims if dim is not None]
    return math.prod(known) if len(known) == len(dims) else None


def _updates(node: Node, dims: list[list[int | None]]) -> tuple[int | None, int | None]:
    """The number of rows of updates, and of updates per row."""
    if node.op == "scatter_nd":
        return 1, _product(dims[1][:-1])
    if node.op == "segment_reduce":
        return 1, dims[0][0]
    axis = node["axis"] % len(dims[1])
    return _product([*dims[1][:axis], *dims[1][axis + 1 :]]), dims[1][axis]


def _search_cycles(
    node: Node, dims: list[list[int | None]], many: int | None, sm: Multiprocessor
) -> float | None:
    """The cycles if each result searches the updates of its row; None if unknown or not
    supported."""
    is_join = (node.get("reduction") or "none") != "none"
    if node.op == "segment_reduce" or (is_join and node.outputs[0].tensor.dtype.is_bool):
        return None
    asked = _product(dims[0])
    if node.op == "scatter_nd":
        depth = dims[1][-1] or 0
        keys = _product(dims[0][:depth])
        if not is_join:
            asked = keys
        elif keys is not None and many is not None and many <= keys:
            asked = _product(dims[2])  # several updates are summed per result
    if asked is None or many is None:
        return None
    # Per update a load, a comparison and an add; kernels for indices, for values or sums, and for
    # results.
    return 3 * asked * many / (sm.count * sm.warp) + 3 * sm.kernel_cycles
