"""Sequences, optionals, strings, maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import I64
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable, code_of
from tilewright.frontends.onnx.importer import type_proto
from tilewright.graph.ir import Node
from tilewright.graph.types import SequenceType, tensor_of


def _plain(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> list[str]:
        made = e.emit(op, *e.inputs(node), outputs=len(node.outputs))
        return [made] if isinstance(made, str) else list(made)

    return rule


def _at(op: str, place: int) -> Rule:
    """Convert positions to scalars."""

    def rule(e: Emitter, node: Node) -> str:
        names = e.inputs(node)
        if len(names) > place and names[place]:
            names[place] = e.emit("Reshape", names[place], e.constant(np.zeros(0, np.int64)))
        return str(e.emit(op, *names))

    return rule


def _empty(e: Emitter, node: Node) -> str:
    of = node.outputs[0].type
    inner = tensor_of(of)
    if inner is None or not isinstance(of, SequenceType):
        raise Unwritable("a sequence of what is no tensor")
    return str(e.emit("SequenceEmpty", dtype=code_of(inner.dtype)))


def _split(e: Emitter, node: Node) -> str:
    names = e.inputs(node)
    if len(names) > 1 and names[1]:
        value = node.inputs[1]
        if value is not None and str(value.tensor.dtype) not in ("i32", "i64"):
            names[1] = e.cast(names[1], I64)
    keep = int(node.get("keepdims", True))
    return str(e.emit("SplitToSequence", *names, axis=node["axis"], keepdims=keep))


def _concat(e: Emitter, node: Node) -> str:
    new = int(node.get("new_axis", False))
    return str(e.emit("ConcatFromSequence", *e.inputs(node), axis=node["axis"], new_axis=new))


def _optional(e: Emitter, node: Node) -> str:
    names = e.inputs(node)
    if names and names[0]:
        return str(e.emit("Optional", *names))
    of: Any = node.outputs[0].type
    return str(e.emit("Optional", type=type_proto(of.element)))


def _string_split(e: Emitter, node: Node) -> list[str]:
    made = e.emit(
        "StringSplit",
        *e.inputs(node),
        outputs=2,
        delimiter=node.get("delimiter", "") or None,
        maxsplit=node.get("maxsplit"),
    )
    return list(made)[: len(node.outputs)]


def _normalize(e: Emitter, node: Node) -> str:
    more: dict[str, Any] = {
        "case_change_action": node.get("case", "none").upper(),
        "is_case_sensitive": int(node.get("case_sensitive", False)),
    }
    if node.get("stopwords"):
        more["stopwords"] = list(node["stopwords"])
    return str(e.emit("StringNormalizer", *e.inputs(node), **more))


def _full_match(e: Emitter, node: Node) -> str:
    return str(e.emit("RegexFullMatch", *e.inputs(node), pattern=node["pattern"]))


def _zip_map(e: Emitter, node: Node) -> str:
    keys = list(node["keys"])
    word = "classlabels_strings" if keys and isinstance(keys[0], str) else "classlabels_int64s"
    more: dict[str, Any] = {word: keys}
    return str(e.emit("ZipMap", *e.inputs(node), domain="ai.onnx.ml", **more))


RULES: dict[str, Rule] = {
    "sequence": _plain("SequenceConstruct"),
    "sequence_empty": _empty,
    "sequence_insert": _at("SequenceInsert", 2),
    "sequence_erase": _at("SequenceErase", 1),
    "sequence_at": _at("SequenceAt", 1),
    "sequence_length": _plain("SequenceLength"),
    "split_to_sequence": _split,
    "concat_from_sequence": _concat,
    "optional": _optional,
    "optional_has_element": _plain("OptionalHasElement"),
    "optional_get_element": _plain("OptionalGetElement"),
    "string_concat": _plain("StringConcat"),
    "string_split": _string_split,
    "normalize_text": _normalize,
    "full_match": _full_match,
    "zip_map": _zip_map,
}
COMPOSITES: tuple[str, ...] = ()
