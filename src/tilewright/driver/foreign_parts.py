"""What the interpreter runs, taken out of a model: parts that the host program calls.

    native, parts = call_foreign_parts(module, placed)
    native          main with calls of parts in the place of nodes on the interpreter
    parts           a module with graphs @part0, @part1, ... for the interpreter

In main a part is two nodes, with a third that reads the sizes it defines:

    %told: i64[1] = foreign(%x, %text) {part = 0, sizes = (expr n,)}     runs the part
    sizes(%told) {sizes = (expr k,)}                                     k is known from here on
    %y: f32[k], %words: i64[] = fetch(%told) {part = 0}                  copies its results

Values that native code cannot hold (text, sequences, maps, tensors of any rank) are *objects*: main
holds an i64 scalar, the handle by which the interpreter's side knows the object. So control flow
carries them as it carries numbers. Sizes that such a value tells are read by a part that computes
nothing else, as soon as the value is there.

Nodes on the interpreter that need nothing of native code in between are one part; those that only
main's results are needed for are none (`closing.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.dtype import I64
from tilewright.driver.closing import split_closing
from tilewright.driver.parts import CLOSING, INPUTS, OUTPUTS, Part, Parts, part_name
from tilewright.driver.placement import Placement, describe
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import TensorType, is_tensor, sizes_of
from tilewright.graph.visit import SCALAR_BODIES, attribute_sizes, walk
from tilewright.sym import Size, Var, const

HANDLE = TensorType(I64, ())


def call_foreign_parts(module: Module, placed: Placement) -> tuple[Module, Parts]:
    """Main with calls of parts, and the parts."""
    split = split_closing(module, placed)
    closing = None
    ends: dict[str, Graph] = {}
    if split is not None:
        module, graph, closing = split
        ends[CLOSING] = graph
        placed = replace(placed, graph=module.main)
    splitter = _Splitter(placed)
    main = splitter.graph(module.main, frozenset())
    others = {name: graph for name, graph in module.graphs.items() if name != "main"}
    graphs = {
        INPUTS: _types(INPUTS, module.main.params),
        OUTPUTS: _types(OUTPUTS, module.main.results),
        **{graph.name: graph for graph in splitter.graphs},
        **ends,
        **others,
    }
    held = {n["data"] for graph in graphs.values() for n in walk(graph) if n.op == "constant"}
    constants = {name: array for name, array in module.constants.items() if name in held}
    made = Module(graphs, constants, stage=module.stage)
    parts = Parts(made, tuple(splitter.parts), placed.fallbacks, closing)
    return replace(module, graphs={**module.graphs, "main": main}), parts


def _types(name: str, values: Iterable[Value]) -> Graph:
    """A graph that only tells the types of values."""
    return Graph(name, tuple(Value(value.name, value.type) for value in values), (), ())


@dataclass
class _Splitter:
    placed: Placement
    graphs: list[Graph] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    handles: dict[Value, Value] = field(default_factory=dict)
    makers: dict[Value, int] = field(default_factory=dict)  # the parts that give objects
    readers: dict[Value, list[tuple[int, int]]] = field(default_factory=dict)  # parts, places

    def native(self, value: Value) -> Value:
        """What stands for a value in main."""
        if is_tensor(value.type):
            return value
        if value not in self.handles:
            self.handles[value] = Value(value.name, HANDLE)
        return self.handles[value]

    def is_foreign(self, node: Node) -> bool:
        return self.placed.is_foreign(node)

    # ------------------------------------------------------------------ graphs

    def graph(self, graph: Graph, bound: frozenset[Var]) -> Graph:
        """A graph with calls of parts. `bound` are the sizes whose values main knows outside."""
        scope = _Scope(self, graph, set(bound))
        for param in graph.params:
            if is_tensor(param.type):
                scope.bound.update(_bare_sizes(param))
        is_main = graph is self.placed.graph
        objects = [
            param
            for param in graph.params
            if not is_tensor(param.type)
            and isinstance(param.type, TensorType)
            and (is_main or any(size not in scope.bound for size in _bare_sizes(param)))
        ]
        if objects:  # what callers give is checked against its type on the way
            scope.measure(objects)
        for native, foreign in _rounds(graph, self.is_foreign, scope.stored):
            for node in native:
                scope.add(node)
            if foreign:
                scope.call(foreign)
        results = tuple(self.native(value) for value in graph.results)
        return Graph(
            graph.name,
            tuple(self.native(param) for param in graph.params),
            tuple(scope.nodes),
            results,
            graph.loc,
        )

    def end_carried(self, node: Node) -> None:
        """Have the objects that a loop carries end as soon as a round has replaced them.

        That is so where a part gives the next one, and nothing but parts reads either.
        """
        first = {"loop": 2, "scan": 0}[node.op]
        count = int(node["carried" if node.op == "loop" else "states"])
        (body,) = node.bodies
        kept = Counter(body.results)
        held = {v for n in body.nodes if not self.is_foreign(n) for v in n.inputs}
        results = body.results[first // 2 : first // 2 + count]
        for param, result in zip(body.params[first : first + count], results, strict=True):
            readers, maker = self.readers.get(param), self.makers.get(result)
            if readers is None or maker is None or kept[result] > 1 or kept[param]:
                continue
            if param in held or result in held:
                continue
            number, place = readers[-1]
            part = self.parts[number]
            self.parts[number] = replace(part, ends=part.ends | {(place, maker)})


class _Scope:
    """One graph of main as it is rewritten."""

    def __init__(self, splitter: _Splitter, graph: Graph, bound: set[Var]) -> None:
        self.splitter = splitter
        self.graph = graph
        self.bound = bound
        self.nodes: list[Node] = []
        self.users = _users(graph)
        constants = [node for node in graph.nodes if node.op == "constant"]
        self.numbers = {n.output for n in constants if is_tensor(n.output.type)}
        self.stored = {n.output: n for n in constants if not is_tensor(n.output.type)}

    def add(self, node: Node) -> None:
        """A node that main runs itself."""
        native, inner = self.splitter.native, frozenset(self.bound)
        bodies = node.bodies
        if node.op not in ("fused", *SCALAR_BODIES):
            bodies = tuple(self.splitter.graph(body, inner) for body in node.bodies)
        inputs = tuple(None if value is None else native(value) for value in node.inputs)
        outputs = tuple(native(value) for value in node.outputs)
        same = inputs == node.inputs and outputs == node.outputs and bodies == node.bodies
        self.nodes.append(
            node if same else replace(node, inputs=inputs, outputs=outputs, bodies=bodies)
        )
        if node.op in ("loop", "scan") and self.graph is self.splitter.placed.graph:
            self.splitter.end_carried(node)  # one that runs once: inner loops begin again
        for value in node.outputs:
            if is_tensor(value.type):
                self.bound.update(_bare_sizes(value))
        objects = [v for v in node.outputs if any(s not in self.bound for s in _bare_sizes(v))]
        if objects:
            self.measure(objects)

    def measure(self, objects: Sequence[Value]) -> None:
        """Read, and check, the sizes that objects tell."""
        names = ", ".join(f"%{value.name}" for value in objects)
        self._part(tuple(objects), (), (), f"the sizes of {names}")

    def call(self, nodes: Sequence[Node]) -> None:
        """Nodes that the interpreter runs together."""
        made = {value for node in nodes for value in node.outputs}
        used = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
        inside = set(map(id, nodes))
        results = tuple(
            value
            for node in nodes
            for value in node.outputs
            if value in self.graph.results
            or any(id(user) not in inside for user in self.users.get(value, ()))
        )
        stored = [self.stored[value] for value in used if value in self.stored]
        params = tuple(value for value in used if value not in self.stored)
        label = ", ".join(dict.fromkeys(describe(node) for node in nodes))
        self._part(params, (*stored, *nodes), results, label)

    def _part(
        self,
        params: tuple[Value, ...],
        nodes: tuple[Node, ...],
        results: tuple[Value, ...],
        label: str,
    ) -> None:
        made = [value for node in nodes for value in node.outputs]
        told = dict.fromkeys(
            size for value in (*params, *made) for size in _bare_sizes(value)
            if size not in self.bound
        )  # fmt: skip
        mentioned: dict[Var, None] = {}
        for value in params:
            mentioned.update(sizes_of(value.type))
        for node in nodes:
            mentioned.update(_mentioned(node))
        given = {size for param in params for size in _bare_sizes(param)} if nodes else ()
        asked = tuple(size for size in mentioned if size in self.bound and size not in given)
        number = len(self.splitter.parts)
        made_graph = _part_graph(number, params, asked, nodes, tuple(told), results)
        self.splitter.graphs.append(made_graph)
        weights = [at for at, value in enumerate(params) if value in self.numbers]
        self.splitter.parts.append(Part(frozenset(weights), bool(told)))
        for at, value in enumerate(params):
            if not is_tensor(value.type):
                self.splitter.readers.setdefault(value, []).append((number, at))
        for value in results:
            if not is_tensor(value.type):
                self.splitter.makers[value] = number
        self._emit(number, params, asked, tuple(told), results, label)
        self.bound.update(told)

    def _emit(
        self,
        number: int,
        params: Sequence[Value],
        asked: tuple[Var, ...],
        told: tuple[Var, ...],
        results: Sequence[Value],
        label: str,
    ) -> None:
        """The nodes that call a part."""
        native = self.splitter.native
        sizes = Value("told", TensorType(I64, (const(len(told)),)))
        attributes = ir.attributes(part=number, sizes=asked, label=label)
        inputs = tuple(native(value) for value in params)
        self.nodes.append(Node("foreign", inputs, (sizes,), attributes))
        if told:
            attributes = ir.attributes(sizes=told, label=label)
            self.nodes.append(Node("sizes", (sizes,), (), attributes))
        if results:
            outputs = tuple(native(value) for value in results)
            attributes = ir.attributes(part=number, label=label)
            self.nodes.append(Node("fetch", (sizes,), outputs, attributes))


def _part_graph(
    number: int,
    params: tuple[Value, ...],
    asked: tuple[Var, ...],
    nodes: tuple[Node, ...],
    told: tuple[Var, ...],
    results: tuple[Value, ...],
) -> Graph:
    """A part as a graph of its own: it gives the sizes that it tells, if any, then its results."""
    renamed = {value: Value(value.name, value.type) for value in params}
    taken = tuple(renamed.values())
    inner: list[Node] = []
    if asked:
        given = Value("sizes", TensorType(I64, (const(len(asked)),)))
        taken = (*taken, given)
        inner.append(Node("sizes", (given,), (), ir.attributes(sizes=asked, label="sizes")))
    for node in nodes:
        inputs = tuple(None if value is None else renamed[value] for value in node.inputs)
        outputs = tuple(Value(value.name, value.type) for value in node.outputs)
        renamed.update(zip(node.outputs, outputs, strict=True))
        inner.append(replace(node, inputs=inputs, outputs=outputs))
    made = tuple(renamed[value] for value in results)
    if told:
        sizes = Value("told", TensorType(I64, (const(len(told)),)))
        inner.append(Node("dims", (), (sizes,), ir.attributes(values=told)))
        made = (sizes, *made)
    return Graph(part_name(number), taken, tuple(inner), made)


# --------------------------------------------------------------------------- order


def _rounds(
    graph: Graph, is_foreign: Callable[[Node], bool], stored: dict[Value, Node]
) -> list[tuple[list[Node], list[Node]]]:
    """The nodes in rounds: in each the native ones, then those of one part.

    Objects that are constants are part of every part that uses them; where native control flow, or
    the caller, wants one, a part gives it.
    """
    maker: dict[Value, Node] = {}
    definer: dict[Var, Node] = {}
    at: dict[Node, int] = {}
    wanted = set(graph.results)
    for node in graph.nodes:
        if node.op != "constant" and not is_foreign(node):
            wanted.update(value for value in node.inputs if value is not None)
    for node in graph.nodes:
        if node.op == "constant" and node.output in stored and node.output not in wanted:
            continue
        sources = [maker[v] for v in node.inputs if v is not None and v in maker]
        sources += [definer[size] for size in _mentioned(node) if size in definer]
        found = 0
        for source in sources:
            later = is_foreign(source) and not is_foreign(node)
            found = max(found, at[source] + later)
        at[node] = found
        for value in node.outputs:
            maker[value] = node
            for size in sizes_of(value.type):
                definer.setdefault(size, node)
    rounds: list[tuple[list[Node], list[Node]]] = [
        ([], []) for _ in range(max(at.values(), default=-1) + 1)
    ]
    for node, number in at.items():
        rounds[number][is_foreign(node)].append(node)
    return rounds


def _users(graph: Graph) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                found.setdefault(value, []).append(node)
    return found


# --------------------------------------------------------------------------- sizes


def _bare_sizes(value: Value) -> list[Var]:
    """The sizes that a value tells: dimensions on their own of a tensor, of text too."""
    of = value.type
    dims = (of.shape or ()) if isinstance(of, TensorType) else ()
    return [dim for dim in dims if isinstance(dim, Size)]


def _mentioned(node: Node) -> dict[Var, None]:
    """The sizes that a node, and what is in its bodies, mentions."""
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
