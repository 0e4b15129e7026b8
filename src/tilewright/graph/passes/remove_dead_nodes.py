"""remove_dead_nodes: remove what no result depends on.

A node is live if a result depends on one of its outputs, or on a size that it defines. Unused
captures of bodies, uncalled graphs and unused constants are removed, too.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import sizes_of
from tilewright.graph.visit import attribute_sizes, first_capture, map_graphs, walk
from tilewright.sym import Size, Var


def remove_dead_nodes(module: Module, ctx: PassContext) -> Module:
    """Before: %a = f(%x); %b = g(%x); return %b.   After: %b = g(%x); return %b."""
    module = map_graphs(module, _live)
    called = _called(module)
    graphs = {name: graph for name, graph in module.graphs.items() if name in called}
    names = {node["data"] for graph in graphs.values() for node in walk(graph) if _is_stored(node)}
    names.update(module.states)
    constants = {name: array for name, array in module.constants.items() if name in names}
    if len(graphs) == len(module.graphs) and len(constants) == len(module.constants):
        return module
    return replace(module, graphs=graphs, constants=constants)


def _is_stored(node: Node) -> bool:
    return node.op == "constant"


def _called(module: Module) -> set[str]:
    """The graphs reachable from main; all of them in a module without main."""
    if "main" not in module.graphs:
        return set(module.graphs)
    found, stack = {"main"}, ["main"]
    while stack:
        for node in walk(module.graphs[stack.pop()]):
            if node.op == "call" and node["graph"] not in found:
                found.add(node["graph"])
                stack.append(node["graph"])
    return found


def _live(graph: Graph) -> Graph:
    nodes = [_with_live_bodies(node) for node in graph.nodes]
    defines = _size_definitions(graph)
    used: set[Value] = set(graph.results)
    sizes: set[Var] = set()
    for value in graph.results:
        sizes.update(sizes_of(value.type))
    kept: list[Node] = []
    for old, node in zip(reversed(graph.nodes), reversed(nodes), strict=True):
        live = any(value in used for value in node.outputs)
        if not live and not any(size in sizes for size in defines.get(old, ())):
            continue
        kept.append(node)
        for each in (*node.inputs, *node.outputs):
            if each is not None:
                used.add(each)
                sizes.update(sizes_of(each.type))
        sizes.update(attribute_sizes(node))
        for body in node.bodies:
            sizes.update(_mentioned(body))
    kept.reverse()
    if len(kept) == len(graph.nodes) and all(
        a is b for a, b in zip(kept, graph.nodes, strict=True)
    ):
        return graph
    return replace(graph, nodes=tuple(kept))


def _mentioned(body: Graph) -> dict[Var, None]:
    """The sizes that anything in a body mentions."""
    found: dict[Var, None] = {}
    for param in body.params:
        found.update(sizes_of(param.type))
    for node in walk(body):
        found.update(attribute_sizes(node))
        for value in node.outputs:
            found.update(sizes_of(value.type))
        for inner in node.bodies:
            for param in inner.params:
                found.update(sizes_of(param.type))
    return found


def _size_definitions(graph: Graph) -> dict[Node, list[Var]]:
    """The sizes that each node is the first to have as a dimension."""
    seen: set[Var] = set()
    for param in graph.params:
        seen.update(sizes_of(param.type))
    found: dict[Node, list[Var]] = {}
    for node in graph.nodes:
        for value in node.outputs:
            for variable in sizes_of(value.type):
                if variable not in seen and isinstance(variable, Size):
                    seen.add(variable)
                    found.setdefault(node, []).append(variable)
    return found


def _with_live_bodies(node: Node) -> Node:
    if not node.bodies:
        return node
    bodies = tuple(_live(body) for body in node.bodies)
    if any(a is not b for a, b in zip(bodies, node.bodies, strict=True)):
        node = replace(node, bodies=bodies)
    return _without_unused_captures(node)


def _without_unused_captures(node: Node) -> Node:
    """Remove captures that no body uses."""
    first = first_capture(node)
    count = max(0, len(node.inputs) - first)
    needed = [False] * count
    for body in node.bodies:
        used = {value for inner in body.nodes for value in inner.inputs}
        used.update(body.results)
        for at, param in enumerate(_captures(body, count)):
            needed[at] = needed[at] or param in used
    if all(needed):
        return node
    bodies = tuple(
        replace(
            body,
            params=(
                *body.params[: len(body.params) - count],
                *itertools.compress(_captures(body, count), needed),
            ),
        )
        for body in node.bodies
    )
    kept = itertools.compress(node.inputs[first:], needed)
    return replace(node, inputs=(*node.inputs[:first], *kept), bodies=bodies)


def _captures(body: Graph, count: int) -> tuple[Value, ...]:
    return body.params[len(body.params) - count :]
