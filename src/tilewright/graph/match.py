"""Patterns: trees of operators that rewrites match, as data.

    SIGMOID = Apply("div", Number(1.0), Apply("add", Apply("exp", Apply("neg", X)), Number(1.0)))
    found = scope.match(SIGMOID, value)        # {"x": <Value>} or None

A pattern is matched against the definition of a value. `Any` binds a value to a name, the same
value wherever the name recurs; `Number` binds the value of a uniform constant, or requires it;
`Apply` requires an operator, with operands in either order if commutative; `Either` takes the first
alternative that matches.

`rewrite_matches` offers every node to rules, which see its definitions (`Scope`) and return
replacement nodes, the last of which defines the node's outputs and is offered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any as Anything

import numpy as np

from tilewright.graph import ir
from tilewright.graph.build import make_node, store_constant
from tilewright.graph.definitions import COMMUTATIVE, Array, Definitions
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by


@dataclass(frozen=True)
class Any:
    """Any value, bound to a name."""

    name: str


@dataclass(frozen=True)
class Number:
    """A uniform constant: of a given number, or of any, bound to a name."""

    what: float | str


@dataclass(frozen=True)
class Apply:
    """An operator applied to operands that match patterns; the node is bound to `name`, if
    given."""

    op: str
    operands: tuple[Pattern, ...]
    name: str = ""

    def __init__(self, op: str, *operands: Pattern, name: str = "") -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class Either:
    """The first of several patterns that matches."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern) -> None:
        object.__setattr__(self, "patterns", patterns)


Pattern = Any | Number | Apply | Either
Found = dict[str, Anything]  # values, numbers and nodes by name; "": the matched inner nodes


@dataclass
class Scope(Definitions):
    """What a rule can query: definitions, uses, old and new constants."""

    constants: dict[str, Array]
    uses: Mapping[Value, int]
    users: Mapping[Value, list[Node]]  # nodes with the value as an operand

    def is_used_once(self, value: Value) -> bool:
        """Whether a value is used as one operand, and is no result."""
        return self.uses.get(value, 0) == 1

    def is_used_by(self, value: Value, *ops: str) -> bool:
        """Whether a value is an operand of one of these operators."""
        return any(node.op in ops for node in self.users.get(value, ()))

    # ------------------------------------------------------------ matching

    def match(self, pattern: Pattern, value: Value | None) -> Found | None:
        """Match a pattern against the definition of a value; the bindings, or None."""
        return self._match(pattern, value, {"": ()})

    def match_node(self, pattern: Apply, node: Node) -> Found | None:
        """Match a pattern against a node under rewriting, which is not defined in the scope yet."""
        if node.op != pattern.op:
            return None
        return self._match_operands(pattern, node, {"": ()})

    def _match(self, pattern: Pattern, value: Value | None, found: Found) -> Found | None:
        if value is None:
            return None
        if isinstance(pattern, Any):
            if found.get(pattern.name, value) is not value:
                return None
            return {**found, pattern.name: value}
        if isinstance(pattern, Number):
            return self._match_number(pattern, value, found)
        if isinstance(pattern, Either):
            for option in pattern.patterns:
                made = self._match(option, value, found)
                if made is not None:
                    return made
            return None
        node = self.producer(value, pattern.op)
        return None if node is None else self._match_operands(pattern, node, found)

    def _match_number(self, pattern: Number, value: Value, found: Found) -> Found | None:
        number = self.number(value)
        if number is None:
            return None
        if isinstance(pattern.what, str):
            return {**found, pattern.what: number}
        of = value.tensor.dtype
        slack = 1e-5 if of.bits >= 32 else 1e-2
        return found if abs(number - pattern.what) <= slack * abs(pattern.what) else None

    def _match_operands(self, pattern: Apply, node: Node, found: Found) -> Found | None:
        inputs = [value for value in node.inputs if value is not None]
        if len(inputs) != len(pattern.operands):
            return None
        orders = [pattern.operands]
        if node.op in COMMUTATIVE:
            orders.append(pattern.operands[::-1])
        for operands in orders:
            made: Found | None = {**found, "": (*found[""], node)}
            for operand, value in zip(operands, inputs, strict=True):
                made = None if made is None else self._match(operand, value, made)
            if made is not None:
                return {**made, pattern.name: node} if pattern.name else made
        return None

    def is_private(self, found: Found, root: Node) -> bool:
        """Whether inner matched nodes have no uses outside of the match."""
        inside = {id(node): node for node in (root, *found[""])}
        count: dict[Value, int] = {}
        for node in inside.values():
            for value in node.inputs:
                if value is not None:
                    count[value] = count.get(value, 0) + 1
        return all(
            self.uses.get(value, 0) == count.get(value, 0)
            for node in inside.values()
            if node is not root
            for value in node.outputs
        )

    # ------------------------------------------------------------ construction

    def new_constant(self, array: Array, hint: str, like: Node) -> Node:
        """Make a node of a new constant."""
        return store_constant(self.constants, array, hint, like.loc)

    def new(
        self, op: str, *inputs: Value | None, like: Node, hint: str = "", **attributes: Attribute
    ) -> Node:
        """Make a node with inferred types, at the location of `like`."""
        return make_node(op, inputs, attributes, like.loc, hints=(hint or op,))


