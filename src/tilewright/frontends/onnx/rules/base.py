"""The interface of rules to a node: inputs, attributes, opset, and a graph builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.errors import TilewrightError, Unsupported, UserError
from tilewright.base.loc import Loc
from tilewright.frontends.common.emit import Emitter
from tilewright.frontends.common.report import Skip as Skip
from tilewright.frontends.onnx.tensors import Tensors
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.op import Known
from tilewright.graph.types import Type
from tilewright.sym import Const, Expr

Array = np.ndarray[Any, Any]


class Bodies(Protocol):
    """The importer's interface for control flow rules."""

    problems: dict[str, list[str]]
    tensors: Tensors

    @property
    def channel_block(self) -> int: ...

    def subgraph(
        self,
        proto: onnx.GraphProto,
        param_types: Sequence[Type],
        captured: Mapping[str, Value],
        scope: Mapping[str, Value],
        outer: Builder,
    ) -> Graph: ...

    def captures(
        self, protos: Sequence[onnx.GraphProto], scope: Mapping[str, Value], outer: Builder
    ) -> dict[str, Value]: ...

    def type_of(self, proto: onnx.TypeProto, name: str) -> Type: ...


@dataclass
class Context(Emitter):
    """One node under translation."""

    node: onnx.NodeProto
    inputs: list[Value | None]
    builder: Builder
    opset: int
    loc: Loc
    importer: Bodies
    scope: Mapping[str, Value]

    @property
    def op_type(self) -> str:
        return str(self.node.op_type)

    @property
    def outputs(self) -> int:
        """The number of named outputs."""
        return len(self.node.output)

    def wants(self, at: int) -> bool:
        """Whether output `at` is named, and so may be used."""
        return at < len(self.node.output) and bool(self.node.output[at])

    def has(self, at: int) -> bool:
        return at < len(self.inputs) and self.inputs[at] is not None

    def __getitem__(self, at: int) -> Value:
        """Input `at`, which is required."""
        value = self.inputs[at] if at < len(self.inputs) else None
        if value is None:
            raise UserError("TW1106", f"{self.op_type} needs input {at}", self.loc)
        return value

    def get(self, at: int) -> Value | None:
        """Input `at`, or None."""
        return self.inputs[at] if at < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python data: numbers, str, tuples, arrays, GraphProto."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                if isinstance(value, bytes):
                    return value.decode()
                if isinstance(value, onnx.TensorProto):
                    return self.importer.tensors.array(value)
                if isinstance(value, onnx.SparseTensorProto):
                    return self.importer.tensors.dense(value)
                if attribute.type in (
                    onnx.AttributeProto.INTS,
                    onnx.AttributeProto.FLOATS,
                    onnx.AttributeProto.STRINGS,
                ):
                    return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
                return value
        return default

    def known(self, at: int) -> Known | None:
        """The contents of an integer input, as expressions of sizes, if known."""
        return self.contents(self.get(at))

    def dims(self, of: Value | int = 0) -> tuple[Expr, ...]:
        """The shape of a value or input; its rank must be known."""
        return self.shape(self[of] if isinstance(of, int) else of)

    def ints(self, at: int) -> tuple[int, ...] | None:
        """The contents of an integer input, if constant."""
        known = self.known(at)
        if known is None or not all(isinstance(x, Const) for x in known):
            return None
        return tuple(int(x.value) for x in known if isinstance(x, Const))

    def rank(self, at: int = 0) -> int:
        return len(self.dims(at))


def element_type(code: int) -> DType:
    """The element type of an ONNX type code."""
    try:
        return from_numpy(onnx.helper.tensor_dtype_to_np_dtype(code))
    except (TilewrightError, KeyError, TypeError) as error:
        names = {value: name for name, value in onnx.TensorProto.DataType.items()}
        raise Unsupported("TW1104", f"element type {names.get(code, code)}") from error


Rule = Callable[[Context], Value | Sequence[Value | None]]
