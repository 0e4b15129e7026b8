"""Gather and scatter operators."""

from __future__ import annotations

from tilewright.base.dtype import I64
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.shape import iota, slice_axis
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Expr


def _along(op: str) -> Rule:
    """An operator with an axis and the same inputs in both."""

    def rule(node: Context) -> Value:
        axis = node.axis(node.attr("axis", 0), node.rank())
        return node.emit(op, *node.inputs, axis=axis)

    return rule


def _reduction(node: Context) -> str:
    """The reduction of updates; before opset 16 none."""
    return str(node.attr("reduction", "none"))


def _scatter_elements(node: Context) -> Value:
    axis = node.axis(node.attr("axis", 0), node.rank())
    return node.emit("scatter_elements", *node.inputs, axis=axis, reduction=_reduction(node))


def _scatter_nd(node: Context) -> Value:
    return node.emit("scatter_nd", *node.inputs, reduction=_reduction(node))


def _tensor_scatter(node: Context) -> Value:
    """Write an update to a cache, from an index per batch element on, along an axis."""
    past, update, start = node[0], node[1], node.get(2)
    dims, news = node.dims(0), node.dims(1)
    axis = node.axis(node.attr("axis", -2), len(dims))
    steps = iota(node, news[axis])
    if start is not None:
        steps = node.emit("add", node.unsqueeze(start, 1), steps)
    else:
        steps = node.unsqueeze(steps, 0)
    if node.attr("mode", "linear") == "circular":
        whole = node.emit("dims", values=items_of([dims[axis]])[0])
        steps = node.emit("mod", steps, whole)
    shape: list[Expr] = [ONE] * len(dims)
    shape[0], shape[axis] = node.dims(steps)
    index = node.emit("expand", node.reshape(steps, shape), shape=items_of(news))
    return node.emit("scatter_elements", past, index, update, axis=axis)


def _one_hot(node: Context) -> Value:
    indices, depth, values = node[0], node[1], node[2]
    rank = node.rank()
    axis = node.axis(node.attr("axis", -1), rank + 1)
    if indices.tensor.dtype is not I64:
        indices = node.emit("cast", indices, to=I64)
    depth = node.reshape(depth, ())
    if depth.tensor.dtype is not I64:
        depth = node.emit("cast", depth, to=I64)
    below = node.emit("less", indices, 0)
    indices = node.emit("where", below, node.emit("add", indices, depth), indices)
    classes = node.emit("range", None, depth, start=0, delta=1, to=I64)
    shape: list[Expr] = [ONE] * (rank + 1)
    (shape[axis],) = node.dims(classes)
    hits = node.emit("equal", node.unsqueeze(indices, axis), node.reshape(classes, shape))
    off, on = (node.reshape(slice_axis(node, values, 0, at, at + 1), ()) for at in (0, 1))
    return node.emit("where", hits, on, off)


def _compress(node: Context) -> Value:
    x, axis = node[0], node.attr("axis")
    found = node.reshape(node.emit("nonzero", node[1]), (-1,))
    if axis is None:
        x, axis = node.reshape(x, (product(node.dims()),)), 0
    return node.emit("gather", x, found, axis=node.axis(axis, len(node.dims(x))))


def _unique(node: Context) -> tuple[Value, ...]:
    axis = node.attr("axis")
    if axis is not None:
        axis = node.axis(axis, node.rank())
    ordered = bool(node.attr("sorted", 1))
    return node.emit_many("unique", node[0], outputs=node.outputs, axis=axis, sorted=ordered)


RULES: dict[str, Rule] = {
    "Gather": _along("gather"),
    "GatherElements": _along("gather_elements"),
    "GatherND": lambda node: node.emit(
        "gather_nd", node[0], node[1], batch_dims=node.attr("batch_dims", 0)
    ),
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "OneHot": _one_hot,
    "NonZero": lambda node: node.emit("nonzero", node[0]),
    "Compress": _compress,
    "Unique": _unique,
}
