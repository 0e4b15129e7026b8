"""Models with operators that native code cannot express: strings, images, sequences.

Everything else is compiled as usual, in as few parts as the order allows; the references of the
operators, on NumPy, run what is left between them. `fallbacks` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.dtype import I64
from tilewright.base.errors import UserError
from tilewright.graph import ir
from tilewright.graph.interp import Interpreter
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import TensorType, sizes_of
from tilewright.graph.visit import attribute_sizes, walk
from tilewright.runtime import module as runtime
from tilewright.runtime.array import Array
from tilewright.runtime.module import Spec
from tilewright.sym import Size, Var, const


@dataclass(frozen=True)
class Part:
    """A stretch of a model that is native: its graph, and the sizes it must be told."""

    graph: Graph
    sizes: tuple[Var, ...]
    node: Node  # what stands for it in the graph of the interpreter


def split(graph: Graph, foreign: frozenset[Node]) -> tuple[Graph, list[Part]]:
    """The graph with native stretches as nodes of their own, and those stretches."""
    rounds = _rounds(graph, foreign)
    constants = {node.output: node for node in graph.nodes if node.op == "constant"}
    used = _users(graph)
    parts: list[Part] = []
    nodes: list[Node] = [node for node in constants.values() if _needed(node, used, foreign, graph)]
    for at in range(max(rounds.values(), default=0) + 1):
        native = [n for n in rounds if rounds[n] == at and n not in foreign]
        if native:
            parts.append(_part(graph, native, constants, used, len(parts)))
            nodes.append(parts[-1].node)
        nodes.extend(n for n in rounds if rounds[n] == at and n in foreign)
    return replace(graph, nodes=tuple(nodes)), parts


def _rounds(graph: Graph, foreign: frozenset[Node]) -> dict[Node, int]:
    """When each node can run: native ones of a round together, then the others of that round."""
    maker: dict[Value, Node] = {}
    definer: dict[Var, Node] = {}
    rounds: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op == "constant":
            continue
        sources = [maker[v] for v in node.inputs if v is not None and v in maker]
        sources += [definer[size] for size in _sizes(node) if size in definer]
        found = 0
        for source in sources:
            later = source in foreign and node not in foreign
            found = max(found, rounds[source] + later)
        rounds[node] = found
        for value in node.outputs:
            maker[value] = node
            for size in sizes_of(value.type):
                definer.setdefault(size, node)
    return rounds


def _sizes(node: Node) -> dict[Var, None]:
    """The sizes a node, and what is in its bodies, mentions."""
    found = attribute_sizes(node)
    for value in (*node.inputs, *node.outputs):
        if value is not None:
            found.update(sizes_of(value.type))
    for body in node.bodies:
        for inner in walk(body):
            found.update(attribute_sizes(inner))
            for value in (*inner.inputs, *inner.outputs):
                if value is not None:
                    found.update(sizes_of(value.type))
    return found


def _body_sizes(node: Node) -> set[Var]:
    """The sizes that the bodies of a node define: of parameters, and of results."""
    given = {size for v in node.inputs if v is not None for size in sizes_of(v.type)}
    given |= set(attribute_sizes(node))
    own: set[Var] = set()
    for body in node.bodies:
        own |= {size for param in body.params for size in sizes_of(param.type)} - given
        for inner in walk(body):
            read = {size for v in inner.inputs if v is not None for size in sizes_of(v.type)}
            made = {size for v in inner.outputs for size in sizes_of(v.type)}
            own |= made - read - set(attribute_sizes(inner)) - given
    return own


def _users(graph: Graph) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                found.setdefault(value, []).append(node)
    return found


def _needed(
    node: Node, used: dict[Value, list[Node]], foreign: frozenset[Node], graph: Graph
) -> bool:
    """Whether the interpreter needs a constant."""
    users = used.get(node.output, ())
    return node.output in graph.results or any(user in foreign for user in users)


def _part(
    graph: Graph,
    nodes: list[Node],
    constants: dict[Value, Node],
    used: dict[Value, list[Node]],
    number: int,
) -> Part:
    inside = set(nodes)
    made = {value for node in nodes for value in node.outputs}
    taken = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
    stored = [constants[value] for value in taken if value in constants]
    params = [value for value in taken if value not in constants]
    results = [
        value
        for node in nodes
        for value in node.outputs
        if value in graph.results or any(user not in inside for user in used.get(value, ()))
    ]
    told = {dim for param in params for dim in param.tensor.shape or () if isinstance(dim, Size)}
    defined: set[Var] = set()
    mentioned: dict[Var, None] = {}
    for node in nodes:
        mentioned.update(_sizes(node))
        defined |= _body_sizes(node)
        own = {size for v in node.outputs for size in sizes_of(v.type)}
        given = {size for v in node.inputs if v is not None for size in sizes_of(v.type)}
        defined |= own - given - set(attribute_sizes(node))
    sizes = tuple(s for s in mentioned if s not in told and s not in defined)
    head: list[Node] = []
    all_params = list(params)
    if sizes:
        value = Value("sizes", TensorType(I64, (const(len(sizes)),)))
        all_params.append(value)
        head.append(Node("sizes", (value,), (), ir.attributes(sizes=sizes, label="sizes")))
    part = Graph(f"part{number}", tuple(all_params), (*stored, *head, *nodes), tuple(results))
    node = Node("native", tuple(params), tuple(results), ir.attributes(part=number))
    return Part(part, sizes, node)


class _Runner(Interpreter):
    """An interpreter that runs native parts natively."""

    parts: Sequence[Part]
    modules: Sequence[runtime.Module]
    threads: int

    def _node(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        if node.op != "native":
            return super()._node(node, inputs)
        part = self.parts[node["part"]]
        if part.sizes:
            inputs = [*inputs, np.array([self.sizes[size] for size in part.sizes], np.int64)]
        made = self.modules[node["part"]](*inputs, threads=self.threads)
        return tuple(array.numpy() for array in made)


class HybridModule(runtime.Module):
    """A model whose native parts are called by the interpreter."""

    def __init__(
        self,
        module: Module,
        foreign: frozenset[Node],
        build: Callable[[Module], runtime.Module],
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        threads: int,
    ) -> None:
        graph, self._parts = split(module.main, foreign)
        self._modules = [
            build(replace(module, graphs={"main": replace(part.graph, name="main")}, outputs=()))
            for part in self._parts
        ]
        kept = {n["data"] for n in walk(graph) if n.op == "constant"}
        constants = {name: array for name, array in module.constants.items() if name in kept}
        self._program = replace(
            module, graphs={**module.graphs, "main": graph}, constants=constants
        )
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.threads = threads
        self.fallbacks = tuple(dict.fromkeys(_names(foreign)))
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}

    def __call__(
        self, *args: Any, threads: int = 0, out: Sequence[Any] | None = None, **named: Any
    ) -> tuple[Any, ...]:
        if named:
            args = self._in_order(args, named)
        if len(args) != len(self.inputs):
            raise UserError("TW4042", f"the model takes {len(self.inputs)} inputs, got {len(args)}")
        runner = _Runner(self._program)
        runner.parts, runner.modules = self._parts, self._modules
        runner.threads = threads or self.threads
        results = runner.run(self._program.main, [_as_numpy(arg) for arg in args])
        made = tuple(_as_array(result) for result in results)
        if out is None:
            return made
        for target, result in zip(out, made, strict=True):
            np.asarray(target)[...] = np.asarray(result)
        return tuple(out)

    @property
    def arena_bytes(self) -> int:
        return sum(module.arena_bytes for module in self._modules)


def _names(foreign: frozenset[Node]) -> list[str]:
    """The operators that are interpreted: of control flow, what is in it too."""
    return sorted(node.op for node in foreign)


def _as_numpy(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return [_as_numpy(item) for item in value]
    return value if isinstance(value, dict) else np.asarray(value)


def _as_array(value: Any) -> Any:
    """Numbers as arrays of ours; strings, sequences and absent values as they are."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        return Array._borrow(np.asarray(value, order="C"))
    return [_as_array(item) for item in value] if isinstance(value, list) else value
