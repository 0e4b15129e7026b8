"""prefer_integers: integer contractions for quantized models, where the target has them.

Applies `recognize_quantized` if the target has dot products of bytes or of i16. Results do not get
worse: integer sums are exact, whereas f32 sums round at every step.
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
