"""check_indices: bounds checks for computed indices, before kernels read with them.

    %y = gather(%x, %i)

becomes

    %j = require(all(-n <= %i and %i < n), %i)
    %y = gather(%x, %j)

so that an index out of bounds is an error, as in the reference implementation. (Kernels clamp
indices in any case, so they never read outside of a tensor.) Indices that are provably in bounds
need no check: constants, results of argmax and the like, and what is only moved or clamped of them.

Broadcast indices, as in x[i[:, None], j], are checked before they are broadcast, and the broadcast
is repeated for each reader, so that it can be fused and is never materialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.loc import UNKNOWN
from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.build import make_node, store_constant
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by
from tilewright.sym import EMPTY, ONE, ZERO, Const, Expr, const

Array = np.ndarray[Any, Any]
Span = tuple[Expr, Expr]  # bounds of values: least and greatest, inclusive
Limit = tuple[Expr, Expr]  # valid indices: from the first to below the second

MOVES = ("reshape", "transpose", "expand", "slice", "tile", "cast", "squeeze")
KEEP_ALL = ("reshape", "transpose", "expand", "concat")  # operators that keep every element
AXIS_INDEXED = ("gather", "gather_elements", "scatter_elements")
TUPLE_INDEXED = ("gather_nd", "scatter_nd")


def check_indices(module: Module, ctx: PassContext) -> Module:
    """Before: gather(%x, %i).   After: gather(%x, require(inside, %i))."""
    constants = dict(module.constants)

    def make_rule(graph: Graph) -> Rule:
        spans = _ValueBounds(constants)
        checked: dict[tuple[Value, tuple[Limit, ...]], Value] = {}
        return lambda node: _checked(node, spans, checked, constants)

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return module if changed is module else replace(changed, constants=constants)


def _checked(
    node: Node,
    spans: _ValueBounds,
    checked: dict[tuple[Value, tuple[Limit, ...]], Value],
    constants: dict[str, Array],
) -> Instead | None:
    spans.learn(node)
    limits = _limits(node)
    if limits is None:
        return None
    x, indices = node.inputs[0], node.inputs[1]
    assert x is not None
    assert indices is not None
    if _is_inside(spans.of(indices), limits):
        return None
    nodes: list[Node] = []

    def passed(value: Value, dims: tuple[Limit, ...]) -> Value:
        """A value passed through a check of its indices."""
        key = (value, dims)
        if key not in checked:
            nodes.extend(_check(value, dims, node, constants))
            checked[key] = nodes[-1].output
        return checked[key]

    sources = _sources(indices, limits, spans)
    if sources is None:
        inside = passed(indices, limits)
    else:
        safe = {
            value: value if _is_inside(spans.of(value), dims) else passed(value, dims)
            for value, dims in sources.items()
        }
        inside = _repeat_moves(indices, safe, spans, nodes)
    made = replace(node, inputs=(x, inside, *node.inputs[2:]))
    return Instead((*nodes, made), made.outputs)


def _sources(
    indices: Value, limits: tuple[Limit, ...], spans: _ValueBounds
) -> dict[Value, tuple[Limit, ...]] | None:
    """The values that indices are moved and broadcast from, each with its limits.

    None if nothing is broadcast; or if something is broadcast to a shape that may be empty, since
    then its values need not be valid.
    """
    found: dict[Value, tuple[Limit, ...]] = {}
    is_broadcast = False
    stack = [(indices, limits, True)]
    seen = set(stack)
    while stack:
        value, dims, is_read = stack.pop()
        made = spans.made.get(value)
        if made is None or (made.op != "concat" and len(dims) > 1):
            is_inside = _is_inside(spans.of(value), dims)
            if found.setdefault(value, dims) != dims or not (is_inside or is_read):
                return None
            continue
        if made.op == "concat":
            parts = _parts(made, dims)
            if parts is None:
                return None
            more = [(part, limit, is_read) for part, limit in parts]
        else:
            source = made.inputs[0]
            assert source is not None
            if made.op == "expand":
                is_broadcast, is_read = True, is_read and _is_kept(source, value)
            more = [(source, dims, is_read)]
        stack += [each for each in dict.fromkeys(more) if each not in seen]
        seen.update(more)
    return found if is_broadcast else None


def _parts(made: Node, dims: tuple[Limit, ...]) -> list[tuple[Value, tuple[Limit, ...]]] | None:
    """The operands of a concat of indices with their limits: columns of index tuples have different
    ones."""
    values = [value for value in made.inputs if value is not None]
    if len(dims) == 1:
        return [(value, dims) for value in values]
    shapes = [value.tensor.shape or () for value in values]
    if made["axis"] != len(shapes[0]) - 1 or not all(shape[-1] is ONE for shape in shapes):
        return None
    return [(value, (dim,)) for value, dim in zip(values, dims, strict=True)]


def _is_kept(source: Value, broadcast: Value) -> bool:
    """Whether every element of a tensor surely occurs in its broadcast: no extent becomes 0."""
    before, after = source.tensor.shape, broadcast.tensor.shape
    if before is None or after is None:
        return False
    padded = (*[ONE] * (len(after) - len(before)), *before)
    return all(
        a is b or (isinstance(b, Const) and b.value > 0) or sym.prove(sym.lt(ZERO, b), EMPTY)
        for a, b in zip(padded, after, strict=True)
    )


def _repeat_moves(
    indices: Value, safe: dict[Value, Value], spans: _ValueBounds, nodes: list[Node]
) -> Value:
    """Repeat the movement and broadcasts of indices on checked sources."""
    done = dict(safe)
    stack = [indices]
    while stack:
        value = stack[-1]
        made = spans.made.get(value)
        if value in done or made is None:
            stack.pop()
            continue
        left = [each for each in made.inputs if each is not None and each not in done]
        if left:
            stack += left
            continue
        inputs = [None if each is None else done[each] for each in made.inputs]
        types = [each.type for each in made.outputs]
        nodes.append(make_node(made.op, inputs, dict(made.attributes), made.loc, types=types))
        done[value] = nodes[-1].output
    return done[indices]


def _limits(node: Node) -> tuple[Limit, ...] | None:
    """The limits of a node's indices: one, or one per item of an index tuple; None if there are
    none."""
    if node.op not in AXIS_INDEXED and node.op not in TUPLE_INDEXED:
        return None
    x, indices = node.inputs[0], node.inputs[1]
    if x is None or indices is None or x.tensor.shape is None or indices.tensor.shape is None:
        return None
    if not indices.tensor.dtype.is_int or indices.tensor.static_shape == (0,):
        return None
    if node.op in AXIS_INDEXED:
        dim = x.tensor.shape[node["axis"]]
        return (_limit(dim),) if node.get("from_end", True) else ((ZERO, dim),)
    depth = indices.tensor.shape[-1]
    if not isinstance(depth, Const):
        return None
    first = node.get("batch_dims", 0)
    return tuple(_limit(dim) for dim in x.tensor.shape[first : first + int(depth.value)])


def _limit(dim: Expr) -> Limit:
    """The limits of indices that may be negative, counting from the end."""
    return sym.simplify(sym.sub(ZERO, dim)), dim


def _is_inside(span: Span | None, limits: tuple[Limit, ...]) -> bool:
    if span is None:
        return False
    low, high = span
    one = low.value if low is high and isinstance(low, Const) else None
    if one == 0 or (one == -1 and all(least is not ZERO for least, _ in limits)):
        return True  # out of bounds only if the axis is empty, and kernels refuse to read that
    return all(
        sym.prove(sym.le(least, low), EMPTY) and sym.prove(sym.lt(high, dim), EMPTY)
        for least, dim in limits
    )


def _check(
    indices: Value, limits: tuple[Limit, ...], node: Node, constants: dict[str, Array]
) -> list[Node]:
    """Nodes that raise an error unless all indices are valid."""
    nodes: list[Node] = []
    of = indices.tensor

    def add(op: str, *inputs: Value, **attributes: ir.Attribute) -> Value:
        nodes.append(make_node(op, inputs, attributes, node.loc))
        return nodes[-1].output

    def numbers(dims: tuple[Expr, ...]) -> Value:
        items = tuple(int(dim.value) if isinstance(dim, Const) else dim for dim in dims)
        values = [dim for dim in items if isinstance(dim, int)]
        if len(values) == len(items):
            array = np.array(values if len(items) > 1 else values[0], of.dtype.numpy)
            nodes.append(store_constant(constants, array, "bound"))
            return nodes[-1].output
        return add("dims", values=items if len(items) > 1 else items[0], to=of.dtype)

    dims = tuple(dim for _, dim in limits)
    above = add("greater_equal", indices, numbers(dims))
    outside = above
    if of.dtype.is_signed:
        below = add("less", indices, numbers(tuple(least for least, _ in limits)))
        outside = add("logical_or", below, above)
    axes = tuple(range(len(of.shape or ())))
    if axes:
        outside = add("reduce_max", outside, axes=axes, keepdims=False)
    inside = add("logical_not", outside)
    shown = ", ".join(str(dim) for dim in dims)
    where = "" if node.loc is UNKNOWN else f" ({node.loc})"
    message = f"an index of {node.op} is outside of the dimension {shown}{where}"
    add("require", inside, indices, message=message)
    return nodes


class _ValueBounds:
    """What is known about the values of integer tensors."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.constants = constants
        self.known: dict[Value, Span] = {}
        self.made: dict[Value, Node] = {}  # by nodes that keep every element, without other effect

    def of(self, value: Value | None) -> Span | None:
        return None if value is None else self.known.get(value)

    def learn(self, node: Node) -> None:
        # A node with a data-dependent shape must not be repeated: it defines sizes.
        if node.op == "concat" or (node.op in KEEP_ALL and not any(node.inputs[1:])):
            self.made[node.output] = node
        find = _BOUNDS_OF.get(node.op)
        if node.op in MOVES:
            find = _same
        if find is None:
            return
        value = node.outputs[-1]
        if not isinstance(value.type, TensorType) or not value.type.dtype.is_int:
            return
        span = find(self, node)
        if span is not None:
            self.known[value] = span


