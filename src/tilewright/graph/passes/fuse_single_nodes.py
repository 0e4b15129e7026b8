"""fuse_single_nodes: make each remaining node that can be a kernel a `fused` node of its own.

Afterwards a model consists of `fused` nodes, constants, reshapes (aliases), control flow, and
operators that are functions of their own or run on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.fused_nodes import (
    MAX_SCALAR_VARIANTS,
    kernels,
    make_fused_node,
    small_constants,
)
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.views import ALIAS
from tilewright.graph.visit import map_bodies


def fuse_single_nodes(module: Module, ctx: PassContext) -> Module:
    """Before: %b = exp(%x).   After: %b = fused(%x) do { graph(%x) { %b = exp(%x) ... } }."""
    numbers = ctx.option("fuse.numbers", MAX_SCALAR_VARIANTS)

    def change(graph: Graph) -> Graph:
        return _enclosed(graph, small_constants(graph.nodes, module.constants, numbers))

    changed = map_bodies(module, change)
    return replace(changed, stage=ir.FUSED)


def _enclosed(graph: Graph, constants: Mapping[Value, Node]) -> Graph:
    out: list[Node] = []
    for node, is_kernel in zip(graph.nodes, kernels(graph), strict=True):
        if is_kernel and node.op != ALIAS:
            out.extend(make_fused_node([node], lambda value: True, constants))
        else:
            out.append(node)
    if all(a is b for a, b in zip(out, graph.nodes, strict=True)):
        return graph
    return replace(graph, nodes=tuple(out))
