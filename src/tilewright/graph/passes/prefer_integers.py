"""prefer_integers: a quantized model multiplies its integers where the target does so faster.

`recognize_quantized` where the target has instructions that add products of bytes, or of i16. It
changes no result for the worse: sums of integers are exact, those of f32 are rounded at every step.
"""

from __future__ import annotations

from tilewright.base.dots import multiplies_bytes
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module
from tilewright.graph.passes.recognize_quantized import recognize_quantized


def prefer_integers(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(dequantize(%a), dequantize(%b)).   After: mul(matmul_integer(%a, %b), s)."""
    target = ctx.target
    if not isinstance(target, Target) or not multiplies_bytes(target):
        return module
    return recognize_quantized(module, ctx)
