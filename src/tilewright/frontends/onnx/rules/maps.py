"""Map operators of ai.onnx.ml: rows to maps, maps to rows."""

from __future__ import annotations

from tilewright.base.dtype import F32, I64, STR
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.scores import labels_of
from tilewright.graph import Value


def _zip_map(node: Context) -> Value:
    keys = labels_of(node, "classlabels_int64s", "classlabels_strings")
    return node.emit("zip_map", node[0], keys=tuple(keys.tolist()))


def _dict_vectorizer(node: Context) -> Value:
    keys = labels_of(node, "int64_vocabulary", "string_vocabulary")
    return node.emit("map_to_vector", node[0], keys=tuple(keys.tolist()))


def _cast_map(node: Context) -> Value:
    to = {"TO_FLOAT": F32, "TO_STRING": STR, "TO_INT64": I64}[node.attr("cast_to", "TO_FLOAT")]
    sparse = node.attr("map_form", "DENSE") == "SPARSE"
    width = node.attr("max_map", 1) if sparse else None
    return node.emit("map_to_tensor", node[0], to=to, width=width)


RULES: dict[str, Rule] = {
    "ZipMap": _zip_map,
    "DictVectorizer": _dict_vectorizer,
    "CastMap": _cast_map,
}
