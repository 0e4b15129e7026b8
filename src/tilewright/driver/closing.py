"""Split off the closing graph: interpreter nodes that only main's results depend on.

    module, graph, closing = split_closing(module, placed)
    module      main without these nodes; it returns what they read
    graph       the graph @closing, which the interpreter runs after native code has returned
    closing     where the parameters and results of @closing belong

A part that native code calls (`foreign_parts.py`) costs two calls of Python and a handle per
object. That is several times the run time of a small classifier, whose outputs are maps and class
names. Where native code reads none of the results, the interpreter can run after it instead.
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
    """Main without the closing nodes, the closing graph, and how it is called. None if there are no
    such nodes, or if the graph is no straight-line code."""
    main = module.main
    nodes = _closing_nodes(main, placed)
    if not nodes:
        return None
    inside = {value for node in nodes for value in node.outputs}
    constants = {node.output: node for node in main.nodes if node.op == "constant"}
    inputs = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    arguments = [value for value in inputs if value not in inside and value not in constants]
    main_results = list(dict.fromkeys(value for value in main.results if value not in inside))
    main_results += [value for value in arguments if value not in main_results]
    closing_results = [value for value in dict.fromkeys(main.results) if value in inside]
    constant_nodes = [constants[value] for value in inputs if value in constants]
    graph = _graph(arguments, [*constant_nodes, *nodes], closing_results)
    if straight_line(module, graph) is None:
        return None
    names = dict(zip(reversed(main.results), reversed(module.result_names), strict=True))
    main_nodes = tuple(node for node in main.nodes if node not in set(nodes))
    places = {value: at for at, value in enumerate([*main_results, *closing_results])}
    closing = Closing(
        tuple(places[value] for value in arguments), tuple(places[value] for value in main.results)
    )
    shorter = replace(main, nodes=main_nodes, results=tuple(main_results))
    outputs = tuple(names.get(value, value.name) for value in main_results)
    graphs = {**module.graphs, "main": shorter}
    return replace(module, graphs=graphs, outputs=outputs), graph, closing


def _closing_nodes(main: Graph, placed: Placement) -> list[Node]:
    """The interpreter's nodes whose results no other node reads, in order.

    Nodes with tensor results stay parts: callers of the saved main without an interpreter are
    promised those results, or an error.
    """
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
        if needed.isdisjoint(_defined_sizes(node)):
            found[node] = None
    return list(reversed(found))


def _defined_sizes(node: Node) -> set[Var]:
    """Dynamic sizes that are known only after the node has run."""
    known = {s for v in node.inputs if v is not None for s in sizes_of(v.type)}
    return {s for value in node.outputs for s in sizes_of(value.type)} - known


def _graph(arguments: list[Value], nodes: list[Node], results: list[Value]) -> Graph:
    """The closing graph, with values of its own."""
    renamed = {value: Value(value.name, value.type) for value in arguments}
    params = tuple(renamed.values())
    inner = []
    for node in nodes:
        inputs = tuple(None if value is None else renamed[value] for value in node.inputs)
        outputs = tuple(Value(value.name, value.type) for value in node.outputs)
        renamed.update(zip(node.outputs, outputs, strict=True))
        inner.append(replace(node, inputs=inputs, outputs=outputs))
    return Graph(CLOSING, params, tuple(inner), tuple(renamed[value] for value in results))
