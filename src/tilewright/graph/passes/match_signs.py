"""match_signs: bytes of integer products get the signs that the target multiplies.

    sum of (a - z) * w  =  sum of (a' - z') * w      a' = a - 128, z' = z - 128

NEON multiplies bytes with a sign by such, VNNI bytes without a sign by bytes with one. The highest
bit of an operand is flipped, which moves its zero point by 128; `fold_zero_points` makes a constant
of that. Whatever quantizes gives the other bytes straight away, what only moves bytes moves them,
and those who read them otherwise read the new ones, so that nothing is there twice. Weights count
as what they are without their zero point, which `fold_zero_points` takes away. Few columns fill no
tiles, so that they get what dot products take. Of a layer that quantizes its states on the way,
these get the other sign.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tilewright.base.dots import dots_of, multiplies, tap_dot_of
from tilewright.base.dtype import I8, U8, DType
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.build import make_node
from tilewright.graph.im2col import fills_tiles
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, remade, rewrite_matches
from tilewright.graph.types import TensorType

PRODUCTS = ("matmul_integer", "conv_integer")
MOVES = ("reshape", "transpose", "slice", "max_pool")
OTHER = {I8: U8, U8: I8}
BIT = 1 << (I8.bits - 1)  # the one that a sign is


def match_signs(module: Module, ctx: PassContext) -> Module:
    """Before: matmul_integer(%u8, %w).   After: matmul_integer(%i8, %w, -128)."""
    target = ctx.target
    if not isinstance(target, Target):
        return module
    return rewrite_matches(
        module, tuple(partial(rule, target=target) for rule in (product, dequantize, states))
    )


Multiplies = Callable[[Target, str, str], bool]  # whether a target does, bytes of two types


def flips(target: Target, a: DType, b: DType, test: Multiplies) -> tuple[bool, bool] | None:
    """Which operands must be flipped for the target to multiply them; None if that is no help."""
    for flip in ((False, False), (True, False), (False, True), (True, True)):
        left, right = (OTHER[of] if it else of for of, it in zip((a, b), flip, strict=True))
        if test(target, left.name, right.name):
            return flip
    return None


def instructions_of(node: Node, scope: Scope, target: Target) -> Multiplies:
    """What a product is made of: tiles are not for one that leaves most of them empty."""
    if is_depthwise(node):
        return lambda target, a, b: tap_dot_of(target, a, b) is not None
    a = node.inputs[0]
    assert a is not None
    # All that read the same bytes read them with one sign, which tiles take either of.
    readers = (node, *scope.users.get(a, ()))
    alike = [user for user in readers if user.op in PRODUCTS and not is_depthwise(user)]
    if target.kind != CPU or all(fills_tiles_of(user, scope) for user in alike):
        return multiplies
    return lambda target, a, b: bool(dots_of(target, a, b, "i32"))


def fills_tiles_of(node: Node, scope: Scope) -> bool:
    """Whether a product has as many columns as tiles, as far as is known."""
    weights = scope.constant(node.inputs[1])
    if weights is None or weights.ndim < 2:
        return True
    return fills_tiles(weights if node.op == "conv_integer" else np.moveaxis(weights, -1, 0))


def product(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """A product of bytes, at most one of which has a zero point per row or column."""
    if node.op not in PRODUCTS:
        return None
    a, b = node.inputs[:2]
    if a is None or b is None or a.tensor.dtype not in OTHER or b.tensor.dtype not in OTHER:
        return None
    found = flips_of(node, a, b, scope, target)
    if found is None or not any(found):
        return None
    inputs = [*node.inputs, *[None] * (4 - len(node.inputs))]
    steps = Flipped(node, scope)
    if is_depthwise(node) and found[0] and Flipped(node, scope).quantized(a) is None:
        return None  # a pass over the image would take as long
    for at, wanted in enumerate(found):
        if wanted:
            of = inputs[at]
            assert of is not None
            inputs[at] = steps.flipped(of)
            inputs[at + 2] = steps.zero(inputs[at + 2], OTHER[of.tensor.dtype])
    while inputs[-1] is None:
        inputs.pop()
    steps.add(node.op, *inputs, **dict(node.attributes))
    return steps.done()


def flips_of(
    node: Node, a: Value, b: Value, scope: Scope, target: Target
) -> tuple[bool, bool] | None:
    """Which operands of a product must be flipped; None if that is no help."""
    test = instructions_of(node, scope, target)
    found = flips(target, a.tensor.dtype, left_of_weights(node, scope), test)
    if found is None or found[1]:
        found = flips(target, a.tensor.dtype, b.tensor.dtype, test)
    return found


def left_of_weights(node: Node, scope: Scope) -> DType:
    """The bytes that the right operand becomes once its zero point is gone."""
    _, b, _, given = (*node.inputs, None, None)[:4]
    assert b is not None
    weights, zero = scope.constant(b), scope.constant(given)
    if weights is None or zero is None:
        return b.tensor.dtype
    if node.op == "matmul_integer" and (weights.ndim != 2 or zero.ndim > 1):
        return b.tensor.dtype  # `fold_zero_points` leaves these alone
    if node.op == "conv_integer":
        zero = zero.reshape(-1, *[1] * (weights.ndim - 1))
    return b.tensor.dtype if without_zero(weights, zero) is None else I8


def without_zero(weights: Array, zero: Array | None) -> Array | None:
    """Weights less their zero point, if that has eight bits and a sign."""
    if zero is None:
        return weights
    shifted = weights.astype(np.int16) - zero.astype(np.int16)
    if bool((shifted >= -BIT).all()) and bool((shifted < BIT).all()):
        return shifted.astype(np.int8)
    return None


def is_depthwise(node: Node) -> bool:
    """Whether a convolution sums windows of single channels: no lane adds neighbours."""
    if node.op != "conv_integer" or node.inputs[1] is None:
        return False
    shape = node.inputs[1].tensor.shape
    return int(node.get("groups", 1)) > 1 and shape is not None and str(shape[1]) == "1"


def dequantize(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """Bytes that a product reads the other way round are read so by all."""
    q = node.inputs[0] if node.op == "dequantize" else None
    if q is None or q.tensor.dtype not in OTHER:
        return None
    other = OTHER[q.tensor.dtype]
    if not any(is_flipped(q, user, scope, target) for user in scope.users.get(q, ())):
        return None
    steps = Flipped(node, scope)
    moved = steps.quantized(q)
    if moved is None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    steps.add("dequantize", moved, node.inputs[1], steps.zero(zero, other), **dict(node.attributes))
    return steps.done()


def is_flipped(q: Value, node: Node, scope: Scope, target: Target) -> bool:
    """Whether a node is a product that reads bytes the other way round."""
    if node.op not in PRODUCTS or node.inputs[0] is not q:
        return False
    b = node.inputs[1]
    if b is None or b.tensor.dtype not in OTHER:
        return False
    found = flips_of(node, q, b, scope, target)
    return found is not None and found[0]


def states(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """States that a layer quantizes itself, times bytes with a sign."""
    of = node.get("states", U8)
    if node.op != "quantized_lstm" or of not in OTHER or multiplies(target, of.name, "i8"):
        return None
    if not multiplies(target, OTHER[of].name, "i8"):
        return None
    return [remade(node, node.op, *node.inputs, **{**dict(node.attributes), "states": OTHER[of]})]


class Flipped(Steps):
    """Nodes of bytes with their highest bit flipped."""

    def flipped(self, value: Value) -> Value:
        """The bytes of the other kind, in the cheapest way."""
        array = self.scope.constant(value)
        to = OTHER[value.tensor.dtype]
        if array is not None:
            made = (array.view(np.uint8) ^ np.uint8(BIT)).view(to.numpy)
            return self.constant(made, TensorType(to, ()), value.name)
        made_by = self.quantized(value)
        return self.turned(value) if made_by is None else made_by

    def turned(self, value: Value) -> Value:
        """Each byte by itself."""
        of = value.tensor.dtype
        unsigned = value if of is U8 else self.add("bitcast", value, to=U8)
        bit = self.constant(BIT, TensorType(U8, ()), "bit")
        made = self.add("bit_xor", unsigned, bit)
        return made if of is I8 else self.add("bitcast", made, to=I8)

    def quantized(self, value: Value) -> Value | None:
        """The other bytes from what quantizes, through what only moves them; None if nothing."""
        move = self.scope.producer(value, *MOVES)
        if move is not None and move.op == "max_pool" and not self.scope.is_used_once(value):
            return None  # it would be computed twice
        if move is not None and len(move.outputs) == 1 and move.inputs[0] is not None:
            source = self.quantized(move.inputs[0])
            if source is None:
                return None
            return self.add(move.op, source, *move.inputs[1:], **dict(move.attributes))
        made = self.scope.producer(value, "quantize")
        if made is None or not made.get("saturate", True):
            return None
        to = OTHER[value.tensor.dtype]
        x, scale, zero = (*made.inputs, None, None)[:3]
        attributes = {**dict(made.attributes), "to": to}
        node = make_node("quantize", (x, scale, self.zero(zero, to)), attributes, made.loc)
        self.nodes.append(node)
        return node.output

    def zero(self, value: Value | None, to: DType) -> Value:
        """A zero point of the other kind of bytes; where there is none, it is 0."""
        of = TensorType(to, ())
        if value is None:
            return self.constant(BIT if to is U8 else -BIT, of, "zero")
        array = self.scope.constant(value)
        if array is None:
            return self.turned(value)
        moved = array.astype(np.int16) + (BIT if to is U8 else -BIT)
        return self.constant(moved, of, "zero")
