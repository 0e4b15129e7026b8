"""Extract the nodes that the interpreter runs into parts that the host program calls.

    native, parts = call_foreign_parts(module, placed)
    native          main, with calls of parts in place of the interpreter's nodes
    parts           a module with graphs @part0, @part1, ... for the interpreter

In main a call of a part is two nodes, and a third that reads the dynamic sizes it defines:

    %told: i64[1] = foreign(%x, %text) {part = 0, sizes = (expr n,)}     runs the part
    sizes(%told) {sizes = (expr k,)}                                     defines k
    %y: f32[k], %words: i64[] = fetch(%told) {part = 0}                  copies its results

Values that native code cannot hold (strings, sequences, maps, tensors of unknown rank) are
*objects*: main holds an i64 scalar instead, a handle that the interpreter's side resolves. So
control flow carries objects like tensors. If an object's shape defines dynamic sizes, a part that
does nothing else reads them as soon as the object exists.

Consecutive interpreter nodes with no native node between them in the dependence order are one part.
Nodes that only main's results depend on are in no part (`closing.py`).
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
    closing_graphs: dict[str, Graph] = {}
    if split is not None:
        module, graph, closing = split
        closing_graphs[CLOSING] = graph
        placed = replace(placed, graph=module.main)
    splitter = _Splitter(placed)
    main = splitter.graph(module.main, frozenset())
    others = {name: graph for name, graph in module.graphs.items() if name != "main"}
    graphs = {
        INPUTS: _types(INPUTS, module.main.params),
        OUTPUTS: _types(OUTPUTS, module.main.results),
        **{graph.name: graph for graph in splitter.graphs},
        **closing_graphs,
        **others,
    }
    used_constants = {
        n["data"] for graph in graphs.values() for n in walk(graph) if n.op == "constant"
    }
    constants = {name: array for name, array in module.constants.items() if name in used_constants}
    parts_module = Module(graphs, constants, stage=module.stage)
    parts = Parts(parts_module, tuple(splitter.parts), placed.fallbacks, closing)
    return replace(module, graphs={**module.graphs, "main": main}), parts


def _types(name: str, values: Iterable[Value]) -> Graph:
    """A graph without nodes, whose parameters have the types of values."""
    return Graph(name, tuple(Value(value.name, value.type) for value in values), (), ())


@dataclass
class _Splitter:
    placed: Placement
    graphs: list[Graph] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    handles: dict[Value, Value] = field(default_factory=dict)
    # objects, and the parts that produce them
    makers: dict[Value, int] = field(default_factory=dict)
    # objects, and the (part, input position) pairs that read them
    readers: dict[Value, list[tuple[int, int]]] = field(default_factory=dict)

    def native(self, value: Value) -> Value:
        """The value that represents another in main: itself, or a handle."""
        if is_tensor(value.type):
            return value
        if value not in self.handles:
            self.handles[value] = Value(value.name, HANDLE)
        return self.handles[value]

    def is_foreign(self, node: Node) -> bool:
        return self.placed.is_foreign(node)

    # ------------------------------------------------------------------ graphs

    def graph(self, graph: Graph, bound: frozenset[Var]) -> Graph:
        """The graph with calls of parts. `bound` are the dynamic sizes known outside."""
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
        if objects:  # their types are checked where they enter
            scope.measure(objects)
        for native, foreign in _rounds(graph, self.is_foreign, scope.object_constants):
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

    def free_carried(self, node: Node) -> None:
        """Free loop-carried objects as soon as an iteration has replaced them.

        This is possible if a part produces the next object and only parts read either.
        """
        first_param = {"loop": 2, "scan": 0}[node.op]
        carried_count = int(node["carried" if node.op == "loop" else "states"])
        (body,) = node.bodies
        result_uses = Counter(body.results)
        read_natively = {v for n in body.nodes if not self.is_foreign(n) for v in n.inputs}
        results = body.results[first_param // 2 : first_param // 2 + carried_count]
        for param, result in zip(
            body.params[first_param : first_param + carried_count], results, strict=True
        ):
            readers, maker = self.readers.get(param), self.makers.get(result)
            if readers is None or maker is None or result_uses[result] > 1 or result_uses[param]:
                continue
            if param in read_natively or result in read_natively:
                continue
            number, place = readers[-1]
            part = self.parts[number]
            self.parts[number] = replace(part, ends=part.ends | {(place, maker)})


class _Scope:
    """Rewrites one graph of main."""

    def __init__(self, splitter: _Splitter, graph: Graph, bound: set[Var]) -> None:
        self.splitter = splitter
        self.graph = graph
        self.bound = bound
        self.nodes: list[Node] = []
        self.users = _users(graph)
        constants = [node for node in graph.nodes if node.op == "constant"]
        self.tensor_constants = {n.output for n in constants if is_tensor(n.output.type)}
        self.object_constants = {n.output: n for n in constants if not is_tensor(n.output.type)}

    def add(self, node: Node) -> None:
        """Emit a node that main runs itself."""
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
            # main's own loops only: an inner loop starts again with the same objects
            self.splitter.free_carried(node)
        for value in node.outputs:
            if is_tensor(value.type):
                self.bound.update(_bare_sizes(value))
        objects = [v for v in node.outputs if any(s not in self.bound for s in _bare_sizes(v))]
        if objects:
            self.measure(objects)

    def measure(self, objects: Sequence[Value]) -> None:
        """Emit a part that reads and checks the dynamic sizes that objects define."""
        names = ", ".join(f"%{value.name}" for value in objects)
        self._part(tuple(objects), (), (), f"the sizes of {names}")

    def call(self, nodes: Sequence[Node]) -> None:
        """Emit a part for nodes that the interpreter runs together."""
        produced = {value for node in nodes for value in node.outputs}
        inputs = dict.fromkeys(
            v for n in nodes for v in n.inputs if v is not None and v not in produced
        )
        inside = set(map(id, nodes))
        results = tuple(
            value
            for node in nodes
            for value in node.outputs
            if value in self.graph.results
            or any(id(user) not in inside for user in self.users.get(value, ()))
        )
        object_constants = [
            self.object_constants[value] for value in inputs if value in self.object_constants
        ]
        params = tuple(value for value in inputs if value not in self.object_constants)
        label = ", ".join(dict.fromkeys(describe(node) for node in nodes))
        self._part(params, (*object_constants, *nodes), results, label)

    def _part(
        self,
        params: tuple[Value, ...],
        nodes: tuple[Node, ...],
        results: tuple[Value, ...],
        label: str,
    ) -> None:
        produced = [value for node in nodes for value in node.outputs]
        defined = dict.fromkeys(
            size for value in (*params, *produced) for size in _bare_sizes(value)
            if size not in self.bound
        )  # fmt: skip
        mentioned: dict[Var, None] = {}
        for value in params:
            mentioned.update(sizes_of(value.type))
        for node in nodes:
            mentioned.update(_mentioned(node))
        known = {size for param in params for size in _bare_sizes(param)} if nodes else ()
        passed = tuple(size for size in mentioned if size in self.bound and size not in known)
        number = len(self.splitter.parts)
        graph = _part_graph(number, params, passed, nodes, tuple(defined), results)
        self.splitter.graphs.append(graph)
        weights = [at for at, value in enumerate(params) if value in self.tensor_constants]
        self.splitter.parts.append(Part(frozenset(weights), bool(defined)))
        for at, value in enumerate(params):
            if not is_tensor(value.type):
                self.splitter.readers.setdefault(value, []).append((number, at))
        for value in results:
            if not is_tensor(value.type):
                self.splitter.makers[value] = number
        self._emit(number, params, passed, tuple(defined), results, label)
        self.bound.update(defined)

    def _emit(
        self,
        number: int,
        params: Sequence[Value],
        passed: tuple[Var, ...],
        defined: tuple[Var, ...],
        results: Sequence[Value],
        label: str,
    ) -> None:
        """The nodes that call a part."""
        native = self.splitter.native
        sizes = Value("told", TensorType(I64, (const(len(defined)),)))
        attributes = ir.attributes(part=number, sizes=passed, label=label)
        inputs = tuple(native(value) for value in params)
        self.nodes.append(Node("foreign", inputs, (sizes,), attributes))
        if defined:
            attributes = ir.attributes(sizes=defined, label=label)
            self.nodes.append(Node("sizes", (sizes,), (), attributes))
        if results:
            outputs = tuple(native(value) for value in results)
            attributes = ir.attributes(part=number, label=label)
            self.nodes.append(Node("fetch", (sizes,), outputs, attributes))


def _part_graph(
    number: int,
    params: tuple[Value, ...],
    passed: tuple[Var, ...],
    nodes: tuple[Node, ...],
    defined: tuple[Var, ...],
    results: tuple[Value, ...],
) -> Graph:
    """The graph of a part: it returns the sizes that it defines, if any, then its results."""
    renamed = {value: Value(value.name, value.type) for value in params}
    parameters = tuple(renamed.values())
    inner: list[Node] = []
    if passed:
        size_values = Value("sizes", TensorType(I64, (const(len(passed)),)))
        parameters = (*parameters, size_values)
        inner.append(Node("sizes", (size_values,), (), ir.attributes(sizes=passed, label="sizes")))
    for node in nodes:
        inputs = tuple(None if value is None else renamed[value] for value in node.inputs)
        outputs = tuple(Value(value.name, value.type) for value in node.outputs)
        renamed.update(zip(node.outputs, outputs, strict=True))
        inner.append(replace(node, inputs=inputs, outputs=outputs))
    made = tuple(renamed[value] for value in results)
    if defined:
        sizes = Value("told", TensorType(I64, (const(len(defined)),)))
        inner.append(Node("dims", (), (sizes,), ir.attributes(values=defined)))
        made = (sizes, *made)
    return Graph(part_name(number), parameters, tuple(inner), made)


# --------------------------------------------------------------------------- order


def _rounds(
    graph: Graph, is_foreign: Callable[[Node], bool], object_constants: dict[Value, Node]
) -> list[tuple[list[Node], list[Node]]]:
    """The nodes in rounds, each with its native nodes followed by those of one part.

    Constant objects are copied into every part that uses them. One that native control flow or the
    caller needs is returned by a part.
    """
    maker: dict[Value, Node] = {}
    definer: dict[Var, Node] = {}
    round_of: dict[Node, int] = {}
    needed_natively = set(graph.results)
    for node in graph.nodes:
        if node.op != "constant" and not is_foreign(node):
            needed_natively.update(value for value in node.inputs if value is not None)
    for node in graph.nodes:
        if (
            node.op == "constant"
            and node.output in object_constants
            and node.output not in needed_natively
        ):
            continue
        sources = [maker[v] for v in node.inputs if v is not None and v in maker]
        sources += [definer[size] for size in _mentioned(node) if size in definer]
        earliest = 0
        for source in sources:
            crosses = is_foreign(source) and not is_foreign(node)
            earliest = max(earliest, round_of[source] + crosses)
        round_of[node] = earliest
        for value in node.outputs:
            maker[value] = node
            for size in sizes_of(value.type):
                definer.setdefault(size, node)
    rounds: list[tuple[list[Node], list[Node]]] = [
        ([], []) for _ in range(max(round_of.values(), default=-1) + 1)
    ]
    for node, number in round_of.items():
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
    """The dynamic sizes that a value's shape defines: dimensions that are a single variable."""
    of = value.type
    dims = (of.shape or ()) if isinstance(of, TensorType) else ()
    return [dim for dim in dims if isinstance(dim, Size)]


def _mentioned(node: Node) -> dict[Var, None]:
    """The dynamic sizes that a node and its bodies mention."""
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
