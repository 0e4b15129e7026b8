"""decompose: replace composite operators by primitives, where the target has nothing better.

Composite operators without schedules of their own then use those of matmuls, reductions and
elementwise operators. The option `keep` lists, separated by commas, the operators that stay since
the target has schedules for them; DECOMPOSITIONS has all that can be decomposed. Operators on
narrow floats stay, since they round once, whereas primitives would round in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value, attributes
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.ops.layout import CHANNELS_FIRST
from tilewright.graph.passes.decompose_einsum import decomposed_einsum
from tilewright.graph.passes.decompose_fourier import decomposed_dft, decomposed_stft
from tilewright.graph.types import TensorType, item_of, items_of
from tilewright.sym import Const, Expr

KEEP = "softmax,log_softmax,layer_norm,rms_norm,group_norm,batch_norm,attention"


def decompose(module: Module, ctx: PassContext) -> Module:
    """Before: einsum(%a, %b) {equation = "ij,jk->ik"}.   After: matmul(%a, %b)."""
    kept = {name.strip() for name in ctx.option("decompose.keep", KEEP).split(",")}

    def rule(node: Node, scope: Scope) -> Replacement:
        return None if node.op in kept else pieces_of(node, scope)

    return rewrite_matches(module, (rule,))


def pieces_of(node: Node, scope: Scope) -> list[Node] | None:
    """The primitives of a composite node; None if it cannot be decomposed."""
    pieces = DECOMPOSITIONS.get(node.op)
    return pieces(node, Steps(node, scope)) if pieces and _is_plain(node) else None


def _is_plain(node: Node) -> bool:
    """Whether all ranks are known, and no narrow float would be rounded in between."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if len(node.outputs) != 1 or any(shape_of(value) is None for value in values):
        return False
    floats = [value.tensor.dtype for value in values if value.tensor.dtype.is_float]
    return not node.output.tensor.dtype.is_float or all(of.bits >= 32 for of in floats)


