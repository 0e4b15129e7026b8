"""cancel_quantization: remove pairs of dequantize and quantize with equal parameters.

    quantize(dequantize(q))           =  q            with the same scale and zero point
    quantize(reshape(dequantize(q)))  =  reshape(q)
    reshape(dequantize(q))            =  dequantize(reshape(q))

The same for other data movement, and for max pooling, which then work on bytes. All rules are
exact.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtype import I8, U8
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, remade, rewrite_matches, shape_of
from tilewright.sym import ONE

MOVES = ("reshape", "transpose", "slice", "max_pool")


def cancel_quantization(module: Module, ctx: PassContext) -> Module:
    """Before: quantize(transpose(dequantize(%q))).   After: transpose(%q)."""
    return rewrite_matches(module, (requantized, moved_and_requantized, signed, moved))


def _is_per_tensor(node: Node) -> bool:
    """Whether quantization is per tensor: a single scale and zero point."""
    shapes = [shape_of(value) for value in node.inputs[1:] if value is not None]
    return all(shape is not None and all(dim is ONE for dim in shape) for shape in shapes)


def _same_number(a: Value | None, b: Value | None, scope: Scope) -> bool:
    """Whether two scales or zero points are equal; an absent one is 0."""
    if a is b:
        return True
    first = 0.0 if a is None else scope.number(a)
    second = 0.0 if b is None else scope.number(b)
    return first is not None and first == second


def _is_positive(scale: Value | None, scope: Scope) -> bool:
    number = scope.number(scale)
    return number is not None and number > 0


def _zero(node: Node) -> Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _is_inverse(node: Node, made: Node, scope: Scope) -> bool:
    """Whether a `quantize` restores the integers that a `dequantize` read."""
    if len(node.inputs) < 2 or not _is_per_tensor(made) or not _is_per_tensor(node):
        return False
    q = made.inputs[0]
    if q is None or q.tensor.dtype is not node.output.tensor.dtype or q.tensor.dtype.bits > 8:
        return False
    if not q.tensor.dtype.is_int or node.get("precision") is not None:
        return False
    same = _same_number(made.inputs[1], node.inputs[1], scope)
    return same and _same_number(_zero(made), _zero(node), scope)


def requantized(node: Node, scope: Scope) -> Replacement:
    """quantize(dequantize(q)) = q, for integers of at most 8 bits."""
    made = scope.producer(node.inputs[0], "dequantize") if node.op == "quantize" else None
    if made is None or not _is_inverse(node, made, scope):
        return None
    q = made.inputs[0]
    return q if q is not None and q.type == node.output.type else None


def moved_and_requantized(node: Node, scope: Scope) -> Replacement:
    """quantize(move(dequantize(q))) = move(q), also if others read the dequantized values."""
    move = scope.producer(node.inputs[0], *MOVES) if node.op == "quantize" else None
    made = None if move is None else scope.producer(move.inputs[0], "dequantize")
    if move is None or made is None or len(move.outputs) != 1 or not _is_inverse(node, made, scope):
        return None
    if move.op == "max_pool" and not _is_positive(made.inputs[1], scope):
        return None
    again = make_node(move.op, (made.inputs[0], *move.inputs[1:]), dict(move.attributes), node.loc)
    return [replace(again, outputs=node.outputs)] if again.output.type == node.output.type else None


def signed(node: Node, scope: Scope) -> Replacement:
    """u8 requantized to i8 with a zero point lower by 128: flip the highest bit."""
    made = scope.producer(node.inputs[0], "dequantize") if node.op == "quantize" else None
    if made is None or not _is_per_tensor(made) or not _is_per_tensor(node):
        return None
    q = made.inputs[0]
    if q is None or q.tensor.dtype is not U8 or node.output.tensor.dtype is not I8:
        return None
    before, after = _zero(made), _zero(node)
    first = 0.0 if before is None else scope.number(before)
    second = 0.0 if after is None else scope.number(after)
    if first is None or second is None or first - second != 128:
        return None
    if not _same_number(made.inputs[1], node.inputs[1], scope):
        return None
    steps = Steps(node, scope)
    steps.add("bitcast", steps.add("bit_xor", q, steps.constant(128, q.tensor, "bit")), to=I8)
    return steps.done()


def moved(node: Node, scope: Scope) -> Replacement:
    """move(dequantize(q)) = dequantize(move(q)), if nothing else reads the dequantized values."""
    if node.op not in MOVES or len(node.outputs) != 1 or not node.inputs:
        return None
    made = scope.producer(node.inputs[0], "dequantize")
    if made is None or not scope.is_used_once(made.output) or not _is_per_tensor(made):
        return None
    if node.op == "max_pool" and not _is_positive(made.inputs[1], scope):
        return None
    inputs = (made.inputs[0], *node.inputs[1:])
    move = make_node(node.op, inputs, dict(node.attributes), node.loc)
    if shape_of(move.output) != shape_of(node.output):
        return None
    return move, remade(node, "dequantize", move.output, *made.inputs[1:], **dict(made.attributes))
