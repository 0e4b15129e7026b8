"""Traversal of graphs, without recursion elsewhere.

walk(graph)              every node, bodies after the node that holds them
users(graph)             which nodes use a value
rewrite(graph, rule)     a new graph; the same object if no rule fired
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilewright import sym
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    map_dims,
    sizes_of,
)
from tilewright.sym import Expr, Size, Var, free_vars


@dataclass(frozen=True)
class Instead:
    """The replacement of a node: nodes, values for its outputs, and substitutions of sizes.

    `sizes` replaces sizes that the node defined, in all later nodes.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    sizes: Mapping[Var, Expr] = field(default_factory=dict)


# Given a node whose inputs, attributes and bodies are already rewritten: its replacement, or None
# to keep it.
Rule = Callable[[Node], Instead | None]

# Operators whose body is a scalar function, part of their kernel, and never rewritten.
SCALAR_BODIES = ("sort", "reduce_window", "scatter_slices")


def walk(graph: Graph) -> Iterator[Node]:
    """Iterate over all nodes of the graph and its bodies, in order."""
    stack: list[Node | Graph] = [graph]
    while stack:
        item = stack.pop()
        if isinstance(item, Graph):
            stack.extend(reversed(item.nodes))
            continue
        yield item
        stack.extend(reversed(item.bodies))


