"""sink_transposes: move transposes behind element-wise operators, where fewer remain.

A region of element-wise nodes whose operands are all transposed alike can be computed in the order
before the transposes; its results are transposed instead. Often they are transposed back next (a
channels-last model around channels-first convolutions), or read in place by contractions.

A region whose operands are reshaped alike is computed in the shape before: a reshape after it costs
nothing, while one before it would end up inside a kernel.

Slices of a transposed tensor, such as queries, keys and values, become slices of the tensor before
if contractions read all of them: they read each part in place, and nothing is transposed in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.build import constant_type, make_node
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.match import Replacement, Scope, remade, rewrite_matches
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, items_of
from tilewright.graph.views import ALIAS, is_view, reads_views, sliced_axes
from tilewright.graph.visit import map_bodies, producers, users
from tilewright.sym import ONE, Expr

Array = np.ndarray[Any, Any]
Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class _Move:
    """The transpose or reshape of all operands of a region."""

    perm: tuple[int, ...] = ()  # of a transpose
    source: Shape = ()  # of a reshape: the shape before

    @property
    def rank(self) -> int:
        return len(self.perm or self.source)


def sink_transposes(module: Module, ctx: PassContext) -> Module:
    """Before: relu(transpose(%x)).   After: transpose(relu(%x)), if that transpose goes away."""
    module = rewrite_matches(module, (sliced_before,))
    constants = dict(module.constants)
    changed = map_bodies(module, lambda graph: _sunk(graph, constants))
    return module if changed is module else replace(changed, constants=constants)


def sliced_before(node: Node, scope: Scope) -> Replacement:
    """slice(transpose(%x)) as transpose(slice(%x)), for all slices of a transpose."""
    whole = scope.producer(node.inputs[0], "transpose") if _is_part(node) else None
    if whole is None or whole.inputs[0] is None:
        return None
    parts = scope.users.get(whole.output, [])
    if len(parts) < scope.uses[whole.output] or not all(
        _is_part(part) and _is_multiplied(part.output, scope) for part in parts
    ):
        return None
    axes = tuple(whole["perm"][axis] for axis in sliced_axes(node))
    how = {**dict(node.attributes), "axes": axes}
    part = make_node("slice", (whole.inputs[0],), how, node.loc)
    return part, remade(node, "transpose", part.output, perm=whole["perm"])


def _is_part(node: Node) -> bool:
    """Whether a node is a slice with constant bounds."""
    return node.op == "slice" and len(node.inputs) == 1 and is_view(node)


def _is_multiplied(value: Value, scope: Scope) -> bool:
    """Whether only contractions read a value, possibly moved and scaled."""
    stack = [value]
    while stack:
        users = scope.users.get(value := stack.pop(), [])
        if not users or len(users) < scope.uses[value]:
            return False
        for user in users:
            if reads_views(user):
                continue
            others = [other for other in user.inputs if other is not value and other is not None]
            is_scaled = user.op in ("mul", "div") and all(_is_number(other) for other in others)
            if not is_view(user) and not is_scaled:
                return False
            stack += user.outputs
    return True


def _is_number(value: Value) -> bool:
    """Whether a tensor has one element."""
    shape = value.tensor.shape
    return shape is not None and all(dim is ONE for dim in shape)


def _sunk(graph: Graph, constants: dict[str, Array]) -> Graph:
    """Move transposes behind one region after another, until none gains."""
    tried: set[Node] = set()
    for _ in range(len(graph.nodes)):
        regions = _Regions(graph, constants)
        region = regions.next(tried)
        if region is None:
            break
        tried.update(region.nodes)
        graph = regions.moved(region)
    return graph


@dataclass
class _Region:
    """Connected element-wise nodes of one shape, and the move of all their operands."""

    nodes: list[Node]
    move: _Move
    outputs: list[Value]
    inputs: dict[Value, None] = field(default_factory=dict)


@dataclass(eq=False)
class _Regions:
    graph: Graph
    constants: dict[str, Array]

    def __post_init__(self) -> None:
        self.made = producers(self.graph)
        self.users = users(self.graph)
        self.results = set(self.graph.results)
        self.places = {node: at for at, node in enumerate(self.graph.nodes)}

    def next(self, tried: set[Node]) -> _Region | None:
        """A region whose transposes are better moved behind it."""
        seen: set[Node] = set()
        for node in self.graph.nodes:
            if node in seen or node in tried or not _is_map(node):
                continue
            if not any(self._move(value) for value in node.inputs):
                continue
            nodes = self._connected(node)
            seen.update(nodes)
            region = self._checked(nodes, set(nodes))
            if region is not None and self._gain(region) > 0:
                return region
        return None

    def _move(self, value: Value | None) -> _Move | None:
        node = None if value is None else self.made.get(value)
        if node is None or node.inputs[:1] in ((), (None,)):
            return None
        if node.op == "transpose":
            return _Move(perm=tuple(node["perm"]))
        source = node.inputs[0]
        if node.op != ALIAS or len(node.inputs) > 1 or source is None or source not in self.made:
            return None
        return _Move(source=source.tensor.shape or ())

    def _connected(self, start: Node) -> list[Node]:
        """All element-wise nodes of its shape that are connected with a node, whichever is
        first."""
        shape = start.output.tensor.shape
        members: dict[Node, None] = {start: None}
        stack = [start]
        while stack:
            node = stack.pop()
            near = [self.made.get(value) for value in node.inputs if value is not None]
            near += self.users.get(node.output, [])
            for other in near:
                if other is None or other in members or not _is_map(other):
                    continue
                if other.output.tensor.shape == shape:
                    members[other] = None
                    stack.append(other)
        return sorted(members, key=self.places.__getitem__)

    def _checked(self, nodes: list[Node], members: set[Node]) -> _Region | None:
        """The region; None if its operands are not all moved alike."""
        move: _Move | None = None
        inputs: dict[Value, None] = {}
        shape = nodes[0].output.tensor.shape or ()
        for value in (v for node in nodes for v in node.inputs if v is not None):
            if self.made.get(value) in members or self._is_constant(value):
                continue
            found = self._move(value)
            if found is None or found != (move or found) or value.tensor.shape != shape:
                if all(dim is ONE for dim in value.tensor.shape or ()):
                    continue
                return None
            move = found
            inputs[value] = None
        if move is None or not all(self._can_move(v, move, shape) for n in nodes for v in n.inputs):
            return None
        outputs = [
            node.output
            for node in nodes
            if node.output in self.results
            or any(user not in members for user in self.users.get(node.output, ()))
        ]
        return _Region(nodes, move, outputs, inputs)

    def _can_move(self, value: Value | None, move: _Move, shape: Shape) -> bool:
        """Whether a constant operand can be given in the order or shape before the move."""
        if value is None or move.perm or not self._is_constant(value):
            return True
        dims = value.tensor.shape or ()
        keeps = len(dims) == 1 and bool(move.source) and move.source[-1] is shape[-1]
        return keeps or (all(dim is ONE for dim in dims) and len(dims) <= move.rank)

    def _is_constant(self, value: Value) -> bool:
        node = self.made.get(value)
        return node is not None and node.op == "constant"

    def _gain(self, region: _Region) -> int:
        """Removed transposes minus added ones that cost something."""
        inside = set(region.nodes)
        gone = [
            value
            for value in region.inputs
            if value not in self.results and all(u in inside for u in self.users.get(value, ()))
        ]
        if region.move.source:
            return len(gone)
        come = [value for value in region.outputs if self._costs(value, inside)]
        return len(gone) - len(come)

    def _costs(self, value: Value, inside: set[Node]) -> bool:
        """Whether a transpose of a result costs: it is neither read in place nor transposed
        again."""
        if value in self.results:
            return True
        for user in self.users.get(value, ()):
            if user in inside or user.op == "transpose" or reads_views(user):
                continue
            if not (is_view(user) and all(reads_views(u) for u in self.users.get(user.output, ()))):
                return True
        return False

    # ---------------------------------------------------------------- moving

    def moved(self, region: _Region) -> Graph:
        """The graph with the transposes moved behind a region."""
        names: dict[Value, Value] = {}
        instead: dict[Node, list[Node]] = {}
        for node in region.nodes:
            nodes: list[Node] = []
            inputs = [self._operand(v, region, names, nodes, node) for v in node.inputs]
            made = make_node(node.op, inputs, dict(node.attributes), node.loc)
            nodes.append(made)
            names[node.output] = made.output
            if node.output in region.outputs:
                nodes.append(_moved_back(made.output, node, region.move))
            instead[node] = nodes
        out = [new for node in self.graph.nodes for new in instead.get(node, [node])]
        return replace(self.graph, nodes=tuple(out))

    def _operand(
        self,
        value: Value | None,
        region: _Region,
        names: dict[Value, Value],
        nodes: list[Node],
        like: Node,
    ) -> Value | None:
        if value is None or value in names:
            return None if value is None else names[value]
        if value in region.inputs:
            source = self.made[value].inputs[0]
            assert source is not None
            return source
        if not self._is_constant(value):
            return value
        array, rank = self.constants[self.made[value]["data"]], region.move.rank
        if region.move.source or (array.size == 1 and array.ndim <= rank):
            return value
        inverse = tuple(int(axis) for axis in np.argsort(region.move.perm))
        turned = array.reshape(*[1] * (rank - array.ndim), *array.shape).transpose(inverse)
        name, count = value.name, 0
        while name in self.constants:
            count += 1
            name = f"{value.name}_{count}"
        self.constants[name] = np.ascontiguousarray(turned)
        made = Value(value.name, constant_type(turned))
        nodes.append(Node("constant", (), (made,), ir.attributes(data=name), (), like.loc))
        names[value] = made
        return made


def _moved_back(value: Value, node: Node, move: _Move) -> Node:
    """A node's result in the order or shape that other nodes expect."""
    shape = node.output.tensor.shape or ()
    items = items_of(shape)
    how = ir.attributes(perm=move.perm) if move.perm else ir.attributes(shape=items)
    op = "transpose" if move.perm else ALIAS
    return Node(op, (value,), (node.output,), how, (), node.loc)


def _is_map(node: Node) -> bool:
    """Whether a node is element-wise and treats all axes alike."""
    op = OPS.get(node.op)
    if op is None or not op.is_map or not op.native or node.bodies:
        return False
    if len(node.outputs) != 1 or op.names_axes:
        return False
    return all(
        isinstance(value.type, TensorType) and value.type.shape is not None
        for value in (*node.inputs, *node.outputs)
        if value is not None
    )
