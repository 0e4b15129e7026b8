"""Scattered updates by their results, where threads are many and each is slow.

    scatter_nd(%x, %at, %u)  becomes  scatter_nd(%x, %at, %u) {by_results = true}

Every result asks which updates are its own: all at once, in place of one update after another.
That is more work, of as many threads as there are results; where even so it would take longer,
updates stay as they are, for one thread.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.sym import Const

SCATTERS = ("scatter_nd", "scatter_elements")


def gather_updates(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    return rewrite_matches(module, (partial(by_results, ctx.target),))


def by_results(target: Target, node: Node, scope: Scope) -> Replacement:
    if node.op not in SCATTERS or node.get("by_results"):
        return None
    shapes = [shape_of(value) for value in node.inputs if value is not None]
    reduction = node.get("reduction") or "none"
    if reduction != "none" and node.outputs[0].tensor.dtype.is_bool:
        return None
    chosen = {**dict(node.attributes), "by_results": True}
    told = [replace(node, attributes=attributes(**chosen))]
    if any(shape is None for shape in shapes):
        return None
    dims = [[int(d.value) for d in shape or () if isinstance(d, Const)] for shape in shapes]
    if not all(all(own) for own in dims):
        return None  # there are no elements
    if any(len(own) < len(shape or ()) for own, shape in zip(dims, shapes, strict=True)):
        deep = isinstance((shapes[1] or ())[-1], Const)  # rows of indices, of a known length
        return told if deep or node.op != "scatter_nd" else None
    x, indices, updates = dims
    if node.op == "scatter_nd":
        results, candidates = math.prod(x[: indices[-1]]), math.prod(indices[:-1])
    else:
        results, candidates = math.prod(x), updates[node["axis"]]
    if reduction != "none":
        results = math.prod(x)
    sm = multiprocessor_of(target)
    threads = sm.count * sm.warp * sm.warps_issued_per_cycle
    if results * candidates > threads * (math.prod(x) + math.prod(updates)):
        return None
    return told
