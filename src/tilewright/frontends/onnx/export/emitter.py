"""Emit ONNX nodes: names, constants, computed sizes, functions, bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.base.dtype import DType
from tilewright.frontends.onnx.importer import type_proto
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.op import FLOAT
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, sizes_of
from tilewright.graph.visit import attribute_sizes, walk
from tilewright.sym import Const, Expr, Size, Var
from tilewright.sym import expr as sym

DOMAIN = "tilewright"
MAX_WORDS = 4  # operators in the name of a function

Array = np.ndarray[Any, Any]


class Unwritable(Exception):
    """A node has no ONNX equivalent; it is exported as an opaque node."""


@dataclass
class Shared:
    """State shared by all graphs of one model."""

    module: ir.Module
    opset: int
    rules: Mapping[str, Rule]
    composites: frozenset[str]  # operators exported as functions
    taken: set[str] = field(default_factory=set)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    known: dict[object, str] = field(default_factory=dict)  # functions by their content
    needs_domain: bool = False

    def fresh(self, hint: str) -> str:
        """A unique name of a value."""
        name, count = hint or "value", 0
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name

    def function_name(self, hint: str) -> str:
        word = "".join(c if c.isalnum() or c == "_" else "_" for c in hint)
        name, count = word, 0
        while name in self.functions:
            count += 1
            name = f"{word}_{count}"
        return name


class Emitter:
    """The nodes of one graph, function or body under construction."""

    def __init__(self, shared: Shared, outer: Emitter | None = None, *, inside: bool = False):
        """`outer` is the enclosing graph; `inside` means a function: no initializers."""
        self.shared = shared
        self.outer = outer
        self.inside = inside
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: dict[Value, str] = {}
        self.homes: dict[Var, tuple[str, int]] = {}  # sizes: value and dimension
        self.sizes: dict[Expr, str] = {}  # expressions that have been computed
        self.constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    # ------------------------------------------------------------------ values

    def name(self, value: Value) -> str:
        """The name of a value in scope."""
        at: Emitter | None = self
        while at is not None:
            if value in at.values:
                return at.values[value]
            at = at.outer
        raise Unwritable(f"%{value.name} is not in sight")

    def define(self, value: Value, name: str) -> None:
        self.values[value] = name
        of = value.type
        if isinstance(of, TensorType):
            for axis, dim in enumerate(of.shape or ()):
                if isinstance(dim, Size) and self._home(dim) is None:
                    self.homes[dim] = (name, axis)

    def _home(self, variable: Var) -> tuple[str, int] | None:
        at: Emitter | None = self
        while at is not None:
            if variable in at.homes:
                return at.homes[variable]
            at = at.outer
        return None

    def inputs(self, node: Node) -> list[str]:
        """The names of a node's inputs, empty for absent ones."""
        return ["" if value is None else self.name(value) for value in node.inputs]

    # ------------------------------------------------------------------ nodes

    def emit(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **more: Any) -> Any:
        """Emit a node; returns the name of its output, or names if there are several."""
        names = [self.shared.fresh(op.lower()) for _ in range(outputs)]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        attributes = {key: value for key, value in more.items() if value is not None}
        self.nodes.append(helper.make_node(op, given, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, of: DType | None = None) -> str:
        made = np.asarray(array) if of is None else np.asarray(array).astype(of.numpy)
        key = (made.dtype.str + made.dtype.name, made.tobytes(), made.shape)
        at: Emitter | None = self
        while at is not None and made.dtype.kind != "O":
            if key in at.constants:
                return at.constants[key]
            at = at.outer
        return self.stored(made, "c", key)

    def stored(
        self, array: Array, hint: str, key: tuple[str, bytes, tuple[int, ...]] | None = None
    ) -> str:
        """An initializer, or a constant node in functions, with an array."""
        name = self.shared.fresh(hint)
        tensor = tensor_of(array, name)
        if self.inside:
            tensor.name = ""
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        if key is not None:
            self.constants[key] = name
        return name

    def cast(self, x: str, to: DType, **more: Any) -> str:
        made: str = self.emit("Cast", x, to=code_of(to), **more)
        return made

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float, of: DType) -> str:
        return self.constant(np.asarray(number).astype(of.numpy))

    # ------------------------------------------------------------------ attributes and sizes

    def operand(self, node: Node, at: int) -> str:
        """Input `at`, which may be an attribute instead; empty if absent."""
        value = node.inputs[at] if at < len(node.inputs) else None
        if value is not None:
            return self.name(value)
        spec = OPS[node.op].inputs[at]
        items = node.get(spec.name)
        if items is None or not spec.folds:
            return ""
        if spec.kind == FLOAT:
            return self.constant(np.array(items, np.float32))
        return self.items(items)

    def items(self, items: Any) -> str:
        """A number or a list of numbers and expressions of sizes, as i64."""
        if not isinstance(items, tuple):
            return self.size(items)
        if not any(isinstance(item, Expr) and not isinstance(item, Const) for item in items):
            return self.ints(*(_number(item) for item in items))
        parts = [self.emit("Reshape", self.size(item), self.ints(1)) for item in items]
        made: str = self.emit("Concat", *parts, axis=0)
        return made

    def size(self, item: int | Expr) -> str:
        """Compute an expression of sizes as an i64 scalar."""
        if isinstance(item, (int, Const)):
            return self.constant(np.array(_number(item), np.int64))
        at: Emitter | None = self
        while at is not None:
            if item in at.sizes:
                return at.sizes[item]
            at = at.outer
        self.sizes[item] = made = self._computed(item)
        return made

    def _computed(self, expr: Expr) -> str:
        if isinstance(expr, Var):
            home = self._home(expr)
            if home is None:
                raise Unwritable(f"the size {expr} is undetermined")
            axis = self.constant(np.array(home[1], np.int64))
            return str(self.emit("Gather", self.emit("Shape", home[0]), axis))
        if isinstance(expr, sym.Not):
            return str(self.emit("Not", self.size(expr.a)))
        if isinstance(expr, sym.Select):
            parts = (self.size(expr.cond), self.size(expr.a), self.size(expr.b))
            return str(self.emit("Where", *parts))
        if not isinstance(expr, sym.Binary):
            raise Unwritable(f"sizes are computed by {type(expr).__name__}")
        a, b = self.size(expr.a), self.size(expr.b)
        if isinstance(expr, sym.FloorDiv):  # ONNX's Div truncates, its Mod does not
            return str(self.emit("Div", self.emit("Sub", a, self.emit("Mod", a, b)), b))
        if isinstance(expr, sym.Ne):
            return str(self.emit("Not", self.emit("Equal", a, b)))
        if type(expr) not in _BINARY:
            raise Unwritable(f"sizes are computed by {type(expr).__name__}")
        return str(self.emit(_BINARY[type(expr)], a, b))

    # ------------------------------------------------------------------ graphs

    def translate(self, graph: Graph) -> None:
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        """Export a node: by its rule, as a function, or as an opaque node."""
        if node.op == "constant":
            array = self.shared.module.constants[node["data"]]
            self.define(node.output, self.stored(array, node.output.name))
            return
        rule = self.shared.rules.get(node.op)
        count = len(self.nodes)
        try:
            if rule is None:
                raise Unwritable(f"{node.op} has no ONNX")
            if node.op in self.shared.composites:
                made: Sequence[str] = self.call(node, rule)
            else:
                made = _listed(rule(self, node))
        except Unwritable:
            del self.nodes[count:]
            self._forget()
            made = self._opaque(node)
        for value, name in zip(node.outputs, made, strict=False):
            self.define(value, name)
        self._label(node, count)

    def _forget(self) -> None:
        """Drop the cached names of removed nodes."""
        written = {name for node in self.nodes for name in node.output}
        held = {tensor.name for tensor in self.initializers}
        self.sizes = {e: n for e, n in self.sizes.items() if n in written or n in held}
        self.constants = {k: n for k, n in self.constants.items() if n in written or n in held}

    def _label(self, node: Node, start: int) -> None:
        """Name nodes after their origin in the model."""
        label = node.outputs[0].name if node.outputs else node.op
        for made in self.nodes[start:]:
            made.name = self.shared.fresh(f"{label}/{made.op_type}")

    def _opaque(self, node: Node) -> list[str]:
        self.shared.needs_domain = True
        told = {key: str(value) for key, value in node.attributes}
        made = self.emit(
            node.op, *self.inputs(node), outputs=len(node.outputs), domain=DOMAIN, **told
        )
        return _listed(made)

    # ------------------------------------------------------------------ functions

    def call(self, node: Node, rule: Rule) -> list[str]:
        """Call a node's function; equal nodes share one."""
        given = [value for value in node.inputs if value is not None]
        told = tuple(value.type for value in node.inputs if value is not None)
        places = tuple(value is not None for value in node.inputs)
        sizes = _needed_sizes(node, given)
        key = (node.op, told, places, node.attributes, node.bodies, len(node.outputs))
        if key not in self.shared.known:
            self.shared.known[key] = self._function(node, rule, given, sizes)
        extra = [self.size(each) for each in sizes]
        names = [self.name(value) for value in given]
        self.shared.needs_domain = True
        made = self.emit(
            self.shared.known[key], *names, *extra, outputs=len(node.outputs), domain=DOMAIN
        )
        return _listed(made)

    def _function(
        self, node: Node, rule: Rule, given: Sequence[Value], sizes: Sequence[Var]
    ) -> str:
        inner = Emitter(self.shared, inside=True)
        params = []
        for value in dict.fromkeys(given):
            params.append(self.shared.fresh(value.name))
            inner.define(value, params[-1])
        repeated = [inner.values[value] for value in given]
        inputs = [
            name if repeated.index(name) == at else self.shared.fresh(name)
            for at, name in enumerate(repeated)
        ]
        for each in sizes:
            inputs.append(self.shared.fresh(each.name))
            inner.sizes[each] = inputs[-1]
        results = _listed(rule(inner, node))
        outputs = []
        for result in results[: len(node.outputs)]:
            outputs.append(result)
            if result in inputs or result in outputs[:-1]:
                outputs[-1] = inner.emit("Identity", result)
        name = self.shared.function_name(_hint(node))
        self.shared.functions[name] = helper.make_function(
            DOMAIN,
            name,
            inputs,
            outputs,
            inner.nodes,
            [helper.make_opsetid("", self.shared.opset), helper.make_opsetid(DOMAIN, 1)],
        )
        return name

    def body(
        self,
        graph: Graph,
        params: Sequence[tuple[Value, str | None]],
        name: str,
        lead: int = 0,
    ) -> onnx.GraphProto:
        """A body: named parameters are captured values, others its inputs.

        The first `lead` results are scalars.
        """
        inner = Emitter(self.shared, self, inside=self.inside)
        inputs = []
        for param, outside in params:
            if outside is not None:
                inner.define(param, outside)
                continue
            inputs.append(value_info(self.shared.fresh(param.name), param, named=False))
            inner.define(param, inputs[-1].name)
        inner.translate(graph)
        outputs = []
        for at, result in enumerate(graph.results):
            made = inner.emit("Identity", inner.name(result))
            if at < lead:
                made = inner.emit("Reshape", made, inner.constant(np.zeros(0, np.int64)))
            outputs.append(value_info(made, result, named=False, scalar=at < lead))
        return helper.make_graph(inner.nodes, name, inputs, outputs, inner.initializers)


