"""fold_scales: fold the scale of a `quantize` into the constants of what it quantizes.

    quantize(sum * a, s)                      =  round(sum * (a / s))
    quantize(dequantize(p, a) + sum * b, s)   =  round(p * (a / s) + sum * (b / s))

Constant scales are divided at compile time, in f64, so that each term takes one multiplication and
`quantize` only rounds. Results are rounded once less than before, which matters for ties only. Zero
points become a constant per term. A term without a constant that could absorb the scale is still
divided by it, unless quantization is by reciprocals.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.sym import ONE


def fold_scales(module: Module, ctx: PassContext) -> Module:
    """Before: quantize(mul(%x, 0.5), 0.25).   After: quantize(mul(%x, 2.0))."""
    return rewrite_matches(module, (quantize,))


def quantize(node: Node, scope: Scope) -> Replacement:
    """Fold the scale into the operand, and drop a zero point of 0."""
    if node.op != "quantize":
        return None
    x, scale, zero = (*node.inputs, None, None)[:3]
    step = _number(scale, scope)
    if x is None or x.tensor.dtype is not F32 or step is None or not 0 < step < np.inf:
        return None
    if node.get("precision") not in (None, F32) or not node.output.tensor.dtype.is_int:
        return None
    if not node.get("reciprocal", False) and not _takes_factor(x, scope):
        return None
    steps = _Scaled(node, scope)
    inside = steps.scaled(x, 1 / step)
    attributes = {**dict(node.attributes), "reciprocal": False}
    is_zero = zero is None or _number(zero, scope) == 0
    steps.add("quantize", *((inside,) if is_zero else (inside, None, zero)), **attributes)
    return steps.done()


def _number(value: Value | None, scope: Scope) -> float | None:
    """The value of a constant scalar."""
    if value is None or not all(dim is ONE for dim in shape_of(value) or ()):
        return None
    return scope.number(value)


def _takes_factor(x: Value, scope: Scope) -> bool:
    """Whether every term of a value has a constant that can absorb a factor."""
    if scope.constant(x) is not None:
        return True
    node = scope.producer(x, "mul", "add", "relu", "dequantize")
    if node is None:
        return False
    if node.op == "dequantize":
        return _slope(node, scope) is not None
    inputs = [value for value in node.inputs if value is not None]
    if not scope.is_used_once(x):
        return False
    if node.op == "mul":
        return any(scope.constant(value) is not None for value in inputs)
    return all(_takes_factor(value, scope) for value in inputs)


def _slope(node: Node, scope: Scope) -> tuple[float, float] | None:
    """The scale and zero point of a per-tensor dequantize."""
    q, scale, zero = (*node.inputs, None)[:3]
    step = _number(scale, scope)
    offset = 0.0 if zero is None else _number(zero, scope)
    if q is None or step is None or offset is None:
        return None
    if node["to"] is not F32 or q.tensor.dtype.bits > 8 or not q.tensor.dtype.is_int:
        return None  # with wide integers, a zero point far from 0 would cost precision
    return step, offset


class _Scaled(Steps):
    """Nodes for a value times a factor, which is folded into constants where possible."""

    def scaled(self, x: Value, factor: float) -> Value:
        """x times the factor."""
        scope = self.scope
        array = scope.constant(x)
        if array is not None:
            return self.number(array.astype(np.float64) * factor, x, "scaled")
        node = scope.producer(x, "mul", "add", "relu", "dequantize")
        if node is not None and node.op == "dequantize":
            real = self.real(node, factor)
            if real is not None:
                return real
        elif node is not None and scope.is_used_once(x):
            made = self.inner(node, factor)
            if made is not None:
                return made
        return self.add("mul", x, self.number(factor, x, "factor"))

    def number(self, array: Array | float, like: Value, hint: str) -> Value:
        """A constant; 0 instead of a subnormal number: the rounding afterwards hides the
        difference, and subnormal arithmetic takes hundreds of cycles."""
        is_tiny = np.abs(array) < np.finfo(np.float32).smallest_normal
        return self.constant(np.where(is_tiny, 0.0, array), like.tensor, hint)

    def inner(self, node: Node, factor: float) -> Value | None:
        """The result of a node without other users, times the factor."""
        inputs = [value for value in node.inputs if value is not None]
        if node.op == "relu":
            return self.add("relu", self.scaled(inputs[0], factor))
        if node.op == "add":
            return self.add("add", *(self.scaled(value, factor) for value in inputs))
        for at, value in enumerate(inputs):
            if self.scope.constant(value) is not None:
                other = inputs[1 - at]
                return self.add("mul", other, self.scaled(value, factor))
        return None

    def real(self, node: Node, factor: float) -> Value | None:
        """Dequantized integers times the factor; None unless the scale is per tensor."""
        q, scale, zero = (*node.inputs, None)[:3]
        known = _slope(node, self.scope)
        if q is None or scale is None or known is None:
            return None
        step, offset = known
        slope = self.number(step * factor, scale, "slope")
        if self.scope.producer(q, "quantize") and self.scope.is_used_once(q):
            # Subtract the zero point first: the value is in a register anyway.
            inputs = (q, slope, zero) if offset else (q, slope)
            return self.add("dequantize", *inputs, **dict(node.attributes))
        value = self.add("mul", self.add("cast", q, to=F32), slope)
        if not offset:
            return value
        return self.add("add", value, self.number(-offset * step * factor, scale, "off"))
