"""Definitions of values: the nodes that define a node's inputs, and constants among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.graph.ir import Node, Value

Array = np.ndarray[Any, Any]

COMMUTATIVE = {"add", "mul", "minimum", "maximum", "equal", "not_equal"}
COMMUTATIVE |= {"logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor"}


@dataclass
class Definitions:
    """Nodes that a rewrite has passed, by the values they define."""

    constants: Mapping[str, Array]
    defined: dict[Value, Node] = field(default_factory=dict, kw_only=True)

    def define(self, node: Node) -> None:
        """Add the outputs of a node."""
        for value in node.outputs:
            self.defined[value] = node

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """The node that defines a value, if it is one of these operators."""
        node = None if value is None else self.defined.get(value)
        return node if node is not None and (not ops or node.op in ops) else None

    def constant(self, value: Value | None) -> Array | None:
        """The contents of a constant; None for other values."""
        node = self.producer(value, "constant")
        return None if node is None else self.constants[node["data"]]

    def number(self, value: Value | None) -> float | None:
        """The number that all elements of a small constant are equal to, if any."""
        array = self.constant(value)
        if array is None or not 0 < array.size <= 1024 or array.dtype == object:
            return None
        numbers = array.astype(np.float64) if array.dtype.kind not in "iub" else array
        first = numbers.ravel()[0]
        return first.item() if bool((numbers == first).all()) else None
