"""fold_zero_points: fold zero points of integer contractions with constant weights into constants.

    sum of (a - z) * w  =  sum of a * w  -  z * sum of w

The weights' own zero point is subtracted from them if the result fits in 8 bits. The zero point of
the other operand becomes a term per column: an i32 constant, or a multiple of one if z is computed
at run time (dynamic quantization). If neither operand is constant, the terms are row and column
sums. What remains is a contraction of bytes without zero points, for which the target has
instructions. Padding is done with the zero point before the convolution. Weights that would need 9
bits keep their zero point, as a multiple of the sums of windows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.base.dtype import I8, I32
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import (
    Array,
    Replacement,
    Scope,
    Steps,
    remade,
    rewrite_matches,
    shape_of,
)
from tilewright.graph.ops.layout import CHANNELS_FIRST
from tilewright.graph.passes.match_signs import is_depthwise, without_zero
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, const


def fold_zero_points(module: Module, ctx: PassContext) -> Module:
    """Before: matmul_integer(%a, %w, %z).   After: add(matmul_integer(%a, %w), %terms)."""
    return rewrite_matches(module, (matmul, matmul_of_two, conv, lstm))


def _input(node: Node, at: int) -> Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


def _point(value: Value | None, scope: Scope) -> tuple[bool, int]:
    """Whether a zero point is a constant scalar; and its value."""
    known = scope.constant(value)
    if value is None:
        return True, 0
    return (True, int(known.reshape(()))) if known is not None and known.size == 1 else (False, 0)


def _is_one(value: Value | None) -> bool:
    """Whether a zero point, constant or not, is a scalar."""
    shape = None if value is None else shape_of(value)
    return shape is not None and all(dim is ONE for dim in shape)


def _is_row(value: Value | None) -> bool:
    """Whether a zero point is per column."""
    return value is not None and len(shape_of(value) or ()) == 1


def _single(steps: Steps, value: Value | None) -> Value:
    """A value of one element as a scalar."""
    assert value is not None
    return value if not shape_of(value) else steps.add("reshape", value, shape=())


def _terms(weights: Array, axes: tuple[int, ...], point: int) -> Array:
    """The terms by which a zero point changes each sum, in wrapping i32."""
    sums = weights.astype(np.int64).sum(axis=axes) * -point
    return np.asarray(sums).astype(np.int32)


def matmul(node: Node, scope: Scope) -> Replacement:
    """A GEMM with constant weights on the right."""
    weights = scope.constant(_input(node, 1)) if node.op == "matmul_integer" else None
    if weights is None or weights.ndim != 2 or len(node.inputs) < 3:
        return None
    given = _input(node, 3)
    zero = scope.constant(given)
    if (given is not None and zero is None) or (zero is not None and zero.ndim > 1):
        return None
    is_known, point = _point(_input(node, 2), scope)
    signed = without_zero(weights, zero)
    if signed is None or not (is_known or _is_one(_input(node, 2))):
        return None
    steps = Steps(node, scope)
    right = _stored(steps, signed, weights, node.inputs[1])
    total = steps.add("matmul_integer", node.inputs[0], right)
    if not is_known:
        once = steps.constant(_terms(signed, (0,), 1), TensorType(I32, ()), "terms")
        number = steps.add("cast", _single(steps, node.inputs[2]), to=I32)
        steps.add("add", total, steps.add("mul", number, once))
        return steps.done()
    if point == 0:
        return [*steps.nodes[:-1], replace(steps.nodes[-1], outputs=node.outputs)]
    terms = steps.constant(_terms(signed, (0,), point), TensorType(I32, ()), "terms")
    steps.add("add", total, terms)
    return steps.done()


def matmul_of_two(node: Node, scope: Scope) -> Replacement:
    """sum (a - p)(b - q) = sum ab - p sum b - q sum a + k p q, with p a scalar, q a scalar or per
    column.

    b may also be a constant which needs more than 8 bits without its zero point.
    """
    a, b = (_input(node, at) for at in range(2))
    if node.op != "matmul_integer" or len(node.inputs) < 3 or a is None or b is None:
        return None
    left, right = shape_of(a), shape_of(b)
    if not left or not right or min(len(left), len(right)) < 2:
        return None
    zeros = _input(node, 2), _input(node, 3)
    if not all(zero is None or _is_one(zero) for zero in zeros[: 1 if _is_row(zeros[1]) else 2]):
        return None
    steps = Steps(node, scope)
    p, q = (_negated(steps, zero) for zero in zeros)
    if (p is not None and q is not None) and not isinstance(left[-1], Const):
        return None
    total = steps.add("matmul_integer", a, b)
    for value, axis, point in ((b, len(right) - 2, p), (a, len(left) - 1, q)):
        if point is not None:
            wide = steps.add("cast", value, to=I32)
            sums = steps.add("reduce_sum", wide, axes=(axis,), keepdims=True)
            total = steps.add("add", total, steps.add("mul", sums, point))
    if p is not None and q is not None:
        count = steps.constant(int(left[-1].value), total.tensor, "k")
        steps.add("add", total, steps.add("mul", steps.add("mul", p, q), count))
    return steps.done()


def lstm(node: Node, scope: Scope) -> Replacement:
    """Recurrent weights; the terms of a state's zero point use the weights without their own."""
    if node.op != "quantized_lstm":
        return None
    gates, r, scale, totals, zero, *others = (*node.inputs, None)
    weights, points = scope.constant(r), scope.constant(zero)
    if weights is None or points is None:
        return None
    signed = without_zero(weights, points[:, None])
    if signed is None:
        return None
    steps = Steps(node, scope)
    inputs = (gates, _stored(steps, signed, weights, r), scale, totals, None, *others[:-1])
    return [*steps.nodes, remade(node, node.op, *inputs, **dict(node.attributes))]