def _x(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x


def _softmax(node: Node, steps: Steps) -> list[Node] | None:
    """exp(x - max x) over its sum."""
    powers = steps.add("exp", _shifted(node, steps))
    total = steps.add("reduce_sum", powers, axes=node["axes"], keepdims=True)
    steps.add("div", powers, total)
    return steps.done()


def _shifted(node: Node, steps: Steps) -> Value:
    x = _x(node)
    return steps.add("sub", x, steps.add("reduce_max", x, axes=node["axes"], keepdims=True))


def _log_softmax(node: Node, steps: Steps) -> list[Node] | None:
    """x - max x - log(sum(exp(x - max x)))."""
    shifted = _shifted(node, steps)
    total = steps.add("reduce_sum", steps.add("exp", shifted), axes=node["axes"], keepdims=True)
    steps.add("sub", shifted, steps.add("log", total))
    return steps.done()


def _normalized(x: Value, axes: tuple[int, ...], epsilon: float, steps: Steps) -> Value:
    """(x - mean) / sqrt(variance + epsilon)."""
    mean = steps.add("reduce_mean", x, axes=axes, keepdims=True)
    centred = steps.add("sub", x, mean)
    return steps.add("mul", centred, _inverse_root(centred, axes, epsilon, steps))


def _inverse_root(x: Value, axes: tuple[int, ...], epsilon: float, steps: Steps) -> Value:
    """1 / sqrt(mean(x * x) + epsilon)."""
    squares = steps.add("mul", x, x)
    spread = steps.add("reduce_mean", squares, axes=axes, keepdims=True)
    shifted = steps.add("add", spread, steps.constant(epsilon, x.tensor, "epsilon"))
    return steps.add("rsqrt", shifted)


def _trailing(node: Node) -> tuple[int, ...]:
    return tuple(range(node["axis"], len(shape_of(_x(node)) or ())))


def _layer_norm(node: Node, steps: Steps) -> list[Node] | None:
    value = _normalized(_x(node), _trailing(node), node.get("epsilon", 1e-5), steps)
    for operand, op in zip(node.inputs[1:], ("mul", "add"), strict=False):
        if operand is not None:
            value = steps.add(op, value, operand)
    return steps.done()


def _rms_norm(node: Node, steps: Steps) -> list[Node] | None:
    inverse = _inverse_root(_x(node), _trailing(node), node.get("epsilon", 1e-5), steps)
    steps.add("mul", steps.add("mul", _x(node), inverse), node.inputs[1])
    return steps.done()


def _along_channels(node: Node, value: Value | None, steps: Steps) -> Value:
    """One number per channel, reshaped to broadcast along all other axes."""
    assert value is not None
    behind = len(shape_of(_x(node)) or ()) - 2
    channels = (shape_of(value) or ())[0]
    if behind <= 0:
        return value
    return steps.add("reshape", value, shape=(item_of(channels), *[1] * behind))


def _group_norm(node: Node, steps: Steps) -> list[Node] | None:
    """Normalize each group with its channels and spatial axes as one axis."""
    shape = shape_of(_x(node)) or ()
    if node.get("layout", CHANNELS_FIRST) != CHANNELS_FIRST:
        return None
    items = items_of(shape)
    grouped = steps.add("reshape", _x(node), shape=(items[0], node["groups"], -1))
    value = _normalized(grouped, (2,), node.get("epsilon", 1e-5), steps)
    value = steps.add("reshape", value, shape=items)
    scaled = steps.add("mul", value, _along_channels(node, node.inputs[1], steps))
    steps.add("add", scaled, _along_channels(node, node.inputs[2], steps))
    return steps.done()


def _batch_norm(node: Node, steps: Steps) -> list[Node] | None:
    """(x - mean) * (scale / sqrt(variance + epsilon)) + bias."""
    if node.get("layout", CHANNELS_FIRST) != CHANNELS_FIRST or len(shape_of(_x(node)) or ()) < 2:
        return None
    scale, bias, mean, variance = node.inputs[1:]
    assert variance is not None
    epsilon = steps.constant(node.get("epsilon", 1e-5), variance.tensor, "epsilon")
    factor = steps.add("div", scale, steps.add("sqrt", steps.add("add", variance, epsilon)))
    centred = steps.add("sub", _x(node), _along_channels(node, mean, steps))
    scaled = steps.add("mul", centred, _along_channels(node, factor, steps))
    steps.add("add", scaled, _along_channels(node, bias, steps))
    return steps.done()


def _attention(node: Node, steps: Steps) -> list[Node] | None:
    """softmax(q k^T) v; not for per-batch lengths."""
    q, k, v = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if q is None or k is None or v is None:
        return None
    hidden = _hidden(node)
    if hidden is None or len(node.inputs) > 4:
        return None
    (batch, heads, rows, features), (_, shared, keys, _) = shape_of(q) or (), shape_of(k) or ()
    scale, cap = node.get("scale"), node.get("softcap", 0.0)
    if scale is None and not isinstance(features, Const):
        return None
    if scale is None:
        scale = 1 / math.sqrt(features.value)
    # Grouped queries: the query heads that share a key head are rows of one GEMM.
    each = sym.simplify(sym.floordiv(sym.mul(heads, rows), shared))

    def multiplied(left: Value, right: Value, columns: Expr) -> Value:
        if heads is shared:
            return steps.add("matmul", left, right)
        deep = (shape_of(left) or ())[3]
        flat = steps.add("reshape", left, shape=items_of((batch, shared, each, deep)))
        made = steps.add("matmul", flat, right)
        return steps.add("reshape", made, shape=items_of((batch, heads, rows, columns)))

    scaled = steps.add("mul", q, steps.constant(scale / (cap or 1.0), q.tensor, "scale"))
    scores = multiplied(scaled, steps.add("transpose", k, perm=(0, 1, 3, 2)), keys)
    if cap:
        scores = steps.add("mul", steps.add("tanh", scores), steps.constant(cap, q.tensor, "cap"))
    if hidden.size:
        of = TensorType(BOOL, tuple([sym.const(dim) for dim in hidden.shape]))
        never = steps.constant(-math.inf, q.tensor, "hidden")
        scores = steps.add("where", steps.constant(hidden, of, "behind"), never, scores)
    weights = _weights(scores, mask, steps)
    multiplied(weights, v, (shape_of(v) or ())[3])
    return steps.done()


def _weights(scores: Value, mask: Value | None, steps: Steps) -> Value:
    """softmax of the masked scores; zeros for a query with all keys masked."""
    if mask is None:
        return steps.add("softmax", scores, axes=(3,))
    zero = steps.constant(0.0, scores.tensor, "zero")
    if mask.tensor.dtype.is_bool:
        never = steps.constant(-math.inf, scores.tensor, "hidden")
        mask = steps.add("where", mask, zero, never)
    weights = steps.add("softmax", steps.add("add", scores, mask), axes=(3,))
    return steps.add("where", steps.add("isnan", weights), zero, weights)


def _hidden(node: Node) -> Array | None:
    """The keys that a causal mask or a window hides from each query, empty without one. None if
    sizes are dynamic, or all keys of a query were hidden."""
    is_causal, (left, right) = node.get("causal", False), node.get("window", (-1, -1))
    if not is_causal and left < 0 and right < 0:
        return np.zeros((0, 0), bool)
    q, k = node.inputs[:2]
    rows, keys = [None if x is None else (shape_of(x) or ())[2] for x in (q, k)]
    past = node.get("past", 0)
    if not isinstance(rows, Const) or not isinstance(keys, Const) or not isinstance(past, int):
        return None
    gap = np.arange(int(keys.value)) - np.arange(int(rows.value))[:, None] - past
    hidden = np.zeros(gap.shape, bool)
    if is_causal or right >= 0:
        hidden |= gap > (0 if is_causal else right)
    if left >= 0:
        hidden |= gap < -left
    return None if hidden.all(-1).any() else hidden


def _suppression(node: Node, steps: Steps) -> list[Node] | None:
    """Boxes kept of each class in a buffer of static size, with their number; then listed as
    rows."""
    given = (*node.inputs, *[None] * (5 - len(node.inputs)))
    scores, limit, capacity = given[1], steps.scope.constant(given[2]), None
    assert scores is not None
    count = (shape_of(scores) or ())[2]
    if limit is not None and isinstance(count, Const):
        capacity = min(max(int(limit.ravel()[0]), 0), int(count.value))
    how = {"center": node.get("center", False), "capacity": capacity}
    boxes = make_node("suppress_boxes", given, how, node.loc, hints=("kept", "counts"))
    rows = replace(node, op="list_boxes", inputs=boxes.outputs, attributes=attributes())
    return [boxes, rows]


DECOMPOSITIONS: dict[str, Callable[[Node, Steps], list[Node] | None]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "attention": _attention,
    "einsum": decomposed_einsum,
    "dft": decomposed_dft,
    "stft": decomposed_stft,
    "non_max_suppression": _suppression,
}
