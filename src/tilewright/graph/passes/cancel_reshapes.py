"""cancel_reshapes: remove pairs of reshapes around operators that treat rows alike.

Exporters flatten the rows of a tensor for a matmul and restore them afterwards:

    reshape(add(matmul(reshape(x), w), b))

Elementwise operators and matmuls with a matrix of weights treat rows alike in any shape, so the
last reshape can move up to the first one and merge with it. A reshape that splits a slice of each
row, such as the heads of attention, moves before the slice: there it is free, and the slice is one
of whole planes. A batched matmul whose two batch axes were merged for it gets them back:

    matmul(reshape(x), reshape(y))      of [b * h, m, k] is one of [b, h, m, k]
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
    return rewrite_matches(module, (raised, split_before_slice, batched_matmul))


def raised(node: Node, scope: Scope) -> Replacement:
    """Move a reshape up to the previous one."""
    if node.op != "reshape" or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    rows = _rows(node)
    chain = None if rows is None else _row_wise_chain(node.inputs[0], scope)
    if rows is None or not chain:
        return None
    first = scope.producer(_first_input(chain[-1]), "reshape")
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
    """reshape(slice(x)) to [*rows, h, d] as a slice of the reshaped x.

    x becomes [*rows, parts, h, d] if the slice is one of equal parts, else [*rows, all h, d].
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


def batched_matmul(node: Node, scope: Scope) -> Replacement:
    """A batched matmul of operands that both had their two batch axes merged into one."""
    shapes = [shape_of(value) for value in node.inputs]
    if node.op != "matmul" or any(shape is None or len(shape) != 3 for shape in shapes):
        return None
    sources = [each for value in node.inputs if (each := scope.producer(value, "reshape"))]
    before = [shape_of(each.inputs[0]) for each in sources]
    if len(before) < 2 or any(shape is None or len(shape) < 4 for shape in before):
        return None
    (b, h, *_), other = before[0] or (), before[1] or ()
    batches = [sym.mul(b, h), sym.mul(other[0], other[1]), *[(shape or ())[0] for shape in shapes]]
    same = sym.equal(b, other[0]) and sym.equal(h, other[1])
    if not same or not all(sym.equal(batches[0], each) for each in batches):
        return None
    apart = [items_of((b, h, *(shape or ())[1:])) for shape in shapes]
    nodes = [
        scope.new("reshape", source.inputs[0], like=node, shape=shape)
        for source, shape in zip(sources, apart, strict=True)
    ]
    operands = [each.output for each in nodes]
    product = make_node("matmul", operands, dict(node.attributes), node.loc)
    merged = remade(node, "reshape", product.output, shape=items_of(shape_of(node.output) or ()))
    return *nodes, product, merged


def _bounds(axis: int, start: int, count: int) -> dict[str, Attribute]:
    return {"axes": (axis,), "starts": (start,), "ends": (start + count,), "steps": (1,)}


def _plane_numbers(part: Node, node: Node) -> tuple[int, int, int, int] | None:
    """The start of a slice of the last axis, the extent of that axis, and the h and d of the
    reshape."""
    before, after = shape_of(part.inputs[0]), shape_of(node.output)
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
    """All dimensions but the last of a reshape's result, if it keeps the last."""
    before, after = shape_of(node.inputs[0]), shape_of(node.output)
    if not before or not after or not (before[-1] is after[-1] or sym.equal(before[-1], after[-1])):
        return None
    return items_of(after[:-1])


def _row_wise_chain(value: Value, scope: Scope) -> list[Node]:
    """The nodes between a reshape and a value, last first, if all of them treat rows alike."""
    found: list[Node] = []
    current: Value | None = value
    while current is not None:
        node = scope.producer(current)
        if node is not None and node.op == "reshape" and found:
            return found
        if node is None or not scope.is_used_once(current) or not _is_row_wise(node):
            return []
        found.append(node)
        current = _first_input(node)
    return []


def _first_input(node: Node) -> Value | None:
    return node.inputs[0] if node.inputs else None


def _is_row_wise(node: Node) -> bool:
    """Whether each row of a node's result depends on the same row of its first operand only."""
    op = OPS.get(node.op)
    first = _first_input(node)
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
