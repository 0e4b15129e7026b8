"""Attention with its projections, and whole encoder layers: what PyTorch's modules call where no
gradients are taken."""

from __future__ import annotations

import math

from tilewright.base.dtype import BOOL
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.linalg import matmul
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.types import items_of

OF_QUERIES, OF_KEYS, OF_BOTH = 0, 1, 2  # what a mask is for, by its kind


def _linear(node: Context, x: Value, weight: Value, bias: Value) -> Value:
    return node.emit("add", matmul(node, x, transpose(node, weight, (1, 0))), bias)


def _hidden(node: Context) -> Value | None:
    """What may not be seen, as [batch, heads, queries, keys] or what broadcasts to it."""
    mask = node.get("mask")
    if mask is None:
        return None
    hidden = node.cast(mask, BOOL)
    kind, rank = node.get("mask_type"), len(node.shape(hidden))
    if kind == OF_KEYS:
        return node.unsqueeze(hidden, 1, 2)
    if rank == 3:  # a matrix for each batch
        return node.unsqueeze(hidden, 1)
    return hidden


def _attended(
    node: Context, x: Value, dim: int, heads: int, *, weights: bool
) -> tuple[Value, Value | None]:
    """Self-attention of x [batch, sequence, features] and, if wanted, what it weighs by."""
    batch, length, _ = node.shape(x)
    joint = _linear(node, x, node["qkv_weight"], node["qkv_bias"])
    parts: list[Value] = []
    for at in range(3):
        part = slice_axis(node, joint, 2, at * dim, (at + 1) * dim)
        part = node.reshape(part, (batch, length, heads, dim // heads))
        parts.append(transpose(node, part, (0, 2, 1, 3)))
    hidden = _hidden(node)
    if weights:
        made, shares = _by_hand(node, parts, hidden, dim // heads)
    else:
        seen = None if hidden is None else node.emit("logical_not", hidden)
        made, shares = node.emit("attention", *parts, seen, scale=None, causal=False), None
    made = node.reshape(transpose(node, made, (0, 2, 1, 3)), (batch, length, dim))
    return _linear(node, made, node["proj_weight"], node["proj_bias"]), shares


def _by_hand(
    node: Context, parts: list[Value], hidden: Value | None, width: int
) -> tuple[Value, Value]:
    q, k, v = parts
    scores = matmul(
        node, node.emit("mul", q, 1 / math.sqrt(width)), transpose(node, k, (0, 1, 3, 2))
    )
    if hidden is not None:
        scores = node.emit("where", hidden, node.like(scores, -math.inf), scores)
    shares = node.emit("softmax", scores, axes=(3,))
    return matmul(node, shares, v), shares


def _multi_head(node: Context) -> tuple[Value, Value | None]:
    names = [node.node.args[at] for at in range(3)]
    if any(name is not names[0] for name in names):
        raise Skip("_native_multi_head_attention of a query that is not its key and value")
    dim, heads = int(node.args["embed_dim"]), int(node.args["num_head"])
    wanted = bool(node.get("need_weights", True)) and node.wants(1)
    made, shares = _attended(node, node["query"], dim, heads, weights=wanted)
    if shares is not None and node.get("average_attn_weights", True):
        shares = node.emit("reduce_mean", shares, axes=(1,), keepdims=False)
    return made, shares


def _norm(node: Context, x: Value, which: int) -> Value:
    scale, bias = node[f"norm_weight_{which}"], node[f"norm_bias_{which}"]
    epsilon = float(node.args["eps"])
    return node.emit_many("layer_norm", x, scale, bias, outputs=1, axis=2, epsilon=epsilon)[0]


def _forward(node: Context, x: Value) -> Value:
    inner = _linear(node, x, node["ffn_weight_1"], node["ffn_bias_1"])
    if node.args["use_gelu"]:
        share = node.emit("erf", node.emit("mul", inner, math.sqrt(0.5)))
        inner = node.emit("mul", node.emit("mul", inner, 0.5), node.emit("add", share, 1.0))
    else:
        inner = node.emit("relu", inner)
    return _linear(node, inner, node["ffn_weight_2"], node["ffn_bias_2"])


def _encoder_layer(node: Context) -> Value:
    """Attention and a network of two layers, each added to its input, with norms between."""
    x, first = node["src"], bool(node.args["norm_first"])
    dim, heads = int(node.args["embed_dim"]), int(node.args["num_heads"])
    given = _norm(node, x, 1) if first else x
    x = node.emit("add", x, _attended(node, given, dim, heads, weights=False)[0])
    if not first:
        x = _norm(node, x, 1)
    x = node.emit("add", x, _forward(node, _norm(node, x, 2) if first else x))
    made = x if first else _norm(node, x, 2)
    return node.emit("expand", made, shape=items_of(node.out))


RULES: dict[str, Rule] = {
    "aten._native_multi_head_attention": _multi_head,
    "aten._transformer_encoder_layer_fwd": _encoder_layer,
}