Rule = Callable[[Emitter, Node], str | Sequence[str]]

_BINARY: dict[type, str] = {
    sym.Add: "Add",
    sym.Sub: "Sub",
    sym.Mul: "Mul",
    sym.FloorMod: "Mod",
    sym.Min: "Min",
    sym.Max: "Max",
    sym.Eq: "Equal",
    sym.Lt: "Less",
    sym.Le: "LessOrEqual",
    sym.And: "And",
    sym.Or: "Or",
}


def _listed(made: str | Sequence[str]) -> list[str]:
    return [made] if isinstance(made, str) else list(made)


def _number(item: Any) -> int:
    return int(item.value) if isinstance(item, Const) else int(item)


def _hint(node: Node) -> str:
    """The name of a function: the operator, or those fused to a kernel."""
    if node.op != "fused":
        return str(node.get("label") or node.op)
    inside = [inner.op for inner in node.bodies[0].nodes if inner.op != "constant"]
    return "_".join(inside[:MAX_WORDS]) or node.op


def _needed_sizes(node: Node, given: Iterable[Value]) -> list[Var]:
    """The sizes that a function needs as inputs: used, and no dimension of its inputs."""
    told = {
        dim
        for value in given
        if isinstance(value.type, TensorType)
        for dim in value.type.shape or ()
        if isinstance(dim, Size)
    }
    found = dict(attribute_sizes(node))
    defined: set[Var] = set()
    for body in node.bodies:
        for inner in walk(body):
            found.update(attribute_sizes(inner))
            read = {s for v in inner.inputs if v is not None for s in sizes_of(v.type)}
            made = {s for v in inner.outputs for s in sizes_of(v.type)}
            defined |= made - read - set(attribute_sizes(inner))
    for value in given:
        found.update(sizes_of(value.type))
    return [variable for variable in found if variable not in told and variable not in defined]


def code_of(of: DType) -> int:
    """ONNX's number of an element type."""
    if of.is_str:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(of.numpy)))


def tensor_of(array: Array, name: str) -> onnx.TensorProto:
    if array.dtype.kind in "OUS":
        text = [str(item).encode() for item in array.ravel()]
        made = onnx.TensorProto(name=name, data_type=onnx.TensorProto.STRING, dims=array.shape)
        made.string_data.extend(text)
        return made
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def value_info(
    name: str, value: Value, *, named: bool = True, scalar: bool = False
) -> onnx.ValueInfoProto:
    """The declaration of a value; sizes keep their names where these are unambiguous."""
    of = value.type
    if not isinstance(of, TensorType):
        return helper.make_value_info(name, type_proto(of))
    code = code_of(of.dtype)
    if of.shape is None:
        return helper.make_tensor_value_info(name, code, None)
    dims: list[int | str | None] = [
        int(dim.value) if isinstance(dim, Const) else (str(dim) if named else None)
        for dim in of.shape
    ]
    return helper.make_tensor_value_info(name, code, [] if scalar else dims)
