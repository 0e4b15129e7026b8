"""Attention, rotary position embedding, gated activation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontends.onnx.rules.activation import swish
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.tensors import (
    dims,
    join_heads,
    part,
    reshape,
    split_heads,
    transpose,
)
from tilewright.graph import Value
from tilewright.graph.ops.attention import SCORES


def _heads(node: Context, at: int, name: str) -> Value:
    """Input `at` with a head axis; if it has none, an attribute gives the number of heads."""
    value = node[at]
    if value.tensor.rank == 4:
        return value
    heads = node.attr(name)
    if heads is None:
        raise Skip(f"{node.op_type} of rank {value.tensor.rank} without {name}")
    return split_heads(node, value, heads)


def _attention(node: Context) -> tuple[Value | None, ...]:
    packed = node[0].tensor.rank == 3
    q = _heads(node, 0, "q_num_heads")
    k, v = (_heads(node, at, "kv_num_heads") for at in (1, 2))
    past: Any = 0
    if node.has(4):
        past = dims(node, node[4])[2]
        k = node.emit("concat", node[4], k, axis=2)
        v = node.emit("concat", node[5], v, axis=2)
    scale = node.attr("scale")
    made = node.emit_many(
        "attention",
        q,
        k,
        v,
        _full_mask(node, k),
        node.get(6),
        outputs=2 if node.wants(3) else 1,
        scale=None if scale is None else float(scale),
        softcap=float(node.attr("softcap", 0.0)),
        causal=bool(node.attr("is_causal", 0)),
        window=(node.attr("left_window_size", -1), node.attr("right_window_size", -1)),
        past=past,
        scores=SCORES[node.attr("qk_matmul_output_mode", 0)],
    )
    out = join_heads(node, made[0]) if packed else made[0]
    return (out, k, v, made[1] if node.wants(3) else None)


def _full_mask(node: Context, k: Value) -> Value | None:
    """The mask extended to all keys: those beyond its columns are masked."""
    mask = node.get(3)
    if mask is None:
        return None
    rank, have, want = len(dims(node, mask)), dims(node, mask)[-1], dims(node, k)[2]
    if have == want or not isinstance(have, int) or not isinstance(want, int):
        return mask
    hidden = node.constant(np.array(-math.inf, mask.tensor.dtype.numpy))
    if mask.tensor.dtype.is_bool:
        hidden = node.constant(np.array(False))
    return node.emit("pad", mask, None, hidden, pads=(0, want - have), axes=(rank - 1,))


def rotate(
    node: Context, x: Value, cos: Value, sin: Value, *, interleaved: bool, features: int = 0
) -> Value:
    """Rotate pairs of features by angles [batch or 1, sequence, pairs]; x is [b, h, s, d].

    Pairs are adjacent if interleaved, else in two halves; features beyond `features` are kept.
    """
    size = dims(node, x)[3]
    if not isinstance(size, int):
        raise Skip(f"{node.op_type} with heads of unknown size")
    turned = features or size
    rest = None if turned == size else part(node, x, turned, size, 3)
    if rest is not None:
        x = part(node, x, 0, turned, 3)
    cos, sin = (node.unsqueeze(angle, 1) for angle in (cos, sin))
    if interleaved:
        pairs = reshape(node, x, *dims(node, x)[:3], turned // 2, 2)
        halves = [part(node, pairs, at, at + 1, 4) for at in range(2)]
        first, second = (reshape(node, half, *dims(node, half)[:4]) for half in halves)
    else:
        first, second = part(node, x, 0, turned // 2, 3), part(node, x, turned // 2, turned, 3)
    real = node.emit("sub", node.emit("mul", cos, first), node.emit("mul", sin, second))
    imaginary = node.emit("add", node.emit("mul", sin, first), node.emit("mul", cos, second))
    if interleaved:
        both = [node.unsqueeze(value, 4) for value in (real, imaginary)]
        out = reshape(node, node.emit("concat", *both, axis=4), *dims(node, x))
    else:
        out = node.emit("concat", real, imaginary, axis=3)
    return out if rest is None else node.emit("concat", out, rest, axis=3)


def _rotary_embedding(node: Context) -> Value:
    cos, sin = node[1], node[2]
    if node.has(3):
        cos, sin = (node.emit("gather", table, node[3], axis=0) for table in (cos, sin))
    return rotary_embedding(node, cos, sin)


def rotary_embedding(node: Context, cos: Value, sin: Value) -> Value:
    """The first input, whose heads may be joined, turned as the attributes say."""
    x, is_joined = node[0], node[0].tensor.rank == 3
    out = rotate(
        node,
        _heads(node, 0, "num_heads") if is_joined else x,
        cos,
        sin,
        interleaved=bool(node.attr("interleaved", 0)),
        features=node.attr("rotary_embedding_dim", 0),
    )
    return join_heads(node, out) if is_joined else out


def linear_attention(
    node: Context, query: Value, query_heads: int, past: Value | None
) -> tuple[Value, Value]:
    """The attention of a query [batch, sequence, features of all heads], and the new state."""
    q = split_heads(node, query, query_heads)
    heads = node.attr("kv_num_heads")
    k, v = (split_heads(node, node[at], heads) for at in (1, 2))
    rule = node.attr("update_rule", "gated_delta")
    decay = split_heads(node, node[4], heads) if "gated" in rule else None
    beta = None
    if "delta" in rule:  # per head, or for all
        beta = node.unsqueeze(transpose(node, node[5], 0, 2, 1), 3)
    scale = node.attr("scale", 0.0)
    out, state = node.emit_many(
        "linear_attention",
        q,
        k,
        v,
        past,
        decay,
        beta,
        outputs=2,
        scale=float(scale) if scale else None,
    )
    return (join_heads(node, out), state)


def _swiglu(node: Context) -> Value:
    return node.emit("mul", swish(node, node[0], node.attr("alpha", 1.0)), node[1])


RULES: dict[str, Rule] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
    "LinearAttention": lambda node: linear_attention(
        node, node[0], node.attr("q_num_heads"), node.get(3)
    ),
    "SwiGLU": _swiglu,
}