def _negated(steps: Steps, value: Value | None) -> Value | None:
    """Minus a zero point, in i32; None if it is 0."""
    is_known, point = _point(value, steps.scope)
    if is_known:
        return steps.constant(-point, TensorType(I32, ()), "point") if point else None
    assert value is not None
    each = _single(steps, value) if _is_one(value) else value
    return steps.add("neg", steps.add("cast", each, to=I32))


def _stored(steps: Steps, made: Array, old: Array, value: Value | None) -> Value:
    assert value is not None
    return value if made is old else steps.constant(made, TensorType(I8, ()), value.name)


def conv(node: Node, scope: Scope) -> Replacement:
    """A convolution with constant weights and a constant bias, if any."""
    weights = scope.constant(_input(node, 1)) if node.op == "conv_integer" else None
    x, bias = _input(node, 0), _input(node, 4)
    if weights is None or x is None or (_input(node, 2) is None and _input(node, 3) is None):
        return None
    given = _input(node, 3)
    zero, old = scope.constant(given), scope.constant(bias)
    if (given is not None and zero is None) or (bias is not None and old is None):
        return None
    each = None if zero is None else zero.reshape(-1, *[1] * (weights.ndim - 1))
    is_known, point = _point(_input(node, 2), scope)
    if node.get("layout", CHANNELS_FIRST) != CHANNELS_FIRST:
        return None
    if not (is_known or _is_one(_input(node, 2))):
        return None
    signed = without_zero(weights, each)
    if signed is None and is_depthwise(node):
        return None
    kept = None if signed is not None else each  # the weights' zero point, unless it was subtracted
    stored = weights if signed is None else signed
    steps = Steps(node, scope)
    right = _stored(steps, stored, weights, node.inputs[1])
    attributes = dict(node.attributes)
    pads: tuple[int, ...] = tuple(node.get("pads", ()))
    around: Value | None = None  # the value to pad with
    if not is_known:
        around = _single(steps, node.inputs[2])
    elif point:
        around = steps.constant(point, x.tensor, "point")
    if (around is not None or kept is not None) and any(pad != 0 for pad in pads):
        x = _padded(steps, x, pads, around)
        attributes["pads"] = (0,) * len(pads)
    centred = stored.astype(np.int64) - (0 if kept is None else kept.astype(np.int64))
    axes = tuple(range(1, weights.ndim))
    if not is_known:
        once = steps.constant(_terms(centred, axes, 1), TensorType(I32, ()), "terms")
        terms = steps.add("mul", steps.add("cast", around, to=I32), once)
        bias = terms if bias is None else steps.add("add", terms, bias)
    elif point:
        known = _terms(centred, axes, point)
        total = known if old is None else (known.astype(np.int64) + old).astype(np.int32)
        bias = steps.constant(total, TensorType(I32, ()), "bias")
    inputs = (x, right) if bias is None else (x, right, None, None, bias)
    made = steps.add("conv_integer", *inputs, **attributes)
    if kept is not None:
        steps.add("add", made, _multiples(steps, node, x, weights.shape, kept))
    return steps.done()


def _multiples(steps: Steps, node: Node, x: Value, shape: tuple[int, ...], zero: Array) -> Value:
    """Minus each channel's zero point times the sum of its windows."""
    channels, inner, *kernel = shape
    groups, rank = int(node.get("groups", 1)), len(kernel)
    batch, _, *spatial = shape_of(x) or ()
    parts = steps.add("reshape", x, shape=(batch, const(groups), const(inner), *spatial))
    wide = steps.add("cast", parts, to=I32)
    sums = steps.add("reduce_sum", wide, axes=(2,), keepdims=False)
    last = steps.add("transpose", sums, perm=(0, *range(2, rank + 2), 1))
    seen = steps.add(
        "patches",
        last,
        kernel=tuple(kernel),
        strides=node["strides"],
        dilations=node["dilations"],
    )
    taps = tuple(range(rank + 1, 2 * rank + 1))
    windows = steps.add("reduce_sum", seen, axes=taps, keepdims=False)
    first = steps.add("transpose", windows, perm=(0, rank + 1, *range(1, rank + 1)))
    places = (shape_of(first) or ())[2:]
    each = np.broadcast_to(-zero.astype(np.int32).reshape(-1), (channels,))
    if groups == 1:
        scale = steps.constant(each.reshape(-1, *[1] * rank), TensorType(I32, ()), "zeros")
        return steps.add("mul", first, scale)
    apart = steps.add("reshape", first, shape=(batch, const(groups), const(1), *places))
    by_group = each.reshape(groups, channels // groups, *[1] * rank)
    scale = steps.constant(by_group, TensorType(I32, ()), "zeros")
    scaled = steps.add("mul", apart, scale)
    return steps.add("reshape", scaled, shape=(batch, const(channels), *places))


def _padded(steps: Steps, x: Value, pads: tuple[int, ...], point: Value | None) -> Value:
    """x padded with its zero point, or with zeros."""
    rank = len(shape_of(x) or ())
    half = len(pads) // 2
    amounts = (*[0] * (rank - half), *pads[:half], *[0] * (rank - half), *pads[half:])
    made = make_node("pad", (x, None, point), {"pads": amounts}, steps.like.loc)
    steps.nodes.append(made)
    return made.output
