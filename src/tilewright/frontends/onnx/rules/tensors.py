"""Small tensor rearrangements shared by rules."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.rules.base import Context
from tilewright.graph import Value
from tilewright.graph.types import items_of
from tilewright.sym import Expr

Dim = int | Expr


def dims(node: Context, value: Value) -> tuple[Dim, ...]:
    """The dimensions of a value, as numbers where known."""
    return items_of(node.dims(value))


def reshape(node: Context, value: Value, *shape: Dim) -> Value:
    return value if shape == dims(node, value) else node.reshape(value, shape)


def item(node: Context, value: Value, at: int, axis: int = 0) -> Value:
    """value[at] along an axis, which is removed."""
    shape = list(dims(node, value))
    if shape[axis] != 1:
        value = node.emit("slice", value, starts=(at,), ends=(at + 1,), axes=(axis,))
    del shape[axis]
    return reshape(node, value, *shape)


def part(node: Context, value: Value, start: Dim, end: Dim, axis: int) -> Value:
    """value[start:end] along an axis."""
    return node.emit("slice", value, starts=(start,), ends=(end,), axes=(axis,))


def stack(node: Context, values: Sequence[Value], axis: int) -> Value:
    """Stack values along a new axis."""
    parts = [node.unsqueeze(value, axis) for value in values]
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=axis)


def transpose(node: Context, value: Value, *perm: int) -> Value:
    return value if perm == tuple(range(len(perm))) else node.emit("transpose", value, perm=perm)


def split_heads(node: Context, value: Value, heads: int) -> Value:
    """Reshape [batch, sequence, heads * features] to [batch, heads, sequence, features]."""
    batch, length, _ = dims(node, value)
    return transpose(node, reshape(node, value, batch, length, heads, -1), 0, 2, 1, 3)


def join_heads(node: Context, value: Value) -> Value:
    """Reshape [batch, heads, sequence, features] to [batch, sequence, heads * features]."""
    batch, _, length, _ = dims(node, value)
    return reshape(node, transpose(node, value, 0, 2, 1, 3), batch, length, -1)
