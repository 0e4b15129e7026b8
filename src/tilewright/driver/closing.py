"""What the interpreter computes from main's results alone: it runs when native code has ended.

    module, closing = split_closing(module, placed)
    module      main without such nodes; it gives what they read
    closing     the graph @closing, and where its parameters and results belong

A part costs native code two calls of Python and a handle for each object (`foreign_parts.py`):
several times what a small classifier takes, whose answers are maps and names of classes. Nothing of
that is needed where native code reads none of it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.driver.parts import CLOSING, Closing
from tilewright.driver.placement import INTERPRETER, Placement
from tilewright.graph.interp import straight_line
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import is_tensor, sizes_of
from tilewright.graph.visit import attribute_sizes, users, walk
from tilewright.sym import Var


def split_closing(module: Module, placed: Placement) -> tuple[Module, Graph, Closing] | None:
    """Main, the closing graph and its place; None if native code, or a part that it calls, has to
    run after all of the interpreter's nodes."""
    main = module.main
    nodes = _closing_nodes(main, placed)
    if not nodes:
        return None
    inside = {value for node in nodes for value in node.outputs}
    constants = {node.output: node for node in main.nodes if node.op == "constant"}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    taken = [value for value in read if value not in inside and value not in constants]
    kept = list(dict.fromkeys(value for value in main.results if value not in inside))
    kept += [value for value in taken if value not in kept]
    made = [value for value in dict.fromkeys(main.results) if value in inside]
    held = [constants[value] for value in read if value in constants]
    graph = _graph(taken, [*held, *nodes], made)
    if straight_line(module, graph) is None:
        return None
    names = dict(zip(reversed(main.results), reversed(module.result_names), strict=True))
    rest = tuple(node for node in main.nodes if node not in set(nodes))
    places = {value: at for at, value in enumerate([*kept, *made])}
    closing = Closing(
        tuple(places[value] for value in taken), tuple(places[value] for value in main.results)
    )
    shorter = replace(main, nodes=rest, results=tuple(kept))
    outputs = tuple(names.get(value, value.name) for value in kept)
    graphs = {**module.graphs, "main": shorter}
    return replace(module, graphs=graphs, outputs=outputs), graph, closing


def _closing_nodes(main: Graph, placed: Placement) -> list[Node]:
    """The interpreter's nodes that no other node needs, in order. Those that give numbers stay
    parts: whoever calls main without the interpreter is promised them, or an error."""
    readers = users(main)
    found: dict[Node, None] = {}
    needed = {size for node in walk(main) for size in attribute_sizes(node)}
    for node in reversed(main.nodes):
        if node.op == "constant" or placed[node] != INTERPRETER or node.bodies:
            continue
        if any(is_tensor(value.type) for value in node.outputs):
            continue
        if any(user not in found for value in node.outputs for user in readers.get(value, ())):
            continue
        if needed.isdisjoint(_told(node)):
            found[node] = None
    return list(reversed(found))


def _told(node: Node) -> set[Var]:
    """The sizes that nobody knows before the node has run."""
    known = {s for v in node.inputs if v is not None for s in sizes_of(v.type)}
    return {s for value in node.outputs for s in sizes_of(value.type)} - known


def _graph(taken: list[Value], nodes: list[Node], made: list[Value]) -> Graph:
    """Nodes as a graph of their own."""
    renamed = {value: Value(value.name, value.type) for value in taken}
    params = tuple(renamed.values())
    inner = []
    for node in nodes:
        inputs = tuple(None if value is None else renamed[value] for value in node.inputs)
        outputs = tuple(Value(value.name, value.type) for value in node.outputs)
        renamed.update(zip(node.outputs, outputs, strict=True))
        inner.append(replace(node, inputs=inputs, outputs=outputs))
    return Graph(CLOSING, params, tuple(inner), tuple(renamed[value] for value in made))
