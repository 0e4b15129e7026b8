"""lower_precision: products of f32 read their operands in bf16, and sum in f32.

It runs where a user asks for it by name. Weights are rounded at compile time; what else a product
reads is rounded by whoever computes it, so that less is moved too. Between products everything
stays f32: norms, softmax and sums lose nothing. A convolution of one tap, channels last, is a
product; others stay as they are.
"""

from __future__ import annotations

from tilewright.base.dtype import BF16, F32
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.sym import ONE, Const

SHORTEST = 16  # steps of a sum from which on rounding the operands pays


def lower_precision(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b).   After: matmul(cast(%a), cast(%b)) {to = dtype f32}."""
    return rewrite_matches(module, (matmul, conv))


def matmul(node: Node, scope: Scope) -> Replacement:
    """A product of matrices."""
    a, b = node.inputs if node.op == "matmul" else (None, None)
    if a is None or b is None or a.tensor.dtype is not F32:
        return None
    if len(shape_of(a) or ()) < 2 or len(shape_of(b) or ()) < 2 or not _is_long(a):
        return None
    steps = Steps(node, scope)
    steps.add("matmul", _rounded(steps, a), _rounded(steps, b), to=F32)
    return steps.done()


def conv(node: Node, scope: Scope) -> Replacement:
    """A convolution that sees one place at a time."""
    if node.op != "conv" or node.get("layout") != CHANNELS_LAST:
        return None
    x, w = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    weights = scope.constant(w)
    if x is None or w is None or weights is None or x.tensor.dtype is not F32:
        return None
    taps = (shape_of(w) or ())[2:]
    plain = all(dim is ONE for dim in taps) and node.get("groups", 1) == 1
    if not plain or any(node.get("pads", ())) or any(s != 1 for s in node.get("strides", ())):
        return None
    if not _is_long(x):
        return None
    steps = Steps(node, scope)
    matrix = weights.reshape(weights.shape[0], weights.shape[1]).T
    factor = steps.constant(matrix, w.tensor, "w")
    made = steps.add("matmul", _rounded(steps, x), _rounded(steps, factor), to=F32)
    if bias is not None:
        steps.add("add", made, bias)
    return steps.done()


def _rounded(steps: Steps, value: Value) -> Value:
    return steps.add("cast", value, to=BF16)


def _is_long(value: Value) -> bool:
    last = (shape_of(value) or (ONE,))[-1]
    return not isinstance(last, Const) or int(last.value) >= SHORTEST
