"""Sequences and optionals."""

from __future__ import annotations

import numpy as np

from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.base import Context, Rule, element_type
from tilewright.graph import Value
from tilewright.graph.types import OptionalType


def _empty(node: Context) -> Value:
    code = node.attr("dtype")
    return node.emit("sequence_empty", of=F32 if code is None else element_type(code))


def _split(node: Context) -> Value:
    axis = node.axis(node.attr("axis", 0), node.rank())
    keep = bool(node.attr("keepdims", 1))
    return node.emit("split_to_sequence", node[0], node.get(1), axis=axis, keepdims=keep)


def _concat(node: Context) -> Value:
    stacks = bool(node.attr("new_axis", 0))
    return node.emit("concat_from_sequence", node[0], axis=node.attr("axis"), new_axis=stacks)


def _optional(node: Context) -> Value:
    if node.has(0):
        return node.emit("optional", node[0])
    return node.emit("optional", of=node.importer.type_of(node.attr("type"), "optional"))


def _has_element(node: Context) -> Value:
    value = node.get(0)
    if value is None or not isinstance(value.type, OptionalType):
        return node.constant(np.bool_(value is not None))
    return node.emit("optional_has_element", value)


def _get_element(node: Context) -> Value:
    value = node[0]
    return (
        node.emit("optional_get_element", value) if isinstance(value.type, OptionalType) else value
    )


def _at(node: Context) -> Value:
    return node.emit("sequence_at", node[0], node[1])


RULES: dict[str, Rule] = {
    "SequenceConstruct": lambda node: node.emit("sequence", *node.inputs),
    "SequenceEmpty": _empty,
    "SequenceInsert": lambda node: node.emit("sequence_insert", *node.inputs),
    "SequenceErase": lambda node: node.emit("sequence_erase", *node.inputs),
    "SequenceAt": _at,
    "SequenceLength": lambda node: node.emit("sequence_length", node[0]),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
