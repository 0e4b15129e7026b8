"""stack_sequences: sequences that a loop appends to and that are then joined, as tensors.

    %s = loop(..., %empty) do { ... -> sequence_insert(%so_far, %item) }
    %y = concat_from_sequence(%s)

The items become rows of an additional scan output of the loop, which native code stacks. Exporters
write loops that append to a list so (`torch.stack`, `torch.cat`, `EmbeddingBag`). Items must have
equal sizes along the joining axis; `concat` requires it of all others. A loop without iterations
gives empty rows, and an empty result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import SequenceType, TensorType, sizes_of
from tilewright.graph.visit import (
    Instead,
    Rule,
    map_graphs,
    producers,
    rewrite_by,
    same_sizes,
    users,
)
from tilewright.sym import Expr, Var, free_vars

T = TypeVar("T")

LEADING_POSITIONS = 2  # inputs of a loop before those that it carries: its bound, its condition


def stack_sequences(module: Module, ctx: PassContext) -> Module:
    """Before: concat_from_sequence(loop(%empty) do { insert(%s, %x) }).   After: rows of %x."""
    return map_graphs(module, lambda graph: rewrite_by(graph, _rule))


@dataclass(frozen=True)
class _Appended:
    """The item that an iteration appends to one of the sequences that a loop carries."""

    at: int
    item: Value
    insert: Node


def _rule(graph: Graph) -> Rule:
    readers, makers = users(graph), producers(graph)
    results = set(graph.results)
    stacks: dict[Value, Value] = {}  # by sequences, the rows of their items

    def rewritten(node: Node) -> Instead | None:
        if node.op == "concat_from_sequence" and node.inputs[0] in stacks:
            return _joined(node, stacks[node.inputs[0]])
        if node.op != "loop":
            return None
        loop, stacked = node, list[int]()
        for at in reversed(range(int(node["carried"]))):  # so that places before it stay
            output, begin = node.outputs[at], node.inputs[LEADING_POSITIONS + at]
            empty = None if begin is None else makers.get(begin)
            found = _appended(loop, at)
            if empty is None or empty.op != "sequence_empty" or found is None or output in results:
                continue
            read = readers.get(output, [])
            if not read or not all(_can_join(reader, node, found.item) for reader in read):
                continue
            made = _with_rows(loop, found)
            if all(_joined(reader, made.outputs[-1]) is not None for reader in read):
                loop, stacked = made, [*stacked, at]
        others = [value for at, value in enumerate(node.outputs) if at not in stacked]
        kept, rows = loop.outputs[: len(others)], loop.outputs[len(others) :]
        sizes = same_sizes(replace(node, outputs=tuple(others)), kept) if stacked else None
        if sizes is None:
            return None
        stacks.update((node.outputs[at], made) for at, made in zip(stacked, rows, strict=True))
        now = dict(zip(others, kept, strict=True))
        return Instead((loop,), tuple([now.get(value, value) for value in node.outputs]), sizes)

    return rewritten


def _appended(node: Node, at: int) -> _Appended | None:
    """The item appended to a carried sequence, if the body does nothing else with it."""
    (body,) = node.bodies
    param, result = body.params[LEADING_POSITIONS + at], body.results[1 + at]
    insert = producers(body).get(result)
    if insert is None or insert.op != "sequence_insert" or insert.inputs[0] is not param:
        return None
    if not isinstance(param.type, SequenceType) or any(v is not None for v in insert.inputs[2:]):
        return None
    readers, item = users(body), insert.inputs[1]
    if readers[param] != [insert] or result in readers or body.results.count(result) > 1:
        return None
    of = None if item is None else item.type
    if item is None or not isinstance(of, TensorType) or of.shape is None or of.dtype.is_str:
        return None
    return _Appended(at, item, insert)


def _can_join(reader: Node, loop: Node, item: Value) -> bool:
    """Whether a node joins items whose sizes along its axis are equal in every iteration."""
    if reader.op != "concat_from_sequence":
        return False
    shape, axis, is_new = item.tensor.shape or (), int(reader["axis"]), bool(reader["new_axis"])
    rank = len(shape) + is_new
    if not -rank <= axis < rank:
        return False  # an error, which the node itself reports
    return is_new or _is_known(shape[axis], loop.inputs)


def _is_known(length: Expr, values: Iterable[Value | None]) -> bool:
    """Whether a size is the same in every iteration: it uses only sizes from outside the loop."""
    outside: set[Var] = {s for value in values if value is not None for s in sizes_of(value.type)}
    return outside.issuperset(free_vars(length))


def _with_rows(node: Node, appended: _Appended) -> Node:
    """The loop with rows of items as its last result, instead of a sequence."""
    (body,) = node.bodies
    at = appended.at
    body = replace(
        body,
        params=_without(body.params, LEADING_POSITIONS + at),
        nodes=tuple(each for each in body.nodes if each is not appended.insert),
        results=(*_without(body.results, 1 + at), appended.item),
    )
    attributes = {**dict(node.attributes), "carried": int(node["carried"]) - 1}
    inputs = _without(node.inputs, LEADING_POSITIONS + at)
    hints = (*[value.name for value in _without(node.outputs, at)], appended.item.name)
    return make_node("loop", inputs, attributes, node.loc, hints=hints, bodies=(body,))


def _joined(node: Node, rows: Value) -> Instead | None:
    """Rows of items, joined along the axis of a node; None if its result type has another shape."""
    shape = rows.tensor.shape
    assert shape is not None
    axis = int(node["axis"])
    rank = len(shape) if node["new_axis"] else len(shape) - 1
    axis += rank if axis < 0 else 0
    perm = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
    nodes, made = [], rows
    if axis:
        nodes.append(make_node("transpose", (rows,), {"perm": perm}, node.loc))
        made = nodes[-1].output
    if not node["new_axis"]:
        count, *item = shape
        item[axis] = sym.simplify(count * item[axis])
        merged = tuple(int(d.value) if isinstance(d, sym.Const) else d for d in item)
        nodes.append(make_node("reshape", (made,), {"shape": merged}, node.loc))
        made = nodes[-1].output
    of = node.output.type
    if isinstance(of, TensorType) and of.shape is None:
        return Instead(tuple(nodes), (made,))
    sizes = same_sizes(node, (made,))
    return None if sizes is None else Instead(tuple(nodes), (made,), sizes)


def _without(values: tuple[T, ...], at: int) -> tuple[T, ...]:
    return (*values[:at], *values[at + 1 :])
