"""Convert nodes on images to channels-last layout.

    try_channels_last(node) -> ChannelsLast: its attributes then, which inputs and outputs move

A node that supports both layouts follows its neighbours: the channels-last form of a tensor of rank
>= 3 is [batch, *spatial, channels]. None means that a node requires its original layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.graph.ir import Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST, LAYOUT, channels_last
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr, equal


@dataclass(frozen=True)
class ChannelsLast:
    """A node in channels-last layout."""

    attributes: dict[str, Any]
    inputs: tuple[bool, ...]  # which are channels last
    outputs: tuple[bool, ...]  # which are channels last


def try_channels_last(node: Node) -> ChannelsLast | None:
    """The channels-last form of a node, if there is one."""
    if node.bodies or any(not _is_ranked(v) for v in (*node.inputs, *node.outputs) if v):
        return None
    op = OPS.get(node.op)
    if op is None or not op.native:
        return None
    if LAYOUT in op.attributes:
        return _image_operator(node)
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node)
    if op.is_map and not op.foldable:
        return _elementwise(node)
    return None


def rank_of(value: Value) -> int:
    of = value.type
    return len(of.shape or ()) if isinstance(of, TensorType) else 0


def moved_axis(axis: int, rank: int) -> int:
    """The position of an axis in channels-last layout."""
    return channels_last(range(rank)).index(axis % rank)


def _is_ranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _image_operator(node: Node) -> ChannelsLast | None:
    if node.get("layout") == CHANNELS_LAST or node.inputs[0] is None:
        return None
    if rank_of(node.inputs[0]) < 3:
        return None
    attributes = {**dict(node.attributes), "layout": CHANNELS_LAST}
    rest = (False,) * (len(node.inputs) - 1)
    return ChannelsLast(attributes, (True, *rest), (True,) * len(node.outputs))


def _elementwise(node: Node) -> ChannelsLast | None:
    """Operands of lower rank are extended by leading ones."""
    rank = rank_of(node.outputs[0])
    if rank < 3:
        return None
    moved = tuple(value is not None and rank_of(value) > 0 for value in node.inputs)
    return ChannelsLast(dict(node.attributes), moved, (True,) * len(node.outputs))


def _quantizing(node: Node) -> ChannelsLast | None:
    """Scales and zero points are scalars, or vectors along an axis."""
    x = node.inputs[0]
    if x is None or rank_of(x) < 3:
        return None
    rank = max((rank_of(value) for value in node.inputs[1:] if value is not None), default=0)
    if rank > 1:
        return None
    attributes = dict(node.attributes)
    if rank == 1:
        attributes["axis"] = moved_axis(int(node.get("axis", 1)), rank_of(x))
    rest = (False,) * (len(node.inputs) - 1)
    return ChannelsLast(attributes, (True, *rest), (True,))


def _looking_up(node: Node) -> ChannelsLast | None:
    """The table is independent of position."""
    x = node.inputs[0]
    if x is None or rank_of(x) < 3:
        return None
    return ChannelsLast(dict(node.attributes), _first_only(node), (True,))


def _along_axis(node: Node) -> ChannelsLast | None:
    """An attribute `axis`; all inputs are converted."""
    rank = rank_of(node.outputs[0])
    if rank < 3:
        return None
    attributes = {**dict(node.attributes), "axis": moved_axis(int(node["axis"]), rank)}
    return ChannelsLast(attributes, (True,) * len(node.inputs), (True,))


def _along_axes(node: Node) -> ChannelsLast | None:
    """An attribute `axes` that the other attributes refer to; only the first input is converted."""
    rank = rank_of(node.outputs[0])
    axes = node.get("axes")
    if rank < 3 or not _are_numbers(axes):
        return None
    attributes = {**dict(node.attributes), "axes": tuple(moved_axis(a, rank) for a in axes)}
    return ChannelsLast(attributes, _first_only(node), (True,))


def _interleave(node: Node) -> ChannelsLast | None:
    found = _along_axes(node)
    return found and ChannelsLast(found.attributes, (True,) * len(node.inputs), (True,))


def _slice(node: Node) -> ChannelsLast | None:
    starts = node.get("starts")
    if len(node.inputs) > 1 or not isinstance(starts, tuple):
        return None
    return _along_axes(_with_axes(node, len(starts)))


def _pad(node: Node) -> ChannelsLast | None:
    pads = node.get("pads")
    if not isinstance(pads, tuple) or any(v is not None and rank_of(v) for v in node.inputs[1:]):
        return None
    return _along_axes(_with_axes(node, len(pads) // 2))


def _with_axes(node: Node, count: int) -> Node:
    """The node with explicit axes; by default they are the first ones."""
    if node.get("axes") is not None:
        return node
    attributes = (*node.attributes, ("axes", tuple(range(count))))
    return Node(node.op, node.inputs, node.outputs, attributes, node.bodies, node.loc)


def _reduction(node: Node) -> ChannelsLast | None:
    x, axes = node.inputs[0], node.get("axes")
    if x is None or len(node.inputs) > 1 or rank_of(x) < 3:
        return None
    rank = rank_of(x)
    if axes is None:
        axes = tuple(range(rank))
    if not _are_numbers(axes):
        return None
    reduced = {a % rank for a in axes}
    keeps = bool(node.get("keepdims", True))
    if not keeps:
        left = [axis for axis in channels_last(range(rank)) if axis not in reduced]
        if left != sorted(left):
            return None
    attributes = {**dict(node.attributes), "axes": tuple(moved_axis(a, rank) for a in axes)}
    return ChannelsLast(attributes, (True,), (keeps,))


def _reshape(node: Node) -> ChannelsLast | None:
    """Spatial axes are merged or split; batch and channels are unchanged."""
    x = node.inputs[0]
    if x is None or len(node.inputs) > 1:
        return None
    old, new = x.tensor.shape, node.outputs[0].tensor.shape
    if old is None or new is None or len(old) < 3 or len(new) < 3:
        return None
    if not _same(old[0], new[0]) or not _same(old[1], new[1]):
        return None
    shape = tuple(int(d.value) if isinstance(d, Const) else d for d in channels_last(new))
    return ChannelsLast({**dict(node.attributes), "shape": shape}, (True,), (True,))


def _expand(node: Node) -> ChannelsLast | None:
    shape, rank = node.get("shape"), rank_of(node.outputs[0])
    if len(node.inputs) > 1 or not isinstance(shape, tuple) or len(shape) != rank or rank < 3:
        return None
    return ChannelsLast({**dict(node.attributes), "shape": channels_last(shape)}, (True,), (True,))


def _first_only(node: Node) -> tuple[bool, ...]:
    return (True, *(False for _ in node.inputs[1:]))


def _are_numbers(axes: Any) -> bool:
    return isinstance(axes, tuple) and all(isinstance(a, int) for a in axes)


def _same(a: Expr, b: Expr) -> bool:
    return a is b or equal(a, b)


def is_free(shape: Sequence[Expr]) -> bool:
    """Whether the conversion leaves the order of elements in memory unchanged."""
    return shape[1] is ONE or all(dim is ONE for dim in shape[2:])


_RULES: dict[str, Callable[[Node], ChannelsLast | None]] = {
    "concat": _along_axis,
    "interleave": _interleave,
    "slice": _slice,
    "pad": _pad,
    "resize": _along_axes,
    "softmax": _along_axes,
    "log_softmax": _along_axes,
    "reshape": _reshape,
    "expand": _expand,
    "quantize": _quantizing,
    "dequantize": _quantizing,
    "lookup_bytes": _looking_up,
    **dict.fromkeys(
        ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"), _reduction
    ),
}
