"""recognize_quantized: contractions of dequantized tensors as integer contractions.

    matmul(dequantize(a), dequantize(b))  =  scale_a * scale_b * matmul_integer(a, b)

Integer sums are exact as long as i32 cannot overflow, and targets multiply bytes faster than
floats. Both tensors have eight bits; the left one has one scale, the right one has one or one per
column (output channel).

It runs on quantized models before constants are folded, while weights are still integers.
`prefer_integers` is this pass for targets that have the instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtype import F32, I8, I32, U8
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import (
    Array,
    Replacement,
    Scope,
    Steps,
    rewrite_matches,
    shape_of,
)
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr


def recognize_quantized(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(dequantize(%a), dequantize(%b)).   After: mul(matmul_integer(%a, %b), s)."""
    return rewrite_matches(module, (matmul, conv))


@dataclass
class Quantized:
    """A dequantized 8-bit tensor: its integers, scale and zero point, and the axis of a vector of
    scales."""

    value: Value
    scale: Value
    zero: Value | None
    axis: int | None  # None: one scale for all
    perm: tuple[int, ...] | None = None  # the transpose between dequantization and the contraction


def _integers(value: Value | None, scope: Scope) -> Quantized | None:
    """What an integer value was dequantized from, if anything."""
    found = quantized(value, scope)
    return found if found is not None and found.value.tensor.dtype.is_int else None


def quantized(value: Value | None, scope: Scope) -> Quantized | None:
    """What a value was dequantized, and perhaps then transposed, from."""
    perm: tuple[int, ...] | None = None
    turned = scope.producer(value, "transpose")
    if turned is not None:
        perm = tuple(turned["perm"])
        value = turned.inputs[0]
    node = scope.producer(value, "dequantize")
    if node is None or node["to"] is not F32 or node.get("block_size", 0):
        return None
    x, scale = node.inputs[:2]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or scale is None or x.tensor.dtype.bits != 8:
        return None
    rank = len(shape_of(x) or ())
    if scale.tensor.dtype is not F32 or rank < 2:
        return None
    if all(dim is ONE for dim in shape_of(scale) or ()):
        return Quantized(x, scale, zero, None, perm)
    axis = node.get("axis", 1) % rank
    return Quantized(x, scale, zero, axis if perm is None else perm.index(axis), perm)


def _is_exact(summed: Sequence[Expr]) -> bool:
    """Whether sums over axes of these sizes cannot overflow i32, whatever the zero points."""
    count = 1
    for dim in summed:
        if not isinstance(dim, Const):
            return False
        count *= int(dim.value)
    return count * U8.max * U8.max <= I32.max  # the largest difference of two bytes


class Product(Steps):
    """The nodes of one integer contraction."""

    def operand(self, of: Quantized) -> tuple[Value, Value | None]:
        """The integers as the contraction reads them, and their zero point unless it is 0.

        Instructions take unsigned bytes on the left only, so a constant has its zero point
        subtracted if the differences fit signed bytes.
        """
        array, zero = self.scope.constant(of.value), self.zero(of)
        if array is None:
            if of.perm is None:
                return of.value, zero
            return self.add("transpose", of.value, perm=of.perm), zero
        offset = None if zero is None else self.scope.constant(zero)
        made = array if of.perm is None else np.ascontiguousarray(array.transpose(of.perm))
        if offset is not None and offset.size == 1:
            shifted = made.astype(np.int16) - int(offset.reshape(()))
            if bool((shifted >= -128).all()) and bool((shifted <= 127).all()):
                made, zero = shifted.astype(np.int8), None
        if made is array:
            return of.value, zero
        dtype = I8 if made.dtype == np.int8 else of.value.tensor.dtype
        return self.constant(made, TensorType(dtype, ()), of.value.name), zero

    def signed(self, of: Quantized) -> Quantized:
        """The operand quantized to signed bytes instead, which shifts its zero point by 128."""
        made = self.scope.producer(of.value, "quantize")
        zero = self.scope.constant(of.zero)
        if made is None or zero is None or zero.size != 1 or of.value.tensor.dtype is not U8:
            return of
        if not self.scope.is_used_once(of.value) or made.inputs[2] is not of.zero:
            return of
        moved = self.constant(zero.astype(np.int16) - 128, TensorType(I8, ()), "zero")
        attributes = {**dict(made.attributes), "to": I8}
        node = make_node("quantize", (*made.inputs[:2], moved), attributes, made.loc)
        self.nodes.append(node)
        for each in self.nodes:
            self.scope.define(each)
        return replace(of, value=node.output, zero=moved)

    def zero(self, of: Quantized) -> Value | None:
        known = self.scope.constant(of.zero)
        if of.zero is None or (known is not None and not known.any()):
            return None
        return of.zero

    def scaled(self, total: Value, left: Value, right: Value, behind: int) -> Value:
        """Scale integer sums to floats; `behind` axes follow the axis of the scales."""
        a, b = self.scope.constant(left), self.scope.constant(right)
        real = self.add("cast", total, to=F32)
        if a is not None and b is not None:
            product = _scale(a, b, behind)
            return self.add("mul", real, self.constant(product, left.tensor, "scale"))
        scale = self.add("mul", _flat(self, left, 0), _flat(self, right, behind))
        return self.add("mul", real, scale)


