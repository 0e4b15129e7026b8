"""Building graphs: nodes with inferred types, and what is known of contents.

b = Builder()
x = b.param("x", TensorType(F32, (n, 4)))
y = b.add("relu", x)
module = b.module(y)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import INDEX, from_numpy
from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.graph import ir
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.op import Call, Known, Op, accepts, as_arrays
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, const

KNOWN_ELEMENTS = 1024  # contents are followed for tensors of at most this size

Array = np.ndarray[Any, Any]

Constants = Mapping[str, np.ndarray[Any, Any]]


def operator(name: str, loc: Loc = UNKNOWN) -> Op:
    """The declaration of an operator."""
    found = OPS.get(name)
    if found is None:
        raise Unsupported("TW1005", f"there is no operator {name!r}", loc)
    return found


def make_call(
    name: str,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Attribute],
    known: Sequence[Known | None] = (),
    bodies: tuple[Graph, ...] = (),
    loc: Loc = UNKNOWN,
    outputs: int = 1,
    data: Sequence[Array | None] = (),
) -> tuple[Op, Call]:
    """An operator with its call, checked against the declaration."""
    op = operator(name, loc)
    _check_inputs(op, inputs, loc)
    types = tuple(None if value is None else value.type for value in inputs)
    filled = op.fill(attributes, loc)
    return op, Call(name, types, filled, tuple(known), bodies, loc, outputs, tuple(data))


def _check_inputs(op: Op, inputs: Sequence[Value | None], loc: Loc) -> None:
    declared = list(op.inputs)
    if op.variadic:
        declared += [op.inputs[-1]] * (len(inputs) - len(op.inputs))
    if len(inputs) > len(declared):
        raise UserError("TW1006", f"{op.name} takes {len(declared)} inputs, got {len(inputs)}", loc)
    for at, spec in enumerate(declared):
        value = inputs[at] if at < len(inputs) else None
        if value is None:
            if not spec.optional and not spec.variadic:
                raise UserError("TW1006", f"{op.name} needs the input {spec.name!r}", loc)
            continue
        of = value.type
        if isinstance(of, TensorType) and not accepts(spec.kind, of.dtype):
            raise UserTypeError(
                "TW1007", f"input {spec.name!r} of {op.name} does not take {of.dtype}", loc
            )


def infer_node(
    name: str,
    inputs: tuple[Value | None, ...],
    attributes: Mapping[str, Attribute],
    constants: Constants,
    known: Sequence[Known | None] = (),
    bodies: tuple[Graph, ...] = (),
    loc: Loc = UNKNOWN,
    outputs: int = 1,
) -> list[Type]:
    """The output types of a node."""
    if name == "constant":
        array = constants[str(attributes["data"])]
        return [constant_type(array)]
    op, call = make_call(name, inputs, attributes, known, bodies, loc, outputs)
    return list(op.infer(call))


def numbers_of(contents: Known) -> list[int] | None:
    """Known contents as numbers, if all are."""
    numbers = [int(x.value) for x in contents if isinstance(x, Const)]
    return numbers if len(numbers) == len(contents) else None


def _is_small(of: Type) -> bool:
    shape = of.static_shape if isinstance(of, TensorType) else None
    return shape is not None and math.prod(shape) <= KNOWN_ELEMENTS


def constant_type(array: np.ndarray[Any, Any]) -> TensorType:
    return TensorType(from_numpy(array.dtype), tuple(const(dim) for dim in array.shape))


class Builder:
    """Collects nodes of one graph, inferring types and following integer contents."""

    def __init__(self, constants: dict[str, np.ndarray[Any, Any]] | None = None) -> None:
        self.constants = {} if constants is None else constants
        self.params: list[Value] = []
        self.nodes: list[Node] = []
        self.known: dict[Value, Known] = {}  # integers, as expressions of sizes
        self.data: dict[Value, Array] = {}  # numbers of any type: constants, what follows from them

    def param(self, name: str, of: Type) -> Value:
        value = Value(name, of)
        self.params.append(value)
        return value

    def constant(self, array: Any, name: str = "c", loc: Loc = UNKNOWN) -> Value:
        """A constant; equal names get a number."""
        array = np.asarray(array)
        key, count = name, 0
        while key in self.constants:
            count += 1
            key = f"{name}_{count}"
        self.constants[key] = array
        value = Value(name, constant_type(array))
        self.nodes.append(Node("constant", (), (value,), ir.attributes(data=key), (), loc))
        self._learn(value, array)
        return value

    def _learn(self, value: Value, array: Array) -> None:
        """Remember the contents of a small tensor."""
        if array.size > KNOWN_ELEMENTS or array.dtype == object:
            return
        self.data[value] = array
        if array.dtype.kind in "iub":
            self.known[value] = tuple(const(int(x), INDEX) for x in array.ravel().tolist())

    def add(
        self,
        op: str,
        *inputs: Value | None,
        name: str = "",
        bodies: tuple[Graph, ...] = (),
        loc: Loc = UNKNOWN,
        **attributes: Attribute,
    ) -> Value:
        """A node with one output."""
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
        """A node with several outputs."""
        known = tuple(None if v is None else self.known.get(v) for v in inputs)
        data = tuple(None if v is None else self.data.get(v) for v in inputs)
        spec, call = make_call(op, inputs, attributes, known, bodies, loc, outputs, data)
        types = list(spec.infer(call))
        values = tuple(
            Value(name or (op if outputs == 1 else f"{op}_{at}"), of) for at, of in enumerate(types)
        )
        given = ir.attributes(**attributes)
        self.nodes.append(Node(op, tuple(inputs), values, given, bodies, loc))
        self._follow(spec, call, inputs, values)
        return values

    def _follow(
        self, op: Op, call: Call, inputs: Sequence[Value | None], values: tuple[Value, ...]
    ) -> None:
        """Learn the contents of a node's outputs, where its inputs' contents tell them."""
        contents = None if op.evaluate is None else op.evaluate(call)
        if contents is not None:
            numbers = numbers_of(contents)
            of = values[0].tensor
            if numbers is None or of.static_shape is None:
                self.known[values[0]] = contents
            else:
                array = np.array(numbers, np.int64).astype(of.dtype.numpy)
                self._learn(values[0], array.reshape(of.static_shape))
            return
        given = [value for value in inputs if value is not None]
        if not given or call.bodies or not all(value in self.data for value in given):
            return
        if not all(_is_small(value.type) for value in values):
            return
        try:
            with np.errstate(all="ignore"):
                made = as_arrays(op.reference(call, *call.data))
        except (ArithmeticError, LookupError, ValueError):
            return  # a fault in the data is found when the model runs
        for value, array in zip(values, made, strict=True):
            if isinstance(array, np.ndarray):
                self._learn(value, array)

    def graph(self, *results: Value, name: str = "main") -> Graph:
        return Graph(name, tuple(self.params), tuple(self.nodes), tuple(results))

    def module(self, *results: Value) -> Module:
        return Module({"main": self.graph(*results)}, self.constants)