def _same(spans: _ValueBounds, node: Node) -> Span | None:
    return spans.of(node.inputs[0])


def _constant(spans: _ValueBounds, node: Node) -> Span | None:
    array = spans.constants[node["data"]]
    if not array.size or array.dtype.kind not in "iu":
        return None
    low, high = const(int(array.min())), const(int(array.max()))
    return low, high


def _dims(spans: _ValueBounds, node: Node) -> Span | None:
    values = node["values"]
    if isinstance(values, tuple):
        return None
    return sym.as_expr(values), sym.as_expr(values)


def _range(spans: _ValueBounds, node: Node) -> Span | None:
    if node.get("start") != 0 or node.get("delta") != 1 or node.output.tensor.shape is None:
        return None
    return ZERO, sym.simplify(sym.sub(node.output.tensor.shape[0], 1))


def _positions(spans: _ValueBounds, node: Node) -> Span | None:
    """Results of operators that return positions along an axis."""
    x = node.inputs[0]
    if x is None or x.tensor.shape is None:
        return None
    return ZERO, sym.simplify(sym.sub(x.tensor.shape[node["axis"]], 1))


def _nonzero(spans: _ValueBounds, node: Node) -> Span | None:
    x = node.inputs[0]
    if x is None or x.tensor.rank != 1 or x.tensor.shape is None:
        return None
    return ZERO, sym.simplify(sym.sub(x.tensor.shape[0], 1))


