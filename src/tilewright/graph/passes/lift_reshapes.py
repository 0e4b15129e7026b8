"""lift_reshapes: move reshapes inside kernels to their operands and results, where they are free.

    fused(x, w, r) { reshape(matmul(x, w)) + r }
    reshape(fused(x, w, reshape(r)) { matmul(x, w) + r })

Elementwise operators work in any shape, and stored tensors are reshaped for free. Inside a kernel a
reshape means divisions in indices, and prevents that an epilogue works on the tiles of a
contraction. Likewise, several row axes of a matmul are collapsed to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.base.multiprocessor import PRODUCT_ROWS
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.fused_nodes import FUSED
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType
from tilewright.graph.views import ALIAS
from tilewright.graph.visit import map_bodies
from tilewright.sym import const

Shape = tuple[int, ...]


def lift_reshapes(module: Module, ctx: PassContext) -> Module:
    """Before: fused(%r) { ... reshape(%m) ... }.   After: %s = reshape(%r), fused(%s) { ... }."""
    return map_bodies(module, _lifted)


def _lifted(graph: Graph) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _outside(node) if node.op == FUSED else [node]
    if len(nodes) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(nodes))


def _outside(node: Node) -> list[Node]:
    """A kernel with reshapes of its operands and results instead of its own."""
    (body,) = node.bodies
    inputs = list(node.inputs)
    while lift := next(filter(None, [_lift_of(each, body) for each in body.nodes]), None):
        inputs += [inputs[body.params.index(old)] for old in lift.params]
        body = lift.body()
    return [node] if body is node.bodies[0] else _around(node, body, inputs)


def _lift_of(node: Node, body: Graph) -> _Lift | None:
    """How to remove a reshape from a body, or to collapse the rows of a matmul."""
    lift: _Lift | None = None
    source = node.inputs[0] if node.inputs else None
    if node.op == ALIAS and source is not None and source not in body.params:
        lift = _Lift(body, node.output, source)
    elif node.op == "matmul" and source in body.params:
        lift = _flat_product(node, body)
    return lift if lift is not None and lift.is_possible else None


def _flat_product(node: Node, body: Graph) -> _Lift | None:
    """A matmul with several row axes: tiles would end at each row of the last one. If that is
    short, a reshape of all rows may follow."""
    a, b = node.inputs[:2]
    rows = None if a is None else _shape(a)
    if a is None or b is None or a is b or rows is None or len(rows) < 3 or 0 in rows:
        return None
    if len(b.tensor.shape or ()) != 2 or prod(rows[:-2]) == 1 or None in node.inputs:
        return None
    flat = _reshaped(a, (prod(rows[:-1]), rows[-1]))
    made = make_node(node.op, (flat, *node.inputs[1:]), dict(node.attributes), node.loc)
    lift = _Lift(body, node.output, made.output, {a: flat}, ends=rows[-2] < PRODUCT_ROWS)
    lift.made[node.output] = made
    return lift


def _around(node: Node, body: Graph, inputs: Sequence[Value | None]) -> list[Node]:
    used = {value for each in body.nodes for value in each.inputs} | set(body.results)
    kept = [at for at, param in enumerate(body.params) if param in used]
    before: dict[tuple[Value | None, Shape], Node] = {}
    given: list[Value | None] = []
    for at in kept:
        source, shape = inputs[at], _shape(body.params[at])
        if source is not None and shape is not None and _shape(source) != shape:
            key = (source, shape)
            if key not in before:
                before[key] = make_node(ALIAS, (source,), {"shape": shape}, node.loc)
            source = before[key].output
        given.append(source)
    outputs, after = [], []
    for old, made in zip(node.outputs, body.results, strict=True):
        value, shape = old, _shape(old)
        if shape is not None and _shape(made) != shape:
            value = Value(old.name, made.type)
            alias = make_node(ALIAS, (value,), {"shape": shape}, node.loc)
            after.append(replace(alias, outputs=(old,)))
        outputs.append(value)
    body = replace(body, params=tuple([body.params[at] for at in kept]))
    fused = replace(node, inputs=tuple(given), outputs=tuple(outputs), bodies=(body,))
    return [*before.values(), fused, *after]


class _Lift:
    """Rewrites a body so that consumers of one value use another shape of the same elements."""

    def __init__(
        self,
        body: Graph,
        old: Value,
        new: Value,
        params: Mapping[Value, Value] = {},
        *,
        ends: bool = False,
    ) -> None:
        """`params`: parameters that are reshaped anyway; `ends`: whether the body may end with a
        reshape."""
        self.old = body
        self.makers = {value: node for node in body.nodes for value in node.outputs}
        self.params = dict(params)  # reshaped parameters, by the originals
        self.new: dict[Value, Value] = {old: new}  # values before the reshape, by those after it
        self.made: dict[Value, Node] = {}
        self.ends: dict[Node, Node] = {}
        self.before, self.behind = _shape(new) or (), _shape(old) or ()
        self.is_possible = 0 not in (*self.before, *self.behind) and bool(self.before)
        depends = {old}
        for node in body.nodes:
            if not self.is_possible or not depends.intersection(node.inputs):
                continue
            if ends and node.op == ALIAS and node.inputs[0] in self.new:
                self.ends[node] = replace(node, inputs=(self.new[node.inputs[0]],))
                continue
            depends.update(node.outputs)
            self.is_possible = self._is_remade(node)

    def _is_remade(self, node: Node) -> bool:
        """Try to compute a node in the other shape; whether that succeeded."""
        if not _is_elementwise(node) or _shape(node.output) != self.behind:
            return False
        inputs = [None if value is None else self._form(value) for value in node.inputs]
        if any(a is None and b is not None for a, b in zip(inputs, node.inputs, strict=True)):
            return False
        made = make_node(
            node.op, inputs, dict(node.attributes), node.loc, hints=(node.output.name,)
        )
        if (
            _shape(made.output) != self.before
            or made.output.tensor.dtype != node.output.tensor.dtype
        ):
            return False
        self.new[node.output], self.made[node.output] = made.output, made
        return True

    def _form(self, value: Value) -> Value | None:
        """A value in the other shape."""
        if value in self.new:
            return self.new[value]
        shape, maker = _shape(value), self.makers.get(value)
        if shape is None:
            return None
        if shape == self.behind:
            if maker is not None:
                return self.new[value] if self._is_remade(maker) else None
            return self._param(value, self.before)
        columns = shape[-1:]
        if prod(shape) != prod(columns) or (
            columns not in ((), (1,)) and columns != self.before[-1:]
        ):
            return None
        if len(shape) <= len(self.before):
            return value
        return None if maker is not None else self._param(value, columns)

    def _param(self, value: Value, shape: Shape) -> Value:
        if value not in self.params:
            self.params[value] = self.new[value] = _reshaped(value, shape)
        return self.params[value]

    def body(self) -> Graph:
        """The rewritten body; some results may have the other shape."""
        results = tuple([self.new.get(value, value) for value in self.old.results])
        nodes: list[Node] = []
        for node in self.old.nodes:
            nodes.append(self.ends.get(node, node))
            if len(node.outputs) == 1 and node.output in self.made:
                nodes.append(self.made[node.output])
        params = (*self.old.params, *self.params.values())
        return _used(replace(self.old, params=params, nodes=tuple(nodes), results=results))


def _reshaped(value: Value, shape: Shape) -> Value:
    of = TensorType(value.tensor.dtype, tuple([const(dim) for dim in shape]))
    return Value(value.name, of)


def _used(body: Graph) -> Graph:
    """A body without dead nodes."""
    used, kept = set(body.results), []
    for node in reversed(body.nodes):
        if used.intersection(node.outputs):
            kept.append(node)
            used.update(value for value in node.inputs if value is not None)
    return replace(body, nodes=tuple(reversed(kept)))


def _is_elementwise(node: Node) -> bool:
    """Whether each output element depends on the input elements at the same position."""
    op = OPS.get(node.op)
    return op is not None and op.is_map and not op.names_axes and len(node.outputs) == 1


def _shape(value: Value) -> Shape | None:
    return value.type.static_shape if isinstance(value.type, TensorType) else None
