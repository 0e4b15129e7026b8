"""cancel_reshapes: work between two reshapes is done in the shape that leaves none.

Exporters flatten the rows of a tensor for a product and restore them behind it:

    reshape(add(matmul(reshape(x), w), b))

Element-wise work and products treat rows alike in any shape, so that the last reshape moves to the
first and merges with it. A part of each row that is split, such as heads of attention, is a part of
the rows split before: that reshape costs nothing, and the part is whole planes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import Replacement, Scope, remade, rewrite_matches, shape_of
from tilewright.graph.ops import OPS
from tilewright.graph.types import item_of, items_of
from tilewright.graph.views import is_view, sliced_axes
from tilewright.sym import Const, Expr

Items = tuple[int | Expr, ...]


def cancel_reshapes(module: Module, ctx: PassContext) -> Module:
    """Before: reshape(relu(reshape(%x))).   After: relu(reshape(%x))."""
    return rewrite_matches(module, (raised, split_before_slice))


def raised(node: Node, scope: Scope) -> Replacement:
    """A reshape moved up to the last one before it."""
    if node.op != "reshape" or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    rows = _rows(node)
    chain = None if rows is None else _chain(node.inputs[0], scope)
    if rows is None or not chain:
        return None
    first = scope.producer(_through(chain[-1]), "reshape")
    if first is None or first.inputs[0] is None:
        return None
    columns = (shape_of(first.output) or ())[-1]
    start = scope.new("reshape", first.inputs[0], like=first, shape=(*rows, item_of(columns)))
    nodes, value = [start], start.output
    for each in reversed(chain):
        made = make_node(each.op, (value, *each.inputs[1:]), dict(each.attributes), each.loc)
        nodes.append(made)
        value = made.output
    if value.type != node.output.type:
        return None
    nodes[-1] = replace(nodes[-1], outputs=node.outputs)
    return nodes


def split_before_slice(node: Node, scope: Scope) -> Replacement:
    """reshape(slice(x)) to [*rows, h, d] as a slice of x in that form.

    x is [*rows, parts, h, d] if the slice is one of equal parts, else [*rows, all h, d].
    """
    part = scope.producer(node.inputs[0], "slice") if node.op == "reshape" else None
    if part is None or len(node.inputs) != 1 or not scope.is_used_once(part.output):
        return None
    numbers = _plane_numbers(part, node)
    after = shape_of(node.output)
    if numbers is None or after is None:
        return None
    start, whole, heads, size = numbers
    rows = items_of(after[:-2])
    axis, width = len(rows), heads * size
    if start % width == 0 and whole % width == 0:
        planes = (*rows, whole // width, heads, size)
        every = scope.new("reshape", part.inputs[0], like=node, shape=planes)
        bounds = _bounds(axis, start // width, 1)
        plane = make_node("slice", (every.output,), bounds, node.loc)
        return every, plane, remade(node, "reshape", plane.output, shape=(*rows, heads, size))
    every = scope.new("reshape", part.inputs[0], like=node, shape=(*rows, whole // size, size))
    return every, remade(node, "slice", every.output, **_bounds(axis, start // size, heads))


def _bounds(axis: int, start: int, count: int) -> dict[str, Attribute]:
    return {"axes": (axis,), "starts": (start,), "ends": (start + count,), "steps": (1,)}


def _plane_numbers(part: Node, node: Node) -> tuple[int, int, int, int] | None:
    """Where a slice of the last axis starts, the axis, and the h and d that it is split to."""
    before, after = shape_of(part.inputs[0]) if part.inputs[0] else None, shape_of(node.output)
    if before is None or after is None or len(after) < 2 or len(part.inputs) != 1:
        return None
    if sliced_axes(part) != (len(before) - 1,) or not is_view(part):
        return None
    start, width = part["starts"][0], (shape_of(part.output) or ())[-1]
    numbers = [int(d.value) for d in (before[-1], *after[-2:], width) if isinstance(d, Const)]
    if not isinstance(start, int) or start < 0 or len(numbers) < 4:
        return None
    whole, heads, size, count = numbers
    if count != heads * size or count == 0 or start % size or whole % size:
        return None
    return start, whole, heads, size


def _rows(node: Node) -> Items | None:
    """The dimensions before the last that a reshape gives, if it keeps the last."""
    before, after = shape_of(node.inputs[0]) if node.inputs[0] else None, shape_of(node.output)
    if not before or not after or not (before[-1] is after[-1] or sym.equal(before[-1], after[-1])):
        return None
    return items_of(after[:-1])


def _chain(value: Value, scope: Scope) -> list[Node]:
    """The nodes that lead to a value from a reshape, the last first, if they treat rows alike."""
    found: list[Node] = []
    current: Value | None = value
    while current is not None:
        node = scope.producer(current)
        if node is not None and node.op == "reshape" and found:
            return found
        if node is None or not scope.is_used_once(current) or not _treats_rows_alike(node):
            return []
        found.append(node)
        current = _through(node)
    return []


def _through(node: Node) -> Value | None:
    return node.inputs[0] if node.inputs else None


def _treats_rows_alike(node: Node) -> bool:
    """Whether a node computes each row of its result from a row of its first operand alone."""
    op = OPS.get(node.op)
    first = _through(node)
    if op is None or first is None or len(node.outputs) != 1:
        return False
    shape, out = shape_of(first), shape_of(node.output)
    others = [value for value in node.inputs[1:] if value is not None]
    if shape is None or out is None or len(shape) < 2:
        return False
    if node.op == "matmul":
        return len(shape_of(others[0]) or ()) == 2
    if not op.is_map or op.names_axes or shape != out:
        return False
    return all(len(shape_of(value) or ()) <= 1 for value in others)