@dataclass
class Steps:
    """Builds a sequence of nodes to replace one."""

    like: Node
    scope: Scope
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """Add a node and return its output."""
        made = make_node(op, inputs, attributes, self.like.loc)
        self.nodes.append(made)
        return made.output

    def constant(self, array: Anything, of: TensorType, hint: str = "c") -> Value:
        """Add a constant with the element type of another tensor."""
        stored = np.asarray(array).astype(of.dtype.numpy)
        self.nodes.append(self.scope.new_constant(stored, hint, self.like))
        return self.nodes[-1].output

    def done(self) -> list[Node] | None:
        """The nodes, the last of which defines the original output; None if its type differs."""
        last = self.nodes[-1]
        if last.output.type != self.like.output.type:
            return None
        return [*self.nodes[:-1], replace(last, outputs=self.like.outputs)]


def remade(node: Node, op: str, *inputs: Value | None, **attributes: Attribute) -> Node:
    """Make another node that defines the same outputs."""
    return replace(node, op=op, inputs=inputs, attributes=ir.attributes(**attributes))


# Replacements of a node: nodes, the last of which defines its outputs, or a value for its only
# output; or nodes and a value for each output, which are not offered again.
Replacement = Sequence[Node] | Value | Instead | None
MatchRule = Callable[[Node, Scope], Replacement]


def rewrite_matches(module: Module, rules: Sequence[MatchRule]) -> Module:
    """Offer every node of a module to rules; the first one that applies is used."""
    constants = dict(module.constants)

    def make_rule(graph: Graph) -> Rule:
        scope = Scope(constants, *_uses(graph))
        return lambda node: _rewritten(node, scope, rules)

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return module if changed is module else replace(changed, constants=constants)


AGAIN = 8  # rounds of rewriting a replacement


def _rewritten(node: Node, scope: Scope, rules: Sequence[MatchRule]) -> Instead | None:
    made: list[Node] = []
    current = node
    for _ in range(AGAIN):
        found = _first_replacement(current, scope, rules)
        if found is None:
            break
        if isinstance(found, Value):
            return Instead(tuple(made), (found,))
        if isinstance(found, Instead):
            for each in found.nodes:
                scope.define(each)
            return Instead((*made, *found.nodes), found.values)
        *before, current = found
        for each in before:
            scope.define(each)
        made += before
    scope.define(current)
    return None if current is node else Instead((*made, current), node.outputs)


def _first_replacement(node: Node, scope: Scope, rules: Sequence[MatchRule]) -> Replacement:
    """The result of the first rule that applies."""
    for rule in rules:
        found = rule(node, scope)
        if found is not None:
            return found
    return None


def _uses(graph: Graph) -> tuple[dict[Value, int], dict[Value, list[Node]]]:
    """The number of uses of each value as operand and result, and the nodes that use it."""
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                users.setdefault(value, []).append(node)
    uses = {value: len(found) for value, found in users.items()}
    for value in graph.results:
        uses[value] = uses.get(value, 0) + 1
    return uses, users


def shape_of(value: Value | None) -> tuple[Anything, ...] | None:
    """The dimensions of a tensor, if its rank is known; None of an operand that is left out."""
    return value.type.shape if value and isinstance(value.type, TensorType) else None
