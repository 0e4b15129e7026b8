"""fuse: group nodes into kernels, so that intermediate results stay in registers or caches.

A node joins the group of a producer if one loop nest, or several that share their rows, can compute
both. A group is one of:

- a contraction (matmul, convolution, attention) with an epilogue of elementwise operators, reshapes
  and transposes, and minimum and maximum reductions over all of its results; never two
  contractions;
- reductions along the same axes of the same rows, with elementwise operators before, between and
  after them;
- elementwise and injective operators.

Data movement before a contraction is a view that the contraction reads through: each contraction
gets a copy of it. Cheap producers with several consumers are recomputed in each kernel if storing
their results costs more. A group may have several outputs. Costs come from `graph/costs.py` for the
kernels of either alternative; where it has none, bytes and operations decide (`graph/rates.py`). No
group may depend on itself through others (`graph/fusion/groups.py`).

Options: `limit`, the most nodes of a kernel; `numbers`, how many constant elements an operand may
have without becoming a parameter of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph.fused_nodes import MAX_SCALAR_VARIANTS, make_fused_node, small_constants
from tilewright.graph.fusion.joins import grow
from tilewright.graph.fusion.recompute import (
    keep_aliases,
    repeat_cheap,
    repeat_leaves,
    repeat_prologues,
    repeat_widening,
)
from tilewright.graph.fusion.state import CONTRACTION, Fusion
from tilewright.graph.fusion.views import read_in_place
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.views import is_view
from tilewright.graph.visit import map_bodies


def fuse(module: Module, ctx: PassContext) -> Module:
    """Before: %a = exp(%x); %b = neg(%a).   After: %b = fused(%x) do { graph(%x) { ... } }."""
    limit = ctx.option("fuse.limit", 64)
    numbers = ctx.option("fuse.numbers", MAX_SCALAR_VARIANTS)

    def change(graph: Graph) -> Graph:
        fusion = Fusion(graph, limit, ctx)
        _decide(fusion)
        nodes = _emit(fusion, small_constants(graph.nodes, module.constants, numbers))
        same = len(nodes) == len(graph.nodes) and all(
            a is b for a, b in zip(nodes, graph.nodes, strict=True)
        )
        return graph if same else replace(graph, nodes=tuple(nodes))

    return map_bodies(module, change)


def _decide(fusion: Fusion) -> None:
    """Form the groups, and choose the nodes that are copied into kernels."""
    read_in_place(fusion)
    if fusion.is_gpu:
        repeat_prologues(fusion)
    repeat_leaves(fusion)
    grow(fusion)
    repeat_cheap(fusion)
    repeat_widening(fusion)
    keep_aliases(fusion)


def _emit(fusion: Fusion, constants: Mapping[Value, Node]) -> list[Node]:
    """The nodes of the graph with groups as `fused` nodes; some constants move inside."""
    out: list[Node] = []
    for group in fusion.groups.in_order():
        members = [at for at in group if at not in fusion.repeated]
        if not members:
            continue
        if not fusion.is_kernel[members[0]]:
            out.extend(fusion.nodes[at] for at in members)
            continue
        copies = fusion.copies(members)
        numbers = sorted({*members, *copies})
        inside = set(members)
        out.extend(
            make_fused_node(
                [fusion.nodes[at] for at in numbers],
                lambda value, inside=inside: fusion.is_used(value, inside),  # type: ignore[misc]
                constants,
                private=[fusion.nodes[at] for at in copies],
                separate=_separate(fusion, members, copies),
            )
        )
    return out


def _separate(fusion: Fusion, members: list[int], copies: list[int]) -> list[Node]:
    """Views read by a contraction: each operand becomes a parameter of its own."""
    if not any(fusion.kind[at] == CONTRACTION for at in members):
        return []
    return [fusion.nodes[at] for at in copies if is_view(fusion.nodes[at])]
