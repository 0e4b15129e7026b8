"""The meaning of a model: every operator by its NumPy reference, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.graph.build import make_call
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.op import as_arrays


def interpret(module: Module, *args: Any, graph: str = "main") -> tuple[Any, ...]:
    """Run a graph of the module on arrays (or lists for sequences, None for absent optionals)."""
    return Interpreter(module).run(module.graphs[graph], args)


class Interpreter:
    """Runs graphs; control-flow operators call back into `run` for their bodies."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(self, graph: Graph, args: Sequence[Any]) -> tuple[Any, ...]:
        if len(args) != len(graph.params):
            raise UserError(
                "TW1010", f"@{graph.name} takes {len(graph.params)} arguments, got {len(args)}"
            )
        values: dict[Value, Any] = dict(zip(graph.params, args, strict=True))
        for node in graph.nodes:
            inputs = [None if v is None else values[v] for v in node.inputs]
            values.update(zip(node.outputs, self._node(node, inputs), strict=True))
        return tuple(values[result] for result in graph.results)

    def _node(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        if node.op == "constant":
            return (self.module.constants[node["data"]],)
        if node.op == "call":
            return self.run(self.module.graphs[node["graph"]], inputs)
        op, call = make_call(
            node.op,
            node.inputs,
            dict(node.attributes),
            bodies=node.bodies,
            loc=node.loc,
            outputs=len(node.outputs),
        )
        with np.errstate(all="ignore"):
            if node.bodies:
                return as_arrays(op.reference(call, self.run, *inputs))
            return as_arrays(op.reference(call, *inputs))
