"""Reference interpreter of models: every operator by its NumPy reference, node by node.

Sizes are bound from the arguments and from operators' outputs, so that attributes may be
expressions of sizes. With `check`, every result is compared with its inferred type.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

Progress = Callable[[str, int, int], None]  # operator, number done, total


def interpret(
    module: Module,
    *args: Any,
    graph: str = "main",
    check: bool = False,
    progress: Progress | None = None,
) -> tuple[Any, ...]:
    """Run a graph of the module on arrays (or lists for sequences, None for absent optionals).

    States that are not given have their initial values; the results include the new states.

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


Calls = dict[Node, tuple[Op, Call]]  # of nodes with constant attributes


class Interpreter:
    """Runs graphs; control-flow operators call `run` for their bodies.

    `calls` caches nodes' calls between runs; with it, arguments representable in native code are
    not checked.
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
        progress, self.progress = self.progress, None  # bodies count as part of their node
        try:
            self.take(graph, args)
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

    def take(self, graph: Graph, args: Sequence[Any]) -> None:
        """Bind sizes from arguments; mismatches are rejected, unless arguments are trusted."""
        for param, arg in zip(graph.params, args, strict=True):
            self._bind(param.type, arg)
            is_trusted = self.calls is not None and is_tensor(param.type)
            if not is_trusted and not self._fits(param.type, arg):
                raise UserError(
                    "TW1013", f"%{param.name} of @{graph.name} is {param.type}, got {_of(arg)}"
                )

    def _node(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        if node.op == "constant":
            return (self.module.constants[node["data"]],)
        if node.op == "sizes":  # in lowered graphs: sizes that the main graph knows
            self.learn(node["sizes"], *inputs)
            return ()
        if node.op == "call":
            return Interpreter(self.module, check=self.check, calls=self.calls).run(
                self.module.graphs[node["graph"]], inputs
            )
        op, call = self.call_of(node)
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

    def call_of(self, node: Node) -> tuple[Op, Call]:
        """The operator and call of a node with the current sizes."""
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
        """Replace expressions of sizes in an attribute by their values."""
        if isinstance(value, Expr):
            return evaluate(value, self.sizes)
        if not isinstance(value, tuple):
            return value
        items = tuple(self._number(item) for item in value)
        return value if all(map(is_, items, value)) else items

    def learn(self, sizes: Sequence[Var], values: Any) -> None:
        """Bind sizes; those determined by arguments must agree."""
        for size, value in zip(sizes, values.tolist(), strict=True):
            if self.sizes.setdefault(size, value) != value:
                raise UserError(
                    "TW1013",
                    f"the size {size.name} is {value} in one input, {self.sizes[size]} in another",
                )

    def _bind(self, of: Type, array: Any) -> None:
        """Bind the sizes that are dimensions on their own in a type to those of the array."""
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
    """Compile a graph to a sequence of reference calls; None if a node needs sizes that the graph
    itself computes.

    For small graphs that run often, where the interpreter's overhead dominates: nothing is looked
    up while sizes are as in the last call, and arguments representable in native code are not
    checked.
    """
    known: set[Var] = set()
    for param in graph.params:
        if not isinstance(param.type, TensorType) or param.type.shape is None:
            return None
        known.update(dim for dim in param.type.shape if isinstance(dim, Size))
    for node in graph.nodes:
        if node.op == "sizes" and node.inputs[0] in graph.params:
            known.update(node["sizes"])
            continue
        is_plain = not node.bodies and node.op not in ("sizes", "call")
        if not is_plain or not known.issuperset(attribute_sizes(node)):
            return None
    return _StraightLine(module, graph)


_quiet = functools.partial(np.errstate, all="ignore")
_AS_IT_IS = contextlib.nullcontext()


@dataclass(frozen=True)
class _Steps:
    """The calls of a straight-line graph for the sizes in `key`."""

    key: Any
    fixed: list[Any]  # all values, filled in where constant
    calls: list[tuple[Node, Callable[..., Any], Call, list[int], int]]


class _StraightLine:
    def __init__(self, module: Module, graph: Graph) -> None:
        self.module = module
        self.graph = graph
        self.calls: Calls = {}
        asks = any(attribute_sizes(node) for node in graph.nodes if node.op != "constant")
        self.asks = asks or not all(is_tensor(param.type) for param in graph.params)
        source = [node.inputs[0] for node in graph.nodes if node.op == "sizes"]
        self.size_inputs = [graph.params.index(value) for value in source if value is not None]
        self.places = {param: at for at, param in enumerate(graph.params)}
        made = [value for node in graph.nodes if node.op != "constant" for value in node.outputs]
        self.computes = any(is_tensor(value.type) for value in made)  # numeric, may overflow
        self.last = None if self.asks else self._steps((), None)

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        steps, key = self.last, self._key(args) if self.asks else ()
        if steps is None or steps.key != key:
            steps = self.last = self._steps(key, args)
        values = steps.fixed.copy()
        values[: len(args)] = args
        step = None
        try:
            with _quiet() if self.computes else _AS_IT_IS:
                for step in steps.calls:
                    _, reference, call, inputs, first = step
                    made = as_arrays(reference(call, *[values[at] for at in inputs]))
                    values[first : first + len(made)] = made
        except TilewrightError:
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            assert step is not None
            node = step[0]
            raise ExecutionError("TW1017", f"{node.op}: {error}", node.loc) from error
        return tuple([values[self.places[result]] for result in self.graph.results])

    def _key(self, args: Sequence[Any]) -> Any:
        """Everything that sizes depend on and arguments are checked for."""
        shapes = [
            (type(arg), getattr(arg, "shape", None), getattr(arg, "dtype", None)) for arg in args
        ]
        return shapes, [args[at].tolist() for at in self.size_inputs]

    def _steps(self, key: Any, args: Sequence[Any] | None) -> _Steps:
        reader = Interpreter(self.module, calls=self.calls)
        if args is not None:
            reader.take(self.graph, args)
        fixed: list[Any] = [None] * len(self.graph.params)
        calls: list[tuple[Node, Callable[..., Any], Call, list[int], int]] = []
        for node in self.graph.nodes:
            first = len(fixed)
            self.places |= {value: first + at for at, value in enumerate(node.outputs)}
            if node.op == "constant":
                fixed.append(self.module.constants[node["data"]])
                continue
            if node.op == "sizes":
                source = node.inputs[0]
                if args is not None and source is not None:
                    reader.learn(node["sizes"], args[self.places[source]])
                continue
            fixed += [None] * len(node.outputs)
            op, call = reader.call_of(node)
            inputs = [None if v is None else self.places[v] for v in node.inputs]
            inputs += [None] * (len(call.types) - len(inputs))
            for at, place in enumerate(inputs):
                if place is None:
                    inputs[at] = len(fixed)
                    fixed.append(call.array(at))
            calls.append((node, op.reference, call, [at for at in inputs if at is not None], first))
        return _Steps(key, fixed, calls)


def _of(array: Any) -> str:
    if isinstance(array, (np.ndarray, np.generic)):
        return f"{array.dtype}{list(array.shape)}"
    return type(array).__name__
