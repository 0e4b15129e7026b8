"""Running sums by pieces, where threads are many and each is slow.

    cumsum(%x) {axis = 0}  becomes  cumsum(%x) {axis = 0, piece = 32}

All pieces run side by side; what they come to runs in pieces again, until one is left. Each level
takes as many steps as a piece has elements. A piece that comes to more than floats hold is
infinite, also where the elements before it would have made that small again. Products stay whole:
a zero before such a piece would end in NaN. Where lines are enough to keep all threads busy, or
sizes are known to a run alone, sums stay as they are, too.
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
    """What runs along an axis of known length, longer than a piece, of few lines."""
    axis = node.get("axis")
    if node.op != "cumsum" or node.get("piece") or axis is None or node.inputs[0] is None:
        return None
    shape = shape_of(node.inputs[0]) or ()
    sizes = [int(dim.value) for dim in shape if isinstance(dim, Const)]
    if len(sizes) != len(shape) or not all(sizes):
        return None
    length, sm = sizes[axis], multiprocessor_of(target)
    if length <= 2 * WARP or prod(sizes) // length >= sm.count * sm.threads:
        return None
    return [replace(node, attributes=attributes(**{**dict(node.attributes), "piece": WARP}))]
