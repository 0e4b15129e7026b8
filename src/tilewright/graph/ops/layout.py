"""Layouts of images: channels first or channels last.

Type rules and references of operators on images are written for channels first. The attribute
`layout` is the memory layout of an operator's first input and its outputs; weights and per-channel
parameters do not change. `in_layouts` adds the attribute to a declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tilewright.graph.op import Attr, Call, Op, as_arrays
from tilewright.graph.types import TensorType, Type

CHANNELS_FIRST, CHANNELS_LAST = "channels_first", "channels_last"
LAYOUTS = (CHANNELS_FIRST, CHANNELS_LAST)
LAYOUT = Attr("layout", str, CHANNELS_FIRST)

T = TypeVar("T")


def channels_first(items: Sequence[T]) -> tuple[T, ...]:
    """Transpose [batch, *spatial, channels] to [batch, channels, *spatial]."""
    return (items[0], items[-1], *items[1:-1]) if len(items) > 2 else tuple(items)


def channels_last(items: Sequence[T]) -> tuple[T, ...]:
    """Transpose [batch, channels, *spatial] to [batch, *spatial, channels]."""
    return (items[0], *items[2:], items[1]) if len(items) > 2 else tuple(items)


def in_layouts(op: Op) -> Op:
    """Add an attribute `layout` to an operator."""

    def infer(call: Call) -> tuple[Type, ...]:
        if call["layout"] not in LAYOUTS:
            raise call.error("TW1216", f"{call.op} has no layout {call['layout']!r}")
        if call["layout"] == CHANNELS_FIRST:
            return tuple(op.infer(call))
        return tuple(_moved(of) for of in op.infer(_as_first(call)))

    def reference(call: Call, x: Any, *rest: Any) -> Any:
        if call["layout"] == CHANNELS_FIRST:
            return op.reference(call, x, *rest)
        made = as_arrays(op.reference(_as_first(call), x.transpose(_order_first(x.ndim)), *rest))
        arrays = tuple(y.transpose(channels_last(range(y.ndim))) for y in made)
        return tuple(np.ascontiguousarray(y) for y in arrays)

    attributes = (*op.attributes, LAYOUT)
    return replace(op, infer=infer, reference=reference, attributes=attributes)


def _order_first(rank: int) -> tuple[int, ...]:
    return channels_first(range(rank))


def _as_first(call: Call) -> Call:
    """The equivalent call with channels first."""
    x = TensorType(call.tensor(0).dtype, channels_first(call.shape(0)))
    return replace(call, types=(x, *call.types[1:]))


def _moved(of: Type) -> Type:
    if not isinstance(of, TensorType) or of.shape is None:
        return of
    return TensorType(of.dtype, channels_last(of.shape))
