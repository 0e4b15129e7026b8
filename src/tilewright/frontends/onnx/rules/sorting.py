"""Sorting and selection."""

from __future__ import annotations

from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.graph import Value


def _top_k(node: Context) -> tuple[Value, ...]:
    """k is an attribute before opset 10; `sorted` is ignored, since results are always sorted."""
    axis = node.axis(node.attr("axis", -1), node.rank())
    largest = bool(node.attr("largest", 1))
    if node.opset < 10:
        k = (node.attr("k"),)
        return node.emit_many("top_k", node[0], outputs=2, k=k, axis=axis, largest=largest)
    return node.emit_many("top_k", node[0], node[1], outputs=2, axis=axis, largest=largest)


def _non_max_suppression(node: Context) -> Value:
    center = bool(node.attr("center_point_box", 0))
    return node.emit("non_max_suppression", *node.inputs, center=center)


RULES: dict[str, Rule] = {"TopK": _top_k, "NonMaxSuppression": _non_max_suppression}
