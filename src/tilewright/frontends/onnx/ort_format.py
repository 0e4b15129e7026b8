"""Read models in ONNX Runtime's own file format (.ort).

It is a flatbuffer with the same contents as an ONNX file: what ONNX Runtime kept of a model after
its optimizations. Field numbers are those of its published schema, `ort.fbs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from tilewright.frontends.onnx.flatbuffer import Buffer, Damaged, Flatbuffer, Table
from tilewright.frontends.onnx.wire import LEAST_BYTES, Span

MAGIC = b"ORTM"  # bytes 4 to 8 of a file
MAX_DEPTH = 50  # of nested graphs and types
TENSOR, SEQUENCE, MAP = 1, 2, 3  # kinds of types
VALUE, PARAM = 1, 2  # kinds of dimensions


def is_ort_format(head: bytes | memoryview) -> bool:
    """Whether the first bytes of a file say that it has this format."""
    return bytes(head[4:8]) == MAGIC


def read_ort_format(data: Buffer) -> tuple[onnx.ModelProto, dict[int, Span]]:
    """The model without large initializers, and where in `data` these are, by their index."""
    root = Flatbuffer(data).root()
    stored = root.table(1)
    graph = None if stored is None else stored.table(7)
    if stored is None or graph is None:
        raise Damaged("it holds no graph")
    reader = _Reader()
    model = onnx.ModelProto(
        ir_version=stored.integer(0, "q"),
        producer_name=stored.string(2),
        producer_version=stored.string(3),
        domain=stored.string(4),
        model_version=stored.integer(5, "q"),
        doc_string=stored.string(6),
        graph=reader.graph(graph, MAX_DEPTH, is_main=True),
    )
    model.graph.doc_string = stored.string(8)
    for entry in stored.tables(1):
        model.opset_import.add(domain=entry.string(0), version=entry.integer(1, "q"))
    for entry in stored.tables(9):
        model.metadata_props.add(key=entry.string(0), value=entry.string(1))
    return model, reader.spans


@dataclass
class _Reader:
    spans: dict[int, Span] = field(default_factory=dict)

    def graph(self, graph: Table, depth: int, *, is_main: bool = False) -> GraphProto:
        types = {one.string(0): one for one in graph.tables(1)}
        proto = GraphProto()
        for at, tensor in enumerate(graph.tables(0)):
            proto.initializer.append(self.tensor(tensor, at if is_main else None))
        for sparse in graph.tables(7):
            self.sparse(sparse, proto)
        proto.node.extend(self.node(node, depth) for node in graph.tables(2))
        proto.input.extend(_value_info(name, types, depth) for name in graph.strings(5))
        proto.output.extend(_value_info(name, types, depth) for name in graph.strings(6))
        return proto

    def node(self, node: Table, depth: int) -> NodeProto:
        return NodeProto(
            name=node.string(0),
            doc_string=node.string(1),
            domain=node.string(2),
            op_type=node.string(5),
            input=node.strings(8),
            output=node.strings(9),
            attribute=[self.attribute(each, depth) for each in node.tables(10)],
        )

    def attribute(self, stored: Table, depth: int) -> AttributeProto:
        kind = stored.integer(2)
        proto = AttributeProto(name=stored.string(0), type=kind)  # type: ignore[arg-type]  # checked
        match kind:
            case AttributeProto.FLOAT:
                proto.f = stored.real(3)
            case AttributeProto.INT:
                proto.i = stored.integer(4, "q")
            case AttributeProto.STRING:
                proto.s = stored.string(5).encode()
            case AttributeProto.TENSOR:
                proto.t.CopyFrom(self.tensor(_present(stored.table(6))))
            case AttributeProto.GRAPH:
                proto.g.CopyFrom(self.graph(_present(stored.table(7)), _inside(depth)))
            case AttributeProto.FLOATS:
                proto.floats.extend(stored.numbers(8, "f4"))
            case AttributeProto.INTS:
                proto.ints.extend(map(int, stored.numbers(9, "i8")))
            case AttributeProto.STRINGS:
                proto.strings.extend(text.encode() for text in stored.strings(10))
            case AttributeProto.TENSORS:
                proto.tensors.extend(self.tensor(each) for each in stored.tables(11))
            case AttributeProto.GRAPHS:
                inner = _inside(depth)
                proto.graphs.extend(self.graph(each, inner) for each in stored.tables(12))
            case _:
                raise Damaged(f"attribute {proto.name} of kind {kind}")
        return proto

    def tensor(self, tensor: Table, at: int | None = None) -> TensorProto:
        """A tensor; initializers of the main graph, by their index, may stay in the file."""
        proto = TensorProto(
            name=tensor.string(0),
            doc_string=tensor.string(1),
            dims=map(int, tensor.numbers(2, "i8")),
            data_type=tensor.integer(3),
        )
        if tensor.integer(6, "q", -1) >= 0:
            raise Damaged(f"tensor {proto.name} is in another file")
        if proto.data_type == TensorProto.STRING:
            proto.string_data.extend(text.encode() for text in tensor.strings(5))
            return proto
        start, count = tensor.span(4) or (0, 0)
        if at is not None and count >= LEAST_BYTES:
            self.spans[at] = Span(start, count)
        else:
            tensor.buffer.left -= count
            proto.raw_data = bytes(tensor.buffer.data[start : start + count])
        return proto

    def sparse(self, sparse: Table, into: GraphProto) -> None:
        into.sparse_initializer.add(
            values=self.tensor(_present(sparse.table(0))),
            indices=self.tensor(_present(sparse.table(1))),
            dims=map(int, sparse.numbers(2, "i8")),
        )


def _value_info(name: str, types: Mapping[str, Table], depth: int) -> ValueInfoProto:
    proto = ValueInfoProto(name=name)
    if name in types:
        stored = types[name].table(2)
        proto.doc_string = types[name].string(1)
        if stored is not None:
            proto.type.CopyFrom(_type(stored, depth))
    return proto


def _type(stored: Table, depth: int) -> TypeProto:
    proto = TypeProto(denotation=stored.string(0))
    kind, value = stored.integer(1, "B"), _present(stored.table(2))
    if kind == TENSOR:
        proto.tensor_type.elem_type = value.integer(0)
        shape = value.table(1)
        if shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in shape.tables(0):
                _dimension(dim, proto.tensor_type.shape.dim.add())
    elif kind == SEQUENCE:
        inner = _type(_present(value.table(0)), _inside(depth))
        proto.sequence_type.elem_type.CopyFrom(inner)
    elif kind == MAP:
        proto.map_type.key_type = value.integer(0)
        proto.map_type.value_type.CopyFrom(_type(_present(value.table(1)), _inside(depth)))
    else:
        raise Damaged(f"a type of kind {kind}")
    return proto


def _dimension(dim: Table, into: onnx.TensorShapeProto.Dimension) -> None:
    into.denotation = dim.string(1)
    value = dim.table(0)
    kind = 0 if value is None else value.integer(0, "b")
    if value is not None and kind == VALUE:
        into.dim_value = value.integer(1, "q")
    elif value is not None and kind == PARAM:
        into.dim_param = value.string(2)


def _present(table: Table | None) -> Table:
    if table is None:
        raise Damaged("a part is missing")
    return table


def _inside(depth: int) -> int:
    if depth == 0:
        raise Damaged("graphs are nested too deeply")
    return depth - 1
