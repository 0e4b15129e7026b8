"""fold_batch_norm: fold scales and shifts per channel into weights and biases.

After a convolution, or a matmul with constant weights, a constant factor per channel scales the
weights, and a constant term becomes the bias; batch norm is both. Before a convolution a factor
scales the weights, too, and a term adds to the bias unless the convolution pads. A batch norm
anywhere else becomes one multiplication and one addition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, remade, rewrite_matches, shape_of
from tilewright.graph.ops.layout import CHANNELS_FIRST
from tilewright.graph.visit import Instead

CONVOLUTIONS = ("conv", "conv_transpose")


def fold_batch_norm(module: Module, ctx: PassContext) -> Module:
    """Before: %y = batch_norm(conv(%x, %w), ...).   After: %y = conv(%x, %w1, %b1)."""
    return rewrite_matches(module, RULES)


@dataclass(frozen=True)
class _Affine:
    """factor * x + term, both per channel, in f64; None is neutral."""

    factor: Array | None
    term: Array | None


# ------------------------------------------------------------------------------------ after


def behind(node: Node, scope: Scope) -> Replacement:
    """A batch norm, multiplication or addition after a contraction."""
    x, constant = _operands(node, scope)
    if x is None or x.type != node.output.type:
        return None
    if node.op == "batch_norm":
        return _behind_convolution(node, x, _of_batch_norm(node, scope), scope)
    if constant is None:
        return None
    return _behind_convolution(node, x, (node.op, constant), scope)


def _operands(node: Node, scope: Scope) -> tuple[Value | None, Array | None]:
    """The value that is scaled or shifted, and the constant."""
    if node.op == "batch_norm":
        return node.inputs[0], None
    if node.op not in ("mul", "add") or len(node.inputs) != 2:
        return None, None
    for x, other in (node.inputs, node.inputs[::-1]):
        constant = scope.constant(other)
        if constant is not None and x is not None and x.tensor.dtype.is_float:
            return x, constant
    return None, None


Step = tuple[str, Array] | _Affine | None  # a constant operand of mul or add, or a batch norm


def _of_batch_norm(node: Node, scope: Scope) -> _Affine | None:
    """(x - mean) * scale / sqrt(variance + epsilon) + bias."""
    arrays = [scope.constant(value) for value in node.inputs[1:]]
    if len(arrays) != 4 or any(array is None for array in arrays):
        return None
    scale, bias, mean, variance = (np.asarray(a, dtype=np.float64) for a in arrays)
    with np.errstate(invalid="ignore", divide="ignore"):  # then it is NaN or infinite as told
        factor = scale / np.sqrt(variance + node.get("epsilon", 1e-5))
        return _Affine(factor, bias - mean * factor)


def _as_affine(step: Step, rank: int, axis: int, channels: int) -> _Affine | None:
    if step is None or isinstance(step, _Affine):
        return step
    op, constant = step
    vector = _per_channel(constant, rank, axis, channels)
    if vector is None:
        return None
    return _Affine(vector, None) if op == "mul" else _Affine(None, vector)


def _per_channel(array: Array, rank: int, axis: int, channels: int) -> Array | None:
    """A constant as one number per channel, if it broadcasts along all other axes."""
    if array.ndim > rank or array.size not in (1, channels):
        return None
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if any(dim != 1 for at, dim in enumerate(shape) if at != axis):
        return None
    return np.broadcast_to(np.asarray(array, dtype=np.float64).reshape(-1), (channels,))


def _channel_axis(node: Node, rank: int) -> int:
    return 1 if node.get("layout", CHANNELS_FIRST) == CHANNELS_FIRST else rank - 1


def _through_reshape(node: Node, x: Value, step: Step, scope: Scope) -> Replacement:
    """Move the step before a reshape that keeps batch and channel axes in place."""
    between = scope.producer(x, "reshape")
    source = None if between is None else between.inputs[0]
    made = scope.producer(source, *CONVOLUTIONS)
    if between is None or source is None or made is None or not scope.is_used_once(x):
        return None
    before, after = shape_of(source) or (), shape_of(x) or ()
    if made.get("layout", CHANNELS_FIRST) != CHANNELS_FIRST or before[:2] != after[:2]:
        return None
    if isinstance(step, tuple):
        # The operand broadcasts along all axes but channels, so their extents do not matter.
        channels = before[1]
        vector = _per_channel(step[1], len(after), 1, int(getattr(channels, "value", 0)))
        if vector is None:
            return None
        step = _Affine(vector, None) if step[0] == "mul" else _Affine(None, vector)
    inner = Node("reshape", (), (Value(x.name, source.type),), (), (), node.loc)
    folded = _behind_convolution(inner, source, step, scope)
    if folded is None or isinstance(folded, (Value, Instead)):
        return None
    if folded[-1].op not in CONVOLUTIONS:
        return None
    return (*folded, replace(between, inputs=(folded[-1].output,), outputs=node.outputs))


def _behind_convolution(node: Node, x: Value, step: Step, scope: Scope) -> Replacement:
    through = _through_reshape(node, x, step, scope)
    if through is not None:
        return through
    made = scope.producer(x, *CONVOLUTIONS, "matmul")
    weights = None if made is None else _weights(made, scope)
    rank = len(shape_of(x) or ())
    if made is None or weights is None or not scope.is_used_once(x):
        return _standing_alone(node, x, step, rank, scope)
    if made.op == "matmul":
        return _behind_matmul(node, made, weights, step, rank, scope)
    groups = made.get("groups", 1)
    channels = weights.shape[0] if made.op == "conv" else weights.shape[1] * groups
    affine = _as_affine(step, rank, _channel_axis(made, rank), channels)
    bias = made.inputs[2] if len(made.inputs) > 2 else None
    old = None if bias is None else scope.constant(bias)
    if affine is None or (bias is not None and old is None):
        return None
    if affine.factor is not None:
        weights = _scaled_outputs(made, weights, affine.factor, groups)
    total = np.zeros(channels) if old is None else np.asarray(old, dtype=np.float64)
    total = total if affine.factor is None else total * affine.factor
    total = total if affine.term is None else total + affine.term
    has_bias = old is not None or affine.term is not None
    return _remade_product(node, made, weights, total if has_bias else None, scope)


def _weights(product: Node, scope: Scope) -> Array | None:
    """Constant weights, unless of 8 bits: scaled ones could not be represented."""
    found = scope.constant(product.inputs[1])
    return found if found is not None and found.dtype.itemsize > 1 else None


def _scaled_outputs(made: Node, weights: Array, factor: Array, groups: int) -> Array:
    """Weights with scaled output channels, which are the second axis of a transposed
    convolution."""
    spatial = (1,) * (weights.ndim - 2)
    if made.op == "conv":
        return np.asarray(weights * factor.reshape(-1, 1, *spatial).astype(_wide(weights)))
    each = factor.reshape(groups, 1, -1, *spatial).astype(_wide(weights))
    grouped = weights.reshape(groups, -1, *weights.shape[1:])
    return np.asarray(grouped * each).reshape(weights.shape)


def _wide(weights: Array) -> type[np.floating[Any]]:
    return np.float64 if weights.dtype == np.float64 else np.float32


def _remade_product(
    node: Node, made: Node, weights: Array, bias: Array | None, scope: Scope
) -> Replacement:
    """A contraction with new weights and bias, replacing `node`."""
    x, old = made.inputs[0], scope.constant(made.inputs[1])
    assert old is not None
    arrays = [weights.astype(old.dtype, copy=False)]
    if bias is not None:
        arrays.append(bias.astype(old.dtype))
    if not all(bool(np.isfinite(array).all()) for array in arrays[1:]):
        return None
    nodes: list[Node] = []
    inputs: list[Value | None] = [x]
    for array, hint in zip(arrays, ("weights", "bias"), strict=False):
        if array is old:
            inputs.append(made.inputs[1])
            continue
        nodes.append(scope.new_constant(np.ascontiguousarray(array), hint, node))
        inputs.append(nodes[-1].output)
    return (*nodes, replace(made, inputs=tuple(inputs), outputs=node.outputs))


def _behind_matmul(
    node: Node, made: Node, weights: Array, step: Step, rank: int, scope: Scope
) -> Replacement:
    """Fold a factor per column into the weights; a term stays an addition."""
    if isinstance(step, tuple) and (step[0] == "add" or step[1].size == 1):
        return None
    axis = 1 if node.op == "batch_norm" else rank - 1
    if weights.ndim != 2 or axis != rank - 1:
        return _standing_alone(node, made.output, step, rank, scope)
    affine = _as_affine(step, rank, axis, weights.shape[1])
    if affine is None or affine.factor is None:
        return None
    scaled = np.asarray(weights * affine.factor.astype(_wide(weights)))
    if affine.term is None:
        return _remade_product(node, made, scaled, None, scope)
    stored = scope.new_constant(scaled.astype(weights.dtype), "weights", node)
    product = scope.new("matmul", made.inputs[0], stored.output, like=node)
    term = scope.new_constant(affine.term.astype(weights.dtype), "bias", node)
    return stored, product, term, remade(node, "add", product.output, term.output)


def _standing_alone(node: Node, x: Value, step: Step, rank: int, scope: Scope) -> Replacement:
    """A batch norm as a multiplication and an addition."""
    if not isinstance(step, _Affine) or step.factor is None or step.term is None:
        return None
    of = x.tensor.dtype
    if of.bits < 32:  # batch_norm rounds once, two operators would round twice
        return None
    axis = min(_channel_axis(node, rank), max(0, rank - 1))
    shape = (-1, *[1] * (rank - 1 - axis)) if rank > 1 else (-1,)
    if not bool(np.isfinite(step.factor).all() and np.isfinite(step.term).all()):
        return None
    factor = scope.new_constant(step.factor.astype(of.numpy).reshape(shape), "factor", node)
    term = scope.new_constant(step.term.astype(of.numpy).reshape(shape), "term", node)
    scaled = scope.new("mul", x, factor.output, like=node)
    if scaled.output.type != node.output.type:
        return None
    return factor, term, scaled, remade(node, "add", scaled.output, term.output)


# ------------------------------------------------------------------------------------ before


def in_front(node: Node, scope: Scope) -> Replacement:
    """A factor or term per channel of the input of a convolution or matmul."""
    if node.op not in ("conv", "matmul") or node.inputs[0] is None:
        return None
    weights = _weights(node, scope)
    made = scope.producer(node.inputs[0], "mul", "add")
    if weights is None or made is None or not scope.is_used_once(made.output):
        return None
    x, constant = _operands(made, scope)
    if x is None or constant is None or x.type != made.output.type:
        return None
    if node.op == "matmul":
        return _in_front_of_matmul(node, made, x, weights, constant, scope)
    rank, groups = weights.ndim, node.get("groups", 1)
    channels = weights.shape[1] * groups
    vector = _per_channel(constant, rank, _channel_axis(node, rank), channels)
    if vector is None:
        return None
    each = _per_input(weights, vector, groups)
    if made.op == "mul":
        stored = scope.new_constant((weights * each).astype(weights.dtype), "weights", node)
        return stored, replace(node, inputs=(x, stored.output, *node.inputs[2:]))
    return _term_in_front(node, x, weights, each, scope)


def _per_input(weights: Array, vector: Array, groups: int) -> Array:
    """One number per input channel, in a shape that broadcasts with the weights."""
    spatial = (1,) * (weights.ndim - 2)
    by_group = vector.reshape(groups, weights.shape[1]).astype(_wide(weights))
    outputs = np.repeat(by_group, weights.shape[0] // groups, axis=0)
    return outputs.reshape(weights.shape[0], weights.shape[1], *spatial)


def _term_in_front(node: Node, x: Value, weights: Array, each: Array, scope: Scope) -> Replacement:
    """Fold a term into the bias: without padding every output sums the same terms."""
    if any(pad != 0 for pad in node.get("pads", ())):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    old = None if bias is None else scope.constant(bias)
    if bias is not None and old is None:
        return None
    axes = tuple(range(1, weights.ndim))
    total = np.sum(weights.astype(np.float64) * each, axis=axes)
    total = total if old is None else total + np.asarray(old, dtype=np.float64)
    stored = scope.new_constant(total.astype(weights.dtype), "bias", node)
    return stored, replace(node, inputs=(x, node.inputs[1], stored.output))


def _in_front_of_matmul(
    node: Node, made: Node, x: Value, weights: Array, constant: Array, scope: Scope
) -> Replacement:
    """Factors along k scale the rows of the weights."""
    rank = len(shape_of(x) or ())
    if made.op != "mul" or weights.ndim != 2 or rank < 2 or constant.size == 1:
        # a scalar is cheaper in the producer's kernel than another copy of large weights
        return None
    vector = _per_channel(constant, rank, rank - 1, weights.shape[0])
    if vector is None:
        return None
    scaled = (weights * vector.astype(_wide(weights))[:, None]).astype(weights.dtype)
    stored = scope.new_constant(scaled, "weights", node)
    return stored, replace(node, inputs=(x, stored.output))


RULES = (behind, in_front)
