"""The meaning of a model: every operator by its NumPy reference, node by node.

Sizes get their values from the arguments and from what operators produce, so that attributes may
be expressions of sizes. With `check`, every result is held against its inferred type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np

from tilewright.base.errors import CompilerBug, ExecutionError, TilewrightError, UserError
from tilewright.graph.build import make_call
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.op import Call, Op, as_arrays
from tilewright.graph.types import TensorType, Type, is_tensor
from tilewright.graph.visit import attribute_sizes
from tilewright.sym import Expr, Size, Var, evaluate, free_vars

Progress = Callable[[str, int, int], None]  # the operator, how many are done, of how many


def interpret(
    module: Module,
    *args: Any,
    graph: str = "main",
    check: bool = False,
    progress: Progress | None = None,
) -> tuple[Any, ...]:
    """Run a graph of the module on arrays (or lists for sequences, None for absent optionals).

    States that are left out are what they begin with; what replaces them is among the results.

    Examples:
        >>> import numpy as np
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> graph.interpret(module, np.array([1, -2], np.float32))
        (array([-1.,  2.], dtype=float32),)
    """
    if graph == "main" and module.states and len(args) == len(module.given):
        args = (*args, *(module.constants[name] for name in module.states))
    return Interpreter(module, check=check, progress=progress).run(module.graphs[graph], args)


Calls = dict[Node, tuple[Op, Call]]  # of nodes whose attributes are the same in every run


class Interpreter:
    """Runs graphs; control-flow operators call back into `run` for their bodies.

    `calls` keeps what nodes mean from run to run; with it, arguments that native code can hold are
    trusted.
    """

    def __init__(
        self,
        module: Module,
        *,
        check: bool = False,
        progress: Progress | None = None,
        calls: Calls | None = None,
    ) -> None:
        self.module = module
        self.check = check
        self.progress = progress
        self.calls = calls
        self.sizes: dict[Var, int] = {}

    def run(self, graph: Graph, args: Sequence[Any]) -> tuple[Any, ...]:
        if len(args) != len(graph.params):
            raise UserError(
                "TW1010", f"@{graph.name} takes {len(graph.params)} arguments, got {len(args)}"
            )
        outer, self.sizes = self.sizes, dict(self.sizes)
        progress, self.progress = self.progress, None  # bodies are a part of their node
        try:
            for param, arg in zip(graph.params, args, strict=True):
                self._bind(param.type, arg)
                is_trusted = self.calls is not None and is_tensor(param.type)
                if not is_trusted and not self._fits(param.type, arg):
                    raise UserError(
                        "TW1013", f"%{param.name} of @{graph.name} is {param.type}, got {_of(arg)}"
                    )
            values: dict[Value, Any] = dict(zip(graph.params, args, strict=True))
            for at, node in enumerate(graph.nodes):
                if progress is not None:
                    progress(node.op, at, len(graph.nodes))
                inputs = [None if v is None else values[v] for v in node.inputs]
                made = self._node(node, inputs)
                for value, array in zip(node.outputs, made, strict=True):
                    self._bind(value.type, array)
                    if self.check and not self._fits(value.type, array):
                        raise CompilerBug(
                            "TW1014",
                            f"{node.op} should give {value.type}, its reference gave {_of(array)}",
                            node.loc,
                        )
                    values[value] = array
            return tuple(values[result] for result in graph.results)
        finally:
            self.sizes, self.progress = outer, progress

    def _node(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        if node.op == "constant":
            return (self.module.constants[node["data"]],)
        if node.op == "sizes":  # in parts of a lowered model: what main knows
            self._learn(node["sizes"], *inputs)
            return ()
        if node.op == "call":
            return Interpreter(self.module, check=self.check, calls=self.calls).run(
                self.module.graphs[node["graph"]], inputs
            )
        op, call = self._call(node)
        inputs += [None] * (len(call.types) - len(inputs))
        arguments = [call.array(at) if given is None else given for at, given in enumerate(inputs)]
        try:
            with np.errstate(all="ignore"):
                if node.bodies:
                    return as_arrays(op.reference(call, self.run, *arguments))
                return as_arrays(op.reference(call, *arguments))
        except TilewrightError:
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            raise ExecutionError("TW1017", f"{node.op}: {error}", node.loc) from error

    def _call(self, node: Node) -> tuple[Op, Call]:
        """What a node means with the sizes at hand."""
        found = None if self.calls is None else self.calls.get(node)
        if found is not None:
            return found
        given = dict(node.attributes)
        numbers = {name: self._number(value) for name, value in given.items()}
        made = make_call(
            node.op,
            node.inputs,
            numbers,
            bodies=node.bodies,
            loc=node.loc,
            outputs=len(node.outputs),
        )
        if self.calls is not None and all(numbers[name] is value for name, value in given.items()):
            self.calls[node] = made
        return made

    def _number(self, value: Any) -> Any:
        """An attribute with expressions of sizes replaced by their values."""
        if isinstance(value, Expr):
            return evaluate(value, self.sizes)
        if not isinstance(value, tuple):
            return value
        items = tuple(self._number(item) for item in value)
        return value if all(map(is_, items, value)) else items

    def _learn(self, sizes: Sequence[Var], told: Any) -> None:
        """Sizes take the values told; those that arguments tell must agree."""
        for size, value in zip(sizes, told.tolist(), strict=True):
            if self.sizes.setdefault(size, value) != value:
                raise UserError(
                    "TW1013",
                    f"the size {size.name} is {value} in one input, {self.sizes[size]} in another",
                )

    def _bind(self, of: Type, array: Any) -> None:
        """Sizes that appear bare in a type take their values from the array."""
        if isinstance(of, TensorType) and of.shape is not None and array is not None:
            for dim, extent in zip(of.shape, np.shape(array), strict=False):
                if isinstance(dim, Size):
                    self.sizes.setdefault(dim, extent)

    def _fits(self, of: Type, array: Any) -> bool:
        if not isinstance(of, TensorType) or not isinstance(array, np.ndarray):
            return True
        if array.dtype != of.dtype.numpy:
            return False
        if of.shape is None:
            return True
        return len(of.shape) == array.ndim and all(
            extent == evaluate(dim, self.sizes)
            for dim, extent in zip(of.shape, array.shape, strict=True)
            if all(variable in self.sizes for variable in free_vars(dim))
        )


Straight = Callable[[Sequence[Any]], tuple[Any, ...]]


def straight_line(module: Module, graph: Graph) -> Straight | None:
    """What a graph computes as calls one after the other; None if any of them asks for sizes.

    Nothing is looked up while it runs, and arguments are trusted: it is for small graphs that run
    often, where the interpreter's own work is most of the time.
    """
    if not all(is_tensor(param.type) for param in graph.params):
        return None
    reader = Interpreter(module, calls={})
    places = {param: at for at, param in enumerate(graph.params)}
    fixed: list[Any] = [None] * len(places)
    steps: list[tuple[Node, Callable[..., Any], Call, list[int], int]] = []
    for node in graph.nodes:
        places |= {value: len(fixed) + at for at, value in enumerate(node.outputs)}
        first = len(fixed)
        if node.op == "constant":
            fixed.append(module.constants[node["data"]])
            continue
        if node.bodies or node.op in ("sizes", "call") or attribute_sizes(node):
            return None
        fixed += [None] * len(node.outputs)
        op, call = reader._call(node)
        inputs = [None if v is None else places[v] for v in node.inputs]
        inputs += [None] * (len(call.types) - len(inputs))
        for at, place in enumerate(inputs):
            if place is None:
                inputs[at] = len(fixed)
                fixed.append(call.array(at))
        steps.append((node, op.reference, call, [at for at in inputs if at is not None], first))
    results = [places[result] for result in graph.results]

    def run(args: Sequence[Any]) -> tuple[Any, ...]:
        values = fixed.copy()
        values[: len(args)] = args
        step = None
        try:
            with np.errstate(all="ignore"):
                for step in steps:
                    _, reference, call, inputs, first = step
                    made = as_arrays(reference(call, *[values[at] for at in inputs]))
                    values[first : first + len(made)] = made
        except TilewrightError:
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            assert step is not None
            node = step[0]
            raise ExecutionError("TW1017", f"{node.op}: {error}", node.loc) from error
        return tuple([values[at] for at in results])

    return run


def _of(array: Any) -> str:
    if isinstance(array, (np.ndarray, np.generic)):
        return f"{array.dtype}{list(array.shape)}"
    return type(array).__name__
