"""Small rearrangements that many rules need."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.rules.base import Context, Skip
from tilewright.graph import Value
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr, as_expr

Dim = int | Expr


def dims(node: Context, value: Value) -> tuple[Dim, ...]:
    """The dimensions of a value, numbers where known."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        raise Skip(f"{node.op_type} on a tensor of unknown rank")
    return tuple(int(dim.value) if isinstance(dim, Const) else dim for dim in of.shape)


def reshape(node: Context, value: Value, *shape: Dim) -> Value:
    if all(as_expr(a) is as_expr(b) for a, b in zip(shape, dims(node, value), strict=False)) and (
        len(shape) == len(dims(node, value))
    ):
        return value
    return node.emit("reshape", value, shape=shape)


def unsqueeze(node: Context, value: Value, *axes: int) -> Value:
    """New axes of one element, numbered as they are in the result."""
    shape = list(dims(node, value))
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return reshape(node, value, *shape)


def item(node: Context, value: Value, at: int, axis: int = 0) -> Value:
    """value[at] along an axis, which disappears."""
    shape = list(dims(node, value))
    if shape[axis] != 1:
        value = node.emit("slice", value, starts=(at,), ends=(at + 1,), axes=(axis,))
    del shape[axis]
    return reshape(node, value, *shape)


def part(node: Context, value: Value, start: Dim, end: Dim, axis: int) -> Value:
    """value[start:end] along an axis."""
    return node.emit("slice", value, starts=(start,), ends=(end,), axes=(axis,))


def stack(node: Context, values: Sequence[Value], axis: int) -> Value:
    """Values side by side along a new axis."""
    parts = [unsqueeze(node, value, axis) for value in values]
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=axis)


def transpose(node: Context, value: Value, *perm: int) -> Value:
    return node.emit("transpose", value, perm=perm)


def split_heads(node: Context, value: Value, heads: int) -> Value:
    """[batch, sequence, heads * features] as [batch, heads, sequence, features]."""
    batch, length, _ = dims(node, value)
    return transpose(node, reshape(node, value, batch, length, heads, -1), 0, 2, 1, 3)


def join_heads(node: Context, value: Value) -> Value:
    """[batch, heads, sequence, features] as [batch, sequence, heads * features]."""
    batch, _, length, _ = dims(node, value)
    return reshape(node, transpose(node, value, 0, 2, 1, 3), batch, length, -1)
