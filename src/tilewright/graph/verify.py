"""The verifier: `verify(module)` raises when a model breaks an invariant.

 1. A module is of a known stage; its graphs have the names they are listed by.      TW1401
 2. A value is defined once, as a parameter or an output, in one graph.              TW1402
 3. A value is used after its definition, in the graph that defines it: bodies capture values by
    parameters.                                                                      TW1403
 4. An operator is declared; its node has the declared inputs, bodies and outputs.   TW1404
 5. Attributes are declared, of the declared kind, sorted by name, and data.         TW1405
 6. Types of outputs agree with those that the operator's type rule infers from the inputs and
    their known contents.                                                            TW1406
 7. Types of a body's parameters cover those of the node's inputs.                   TW1407
 8. A call names a graph of the module, and matches its parameters and results.      TW1408
 9. A constant is stored in the module, with the type of its node. So is the initial value of each
    state; the parameter and the result of a state have that type too.               TW1409
10. A size is a dimension on its own of an earlier value (or of this one) before an expression
    uses it; the sizes of enclosing graphs are in scope in bodies.                   TW1410

Types agree if no dimension contradicts: numbers are equal, and expressions of the parameters' sizes
are provably equal. A size defined by a node may have any value.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from tilewright import sym
from tilewright.base.dtype import STR, DType
from tilewright.base.errors import CompilerBug, Excerpt, TilewrightError
from tilewright.graph import ir
from tilewright.graph.build import constant_type, make_call
from tilewright.graph.contents import Contents
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.printer import Printer
from tilewright.graph.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    sizes_of,
    tensor_of,
)
from tilewright.graph.visit import SCALAR_BODIES, first_capture
from tilewright.sym import Const, Expr, Size, Var, free_vars

# Number of bodies of an operator, None: one or more; other operators have none.
BODIES = {"if": 2, "switch": None, "loop": 1, "scan": 1, "fused": 1}
BODIES |= dict.fromkeys(SCALAR_BODIES, 1)


class VerifyError(CompilerBug):
    """A model violates an invariant."""


def verify(module: Module) -> None:
    """Check all invariants."""
    _Verifier(module).run()


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.defined: set[Value] = set()
        self.graph: Graph | None = None

    def fail(self, code: str, message: str, node: Node | None = None) -> NoReturn:
        excerpt, spans = None, self.printer.out.spans
        if node is not None and node in spans:
            excerpt = Excerpt(tuple(self.printer.out.lines), *spans[node])
        name = "" if self.graph is None else f"@{self.graph.name}, "
        raise VerifyError(
            code,
            message,
            ir.UNKNOWN if node is None else node.loc,
            context=f"{name}stage {self.module.stage}",
            excerpt=excerpt,
        )

    @cached_property
    def printer(self) -> Printer:
        """The model's text for error messages."""
        printer = Printer(_PartialConstants(self.module.constants))
        printer.module(self.module)
        return printer

    def run(self) -> None:
        module = self.module
        if module.stage not in ir.STAGES:
            self.fail("TW1401", f"a module of stage {module.stage!r}")
        for name, graph in module.graphs.items():
            if graph.name != name:
                self.fail("TW1401", f"graph @{graph.name} is known as @{name}")
            self.graph = graph
            self.check_graph(graph, {})
        self.check_states()

    def check_graph(self, graph: Graph, outer: dict[Var, None]) -> None:
        """Verify a graph in the scope of the sizes of `outer`."""
        scope: set[Value] = set()
        given = dict(outer)
        for param in graph.params:
            self.define(param, scope, None)
            given.update(_bare_sizes(param.type))
        for param in graph.params:
            self.check_sizes(sizes_of(param.type), given, f"%{param.name}", None)
        sizes = dict(given)
        contents = Contents()
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None and value not in scope:
                    self.fail("TW1403", f"{node.op} uses %{value.name}, not defined here", node)
            self.check_attributes(node, sizes)
            self.check_bodies(node, sizes)
            self.check_types(node, contents, given)
            for value in node.outputs:
                self.define(value, scope, node)
                sizes.update(_bare_sizes(value.type))
            for value in node.outputs:
                self.check_sizes(sizes_of(value.type), sizes, f"%{value.name}", node)
        for value in graph.results:
            if value not in scope:
                self.fail("TW1403", f"@{graph.name} returns %{value.name}, not defined here")

    def define(self, value: Value, scope: set[Value], node: Node | None) -> None:
        if value in self.defined:
            self.fail("TW1402", f"%{value.name} is defined twice", node)
        self.defined.add(value)
        scope.add(value)

    def check_sizes(
        self, used: Iterable[Var], sizes: dict[Var, None], what: str, node: Node | None
    ) -> None:
        for variable in used:
            if variable not in sizes:
                self.fail("TW1410", f"{what} mentions {variable.name}, which nothing defines", node)

    def check_attributes(self, node: Node, sizes: dict[Var, None]) -> None:
        names = [name for name, _ in node.attributes]
        if names != sorted(set(names)):
            self.fail("TW1405", f"the attributes of {node.op} are not in order", node)
        for name, value in node.attributes:
            for item in _leaves(value):
                if isinstance(item, Expr):
                    self.check_sizes(free_vars(item), sizes, f"attribute {name}", node)
                elif not _is_data(item):
                    self.fail("TW1405", f"attribute {name} of {node.op} is not data", node)

    def check_bodies(self, node: Node, sizes: dict[Var, None]) -> None:
        want, have = BODIES.get(node.op, 0), len(node.bodies)
        if have != want and (want is not None or not have):
            self.fail("TW1404", f"{node.op} with {len(node.bodies)} bodies", node)
        for body in node.bodies:
            self.check_graph(body, sizes)

    def check_types(self, node: Node, contents: Contents, given: dict[Var, None]) -> None:
        if node.op == "constant":
            self.check_constant(node)
            contents.learn(node.output, self.module.constants[node["data"]])
            return
        if node.op == "call":
            self.check_call(node)
            return
        if node.op not in OPS:
            self.fail("TW1404", f"there is no operator {node.op}", node)
        try:
            op, call = make_call(
                node.op,
                node.inputs,
                dict(node.attributes),
                *contents.of(node.inputs),
                bodies=node.bodies,
                loc=node.loc,
                outputs=len(node.outputs),
            )
        except TilewrightError as error:
            code = "TW1405" if error.code in ("TW1001", "TW1002", "TW1008") else "TW1404"
            self.fail(code, error.message, node)
        try:
            types = op.gives(call)
        except TilewrightError as error:
            self.fail("TW1406", error.message, node)
        if len(types) != len(node.outputs):
            self.fail("TW1404", f"{node.op} gives {len(types)} values", node)
        for value, of in zip(node.outputs, types, strict=True):
            if not agree(value.type, of, given):
                self.fail("TW1406", f"%{value.name} is {value.type}, {node.op} gives {of}", node)
        self.check_body_params(node, given)
        contents.follow(op, call, node.outputs)

    def check_body_params(self, node: Node, given: dict[Var, None]) -> None:
        """Check parameters for loop-invariant inputs, or for all inputs of an if."""
        if not node.bodies:
            return
        values = node.inputs[first_capture(node) :]
        for body in node.bodies:
            params = body.params[len(body.params) - len(values) :]
            for param, value in zip(params, values, strict=True):
                if value is None or not agree(param.type, value.type, given):
                    have = "nothing" if value is None else value.type
                    self.fail("TW1407", f"%{param.name} is {param.type}, given {have}", node)

    def check_constant(self, node: Node) -> None:
        name = node.get("data")
        array = self.module.constants.get(name) if isinstance(name, str) else None
        if array is None or len(node.outputs) != 1:
            self.fail("TW1409", f"the constant {name!r} is not stored", node)
        of, have = constant_type(array), node.output.type
        if of != have:
            self.fail("TW1409", f"%{node.output.name} is {have}, stored as {of}", node)

    def check_states(self) -> None:
        module, count = self.module, len(self.module.states)
        if not count:
            return
        params, results = module.main.params[-count:], module.main.results[-count:]
        if len(params) < count or len(results) < count:
            self.fail("TW1409", f"@main lacks the parameters and results of {count} states")
        for name, param, result in zip(module.states, params, results, strict=True):
            array = module.constants.get(name)
            if array is None:
                self.fail("TW1409", f"the initial value of the state {name!r} is not stored")
            of = constant_type(array)
            if of.dtype is STR:
                self.fail("TW1409", f"the state {name!r} is text; states are numbers")
            for value in (param, result):
                if value.type != of:
                    self.fail("TW1409", f"%{value.name} is {value.type}, its state {of}")

    def check_call(self, node: Node) -> None:
        callee = self.module.graphs.get(node.get("graph", ""))
        if callee is None:
            self.fail("TW1408", f"there is no graph {node.get('graph')!r}", node)
        sides = ((node.inputs, callee.params), (node.outputs, callee.results))
        for have, want in sides:
            if len(have) != len(want) or any(
                a is None or not agree(a.type, b.type, {}) for a, b in zip(have, want, strict=True)
            ):
                self.fail("TW1408", f"the call does not fit @{callee.name}", node)