def users(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes of this graph (without bodies) that use each value, in order."""
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            found.setdefault(value, []).append(node)
    return found


def producers(graph: Graph) -> dict[Value, Node]:
    """The node that defines each value."""
    return {value: node for node in graph.nodes for value in node.outputs}


def attribute_sizes(node: Node) -> dict[Var, None]:
    """The sizes in a node's attributes."""
    found: dict[Var, None] = {}
    stack: list[Attribute] = [value for _, value in node.attributes]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(item)
        elif isinstance(item, Expr):
            found.update(free_vars(item))
        elif isinstance(item, (TensorType, SequenceType, OptionalType, MapType)):
            found.update(sizes_of(item))
    return found


# ------------------------------------------------------------------------------------ rewriting


class Edit:
    """Substitutions of values and sizes."""

    def __init__(
        self,
        values: Mapping[Value, Value] | None = None,
        sizes: Mapping[Var, Expr] | None = None,
    ) -> None:
        self.values: dict[Value, Value] = dict(values or {})
        self.sizes: dict[Var, Expr] = dict(sizes or {})

    def value(self, value: Value) -> Value:
        while value in self.values:
            value = self.values[value]
        return value

    def replace_size(self, variable: Var, by: Expr) -> None:
        if variable is not by:
            for old, expr in self.sizes.items():
                self.sizes[old] = sym.simplify(sym.substitute(expr, {variable: by}))
            self.sizes[variable] = sym.simplify(sym.substitute(by, self.sizes))

    def expr(self, expr: Expr) -> Expr:
        if not any(variable in self.sizes for variable in free_vars(expr)):
            return expr
        return sym.simplify(sym.substitute(expr, self.sizes))

    def attribute(self, value: Attribute) -> Attribute:
        """Substitute sizes in an attribute; the same object if unchanged."""
        if isinstance(value, tuple):
            items = tuple([self.attribute(item) for item in value])
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        if isinstance(value, Expr):
            made = self.expr(value)
            return int(made.value) if isinstance(made, sym.Const) else made
        if isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
            return map_dims(value, self.expr)
        return value

    def renew(self, value: Value) -> Value:
        """A value's definition with sizes substituted."""
        of = map_dims(value.type, self.expr) if self.sizes else value.type
        if of is value.type:
            return value
        self.values[value] = made = Value(value.name, of)
        return made

    def node(self, node: Node) -> Node:
        """A node with substituted inputs, attributes, types and bodies."""
        inputs = tuple([None if v is None else self.value(v) for v in node.inputs])
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            node = replace(node, inputs=inputs)
        if not self.sizes:
            return node
        attributes = tuple([(name, self.attribute(value)) for name, value in node.attributes])
        if any(a[1] is not b[1] for a, b in zip(attributes, node.attributes, strict=True)):
            node = replace(node, attributes=attributes)
        outputs = tuple([self.renew(value) for value in node.outputs])
        if any(a is not b for a, b in zip(outputs, node.outputs, strict=True)):
            node = replace(node, outputs=outputs)
        bodies = tuple([self.body(body) for body in node.bodies])
        return _with_bodies(node, bodies)

    def body(self, graph: Graph) -> Graph:
        """A body with sizes (and its own values) substituted."""
        inner = Edit(self.values, self.sizes)
        params = tuple([inner.renew(param) for param in graph.params])
        nodes = tuple([inner.node(node) for node in graph.nodes])
        results = tuple([inner.value(value) for value in graph.results])
        same = (
            all(a is b for a, b in zip(params, graph.params, strict=True))
            and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
            and all(a is b for a, b in zip(results, graph.results, strict=True))
        )
        return graph if same else replace(graph, params=params, nodes=nodes, results=results)


def first_capture(node: Node) -> int:
    """The first input that a node with bodies passes to them."""
    if node.op in SCALAR_BODIES:
        return len(node.inputs)
    if node.op == "fused":
        return 0
    if node.op == "loop":
        return 2 + int(node["carried"])
    if node.op == "scan":
        return int(node["states"]) + int(node["inputs"])
    return 1


def _with_bodies(node: Node, bodies: tuple[Graph, ...]) -> Node:
    same = all(a is b for a, b in zip(bodies, node.bodies, strict=True))
    return node if same else replace(node, bodies=bodies)


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Offer every node to `rule`, in order and with substituted inputs. Bodies are rewritten
    first."""
    return rewrite_by(graph, lambda _: rule)


def rewrite_by(
    graph: Graph,
    make_rule: Callable[[Graph], Rule],
    prepare: Callable[[Node], Node] = lambda node: node,
) -> Graph:
    """`rewrite` with a new rule for each graph, for rules with state.

    `prepare` may change the bodies of a node before they are rewritten.
    """
    edit, out = Edit(), []
    rule = make_rule(graph)
    changed = False
    for node in graph.nodes:
        current = edit.node(node)
        if current.bodies:
            current = prepare(current)
        if current.op not in SCALAR_BODIES:
            bodies = tuple([rewrite_by(body, make_rule, prepare) for body in current.bodies])
            current = _with_bodies(current, bodies)
        made = rule(current)
        if made is None:
            out.append(current)
            changed = changed or current is not node
            continue
        out.extend(made.nodes)
        changed = True
        for old, new in zip(current.outputs, made.values, strict=True):
            if old is not new:
                edit.values[old] = new
        for variable, expr in made.sizes.items():
            edit.replace_size(variable, expr)
    if not changed:
        return graph
    results = tuple([edit.value(value) for value in graph.results])
    return replace(graph, nodes=tuple(out), results=results)


def rewrite_module(module: Module, rule: Rule) -> Module:
    """Apply `rewrite` to every graph of the module."""
    return map_graphs(module, lambda graph: rewrite(graph, rule))


def map_graphs(module: Module, change: Callable[[Graph], Graph]) -> Module:
    """Map all graphs of a module; the same object if unchanged."""
    graphs = {name: change(graph) for name, graph in module.graphs.items()}
    if all(graphs[name] is graph for name, graph in module.graphs.items()):
        return module
    return replace(module, graphs=graphs)


def map_bodies(module: Module, change: Callable[[Graph], Graph]) -> Module:
    """`map_graphs` that also maps bodies of control flow, before the enclosing graph."""

    def changed(graph: Graph) -> Graph:
        nodes = tuple([inner(node) if node.bodies else node for node in graph.nodes])
        same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
        return change(graph if same else replace(graph, nodes=nodes))

    def inner(node: Node) -> Node:
        if node.op in ("fused", *SCALAR_BODIES):
            return node
        return _with_bodies(node, tuple([changed(body) for body in node.bodies]))

    return map_graphs(module, changed)


def same_sizes(old: Node, new: tuple[Value, ...]) -> dict[Var, Expr] | None:
    """The substitution of a node's output sizes if its outputs are replaced; None if ambiguous."""
    found: dict[Var, Expr] = {}
    for a, b in zip(old.outputs, new, strict=True):
        of, to = a.type, b.type
        if of == to:
            continue
        if not isinstance(of, TensorType) or not isinstance(to, TensorType):
            return None
        if of.dtype is not to.dtype or of.rank != to.rank:
            return None
        for x, y in zip(of.shape or (), to.shape or (), strict=True):
            if x is y or sym.equal(x, y):
                continue
            if not isinstance(x, Size) or found.get(x, y) is not y:
                return None
            found[x] = y
    return found
