"""Combine nodes to one kernel: a `fused` node whose body computes the values used outside.

Values are defined once in a module, so a body has its own values; the `fused` node defines those
that the nodes defined. Single-element constants are moved into the body, unless there are too many
variants. Reshapes at either end are views: they stay outside, where they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.loc import fuse as fuse_locs
from tilewright.graph.build import is_numeric
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.op import OPAQUE
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType, sizes_of
from tilewright.graph.views import ALIAS, is_view
from tilewright.sym import Size, Var

FUSED = "fused"
PRODUCTS = ("matmul", "matmul_integer")
MAX_SCALAR_VARIANTS = 8  # distinct values per operand; beyond that they are parameters
Array = np.ndarray[Any, Any]


def kernels(graph: Graph) -> list[bool]:
    """For each node whether it can be part of a kernel.

    It computes tensors of shapes that do not depend on data, by an operator that is not opaque.
    """
    sizes: set[Var] = set()
    for param in graph.params:
        sizes.update(sizes_of(param.type))
    found = []
    for node in graph.nodes:
        found.append(_is_kernel(node) and not any(_defines(v, sizes) for v in node.outputs))
        for value in node.outputs:
            sizes.update(sizes_of(value.type))
    return found


def _is_kernel(node: Node) -> bool:
    op = OPS.get(node.op)
    if op is None or op.pattern == OPAQUE or node.bodies or not is_numeric(node):
        return False
    if any(at < len(node.inputs) and node.inputs[at] for at in op.foldable.values()):
        return False  # dynamic axes, bounds, counts
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return all(isinstance(v.type, TensorType) and v.type.shape is not None for v in values)


def _defines(value: Value, sizes: set[Var]) -> bool:
    """Whether a value's type introduces new sizes."""
    return any(isinstance(size, Size) and size not in sizes for size in sizes_of(value.type))


def small_constants(
    nodes: Sequence[Node], data: Mapping[str, Array], limit: int = MAX_SCALAR_VARIANTS
) -> dict[Value, Node]:
    """The single-element constants that are moved into bodies.

    Numbers that differ between nodes, such as the scales of a quantized model, stay outside:
    otherwise no two kernels would be equal. `limit` is the number of variants per operand position.
    """
    found: dict[Value, Node] = {}
    for node in nodes:
        if node.op == "constant":
            shape = node.output.tensor.static_shape
            if shape is not None and all(dim == 1 for dim in shape):
                found[node.output] = node
    places: dict[tuple[str, int], set[bytes]] = {}
    uses: dict[Value, list[tuple[str, int]]] = {}
    for node in nodes:
        for at, value in enumerate(node.inputs):
            if value in found and value is not None:
                uses.setdefault(value, []).append((node.op, at))
                array = data[found[value]["data"]]
                places.setdefault((node.op, at), set()).add(array.tobytes())
    varied = {place for place, numbers in places.items() if len(numbers) > limit}
    outside = [v for v, at in uses.items() if all(place in varied for place in at)]
    return {value: node for value, node in found.items() if value not in outside}


def make_fused_node(
    nodes: Sequence[Node],
    is_used: Callable[[Value], bool],
    constants: Mapping[Value, Node],
    *,
    private: Container[Node] = (),
    separate: Container[Node] = (),
) -> list[Node]:
    """The nodes that replace a group: a `fused` node, and reshapes before and after it.

    `is_used` tells whether a value is used outside. Outputs of `private` nodes are not visible
    outside, where copies of them are used. `separate` nodes get their own parameters for what they
    read: a GEMM's operands must be distinct parameters, even if they are parts of one tensor.
    """
    before, inner, after = _split_reshapes(list(nodes), private)
    if not inner:
        return [*before, *after]
    behind = {value for node in after for value in node.inputs}
    outputs = tuple(
        value
        for node in inner
        if node not in private
        for value in node.outputs
        if value in behind or is_used(value)
    )
    if not outputs:  # dead code, removed elsewhere
        return list(nodes)
    return [*before, _fused(inner, outputs, constants, separate), *after]


