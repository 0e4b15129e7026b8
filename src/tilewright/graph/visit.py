"""Traversal of graphs. Nothing else recurses by hand.

walk(graph)              every node, bodies after the node that holds them
users(graph)             which nodes use a value
rewrite(graph, rule)     a new graph; the same object if no rule fired
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tilewright.graph.ir import Graph, Module, Node, Value

# Given a node whose inputs are up to date: the nodes that stand in its place and the values that
# stand for its outputs, or None to keep it.
Rule = Callable[[Node], tuple[tuple[Node, ...], tuple[Value, ...]] | None]


def walk(graph: Graph) -> Iterator[Node]:
    """Every node of the graph and of the bodies inside it, in order."""
    stack: list[Node | Graph] = [graph]
    while stack:
        item = stack.pop()
        if isinstance(item, Graph):
            stack.extend(reversed(item.nodes))
            continue
        yield item
        stack.extend(reversed(item.bodies))


def users(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes of this graph (not of bodies) that use each value, in order."""
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            found.setdefault(value, []).append(node)
    return found


def producers(graph: Graph) -> dict[Value, Node]:
    """The node that defines each value."""
    return {value: node for node in graph.nodes for value in node.outputs}


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Offer every node, in order and with inputs renewed, to `rule`. Bodies are rewritten first."""
    new_value: dict[Value, Value] = {}
    out: list[Node] = []
    changed = False
    for node in graph.nodes:
        current = with_inputs(node, new_value)
        bodies = tuple([rewrite(body, rule) for body in node.bodies])
        if any(a is not b for a, b in zip(bodies, node.bodies, strict=True)):
            current = replace(current, bodies=bodies)
        made = rule(current)
        if made is None:
            out.append(current)
            changed = changed or current is not node
            continue
        nodes, values = made
        out.extend(nodes)
        changed = True
        new_value.update(zip(node.outputs, values, strict=True))
    if not changed:
        return graph
    results = tuple([_follow(value, new_value) for value in graph.results])
    return replace(graph, nodes=tuple(out), results=results)


def with_inputs(node: Node, mapping: Mapping[Value, Value]) -> Node:
    """The node with replaced inputs; the same object if none is."""
    if not mapping:
        return node
    inputs = tuple([None if v is None else _follow(v, mapping) for v in node.inputs])
    if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
        return node
    return replace(node, inputs=inputs)


def _follow(value: Value, mapping: Mapping[Value, Value]) -> Value:
    while value in mapping:
        value = mapping[value]
    return value


def rewrite_module(module: Module, rule: Rule) -> Module:
    """`rewrite` on every graph of the module."""
    graphs = {name: rewrite(graph, rule) for name, graph in module.graphs.items()}
    if all(graphs[name] is graph for name, graph in module.graphs.items()):
        return module
    return replace(module, graphs=graphs)
