"""match_signs: change the signedness of integer operands to what the target's instructions need.

    sum of (a - z) * w  =  sum of (a' - z') * w      a' = a - 128, z' = z - 128

NEON multiplies signed by signed bytes, VNNI unsigned by signed ones. Flipping the highest bit of an
operand changes its zero point by 128, and `fold_zero_points` makes that a constant. Producers that
quantize produce the other bytes directly, data movement moves them, and all other readers use the
new form, so that only one is stored. Weights count without their zero point, since
`fold_zero_points` removes it. Contractions with few columns leave tiles empty, so they get the
signs for dot products. Layers that quantize their own states switch these to the other sign.
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
BIT = 1 << (I8.bits - 1)  # the sign bit


def match_signs(module: Module, ctx: PassContext) -> Module:
    """Before: matmul_integer(%u8, %w).   After: matmul_integer(%i8, %w, -128)."""
    target = ctx.target
    if not isinstance(target, Target):
        return module
    return rewrite_matches(
        module, tuple(partial(rule, target=target) for rule in (product, dequantize, states))
    )


Multiplies = Callable[[Target, str, str], bool]  # whether a target multiplies bytes of two types


def flips(target: Target, a: DType, b: DType, test: Multiplies) -> tuple[bool, bool] | None:
    """Which operands to flip so that the target can multiply them; None if flipping does not
    help."""
    for flip in ((False, False), (True, False), (False, True), (True, True)):
        left, right = (OTHER[of] if it else of for of, it in zip((a, b), flip, strict=True))
        if test(target, left.name, right.name):
            return flip
    return None


def instructions_of(node: Node, scope: Scope, target: Target) -> Multiplies:
    """The instructions that a contraction would use: no tiles if most of them would be empty."""
    if is_depthwise(node):
        return lambda target, a, b: tap_dot_of(target, a, b) is not None
    a = node.inputs[0]
    assert a is not None
    # All readers of a value should agree on its sign; tiles accept either.
    readers = (node, *scope.users.get(a, ()))
    alike = [user for user in readers if user.op in PRODUCTS and not is_depthwise(user)]
    if target.kind != CPU or all(fills_tiles_of(user, scope) for user in alike):
        return multiplies
    return lambda target, a, b: bool(dots_of(target, a, b, "i32"))


def fills_tiles_of(node: Node, scope: Scope) -> bool:
    """Whether a contraction has at least as many columns as a tile, as far as is known."""
    weights = scope.constant(node.inputs[1])
    if weights is None or weights.ndim < 2:
        return True
    return fills_tiles(weights if node.op == "conv_integer" else np.moveaxis(weights, -1, 0))


def product(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """A contraction of bytes, at most one of which has a zero point per row or column."""
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
    if is_depthwise(node) and found[0] and Flipped(node, scope).from_quantize(a) is None:
        return None  # another pass over the image would take as long
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
    """Which operands of a contraction to flip; None if flipping does not help."""
    test = instructions_of(node, scope, target)
    found = flips(target, a.tensor.dtype, left_of_weights(node, scope), test)
    if found is None or found[1]:
        found = flips(target, a.tensor.dtype, b.tensor.dtype, test)
    return found


def left_of_weights(node: Node, scope: Scope) -> DType:
    """The dtype of the right operand after its zero point is removed."""
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
    """Weights minus their zero point, if the result fits in i8."""
    if zero is None:
        return weights
    shifted = weights.astype(np.int16) - zero.astype(np.int16)
    if bool((shifted >= -BIT).all()) and bool((shifted < BIT).all()):
        return shifted.astype(np.int8)
    return None


def is_depthwise(node: Node) -> bool:
    """Whether a convolution sums over windows of single channels, where dot products do not
    apply."""
    if node.op != "conv_integer" or node.inputs[1] is None:
        return False
    shape = node.inputs[1].tensor.shape
    return int(node.get("groups", 1)) > 1 and shape is not None and str(shape[1]) == "1"


def dequantize(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """Dequantize flipped bytes, if a contraction reads them flipped."""
    q = node.inputs[0] if node.op == "dequantize" else None
    if q is None or q.tensor.dtype not in OTHER:
        return None
    other = OTHER[q.tensor.dtype]
    if not any(is_flipped(q, user, scope, target) for user in scope.users.get(q, ())):
        return None
    steps = Flipped(node, scope)
    moved = steps.from_quantize(q)
    if moved is None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    steps.add("dequantize", moved, node.inputs[1], steps.zero(zero, other), **dict(node.attributes))
    return steps.done()


def is_flipped(q: Value, node: Node, scope: Scope, target: Target) -> bool:
    """Whether a node is a contraction that will read these bytes flipped."""
    if node.op not in PRODUCTS or node.inputs[0] is not q:
        return False
    b = node.inputs[1]
    if b is None or b.tensor.dtype not in OTHER:
        return False
    found = flips_of(node, q, b, scope, target)
    return found is not None and found[0]


def states(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """Layers that quantize their states and multiply them with signed bytes."""
    of = node.get("states", U8)
    if node.op != "quantized_lstm" or of not in OTHER or multiplies(target, of.name, "i8"):
        return None
    if not multiplies(target, OTHER[of].name, "i8"):
        return None
    return [remade(node, node.op, *node.inputs, **{**dict(node.attributes), "states": OTHER[of]})]


class Flipped(Steps):
    """Nodes for bytes with the sign bit flipped."""

    def flipped(self, value: Value) -> Value:
        """The flipped bytes, in the cheapest way."""
        array = self.scope.constant(value)
        to = OTHER[value.tensor.dtype]
        if array is not None:
            made = (array.view(np.uint8) ^ np.uint8(BIT)).view(to.numpy)
            return self.constant(made, TensorType(to, ()), value.name)
        made_by = self.from_quantize(value)
        return self.bytewise(value) if made_by is None else made_by

    def bytewise(self, value: Value) -> Value:
        """Flip each byte with an xor."""
        of = value.tensor.dtype
        unsigned = value if of is U8 else self.add("bitcast", value, to=U8)
        bit = self.constant(BIT, TensorType(U8, ()), "bit")
        made = self.add("bit_xor", unsigned, bit)
        return made if of is I8 else self.add("bitcast", made, to=I8)

    def from_quantize(self, value: Value) -> Value | None:
        """The flipped bytes directly from a `quantize`, through data movement; None if there is
        none."""
        move = self.scope.producer(value, *MOVES)
        if move is not None and move.op == "max_pool" and not self.scope.is_used_once(value):
            return None  # it would be computed twice
        if move is not None and len(move.outputs) == 1 and move.inputs[0] is not None:
            source = self.from_quantize(move.inputs[0])
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
        """The zero point for flipped bytes; an absent one is 0."""
        of = TensorType(to, ())
        if value is None:
            return self.constant(BIT if to is U8 else -BIT, of, "zero")
        array = self.scope.constant(value)
        if array is None:
            return self.bytewise(value)
        moved = array.astype(np.int16) + (BIT if to is U8 else -BIT)
        return self.constant(moved, of, "zero")
