"""split_scans: hierarchical running sums, for targets with many slow threads.

    cumsum(%x) {axis = 0}  becomes  cumsum(%x) {axis = 0, piece = 32}

All pieces are scanned in parallel; their totals are scanned in pieces again, until one is left.
Each level takes as many steps as a piece has elements. Nonzero elements are counted in the same
way. A piece whose total overflows is infinite, even where elements before it would have kept the
sum finite. Cumulative products are not split: a zero before such a piece would give NaN. Nor are
sums with enough lines to keep all threads busy. Dynamic sizes are assumed to be long.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.base.multiprocessor import WARP, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.sym import Const


def split_scans(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    return rewrite_matches(module, (partial(in_pieces, ctx.target),))


def in_pieces(target: Target, node: Node, scope: Scope) -> Replacement:
    """Split a scan of few lines along an axis longer than a piece."""
    if node.get("piece") or node.op not in ("cumsum", "nonzero") or node.inputs[0] is None:
        return None
    shape, axis = shape_of(node.inputs[0]) or (), node.get("axis")
    sizes = [int(dim.value) if isinstance(dim, Const) else None for dim in shape]
    if not sizes or 0 in sizes or (node.op == "cumsum" and axis is None):
        return None
    sm, lines = multiprocessor_of(target), 1
    length = prod(size or 1 for size in sizes) if None not in sizes else None
    if node.op == "cumsum":
        lines = prod(size or 1 for size in sizes) // (sizes[axis] or 1)
        length = sizes[axis]
    if (length is not None and length <= 2 * WARP) or lines >= sm.count * sm.threads:
        return None
    return [replace(node, attributes=attributes(**dict(node.attributes), piece=WARP))]
