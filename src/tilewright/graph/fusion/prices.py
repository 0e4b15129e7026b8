"""Prices of candidate kernels, where the target's cost model has them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.base.target import CPU, Target
from tilewright.graph.costs import Candidate, candidate_of, costs_of, note_choice
from tilewright.graph.fusion.state import CONTRACTION, Fusion, Kind
from tilewright.graph.ir import Node


def candidate(
    fusion: Fusion, name: str, members: list[int], copies: Collection[int] = ()
) -> Candidate:
    """A group's members as a candidate kernel, with copies of other nodes."""
    inside = set(members)
    taken = fusion.copies([*members, *copies])
    order = sorted({*members, *copies, *taken})
    sources = {fusion.at[v] for at in order for v in fusion.nodes[at].inputs if v in fusion.at}
    constants = [at for at in sorted(sources) if fusion.nodes[at].op == "constant"]
    outputs = tuple(
        value
        for at in sorted(inside)
        for value in fusion.nodes[at].outputs
        if fusion.is_used(value, inside)
    )
    nodes = [fusion.nodes[at] for at in (*constants, *order)]
    return replace(candidate_of(name, nodes, outputs=outputs), is_fused=True)


def is_priced_less(
    fusion: Fusion,
    node: Node,
    *,
    joined: list[Candidate],
    apart: list[Candidate],
    kinds: set[Kind],
) -> bool | None:
    """Whether `joined` kernels are cheaper than `apart`; None if a cost is unknown. Estimates
    of contractions do not cover their prologues and epilogues."""
    target, costs = fusion.ctx.target, costs_of(fusion.ctx)
    if costs is None or not isinstance(target, Target) or target.kind != CPU:
        return None
    candidates = [*joined, *apart]
    ask = costs.measured if CONTRACTION in kinds else costs.prices
    prices = ask(candidates)
    if prices is None:
        return None
    ns = [price.ns + fusion.rates.launch_ns for price in prices]
    is_less = sum(ns[: len(joined)]) <= sum(ns[len(joined) :])
    chosen = joined if is_less else apart
    names = ", ".join(each.name for each in chosen)
    note_choice(fusion.ctx, "fuse", node, node.op, names, prices)
    return is_less
