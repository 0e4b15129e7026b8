"""Metadata and interface of ONNX files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from tilewright.frontends.onnx.importer import dimension_name
from tilewright.frontends.onnx.load import Source, load_model

FEEDABLE_SINCE = 4  # IR version from which inputs may override initializers

Shape = list[int | str | None]


@dataclass(frozen=True)
class Interface:
    """The interface of a model as declared in its file."""

    fields: Mapping[str, Any]  # producer, description and so on
    inputs: Mapping[str, Shape | None]  # in order; None without a declared shape
    outputs: Mapping[str, Shape | None]
    overridable: tuple[str, ...]  # inputs with an initializer
    denotations: Mapping[str, tuple[str, ...]]  # names of dimensions by denotation
    nodes: tuple[tuple[str, str, str], ...]  # name, domain, operator


def read_interface(source: Source) -> Interface:
    """Read a model's metadata."""
    with load_model(source) as loaded:
        model = loaded.model
        graph = model.graph
        held = {tensor.name for tensor in graph.initializer}
        inputs = [info for info in graph.input if info.name not in held]
        feedable = [info.name for info in graph.input if info.name in held]
        return Interface(
            fields={
                "producer_name": model.producer_name,
                "graph_name": graph.name,
                "domain": model.domain,
                "description": model.doc_string,
                "graph_description": graph.doc_string,
                "version": model.model_version,
                "custom_metadata_map": {entry.key: entry.value for entry in model.metadata_props},
            },
            inputs={info.name: _shape(info) for info in inputs},
            outputs={info.name: _shape(info) for info in graph.output},
            overridable=tuple(feedable if model.ir_version >= FEEDABLE_SINCE else ()),
            denotations=_denotations(inputs),
            nodes=tuple((node.name, node.domain, node.op_type) for node in graph.node),
        )


def _shape(info: onnx.ValueInfoProto) -> Shape | None:
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dims: Shape = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:
            dims.append(dim.dim_param or None)
    return dims


def _denotations(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for info in inputs:
        for at, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.denotation and not dim.HasField("dim_value"):
                name = dimension_name(dim.dim_param, info.name, at)
                found[dim.denotation] = (*found.get(dim.denotation, ()), name)
    return found