def agree(a: Type, b: Type, given: dict[Var, None]) -> bool:
    """Whether two types are compatible; sizes in `given` have distinct values."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype is not b.dtype:
            return False
        if a.shape is None or b.shape is None:
            return True
        return len(a.shape) == len(b.shape) and all(
            _same(x, y, given) for x, y in zip(a.shape, b.shape, strict=True)
        )
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return agree(a.element, b.element, {})
    if isinstance(a, OptionalType):
        return agree(a.element, b.element if isinstance(b, OptionalType) else b, given)
    return isinstance(a, MapType) and a == b


def _same(a: Expr, b: Expr, given: dict[Var, None]) -> bool:
    if a is b:
        return True
    if isinstance(a, Const) and isinstance(b, Const):
        return False
    if all(variable in given for variable in free_vars(a, b)):
        return sym.equal(a, b)
    return True


def _bare_sizes(of: Type) -> dict[Var, None]:
    """The sizes that are dimensions on their own."""
    inner = tensor_of(of)
    shape = () if inner is None else inner.shape or ()
    return {dim: None for dim in shape if isinstance(dim, Size)}


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _is_data(value: Any) -> bool:
    kinds = (bool, int, float, str, DType, TensorType, SequenceType, OptionalType, MapType)
    return value is None or isinstance(value, kinds)


class _PartialConstants(dict[str, np.ndarray[Any, Any]]):
    """Constants for printing, some of which may be missing."""

    def __init__(self, known: Any) -> None:
        super().__init__(known)

    def __missing__(self, name: str) -> np.ndarray[Any, Any]:
        return np.zeros(0, np.float32)
