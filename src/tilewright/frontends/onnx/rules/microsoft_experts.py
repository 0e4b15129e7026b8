"""ONNX Runtime's mixture of experts: each token is routed to a few experts.

Each expert runs only if rows are routed to it, and on these only. Its weights are constants there,
so they are packed at compile time as for any GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.base.dtype import F32
from tilewright.frontends.common.loops import Values, only_if
from tilewright.frontends.onnx.rules.activation import gelu, swish
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.microsoft import unpacked
from tilewright.frontends.onnx.rules.tensors import dims, item, part, reshape, transpose
from tilewright.graph import Value


@dataclass(frozen=True)
class _Layer:
    """A fully connected layer of one expert or, with a leading axis, of all."""

    weights: Value  # [n, k], or packed to bytes
    scales: Value | None = None  # of packed weights, [n] or [n, blocks]
    zeros: Value | None = None  # like the scales, packed along their last axis
    bias: Value | None = None  # [n]

    def values(self) -> list[Value]:
        return [x for x in (self.weights, self.scales, self.zeros, self.bias) if x is not None]

    def of(self, given: Sequence[Value]) -> _Layer:
        """The layer with other values, in the same order."""
        mine = iter(given)
        fields = (self.weights, self.scales, self.zeros, self.bias)
        return _Layer(*(None if x is None else next(mine) for x in fields))  # type: ignore[arg-type]

    def applied(self, node: Context, x: Value, bits: int) -> Value:
        """GEMM of x [rows, k] with the weights of one expert."""
        weights = self.weights if self.scales is None else self.unpacked(node, self.scales, bits)
        out = node.emit("matmul", x, transpose(node, node.cast(weights, F32), 1, 0))
        return out if self.bias is None else node.emit("add", out, node.cast(self.bias, F32))

    def unpacked(self, node: Context, scales: Value, bits: int) -> Value:
        """Dequantized weights; one scale per row is that of a single block. The last block of a row
        may be truncated."""
        n, width = dims(node, self.weights)
        k, blocks = width * (8 // bits), (dims(node, scales)[1:] or (1,))[0]
        block = k if blocks == 1 else node.attr("block_size", k // blocks)
        codes = reshape(node, unpacked(node, self.weights, bits), n, k)
        missing = blocks * block - k
        if missing < 0:
            raise Skip(f"QMoE of {k} weights in {blocks} blocks of {block}")
        if missing:
            codes = node.emit("pad", codes, pads=(0, missing), axes=(1,))
        scale = reshape(node, node.cast(scales, F32), n, blocks)
        zero = node.like(codes, 1 << (bits - 1))
        if self.zeros is not None:
            each = reshape(node, unpacked(node, self.zeros, bits), n, -1)
            zero = part(node, each, 0, blocks, 1)
        real = node.emit("dequantize", codes, scale, zero, to=F32, axis=1, block_size=block)
        return part(node, real, 0, k, 1) if missing else real


def _moe(node: Context) -> Value:
    layers = [
        _Layer(node[at], bias=node.get(at + 1)) if node.has(at) or at < 6 else None
        for at in (2, 4, 6)
    ]
    probabilities = node.emit("softmax", node.emit("cast", node[1], to=F32), axes=(1,))
    scale, expert = _selected(node, probabilities)
    if node.attr("normalize_routing_weights", 0):
        scale = _normalized(node, scale)
    return _mixed(node, layers, scale, expert)


def _qmoe(node: Context) -> Value:
    """Sub-byte weights; experts are weighted by a softmax of their scores, or by
    `router_weights`."""
    if node.attr("quant_type", "int") != "int" or node.attr("weights_prepacked", -1) == 1:
        raise Skip("QMoE of weights that are not raw integers")
    bits = node.attr("expert_weight_bits", 4)
    if bits not in (2, 4, 8):
        raise Skip(f"QMoE of {bits} bits")
    layers = [
        _Layer(node[at], node[at + 1], node.get(zeros), node.get(at + 2))
        if node.has(at) or at < 8
        else None
        for at, zeros in ((2, 11), (5, 12), (8, 13))
    ]
    scale, expert = _selected(node, node.emit("cast", node[1], to=F32))
    if node.has(14):
        mine = node.emit("cast", node[14], to=F32)
        scale = node.emit("gather_elements", mine, expert, axis=1)
        if node.attr("normalize_routing_weights", 0):
            scale = _normalized(node, scale)
    else:
        scale = node.emit("softmax", scale, axes=(1,))
    return _mixed(node, layers, scale, expert, bits)


def _selected(node: Context, score: Value) -> tuple[Value, Value]:
    """The k largest scores of each token and their experts; the last of equal ones come first."""
    count = _experts(node)
    scores = dims(node, score)[1]
    if isinstance(scores, int) and scores != count:
        raise Skip(f"{node.op_type} of {count} experts, with scores of {scores}")
    turned = node.emit(
        "slice", score, starts=(count - 1,), ends=(-count - 1,), axes=(1,), steps=(-1,)
    )
    given = {"k": (node.attr("k", 1),), "axis": 1, "largest": True}
    scale, at = node.emit_many("top_k", turned, outputs=2, **given)
    return scale, node.emit("sub", node.like(at, count - 1), at)


def _experts(node: Context) -> int:
    """The number of experts."""
    count, *_ = dims(node, node[2])
    if not isinstance(count, int):
        raise Skip(f"{node.op_type} of experts whose number is not known")
    return count


def _normalized(node: Context, scale: Value) -> Value:
    total = node.emit("reduce_sum", scale, axes=(1,), keepdims=True)
    return node.emit("div", scale, total)


def _mixed(
    node: Context, layers: Sequence[_Layer | None], scale: Value, expert: Value, bits: int = 0
) -> Value:
    """The sum of the experts' outputs of each token, weighted by scales."""
    if node.attr("use_sparse_mixer", 0):
        raise Skip(f"{node.op_type} with a sparse mixer")
    shape = dims(node, node[0])
    tokens, k = dims(node, scale)
    x = reshape(node, node.emit("cast", node[0], to=F32), tokens, shape[-1])
    zero = node.constant(np.float32(0))
    made: Values = [node.emit("expand", zero, shape=(tokens * k, shape[-1]))]
    whose = reshape(node, expert, tokens * k)
    for at in range(_experts(node)):
        made = _step(node, layers, bits, at, made, [x, whose])
    apart = node.emit("mul", reshape(node, made[0], tokens, k, shape[-1]), node.unsqueeze(scale, 2))
    total = node.emit("reduce_sum", apart, axes=(1,), keepdims=False)
    return node.emit("cast", reshape(node, total, *shape), to=node[0].tensor.dtype)


