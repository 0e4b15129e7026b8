"""Layers with a dynamic leading size: images of a batch, rows of a matrix.

A part of a model with such layers is compiled for one round of a fixed number of images or rows; a
call generates the stream of the necessary number of rounds (`insert_tokens`). The padding of the
last round is not read.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.accel.layers import refused
from tilewright.base.geometry import Geometry
from tilewright.graph.ir import Graph, Value
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr, const


def leading_size(value: Value) -> Expr | None:
    """The dynamic size; None if all sizes are static."""
    shape = value.tensor.shape
    return None if not shape or isinstance(shape[0], Const) else shape[0]


def round_size(rank: int, g: Geometry) -> int:
    """Images, matrices or rows per round: twice as many rows as are multiplied while the next
    weights are loaded."""
    loading = -(-g.entry_bytes()["wgt"] // g.bus_bytes)
    return {4: g.batch, 2: 2 * loading * g.batch}.get(rank, 1)


def round_shape(value: Value, g: Geometry) -> tuple[int, ...]:
    """A tensor of one round; empty if other sizes are dynamic, too."""
    return settled(value, round_size(len(value.tensor.shape or ()), g)).tensor.static_shape or ()


def settled(value: Value, size: int) -> Value:
    """The type of one round."""
    of = value.tensor
    if leading_size(value) is None:
        return value
    return Value(value.name, TensorType(of.dtype, (const(size), *(of.shape or ())[1:])))


def round_of(graph: Graph, g: Geometry) -> tuple[Graph, int]:
    """One round of a graph, and its size; the graph itself and 0 if all sizes are static."""
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
