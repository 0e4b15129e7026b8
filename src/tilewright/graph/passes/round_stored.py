"""round_stored: store intermediates in 16 bits where all their uses are rounded to 16 bits.

    %g: f32 = fused(%x, %w) { sigmoid(matmul(%x, %w)) }
    %y: f16 = fused(%g, %z, %v) { cast(matmul(%z, %v) * %g) }

The consumer rounds its results to 16 bits anyway, so the intermediate needs no more: a gate, say,
or queries before their rotary embedding. What is reduced, or raised to a power, stays in f32, since
that would magnify the rounding. It runs after fusion, which decides what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.fused_nodes import FUSED
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.views import ALIAS
from tilewright.graph.visit import map_bodies, users

# Operators that do not magnify errors of their operands, relative to their results or summands.
STEADY = ("neg", "abs", "relu", "sigmoid", "tanh", "erf", "clip", "add", "sub", "mul", "minimum",
          "maximum")  # fmt: skip
MOVES = (ALIAS, "expand", "transpose", "slice", "concat", "pad")
HALVES = (F16, BF16)


def round_stored(module: Module, ctx: PassContext) -> Module:
    """Before: %g: f32 = fused(...); %y: f16 = fused(%g).   After: %g: f16 = fused(...); ..."""
    return map_bodies(module, lambda graph: _Rounding(graph).run())


@dataclass
class _Use:
    """The readers of a value or of its reshapes: kernels, and the position of the operand."""

    aliases: list[Node]
    kernels: list[tuple[Node, int]]


class _Rounding:
    """The kernels of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = users(graph)
        self.instead: dict[Node, Node] = {}

    def run(self) -> Graph:
        for node in reversed(self.graph.nodes):  # consumers decide what may be rounded
            for value in node.outputs if node.op == FUSED else ():
                self._try_round(node, value)
        if not self.instead:
            return self.graph
        return replace(
            self.graph, nodes=tuple([self.instead.get(each, each) for each in self.graph.nodes])
        )

    def _now(self, node: Node) -> Node:
        return self.instead.get(node, node)

    def _try_round(self, node: Node, value: Value) -> None:
        use = self._use(value) if _is_wide(value) else None
        if use is None or not use.kernels:
            return
        bodies: dict[Node, Graph] = {}
        small = None
        for kernel, place in use.kernels:
            body = bodies.get(kernel, self._now(kernel).bodies[0])
            found = _rounded_to(body, body.params[place])
            if found is None or found is not (small or found):
                return
            small = found
            narrowed = _reading(body, place, small)
            if narrowed is None:
                return
            bodies[kernel] = narrowed
        assert small is not None
        now = self._now(node)
        at = now.outputs.index(value)
        ended, rounded = _ending(now.bodies[0], now.bodies[0].results[at], small)
        outputs, results = list(now.outputs), list(now.bodies[0].results)
        if rounded in results:  # the rounded value is stored already
            made = outputs[results.index(rounded)]
            del outputs[at], results[at]
        else:
            made = Value(value.name, replace(value.tensor, dtype=small))
            outputs[at], results[at] = made, rounded
        ended = _used(replace(ended, results=tuple(results)))
        self.instead[node] = replace(now, outputs=tuple(outputs), bodies=(ended,))
        names = {value: made}
        for alias in use.aliases:
            source, old = alias.inputs[0], alias.output
            assert source is not None
            names[old] = Value(old.name, replace(old.tensor, dtype=small))
            self.instead[alias] = replace(alias, inputs=(names[source],), outputs=(names[old],))
        for kernel, body in bodies.items():
            now = self._now(kernel)
            inputs = tuple([each if each is None else names.get(each, each) for each in now.inputs])
            self.instead[kernel] = replace(now, inputs=inputs, bodies=(body,))

    def _use(self, value: Value) -> _Use | None:
        """The readers of a value; None if any is not a kernel."""
        found, stack = _Use([], []), [value]
        while stack:
            current = stack.pop()
            if current in self.graph.results:
                return None
            for node in self.users.get(current, ()):
                if node.op == ALIAS and len(node.inputs) == 1:
                    found.aliases.append(node)
                    stack.append(node.output)
                elif node.op == FUSED:
                    found.kernels += [
                        (node, at) for at, each in enumerate(node.inputs) if each is current
                    ]
                else:
                    return None
        return found


def _is_wide(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.tensor.dtype is F32


def _rounded_to(body: Graph, param: Value) -> DType | None:
    """The type that a kernel rounds everything computed from an operand to; None if it does not."""
    wide, small = {param}, None
    if param in body.results:
        return None
    for node in body.nodes:
        if wide.isdisjoint(node.inputs):
            continue
        if node.op == "cast" and node["to"] in HALVES:
            if node["to"] is not (small or node["to"]):
                return None
            small = node["to"]
            continue
        if node.op not in (*STEADY, *MOVES, "where") or node.output in body.results:
            return None
        wide.add(node.output)
    return small


def _reading(body: Graph, place: int, small: DType) -> Graph | None:
    """The kernel with one operand in 16 bits; data movement of it stays in 16 bits. None if the
    kernel would only return its operand."""
    old = body.params[place]
    param = Value(old.name, replace(old.tensor, dtype=small))
    narrow: dict[Value, Value] = {old: param}
    widen = make_node("cast", (param,), {"to": F32}, body.nodes[0].loc)
    nodes = [replace(widen, outputs=(old,))]
    names: dict[Value, Value] = {}  # results of casts that are removed
    for node in body.nodes:
        inputs = [None if v is None else names.get(v, v) for v in node.inputs]
        if node.op == "cast" and node["to"] is small and node.inputs[0] in narrow:
            names[node.output] = narrow[node.inputs[0]]
            continue
        nodes.append(replace(node, inputs=tuple(inputs)))
        if node.op in MOVES and all(each in narrow for each in node.inputs):
            given = [narrow[each] for each in node.inputs if each is not None]
            moved = make_node(node.op, given, dict(node.attributes), node.loc)
            narrow[node.output] = moved.output
            nodes.append(moved)
    results = tuple([names.get(value, value) for value in body.results])
    if param in results:
        return None
    params = tuple([param if at == place else each for at, each in enumerate(body.params)])
    return _used(replace(body, params=params, nodes=tuple(nodes), results=results))


def _ending(body: Graph, value: Value, small: DType) -> tuple[Graph, Value]:
    """The kernel with a cast of a value, and the rounded value."""
    casts = (node for node in body.nodes if node.op == "cast" and node["to"] is small)
    cast = next((node for node in casts if node.inputs[0] is value), None)
    if cast is None:
        cast = make_node("cast", (value,), {"to": small}, body.nodes[-1].loc)
        body = replace(body, nodes=(*body.nodes, cast))
    return body, cast.output


def _used(body: Graph) -> Graph:
    """A body without unused nodes."""
    used, kept = set(body.results), list[Node]()
    for node in reversed(body.nodes):
        if used.intersection(node.outputs):
            kept.append(node)
            used.update([value for value in node.inputs if value is not None])
    return replace(body, nodes=tuple(reversed(kept)))
