"""The model IR: functional, typed, in single-assignment form.

A graph computes results from parameters by nodes in order. A node applies an operator, declared
once in `ops/`, to values; attributes are data. Control flow is a node with bodies: graphs that
receive everything they use as parameters, so that a body can be read, run and moved by itself. A
module contains graphs that may call each other, the tensor functions called by a half-lowered
model, and the constants (weights), so that a model at any point is one printable program. A model
may have states: its last parameters, which its last results replace for the next run.

Values, nodes and graphs have identity; nothing is modified in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.html import program
from tilewright.base.intern import node
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr
from tilewright.tensor.ir import Function

IMPORTED, CANONICAL, FUSED, LOWERED = "imported", "canonical", "fused", "lowered"
STAGES = (IMPORTED, CANONICAL, FUSED, LOWERED)

# Attributes contain data only; tuples may be nested.
Attribute = int | float | str | bool | DType | Expr | Type | tuple["Attribute", ...] | None
Attributes = tuple[tuple[str, Attribute], ...]  # sorted by name


@node
class Value:
    """The definition of a node or a parameter. Identified by identity; the name is a hint.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> (x,) = module.main.params
        >>> x.name, x.tensor.dtype
        ('x', dtype('f32'))
    """

    name: str
    type: Type

    @property
    def tensor(self) -> TensorType:
        """The type, for values that must be tensors."""
        assert isinstance(self.type, TensorType), self.type
        return self.type

    def __repr__(self) -> str:
        return f"<Value %{self.name}: {self.type}>"


@node
class Node:
    """An operator applied to values; an absent optional input is None.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> (node,) = module.main.nodes
        >>> node.op, node.output.name
        ('neg', 'y')
    """

    op: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Attributes = ()
    bodies: tuple[Graph, ...] = ()
    loc: Loc = UNKNOWN

    def __getitem__(self, name: str) -> Any:
        """The value of the attribute `name`."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the attribute `name`, or a default."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


@node
class Graph:
    """Results computed from parameters by nodes in order.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> module.main.name, [node.op for node in module.main.nodes]
        ('main', ['neg'])
    """

    name: str
    params: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[Value, ...]
    loc: Loc = UNKNOWN


@node
class Module:
    """A whole model. `graphs["main"]` is the entry; constants are shared, not copied.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> module.stage, list(module.graphs)
        ('imported', ['main'])
    """

    graphs: Mapping[str, Graph]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    stage: str = IMPORTED
    outputs: tuple[str, ...] = ()  # users' names of the results of main, if any
    # Constants with the initial states. The last parameters of main are its states, in this order,
    # and its last results their new values.
    states: tuple[str, ...] = ()

    @property
    def main(self) -> Graph:
        return self.graphs["main"]

    @property
    def given(self) -> tuple[Value, ...]:
        """The parameters of main that callers pass: all except states."""
        return self.main.params[: len(self.main.params) - len(self.states)]

    @property
    def made(self) -> tuple[Value, ...]:
        """The results of main that callers get: all except new states."""
        return self.main.results[: len(self.main.results) - len(self.states)]

    @property
    def result_names(self) -> tuple[str, ...]:
        """The names of the results of main: the users', else those of the values."""
        rest = self.main.results[len(self.outputs) :]
        return (*self.outputs, *(value.name for value in rest))

    def _repr_html_(self) -> str:
        """The model as text, for notebooks."""
        return program(f"module, stage {self.stage}", str(self))


def attributes(**values: Attribute) -> Attributes:
    """Attributes in canonical form."""
    return tuple(sorted(values.items()))
