"""Print models as text, parsed by `parser.py`. Grammar: `docs/internals/graph.md`.

    graph @main(%x: f32[n, 4]) -> (f32[n, 4]) {
      %w: f32[4] = constant {data = f32[4](1.0, 2.0, 3.0, 4.0)}
      %y: f32[n, 4] = add(%x, %w)
      return %y
    }

Constants of up to 32 elements are printed in full; larger ones by name, as `@name`. Names of values
are hints: characters that the grammar does not allow are replaced by `_`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.text import Names, Writer
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.types import MapType, OptionalType, SequenceType, TensorType, Type
from tilewright.sym import Expr, free_vars
from tilewright.sym.text import ExprPrinter
from tilewright.tensor.printer import Printer as TensorPrinter

INLINE_ELEMENTS = 32  # of constants printed in full
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Printer:
    """Prints a module; `canonical` numbers all names, for structural comparison."""

    def __init__(self, constants: Any, *, canonical: bool = False) -> None:
        self.out = Writer()
        self.sizes = Names()
        self.constants = constants
        self.canonical = canonical
        self.expr = ExprPrinter(self.sizes)

    def module(self, module: Module) -> str:
        named = "".join(f", {quoted(name)}" for name in module.outputs)[2:]
        outputs = f" outputs ({named})" if named else ""
        begins = ", ".join(self._data(name) for name in module.states)
        states = f" states ({begins})" if begins else ""
        self.out.line(f"module stage {module.stage}{outputs}{states} {{")
        with self.out.indented():
            for name, graph in module.graphs.items():
                self.graph(graph, f"graph @{name}")
        self.out.line("}")
        text = self.out.text()
        for fn in module.functions.values():
            text += TensorPrinter(canonical=self.canonical).function(fn)
        return text

    def graph(self, graph: Graph, header: str, names: Names | None = None) -> None:
        names = names or Names()
        params = ", ".join(f"{self._value(p, names)}: {self.type(p.type)}" for p in graph.params)
        results = ", ".join(self.type(result.type) for result in graph.results)
        self.out.line(f"{header}({params}) -> ({results}) {{")
        with self.out.indented():
            for node in graph.nodes:
                self._node(node, names)
            returned = ", ".join(self._value(result, names) for result in graph.results)
            self.out.line(f"return {returned}".rstrip())
        self.out.line("}")

    def _node(self, node: Node, names: Names) -> None:
        inputs = ", ".join("none" if v is None else self._value(v, names) for v in node.inputs)
        attributes = ", ".join(f"{key} = {self._attribute(v)}" for key, v in node.attributes)
        if node.op == "constant":
            attributes = f"data = {self._data(node['data'])}"
        elif node.op == "call":
            attributes = f"graph = @{node['graph']}"
        attributes = f" {{{attributes}}}" if attributes else ""
        outputs = ", ".join(f"{self._value(v, names)}: {self.type(v.type)}" for v in node.outputs)
        head = f"{node.op}({inputs}){attributes}"
        head = f"{outputs} = {head}" if outputs else head
        if not node.bodies:
            self.out.line(head, node)
            return
        self.out.line(f"{head} do {{", node)
        with self.out.indented():
            for body in node.bodies:
                self.graph(body, "graph", Names())
        self.out.line("}")

    def _value(self, value: Value, names: Names) -> str:
        return f"%{names(value, 'v' if self.canonical else word(value.name))}"

    def type(self, of: Type) -> str:
        if isinstance(of, SequenceType):
            return f"seq<{self.type(of.element)}>"
        if isinstance(of, OptionalType):
            return f"opt<{self.type(of.element)}>"
        if isinstance(of, MapType):
            return str(of)
        if of.shape is None:
            return f"{of.dtype}[*]"
        return f"{of.dtype}[{', '.join(self._dim(dim) for dim in of.shape)}]"

    def _dim(self, dim: Expr) -> str:
        if self.canonical:
            for variable in free_vars(dim):
                self.sizes(variable, "s")
        return self.expr(dim)

    def _data(self, name: str) -> str:
        array = self.constants[name]
        if array.size <= INLINE_ELEMENTS:
            return format_array(array)
        return f"@{name}" if _NAME.fullmatch(name) else quoted(name)

    def _attribute(self, value: Attribute) -> str:
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, tuple):
            items = ", ".join(self._attribute(item) for item in value)
            return f"({items},)" if len(value) == 1 else f"({items})"
        if isinstance(value, DType):
            return f"dtype {value}"
        if isinstance(value, Expr):
            return f"expr {self._dim(value)}"
        if isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
            return f"type {self.type(value)}"
        return repr(value)


def word(hint: str) -> str:
    """A hint as a valid name."""
    if _NAME.fullmatch(hint):
        return hint
    made = re.sub(r"\W", "_", hint, flags=re.ASCII)
    return made if made and not made[0].isdigit() else f"v{made}"


def quoted(text: str) -> str:
    """A quoted string on one line."""
    made = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + made.replace("\n", "\\n").replace("\r", "\\r") + '"'


def unquoted(text: str) -> str:
    """The inverse of `quoted`."""
    plain = {"n": "\n", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: plain.get(found[1], found[1]), text[1:-1])


def format_array(array: np.ndarray[Any, Any]) -> str:
    """A small constant in full: f32[2](1.0, 2.0)."""
    dims = ", ".join(str(dim) for dim in array.shape)
    items = [_item(item) for item in array.ravel().tolist()]
    return f"{from_numpy(array.dtype)}[{dims}]({', '.join(items)})"


def _item(item: Any) -> str:
    if isinstance(item, str):
        return quoted(item)
    return str(item).lower() if isinstance(item, bool) else repr(item)


def format_module(module: Module) -> str:
    """Print a module; the text parses to an equal one.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> print(graph.format_module(module), end="")
        module stage imported {
          graph @main(%x: f32[2]) -> (f32[2]) {
            %y: f32[2] = neg(%x)
            return %y
          }
        }
    """
    return Printer(module.constants).module(module)


def canonical_text(module: Module) -> str:
    """A text that is equal iff modules are structurally equal."""
    return Printer(module.constants, canonical=True).module(module)


def _equal(self: Module, other: object) -> bool:
    return self is other or (
        isinstance(other, Module)
        and canonical_text(self) == canonical_text(other)
        and _same_constants(self, other)
    )


def _same_constants(a: Module, b: Module) -> bool:
    shared = a.constants.keys() & b.constants.keys()
    pairs = [(a.constants[k], b.constants[k]) for k in shared]
    return all(np.array_equal(one, two, equal_nan=one.dtype != object) for one, two in pairs)


def _hash(self: Module) -> int:
    return hash((self.stage, tuple(self.graphs)))


Module.__str__ = format_module  # type: ignore[method-assign, assignment]  # see ir.py
Module.__eq__ = _equal  # type: ignore[method-assign, assignment]
Module.__hash__ = _hash  # type: ignore[method-assign, assignment]
