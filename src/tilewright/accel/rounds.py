"""Layers whose leading size only a call knows: images of a batch, rows of a matrix.

A part of such layers is compiled for one round of so many images or rows; a call makes the stream
of as many rounds as it needs (`insert_tokens`). What fills up the last round is not read.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.accel.layers import refused
from tilewright.base.geometry import Geometry
from tilewright.graph.ir import Graph, Value
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr, const


def leading_size(value: Value) -> Expr | None:
    """The size that a call tells; None where all sizes are known."""
    shape = value.tensor.shape
    return None if not shape or isinstance(shape[0], Const) else shape[0]


def round_size(rank: int, g: Geometry) -> int:
    """Images, matrices or rows of a round: of rows twice as many as are multiplied while other
    weights are loaded."""
    loading = -(-g.entry_bytes()["wgt"] // g.bus_bytes)
    return {4: g.batch, 2: 2 * loading * g.batch}.get(rank, 1)


def round_shape(value: Value, g: Geometry) -> tuple[int, ...]:
    """A tensor of one round; empty where more than its leading size is not known."""
    return settled(value, round_size(len(value.tensor.shape or ()), g)).tensor.static_shape or ()


def settled(value: Value, size: int) -> Value:
    """The same tensor of one round."""
    of = value.tensor
    if leading_size(value) is None:
        return value
    return Value(value.name, TensorType(of.dtype, (const(size), *(of.shape or ())[1:])))


def round_of(graph: Graph, g: Geometry) -> tuple[Graph, int]:
    """One round of a graph, and its size; the graph itself, and 0, where all sizes are known."""
    values = [*graph.params, *(value for node in graph.nodes for value in node.outputs)]
    moving = {value: found for value in values if (found := leading_size(value)) is not None}
    if not moving:
        return graph, 0
    made = [value for node in graph.nodes if node.op != "sizes" for value in node.outputs]
    if len(set(moving.values())) > 1 or any(value not in moving for value in made):
        raise refused("its leading size is not that of the layers beside it")
    size = round_size(max(len(value.tensor.shape or ()) for value in moving), g)
    known = {value: settled(value, size) for value in values}
    nodes = [
        replace(
            node,
            inputs=tuple([None if one is None else known[one] for one in node.inputs]),
            outputs=tuple([known[one] for one in node.outputs]),
        )
        for node in graph.nodes
    ]
    params, results = ([known[one] for one in some] for some in (graph.params, graph.results))
    return Graph(graph.name, tuple(params), tuple(nodes), tuple(results)), size
