"""Check nodes against ONNX's operator schemas, so that rules may rely on their form."""

from __future__ import annotations

import functools
from typing import Any

import onnx
from onnx import AttributeProto

from tilewright.base.errors import UserError
from tilewright.base.loc import Loc


def check_names(model: onnx.ModelProto, name: str) -> None:
    """Check that all names are text: protobuf returns invalid UTF-8 as bytes."""
    graphs: list[onnx.GraphProto] = [model.graph]
    nodes: list[onnx.NodeProto] = []
    names: list[object] = [entry.domain for entry in model.opset_import]
    for function in model.functions:
        names += [function.name, function.domain, function.overload]
        names += [*function.input, *function.output, *function.attribute]
        names += [default.name for default in function.attribute_proto]
        nodes += function.node
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            names += [item.name for item in (*graph.input, *graph.output, *graph.initializer)]
            for item in (*graph.input, *graph.output):
                names += _dimension_names(item.type)
            names += [sparse.values.name for sparse in graph.sparse_initializer]
            continue
        node = nodes.pop()
        names += [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output]
        for attribute in node.attribute:
            names += [attribute.name, attribute.ref_attr_name]
            graphs += [attribute.g] if attribute.HasField("g") else attribute.graphs
    for found in names:
        if not isinstance(found, str):
            raise UserError("TW1112", f"{name} is damaged: the name {found!r} is not text")


def _dimension_names(proto: onnx.TypeProto) -> list[object]:
    """The names of dimensions in a type, including element types."""
    while proto.HasField("sequence_type") or proto.HasField("optional_type"):
        inner = proto.sequence_type if proto.HasField("sequence_type") else proto.optional_type
        proto = inner.elem_type
    return [dim.dim_param for dim in proto.tensor_type.shape.dim]


@functools.cache
def schema_of(op_type: str, version: int, domain: str) -> Any:
    """The schema of an operator, or None."""
    key = "" if domain == "ai.onnx" else domain
    try:
        return onnx.defs.get_schema(op_type, version, key)
    except onnx.defs.SchemaError:
        return None


def check_node(node: onnx.NodeProto, version: int, domain: str, loc: Loc) -> None:
    """Check attributes and the numbers of inputs and outputs against the schema."""
    schema = schema_of(node.op_type, version, domain)
    if schema is None:
        return
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in given.items():
        spec = schema.attributes.get(name)
        if spec is not None and attribute.type != int(spec.type.value):
            kind = AttributeProto.AttributeType.Name(int(spec.type.value)).lower()
            raise UserError("TW1106", f"attribute {name!r} of {node.op_type} is not {kind}", loc)
    for name, spec in schema.attributes.items():
        if spec.required and name not in given:
            raise UserError("TW1106", f"{node.op_type} needs the attribute {name!r}", loc)
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise UserError("TW1106", f"{node.op_type} has {wanted} {what}, not {count}", loc)
