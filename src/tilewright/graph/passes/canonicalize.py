"""canonicalize: a unique form for equivalent expressions.

Every rule keeps results bit-exact, looks at one node and the producers of its inputs, and makes the
model smaller or its form canonical.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.build import make_node
from tilewright.graph.definitions import COMMUTATIVE, Definitions
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.op import BROADCAST
from tilewright.graph.ops import OPS
from tilewright.graph.types import items_of
from tilewright.graph.visit import Instead, map_graphs, rewrite_by
from tilewright.sym import ONE, Const

Array = np.ndarray[Any, Any]

MAX_PARTS = 64  # of a flattened concat: each that repeats another doubles them


def canonicalize(module: Module, ctx: PassContext) -> Module:
    """Before: %a = reshape(%x); %b = reshape(%a).   After: %b = reshape(%x)."""

    def make_rule(graph: Graph) -> Callable[[Node], Instead | None]:
        around = Definitions(module.constants)
        return lambda node: _apply(node, around)

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return changed if changed.stage != ir.IMPORTED else replace(changed, stage=ir.CANONICAL)


def _apply(node: Node, around: Definitions) -> Instead | None:
    """Apply rules until none matches; each makes the node smaller, so this ends."""
    current, changed = node, False
    rules = RULES if len(node.outputs) == 1 else ()
    for _ in range(len(RULES) + 8):
        for rule in rules:
            made = rule(current, around)
            if isinstance(made, Value):
                return Instead((), (made,))
            if made is not None:
                current, changed = made, True
                break
        else:
            break
    for value in current.outputs:
        around.defined[value] = current
    return Instead((current,), current.outputs) if changed else None


Made = Node | Value | None


def _remade(node: Node, op: str, *inputs: Value | None, **attributes: Any) -> Node:
    """A node with other operator and inputs but the same outputs."""
    return replace(node, op=op, inputs=inputs, attributes=ir.attributes(**attributes))


# ------------------------------------------------------------------------------------ no-ops


def drop_moves(node: Node, around: Definitions) -> Made:
    """Reshapes, expansions, casts, slices and paddings that do nothing."""
    if node.op not in ("reshape", "expand", "cast", "slice", "pad", "tile"):
        return None
    x = node.inputs[0]
    if x is None or x.tensor.shape is None or x.type != node.output.type:
        return None
    if node.op == "slice" and (len(node.inputs) > 1 or any(s != 1 for s in node.get("steps", ()))):
        return None
    if node.op == "pad" and any(amount != 0 for amount in node.get("pads", (1,))):
        return None
    return x


def count_axes_from_front(node: Node, around: Definitions) -> Made:
    """transpose(x) {perm = (-1, 0)} = transpose(x) {perm = (1, 0)}."""
    if node.op != "transpose" or all(axis >= 0 for axis in node["perm"]):
        return None
    perm = tuple(axis % len(node["perm"]) for axis in node["perm"])
    return _remade(node, "transpose", node.inputs[0], perm=perm)


def drop_transpose(node: Node, around: Definitions) -> Made:
    """The identity permutation."""
    if node.op != "transpose" or list(node["perm"]) != list(range(len(node["perm"]))):
        return None
    return node.inputs[0]


def drop_concat(node: Node, around: Definitions) -> Made:
    """A concat of one input."""
    return node.inputs[0] if node.op == "concat" and len(node.inputs) == 1 else None


def drop_inverse(node: Node, around: Definitions) -> Made:
    """neg(neg(x)), not(not(x))."""
    if node.op not in ("neg", "logical_not", "bit_not"):
        return None
    inner = around.producer(node.inputs[0], node.op)
    return None if inner is None else inner.inputs[0]


NEUTRAL = {"mul": 1, "div": 1, "sub": 0, "pow": 1, "logical_and": True, "logical_or": False}


def drop_neutral(node: Node, around: Definitions) -> Made:
    """x * 1, x / 1, x - 0, x ** 1; x + 0 of integers (of floats it would turn -0 to 0)."""
    if len(node.inputs) != 2:
        return None
    x, y = node.inputs
    if x is None or x.type != node.output.type:
        return None
    neutral = NEUTRAL.get(node.op)
    if node.op == "add" and x.tensor.dtype.is_int:
        neutral = 0
    if neutral is None:
        return None
    number = around.number(y)
    return x if number is not None and number == neutral and not _is_minus_zero(number) else None


def _is_minus_zero(number: float) -> bool:
    return number == 0 and math.copysign(1, number) < 0


# ------------------------------------------------------------------------------------ merging


def merge_reshapes(node: Node, around: Definitions) -> Made:
    """reshape(reshape(x)) = reshape(x)."""
    if node.op != "reshape" or "shape" not in dict(node.attributes):
        return None
    inner = around.producer(node.inputs[0], "reshape")
    if inner is None:
        return None
    shape = node.output.tensor.shape
    if shape is None:
        return None
    items = items_of(shape)
    return _remade(node, "reshape", inner.inputs[0], shape=items)


def merge_transposes(node: Node, around: Definitions) -> Made:
    """transpose(transpose(x)) as one transpose."""
    if node.op != "transpose":
        return None
    inner = around.producer(node.inputs[0], "transpose")
    if inner is None:
        return None
    perm = tuple(inner["perm"][axis] for axis in node["perm"])
    return _remade(node, "transpose", inner.inputs[0], perm=perm)


def transpose_as_reshape(node: Node, around: Definitions) -> Made:
    """A transpose that moves only axes of extent 1 is a reshape."""
    if node.op != "transpose" or node.inputs[0] is None:
        return None
    shape = node.inputs[0].tensor.shape
    if shape is None:
        return None
    moved = [axis for axis in node["perm"] if shape[axis] is not ONE]
    if moved != sorted(moved) or len(moved) == len(shape):
        return None
    items = node.output.tensor.shape or ()
    target = items_of(items)
    return _remade(node, "reshape", node.inputs[0], shape=target)


def range_of_moved(node: Node, around: Definitions) -> Made:
    """max(reshape(x)) = max(x) over all elements; the same for min and transposes."""
    if node.op not in ("reduce_max", "reduce_min") or node.output.tensor.shape != ():
        return None
    for op in ("reshape", "transpose"):
        inner = around.producer(node.inputs[0], op)
        if inner is not None:
            return _remade(node, node.op, inner.inputs[0], keepdims=False)
    return None


def flatten_concat(node: Node, around: Definitions) -> Made:
    """concat(concat(a, b), c) = concat(a, b, c)."""
    if node.op != "concat":
        return None
    parts: list[Value | None] = []
    for value in node.inputs:
        inner = around.producer(value, "concat")
        same = inner is not None and inner["axis"] == node["axis"]
        parts.extend(inner.inputs if inner is not None and same else (value,))
    if len(parts) == len(node.inputs) or len(parts) > MAX_PARTS:
        return None
    return _remade(node, "concat", *parts, axis=node["axis"])


def expand_in_operand(node: Node, around: Definitions) -> Made:
    """Remove `expand` from operands that broadcast anyway, if the other operands give the shape."""
    op = OPS.get(node.op)
    if op is None or op.pattern is not BROADCAST or len(node.inputs) < 2:
        return None
    for at, value in enumerate(node.inputs):
        inner = around.producer(value, "expand")
        if inner is None:
            continue
        inputs = (*node.inputs[:at], inner.inputs[0], *node.inputs[at + 1 :])
        tried = make_node(node.op, inputs, dict(node.attributes), hints=("",))
        if tried.output.type == node.output.type:
            return replace(node, inputs=inputs)
    return None


# ---------------------------------------------------------------------------------- canonical forms


def constant_right(node: Node, around: Definitions) -> Made:
    """A constant is the second operand of a commutative operator."""
    if node.op not in COMMUTATIVE or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if around.constant(a) is None or around.constant(b) is not None:
        return None
    return replace(node, inputs=(b, a))


def gather_as_slice(node: Node, around: Definitions) -> Made:
    """A gather by constant indices of equal steps is a slice."""
    if node.op != "gather" or node.inputs[0] is None:
        return None
    indices, shape = around.constant(node.inputs[1]), node.inputs[0].tensor.shape
    if indices is None or indices.ndim != 1 or indices.size == 0 or not shape:
        return None
    axis = node["axis"] % len(shape)
    dim = shape[axis]
    if not isinstance(dim, Const):
        return None
    places = indices.astype(np.int64)
    places = np.where(places < 0, places + dim.value, places)
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first if len(places) > 1 else 1
    if first < 0 or last >= dim.value or step < 1 or (np.diff(places) != step).any():
        return None
    how = {"starts": (first,), "ends": (last + 1,), "axes": (axis,), "steps": (step,)}
    return _remade(node, "slice", node.inputs[0], **how)


def power_as_product(node: Node, around: Definitions) -> Made:
    """x ** 2 = x * x."""
    if node.op != "pow" or node.inputs[0] is None or node.inputs[0].type != node.output.type:
        return None
    if around.number(node.inputs[1]) != 2:
        return None
    return _remade(node, "mul", node.inputs[0], node.inputs[0])


RULES: tuple[Callable[[Node, Definitions], Made], ...] = (
    count_axes_from_front,
    drop_moves,
    drop_transpose,
    drop_concat,
    drop_inverse,
    drop_neutral,
    merge_reshapes,
    merge_transposes,
    transpose_as_reshape,
    range_of_moved,
    flatten_concat,
    expand_in_operand,
    constant_right,
    gather_as_slice,
    power_as_product,
)
