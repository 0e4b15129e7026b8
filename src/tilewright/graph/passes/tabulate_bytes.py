"""tabulate_bytes: functions of one byte as 256-entry look-up tables.

    quantize(gelu(dequantize(%q)))  =  lookup_bytes(%q, %table)

Element-wise functions between two quantized tensors map bytes to bytes, however many operators they
have. The tables are computed by the operators' references, so results are bit-exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtype import I8, U8
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.build import make_call, make_node, store_constant
from tilewright.graph.definitions import Array
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.ops.quantize import TABLE
from tilewright.graph.rates import OPERATIONS, operations_per_element
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by
from tilewright.sym import const


@dataclass(frozen=True)
class _Function:
    """A value as a function of a byte tensor: its 256 results, and the operations it saves."""

    of: Value
    results: Array
    operations: int


def tabulate_bytes(module: Module, ctx: PassContext) -> Module:
    """Before: quantize(erf(dequantize(%q))).   After: lookup_bytes(%q, %table)."""
    target = ctx.target
    if not isinstance(target, Target) or not target.has_byte_lookup:
        return module
    constants = dict(module.constants)

    def make_rule(graph: Graph) -> Rule:
        return _Tables(constants).rule

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return module if changed is module else replace(changed, constants=constants)


class _Tables:
    """The functions of bytes in one graph."""

    def __init__(self, constants: dict[str, Array]) -> None:
        self.constants = constants
        self.known: dict[Value, Array] = {}  # constants of one element
        self.functions: dict[Value, _Function] = {}

    def rule(self, node: Node) -> Instead | None:
        if node.op == "constant":
            array = self.constants[node["data"]]
            if array.size == 1:
                self.known[node.output] = array.reshape(())
            return None
        function = self._function(node)
        if function is None:
            return None
        self.functions[node.output] = function
        is_byte = node.output.tensor.dtype in (I8, U8)
        if not is_byte or function.operations <= OPERATIONS["lookup_bytes"]:
            return None
        table = store_constant(self.constants, function.results, "table", node.loc)
        nodes, x = [table], function.of
        if x.tensor.dtype is I8:
            nodes.append(make_node("bitcast", (x,), {"to": U8}, node.loc))
            x = nodes[-1].output
        made = make_node("lookup_bytes", (x, table.output), {}, node.loc)
        nodes.append(replace(made, outputs=node.outputs))
        return Instead(tuple(nodes), node.outputs)

    def _function(self, node: Node) -> _Function | None:
        """A node as a function of the one byte tensor that all its operands depend on."""
        op = OPS.get(node.op)
        if op is None or not op.is_map or not op.pure or op.foldable:
            return None
        if node.bodies or len(node.outputs) != 1 or node.op == "lookup_bytes":
            return None
        varying = [v for v in node.inputs if v is not None and v not in self.known]
        has_axis = any(attr.name == "axis" for attr in op.attributes)
        if has_axis and any(v in varying for v in node.inputs[1:]):
            return None  # a vector of scales lies along an axis, which a table does not have
        found = [each for each in map(self._operand, varying) if each is not None]
        if not found or len(found) < len(varying) or len({each.of for each in found}) > 1:
            return None
        if found[0].of.tensor.shape != node.output.tensor.shape:
            return None
        results = self._results(node)
        if results is None:
            return None
        operations = operations_per_element(node) + sum(each.operations for each in found)
        return _Function(found[0].of, results, operations)

    def _results(self, node: Node) -> Array | None:
        """The results of a node for all bytes, by its reference."""
        inputs = [None if v is None else Value(v.name, self._type(v)) for v in node.inputs]
        op, call = make_call(node.op, inputs, dict(node.attributes), loc=node.loc)
        arrays = [None if v is None else self._array(v) for v in node.inputs]
        arrays += [None] * (len(call.types) - len(arrays))
        with np.errstate(all="ignore"):
            made = np.asarray(op.reference(call, *arrays))
        return np.ascontiguousarray(made) if made.shape == (TABLE,) else None

    def _operand(self, value: Value) -> _Function | None:
        """A value as a function of bytes; a byte tensor that is none is its own argument."""
        found = self.functions.get(value)
        if found is None and isinstance(value.type, TensorType) and value.type.dtype in (I8, U8):
            every = np.arange(TABLE, dtype=np.uint8).view(value.type.dtype.numpy)
            found = self.functions[value] = _Function(value, every, 0)
        return found

    def _array(self, value: Value) -> Array:
        return self.known[value] if value in self.known else self.functions[value].results

    def _type(self, value: Value) -> TensorType:
        shape = () if value in self.known else (const(TABLE),)
        return TensorType(value.tensor.dtype, shape)