def _tree_leaf_bounds(spans: _ValueBounds, node: Node) -> Span | None:
    leaves = node["leaves"]
    return None if leaves is None else (ZERO, const(leaves - 1))


def _union(spans: _ValueBounds, values: tuple[Value | None, ...]) -> Span | None:
    found = [spans.of(value) for value in values]
    if not found or any(span is None for span in found):
        return None
    whole = [span for span in found if span is not None]
    low, high = whole[0]
    for other in whole[1:]:
        low, high = sym.minimum(low, other[0]), sym.maximum(high, other[1])
    return sym.simplify(low), sym.simplify(high)


def _clamp(spans: _ValueBounds, node: Node) -> Span | None:
    """Elementwise minimum or maximum of two bounded values."""
    a, b = (spans.of(value) for value in node.inputs[:2])
    if a is None or b is None:
        return None
    join = sym.minimum if node.op == "minimum" else sym.maximum
    return sym.simplify(join(a[0], b[0])), sym.simplify(join(a[1], b[1]))


_BOUNDS_OF: dict[str, Callable[[_ValueBounds, Node], Span | None]] = {
    "constant": _constant,
    "dims": _dims,
    "range": _range,
    "arg_max": _positions,
    "arg_min": _positions,
    "top_k": _positions,
    "nonzero": _nonzero,
    "tree_leaves": _tree_leaf_bounds,
    "gather": _same,
    "gather_elements": _same,
    "gather_nd": _same,
    "require": lambda spans, node: spans.of(node.inputs[1]),
    "concat": lambda spans, node: _union(spans, node.inputs),
    "where": lambda spans, node: _union(spans, node.inputs[1:3]),
    "minimum": _clamp,
    "maximum": _clamp,
}