def _step(
    node: Context,
    layers: Sequence[_Layer | None],
    bits: int,
    at: int,
    made: Values,
    routed: Values,
) -> Values:
    """Compute the rows routed to one expert, if there are any."""
    x, whose = routed
    mine = item(node, node.emit("nonzero", node.emit("equal", whose, at)), 0)
    (count,) = node.shape(mine)
    are_some = node.emit("greater", node.number(count), 0)
    weights = [value for layer in layers if layer is not None for value in layer.values()]
    work = partial(_routed, layers, bits, at)
    return only_if(node, are_some, made, [mine, x, *weights], work)


def _routed(
    layers: Sequence[_Layer | None],
    bits: int,
    at: int,
    node: Context,
    made: Values,
    fixed: Values,
) -> Values:
    """Run an expert on the tokens routed to it, and write the outputs to the positions of the
    routes."""
    mine, x, *weights = fixed
    given = iter(weights)
    first, second, third = (
        layer and layer.of([item(node, next(given), at) for _ in layer.values()])
        for layer in layers
    )
    assert first is not None
    assert second is not None
    token = node.emit("div", mine, node.attr("k", 1))
    rows = node.emit("gather", x, token, axis=0)
    linear = None if third is None else third.applied(node, rows, bits)
    active = _activated(node, first.applied(node, rows, bits), linear)
    out = second.applied(node, active, bits)
    return [node.emit("scatter_nd", made[0], node.unsqueeze(mine, 1), out)]


def _activated(node: Context, x: Value, linear: Value | None) -> Value:
    """Apply the activation; gated ones take x as the gate and `linear`, or x contains both."""
    kind = node.attr("activation_type", "relu")
    if kind == "swiglu":
        gate, linear = (x, linear) if linear is not None else _halves(node, x)
        limit = node.attr("swiglu_limit")
        if limit is not None:
            gate = node.emit("minimum", gate, limit)
            linear = node.emit("maximum", node.emit("minimum", linear, limit), -limit)
        gate = swish(node, gate, node.attr("activation_alpha", 1.0))
        return node.emit("mul", gate, node.emit("add", linear, node.attr("activation_beta", 0.0)))
    if kind not in ACTIVATIONS:
        raise Skip(f"{node.op_type} with activation {kind}")
    out = ACTIVATIONS[kind](node, x)
    return out if linear is None else node.emit("mul", out, linear)


def _halves(node: Context, x: Value) -> tuple[Value, Value]:
    """Split into gate and linear part, interleaved or concatenated."""
    by_turns = node.attr("swiglu_fusion", 0) == BY_TURNS
    rows, both = dims(node, x)
    apart = reshape(node, x, rows, *((both // 2, 2) if by_turns else (2, both // 2)))
    axis = 2 if by_turns else 1
    return item(node, apart, 0, axis), item(node, apart, 1, axis)


BY_TURNS = 1  # swiglu_fusion with interleaved columns of gate and linear part
ACTIVATIONS: dict[str, Callable[[Context, Value], Value]] = {
    "relu": lambda node, x: node.emit("relu", x),
    "gelu": lambda node, x: gelu(node, x, tanh=True),
    "silu": swish,
    "identity": lambda node, x: x,
}
RULES: dict[str, Rule] = {"MoE": _moe, "QMoE": _qmoe}