def _scale(a: Array, b: Array, behind: int) -> Array:
    """The product of a scalar scale and a scalar or vector of scales, shaped to broadcast."""
    product = np.asarray(a, dtype=np.float64).reshape(()) * np.asarray(b, dtype=np.float64)
    return product.reshape(()) if product.size == 1 else product.reshape(-1, *[1] * behind)


def _flat(steps: Steps, value: Value, behind: int) -> Value:
    shape = shape_of(value) or ()
    if all(dim is ONE for dim in shape):
        return value if not shape else steps.add("reshape", value, shape=())
    return steps.add("reshape", value, shape=(-1, *[1] * behind)) if behind else value


def matmul(node: Node, scope: Scope) -> Replacement:
    """A GEMM."""
    if node.op != "matmul":
        return None
    a, b = (_integers(value, scope) for value in node.inputs[:2])
    if a is None or b is None or a.axis is not None:
        return None
    rank = len(shape_of(b.value) or ())
    if b.axis is not None and b.axis != rank - 1:
        return None
    assert node.inputs[0] is not None
    if not _is_exact((shape_of(node.inputs[0]) or ())[-1:]):
        return None
    steps = Product(node, scope)
    left, left_zero = steps.operand(replace(a))
    right, right_zero = steps.operand(steps.signed(b))
    if left_zero is not None and shape_of(left_zero):
        left_zero = _flat(steps, left_zero, 0)
    inputs = _trimmed(left, right, left_zero, right_zero)
    steps.scaled(steps.add("matmul_integer", *inputs), a.scale, b.scale, 0)
    return steps.done()


def _trimmed(*inputs: Value | None) -> tuple[Value | None, ...]:
    count = max(at for at, value in enumerate(inputs, 1) if value is not None)
    return inputs[:count]


def conv(node: Node, scope: Scope) -> Replacement:
    """A convolution; its bias is added to the integer sums if it is a multiple of their scale."""
    if node.op != "conv":
        return None
    x, w = (_integers(value, scope) for value in node.inputs[:2])
    if x is None or w is None or x.axis is not None or w.axis not in (None, 0):
        return None
    if x.perm is not None or w.perm is not None or not _is_exact((shape_of(w.value) or ())[1:]):
        return None
    behind = len(shape_of(node.output) or ()) - 2
    steps = Product(node, scope)
    left, left_zero = steps.operand(x)
    right, right_zero = steps.operand(w)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    whole = _whole_bias(bias, x, w, scope)
    inside = None if whole is None else steps.constant(whole, TensorType(I32, ()), "bias")
    inputs = _trimmed(left, right, left_zero, right_zero, inside)
    made = make_node("conv_integer", inputs, dict(node.attributes), node.loc)
    steps.nodes.append(made)
    value = steps.scaled(made.output, x.scale, w.scale, behind)
    if bias is not None and inside is None:
        steps.add("add", value, steps.add("reshape", bias, shape=(-1, *[1] * behind)))
    return steps.done()


def _whole_bias(bias: Value | None, x: Quantized, w: Quantized, scope: Scope) -> Array | None:
    """The stored integers of a bias whose scale is the product of the operands' scales."""
    node = scope.producer(bias, "dequantize")
    arrays = [scope.constant(value) for value in (x.scale, w.scale)]
    if node is None or any(array is None for array in arrays):
        return None
    stored, scale = (scope.constant(value) for value in node.inputs[:2])
    zero = scope.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if stored is None or scale is None or stored.dtype != np.int32:
        return None
    if (len(node.inputs) > 2 and zero is None) or (zero is not None and zero.any()):
        return None
    product = np.asarray(arrays[0], dtype=np.float64).reshape(()) * np.asarray(
        arrays[1], dtype=np.float64
    )
    rounded = 2 * np.finfo(np.float32).eps  # of a product of two scales in f32
    same = np.allclose(product.reshape(-1), scale.reshape(-1), rtol=rounded, atol=0)
    return stored if same and scale.size in (1, stored.size) else None
