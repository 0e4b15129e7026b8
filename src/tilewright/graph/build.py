"""Graph builder: infers types, and tracks known contents.

b = Builder()
x = b.param("x", TensorType(F32, (n, 4)))
y = b.add("relu", x)
module = b.module(y)
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import from_numpy
from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.graph import ir
from tilewright.graph.contents import Contents, fold_inputs
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.op import Call, Known, Op, accepts, attribute_input, check_countable
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, Type, tensor_of
from tilewright.sym import Const, const

Array = np.ndarray[Any, Any]


def operator(name: str, loc: Loc = UNKNOWN) -> Op:
    """The declaration of an operator."""
    found = OPS.get(name)
    if found is None:
        raise Unsupported("TW1005", f"there is no operator {name!r}", loc)
    return found


def is_numeric(node: Node) -> bool:
    """Whether a node is purely numeric: text and maps have no native code."""
    op = OPS.get(node.op)
    if op is not None and not op.native:
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    inner = [tensor_of(value.type) for value in values]
    return all(of is not None and not of.dtype.is_str for of in inner)


def make_call(
    name: str,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Attribute],
    known: Sequence[Known | None] = (),
    data: Sequence[Array | None] = (),
    bodies: tuple[Graph, ...] = (),
    loc: Loc = UNKNOWN,
    outputs: int = 1,
) -> tuple[Op, Call]:
    """An operator and a call of it, checked against the declaration."""
    op = operator(name, loc)
    folded = {key: at for key, at in op.foldable.items() if key in attributes}
    _check_inputs(op, inputs, folded, loc)
    count = max(len(inputs), len(op.inputs) - op.variadic)
    types: list[Type | None] = [None if value is None else value.type for value in inputs]
    contents, numbers = list(known), list(data)
    for column in (types, contents, numbers):
        column.extend([None] * (count - len(column)))
    for key, at in folded.items():
        types[at], contents[at], numbers[at] = attribute_input(attributes[key])  # type: ignore[arg-type]
    filled = op.fill({k: v for k, v in attributes.items() if k not in folded}, loc)
    return op, Call(
        name, tuple(types), filled, tuple(contents), bodies, loc, outputs, tuple(numbers)
    )


def _check_inputs(
    op: Op, inputs: Sequence[Value | None], folded: Mapping[str, int], loc: Loc
) -> None:
    declared = list(op.inputs)
    if op.variadic:
        declared += [op.inputs[-1]] * (len(inputs) - len(op.inputs))
    if len(inputs) > len(declared):
        raise UserError("TW1006", f"{op.name} takes {len(declared)} inputs, got {len(inputs)}", loc)
    for at, spec in enumerate(declared):
        value = inputs[at] if at < len(inputs) else None
        if spec.name in folded:
            if value is not None:
                raise UserError("TW1006", f"{spec.name!r} of {op.name} is given twice", loc)
            continue
        if value is None:
            if not spec.optional and not spec.variadic:
                raise UserError("TW1006", f"{op.name} needs the input {spec.name!r}", loc)
            continue
        of = value.type
        if isinstance(of, TensorType) and not accepts(spec.kind, of.dtype):
            raise UserTypeError(
                "TW1007", f"input {spec.name!r} of {op.name} does not take {of.dtype}", loc
            )


def make_node(
    name: str,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Attribute],
    loc: Loc = UNKNOWN,
    *,
    hints: Sequence[str] = ("",),
    contents: Contents | None = None,
    types: Sequence[Type] | None = None,
    bodies: tuple[Graph, ...] = (),
) -> Node:
    """Make a node with outputs of the given or inferred types; `hints` name them."""
    if types is None:
        contents = Contents() if contents is None else contents
        known = contents.of(inputs)
        op, call = make_call(name, inputs, attributes, *known, bodies, loc, len(hints))
        types = op.gives(call)
    outputs = tuple(Value(hint or name, of) for hint, of in zip(hints, types, strict=True))
    return Node(name, tuple(inputs), outputs, ir.attributes(**attributes), bodies, loc)


def constant_type(array: np.ndarray[Any, Any]) -> TensorType:
    return TensorType(from_numpy(array.dtype), tuple(const(dim) for dim in array.shape))


def fresh_name(hint: str, taken: Container[str]) -> str:
    """A unique name: the hint, with a number if necessary."""
    name, count = hint, 0
    while name in taken:
        count += 1
        name = f"{hint}_{count}"
    return name


def store_constant(
    constants: dict[str, Array], array: Array, hint: str, loc: Loc = UNKNOWN
) -> Node:
    """Make a node of a new constant."""
    name = fresh_name(hint, constants)
    constants[name] = array
    value = Value(hint, constant_type(array))
    return Node("constant", (), (value,), ir.attributes(data=name), (), loc)


class Builder:
    """Collects the nodes of one graph, inferring types and tracking integer contents.

    Examples:
        >>> from tilewright import graph
        >>> from tilewright.base.dtype import F32
        >>> from tilewright.sym import const
        >>> build = graph.Builder()
        >>> x = build.param("x", graph.TensorType(F32, (const(2),)))
        >>> y = build.add("relu", x)
        >>> print(build.module(y), end="")
        module stage imported {
          graph @main(%x: f32[2]) -> (f32[2]) {
            %relu: f32[2] = relu(%x)
            return %relu
          }
        }
    """

    def __init__(
        self, constants: dict[str, Array] | None = None, outer: Builder | None = None
    ) -> None:
        """With `outer`, the builder is for a body in that graph."""
        if outer is None:
            self.constants = {} if constants is None else constants
            self.contents = Contents()
            self.stored: dict[Value, str] = {}  # names of constants
        else:
            self.constants, self.contents = outer.constants, outer.contents
            self.stored = outer.stored
        self.params: list[Value] = []
        self.nodes: list[Node] = []
        self.known, self.data = self.contents.known, self.contents.data

    def param(self, name: str, of: Type) -> Value:
        check_countable(of)
        value = Value(name, of)
        self.params.append(value)
        return value

    def constant(self, array: Any, name: str = "c", loc: Loc = UNKNOWN) -> Value:
        """Add a constant; equal names are made unique by a number."""
        array = np.asarray(array)
        key = fresh_name(name, self.constants)
        self.constants[key] = array
        return self.stored_constant(key, name, loc)

    def stored_constant(self, key: str, name: str = "c", loc: Loc = UNKNOWN) -> Value:
        """Add a node of an existing constant."""
        array = self.constants[key]
        value = Value(name, constant_type(array))
        self.nodes.append(Node("constant", (), (value,), ir.attributes(data=key), (), loc))
        self.contents.learn(value, array)
        self.stored[value] = key
        return value

    def can_restate(self, value: Value) -> bool:
        """Whether `restate` can recompute a value."""
        if value in self.stored:
            return True
        return value in self.known and value.tensor.rank in (0, 1)

    def restate(self, value: Value) -> Value:
        """Recompute in a body a value of an outer graph whose contents are known."""
        if value in self.stored:
            return self.stored_constant(self.stored[value], value.name)
        items = tuple(int(x.value) if isinstance(x, Const) else x for x in self.known[value])
        values = items if value.tensor.rank == 1 else items[0]
        return self.add("dims", values=values, to=value.tensor.dtype, name=value.name)

    def call(self, graph: str, inputs: Sequence[Value], types: Sequence[Type]) -> list[Value]:
        """Call another graph of the module; its results, of the given types."""
        values = tuple(Value(graph, of) for of in types)
        self.nodes.append(Node("call", tuple(inputs), values, ir.attributes(graph=graph)))
        return list(values)

    def add(
        self,
        op: str,
        *inputs: Value | None,
        name: str = "",
        bodies: tuple[Graph, ...] = (),
        loc: Loc = UNKNOWN,
        **attributes: Attribute,
    ) -> Value:
        """Add a node with one output."""
        (value,) = self.add_many(
            op, *inputs, outputs=1, name=name, bodies=bodies, loc=loc, **attributes
        )
        return value

    def add_many(
        self,
        op: str,
        *inputs: Value | None,
        outputs: int,
        name: str = "",
        bodies: tuple[Graph, ...] = (),
        loc: Loc = UNKNOWN,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Add a node with several outputs."""
        inputs, given = fold_inputs(operator(op, loc), inputs, attributes, self.contents)
        known, data = self.contents.of(inputs)
        spec, call = make_call(op, inputs, given, known, data, bodies, loc, outputs)
        types = spec.gives(call)
        values = tuple(
            Value(name or (op if outputs == 1 else f"{op}_{at}"), of) for at, of in enumerate(types)
        )
        self.nodes.append(Node(op, inputs, values, ir.attributes(**given), bodies, loc))
        self.contents.follow(spec, call, values)
        return values

    def graph(self, *results: Value, name: str = "main") -> Graph:
        return Graph(name, tuple(self.params), tuple(self.nodes), tuple(results))

    def module(self, *results: Value) -> Module:
        return Module({"main": self.graph(*results)}, self.constants)
