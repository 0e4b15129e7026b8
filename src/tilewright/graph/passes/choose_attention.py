"""choose_attention: one fused kernel, or GEMM, softmax and GEMM, whichever is cheaper.

The fused kernel computes the scores of a few queries at a time, and needs enough queries to fill
vectors. With few queries, as in decoding several tokens, plain GEMMs are faster. Costs of both
forms come from `graph/costs.py`. The second form materializes the scores, so it is considered only
if they fit in a core's private cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import CPU, Target
from tilewright.graph.costs import (
    LEAST_SPEEDUP,
    Candidate,
    Costs,
    alone,
    candidate_of,
    costs_of,
    note_choice,
)
from tilewright.graph.ir import CANONICAL, Graph, Module, Node
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.graph.passes.decompose import pieces_of
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.rates import rates_of, size_bytes
from tilewright.sym import Const


def choose_attention(module: Module, ctx: PassContext) -> Module:
    """Before: attention(%q, %k, %v).   After: matmul(softmax(matmul(%q, %k)), %v)."""
    target, costs = ctx.target, costs_of(ctx)
    if not isinstance(target, Target) or target.kind != CPU or costs is None:
        return module
    rule = partial(cheaper_form, costs=costs, ctx=ctx, most_bytes=rates_of(target).kept_bytes)
    return rewrite_matches(module, (rule,))


def cheaper_form(
    node: Node, scope: Scope, *, costs: Costs, ctx: PassContext, most_bytes: int
) -> Replacement:
    """GEMM, softmax and GEMM, if they are expected to be faster."""
    if node.op != "attention" or not _is_static(node):
        return None
    nodes = pieces_of(node, scope)
    if nodes is None:
        return None
    (weights,) = (each.output for each in nodes if each.op == "softmax")
    if size_bytes(weights) > most_bytes:
        return None
    kernels = _kernels(node, nodes, scope, ctx)
    prices = costs.prices((Candidate("one kernel", alone(node)), *kernels))
    if prices is None:
        return None
    one, *parts = prices
    is_cheaper = LEAST_SPEEDUP * sum(price.ns for price in parts) < one.ns
    chosen = "GEMM, softmax, GEMM" if is_cheaper else one.name
    note_choice(ctx, "choose_attention", node, "attention", chosen, prices)
    return nodes if is_cheaper else None


def _is_static(node: Node) -> bool:
    shapes = [shape_of(value) or () for value in node.inputs if value is not None]
    return all(isinstance(dim, Const) for shape in shapes for dim in shape)


def _kernels(node: Node, nodes: Sequence[Node], scope: Scope, ctx: PassContext) -> list[Candidate]:
    """The kernels that fusion would make of the nodes."""
    params = tuple(dict.fromkeys(value for value in node.inputs if value is not None))
    graph = Graph("main", params, tuple(nodes), node.outputs)
    module = Module({"main": graph}, dict(scope.constants), stage=CANONICAL)
    fused = run_passes(module, (fuse,), replace(ctx, choices=[]))
    bodies = [
        each.bodies[0].nodes if each.op == "fused" else (each,)
        for each in fused.main.nodes
        if each.op != "constant"
    ]
    return [candidate_of(f"{at}: {body[-1].op}", body) for at, body in enumerate(bodies, 1)]
