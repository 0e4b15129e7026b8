"""recognize_float8: matmuls of dequantized fp8 tensors as fp8 matmuls.

    matmul(dequantize(a), dequantize(b))  =  scale_a * scale_b * matmul(a, b) {to = f32}

Tensor cores multiply fp8 at twice the rate of 16-bit floats, but accumulate in fewer bits than f32
has, so the pass is only for precisions below f32. It runs before constants are folded.
"""

from __future__ import annotations

from tilewright.base.dtype import F32, dtype
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.graph.passes.recognize_quantized import Product, quantized

F8E4M3 = dtype("f8e4m3")


def recognize_float8(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(dequantize(%a), dequantize(%b)).   After: mul(matmul(%a, %b), s)."""
    return rewrite_matches(module, (matmul,)) if multiplies_float8(ctx.target) else module


def multiplies_float8(target: object) -> bool:
    """Whether the target's tensor cores multiply fp8."""
    return isinstance(target, Target) and target.has("wgmma")


def matmul(node: Node, scope: Scope) -> Replacement:
    """A GEMM with one scale for A, and one for B or one per column."""
    if node.op != "matmul" or node.output.tensor.dtype is not F32:
        return None
    a, b = (quantized(value, scope) for value in node.inputs[:2])
    if a is None or b is None or a.axis is not None:
        return None
    if a.value.tensor.dtype is not F8E4M3 or b.value.tensor.dtype is not F8E4M3:
        return None
    if b.axis is not None and b.axis != len(shape_of(b.value) or ()) - 1:
        return None
    steps = Product(node, scope)
    if steps.zero(a) is not None or steps.zero(b) is not None:
        return None
    (left, _), (right, _) = (steps.operand(each) for each in (a, b))
    steps.scaled(steps.add("matmul", left, right, to=F32), a.scale, b.scale, 0)
    return steps.done()