def _split_reshapes(
    nodes: list[Node], private: Container[Node]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Reshapes of outside values, the rest, and reshapes used outside only."""
    before: list[Node] = []
    after: list[Node] = []
    made = {value for node in nodes for value in node.outputs}
    for node in list(nodes):
        if node.op == ALIAS and node not in private and node.inputs[0] not in made:
            before.append(node)
            nodes.remove(node)
            made.discard(node.output)
    uses = [value for node in nodes for value in node.inputs]
    for node in reversed(list(nodes)):
        if node.op == ALIAS and node not in private and node.output not in uses:
            after.insert(0, node)
            nodes.remove(node)
            uses.remove(node.inputs[0])
    return before, nodes, after


def _fused(
    nodes: Sequence[Node],
    outputs: tuple[Value, ...],
    constants: Mapping[Value, Node],
    separate: Container[Node],
) -> Node:
    nodes, copies, products = _with_operands_apart(nodes, outputs, separate)
    body = _Body({value for node in nodes for value in node.outputs}, constants)
    for node in nodes:
        whole = node in separate or node in copies
        own = range(len(node.inputs)) if whole else (1,) if node in products else ()
        body.add(node, own, is_copy=node in copies)
    results = tuple([body.names[value] for value in outputs])
    graph = Graph("body", tuple(body.params), (*body.constants, *body.nodes), results)
    loc = fuse_locs(*[node.loc for node in nodes])
    return Node(FUSED, tuple(body.inputs), outputs, (), (graph,), loc)


def _with_operands_apart(
    nodes: Sequence[Node], outputs: Sequence[Value], separate: Container[Node]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes whose products have operands of their own (x @ x^T): views that the second operand is
    made of are copied where the first one reads the same values. Also these copies, and products
    whose second operand is such a value itself."""
    made = {value: node for node in nodes for value in node.outputs}
    result, copies, products = [], [], []
    for node in nodes:
        if node.op in PRODUCTS and all(node.inputs[:2]):
            first, second = (_made_of(value, made) for value in node.inputs[:2])
            ends = [*first[:1], *second[:1]]
            is_apart = len(set(ends)) > 1 and all(end in separate for end in ends)
            is_same = _source(node.inputs[0], first) is _source(node.inputs[1], second)
            if is_same and not is_apart:
                own = _copied(second)
                copies += own
                result += own
                if own:
                    node = replace(node, inputs=(node.inputs[0], own[-1].output, *node.inputs[2:]))
                else:
                    products.append(node)
        result.append(node)
    if copies:
        used = {*outputs, *(value for node in result for value in node.inputs)}
        result = [node for node in result if any(value in used for value in node.outputs)]
    return result, copies, products


def _made_of(value: Value | None, made: Mapping[Value, Node]) -> list[Node]:
    """The views that a value is computed by, in order."""
    found: list[Node] = []
    while value is not None and value in made and is_view(made[value]):
        found.insert(0, made[value])
        value = found[0].inputs[0]
    return found


def _source(value: Value | None, views: Sequence[Node]) -> Value | None:
    """What an operand is read from."""
    return views[0].inputs[0] if views else value


def _copied(nodes: Sequence[Node]) -> list[Node]:
    """Copies of nodes, each of which reads the one before it."""
    found: list[Node] = []
    for node in nodes:
        inputs = (found[-1].output, *node.inputs[1:]) if found else node.inputs
        output = Value(node.output.name, node.output.type)
        found.append(replace(node, inputs=inputs, outputs=(output,)))
    return found


class _Body:
    """A body under construction, with its own values."""

    def __init__(self, made: set[Value], constants: Mapping[Value, Node]) -> None:
        self.made, self.small = made, constants
        self.names: dict[Value, Value] = {}  # inside by outside
        self.inputs: list[Value] = []
        self.params: list[Value] = []
        self.constants: list[Node] = []
        self.nodes: list[Node] = []

    def add(self, node: Node, own: Container[int], *, is_copy: bool = False) -> None:
        """Add a node; the inputs at `own` become parameters of their own, those of copies such as
        no other node reads."""
        inputs = tuple(
            [
                None if value is None else self._operand(value, own=at in own, is_copy=is_copy)
                for at, value in enumerate(node.inputs)
            ]
        )
        for value in node.outputs:
            self.names[value] = Value(value.name, value.type)
        outputs = tuple([self.names[value] for value in node.outputs])
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))

    def _operand(self, value: Value, *, own: bool, is_copy: bool) -> Value:
        inner = self.names.get(value)
        if inner is not None and (not own or value in self.made or value in self.small):
            return inner
        inner = Value(value.name, value.type)
        if not is_copy or value in self.small:
            self.names.setdefault(value, inner)
        if value in self.small:
            self.constants.append(replace(self.small[value], outputs=(inner,)))
        else:
            self.inputs.append(value)
            self.params.append(inner)
        return inner
