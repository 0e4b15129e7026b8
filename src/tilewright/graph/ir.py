"""The model IR: functional, typed, in single-assignment form.

A graph computes results from parameters by nodes in order. A node applies an operator, declared
once in `ops/`, to values; attributes are data. Control flow is a node with bodies: graphs of their
own that receive everything they use as parameters, so a body can be read, run and moved alone.
A module holds graphs that may call each other, the tensor functions a half-lowered model calls,
and the constants (weights), so that a model at any point is one printable program. A model may have
states: its last parameters, which its last results replace, so that a run finds what the run
before it left.

Values, nodes and graphs carry identity; nothing is edited in place.
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

# Attributes hold data only; a tuple may nest.
Attribute = int | float | str | bool | DType | Expr | Type | tuple["Attribute", ...] | None
Attributes = tuple[tuple[str, Attribute], ...]  # sorted by name


@node
class Value:
    """What a node or a parameter defines. Known by identity; the name is a hint.

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
        """The type, where only a tensor makes sense."""
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
        """The attribute `name`."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute `name`, or a default."""
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
    """A whole model. `graphs["main"]` is the entry; constants are shared, never copied.

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
    outputs: tuple[str, ...] = ()  # what users call the results of main, if they have names
    # Constants that states begin with. The last parameters of main are its states, in this order,
    # and its last results what a run leaves in their places.
    states: tuple[str, ...] = ()

    @property
    def main(self) -> Graph:
        return self.graphs["main"]

    @property
    def given(self) -> tuple[Value, ...]:
        """The parameters of main that callers give: all but states."""
        return self.main.params[: len(self.main.params) - len(self.states)]

    @property
    def made(self) -> tuple[Value, ...]:
        """The results of main that callers get: all but what replaces states."""
        return self.main.results[: len(self.main.results) - len(self.states)]

    @property
    def result_names(self) -> tuple[str, ...]:
        """What the results of main are called; those without a name of the users' by their own."""
        rest = self.main.results[len(self.outputs) :]
        return (*self.outputs, *(value.name for value in rest))

    def _repr_html_(self) -> str:
        """The model as text, in notebooks."""
        return program(f"module, stage {self.stage}", str(self))


def attributes(**values: Attribute) -> Attributes:
    """Attributes in canonical order."""
    return tuple(sorted(values.items()))
