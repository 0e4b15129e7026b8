"""ONNX Runtime's operators (com.microsoft) of linear attention, state-space models and
hyper-connections. Like there, norms and gates are computed in f32."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.activation import softplus, swish
from tilewright.frontends.onnx.rules.attention import linear_attention, rotary_embedding
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.tensors import (
    Dim,
    dims,
    item,
    part,
    reshape,
    transpose,
)
from tilewright.graph import Value

# ------------------------------------------------------------------ states of earlier positions


def _window(node: Context) -> int:
    """How many states, of the last positions, an operator returns; 0: one, without an axis."""
    window = int(node.attr("state_window", 0))
    if window > 1:
        raise Skip(f"{node.op_type} with the states of {window} positions")
    return window


def _past(node: Context, at: int) -> Value | None:
    past = node.get(at)
    return item(node, past, 0) if past is not None and _window(node) else past


def _present(node: Context, state: Value) -> Value:
    return node.unsqueeze(state, 0) if _window(node) else state


def _linear_attention(node: Context) -> tuple[Value | None, ...]:
    """Like ONNX's; there may be more heads of keys than of queries, which are then repeated."""
    query, heads, shared = node[0], node.attr("q_num_heads"), node.attr("kv_num_heads")
    if shared > heads:
        batch, length, width = dims(node, query)
        if not isinstance(width, int):
            raise Skip("LinearAttention of unknown width")
        apart = reshape(node, query, batch, length, heads, 1, width // heads)
        repeated = node.emit("concat", *[apart] * (shared // heads), axis=3)
        query = reshape(node, repeated, batch, length, width // heads * shared)
        heads = shared
    out, state = linear_attention(node, query, heads, _past(node, 3))
    return (out, _present(node, state))


def _linear_attention_gate(node: Context) -> tuple[Value | None, ...]:
    x = node[0]
    moved = node.emit("add", node.cast(x, F32), node[1])
    decay = node.emit("mul", softplus(node, moved), node[2])
    beta = node.emit("sigmoid", node[3]) if node.has(3) else None
    return (node.cast(decay, x.tensor.dtype), beta)


def _causal_conv(node: Context) -> tuple[Value | None, ...]:
    """A depthwise convolution of each position and earlier ones, the first of which are a state."""
    if node.attr("ndim", 1) != 1:
        raise Skip("CausalConvWithState of more than one dimension")
    x, past, last = node[0], _past(node, 3), bool(node.attr("channels_last", 0))
    shape = dims(node, x)
    if last:
        x = _channels_first(node, x)
        past = None if past is None else _channels_first(node, past)
    channels, _, taps = dims(node, node[1])
    if not isinstance(taps, int):
        raise Skip("CausalConvWithState with a kernel of unknown size")
    dilation = node.attr("dilation", 1)
    kept, length = (taps - 1) * dilation, dims(node, x)[2]
    if past is None:
        joined = node.emit("pad", x, pads=(kept, 0), axes=(2,))
    else:
        joined = node.emit("concat", past, x, axis=2)
    window = {"strides": (1,), "pads": (0, 0), "dilations": (dilation,), "groups": channels}
    out = node.emit("conv", joined, node[1], node.get(2), **window)
    if node.attr("activation", "none") in ("silu", "swish"):
        out = swish(node, out)
    state = part(node, joined, length, length + kept, 2)
    if last:
        out, state = (_channels_last(node, value, shape[2:]) for value in (out, state))
    return (out, _present(node, state))


def _channels_first(node: Context, x: Value) -> Value:
    """[batch, channels, positions] of [batch, positions, ...], whose last axes are all channels."""
    batch, length, *channels = dims(node, x)
    if not all(isinstance(size, int) for size in channels):
        raise Skip(f"{node.op_type} with an unknown number of channels")
    return transpose(node, reshape(node, x, batch, length, _product(channels)), 0, 2, 1)


def _channels_last(node: Context, x: Value, channels: tuple[Dim, ...]) -> Value:
    moved = transpose(node, x, 0, 2, 1)
    return reshape(node, moved, *dims(node, moved)[:2], *channels)


def _product(sizes: list[Dim]) -> int:
    return prod(size for size in sizes if isinstance(size, int))


# ------------------------------------------------------------------ positions in images


SECTIONED = 0  # layout of rotary angles by time, height and width: the other one interleaves them


def _rotary_embedding(node: Context) -> Value:
    """Rotary embedding by three positions, each for some of the angles."""
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1.0:
        raise Skip("MRotaryEmbedding of packed batches or with a scale")
    low, high, wide = node.attr("mrope_section")
    angles = low + high + wide
    which = np.zeros(angles, np.int64)
    if node.attr("mrope_layout", SECTIONED) == SECTIONED:
        which[angles - wide - high :] = 1
        which[angles - wide :] = 2
    else:
        which[1 : 3 * high : 3] = 1
        which[2 : 3 * wide : 3] = 2
    places = [item(node, node[1], at) for at in range(3)]
    cos, sin = (_by_position(node, node[at], places, which) for at in (2, 3))
    return rotary_embedding(node, cos, sin)


def _by_position(
    node: Context,
    table: Value,
    places: list[Value],
    which: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Value:
    """Rows of a table, in each column by one of several positions."""
    first, *others = (node.emit("gather", table, each, axis=0) for each in places)
    for at, rows in enumerate(others, 1):
        first = node.emit("where", node.constant(which == at), rows, first)
    return first


# ------------------------------------------------------------------ norms and gates


def _normalized(node: Context, x: Value, scale: Value | None) -> Value:
    """x over its root mean square along the last axis, in f32, times a scale."""
    x, axis = node.cast(x, F32), len(dims(node, x)) - 1
    ones = node.emit("expand", node.constant(np.float32(1)), shape=dims(node, x)[-1:])
    out = node.emit("rms_norm", x, ones, axis=axis, epsilon=node.attr("epsilon", 1e-5))
    return out if scale is None else node.emit("mul", out, node.cast(scale, F32))


def _gated_rms_norm(node: Context) -> Value:
    x, shape = node[0], dims(node, node[0])
    (width,), last = dims(node, node[1]), shape[-1]
    if not isinstance(width, int) or not isinstance(last, int):
        raise Skip("GatedRMSNorm of unknown width")
    groups = reshape(node, x, *shape[:-1], last // width, width)
    made = reshape(node, _normalized(node, groups, node[1]), *shape)
    gate = node.cast(node[2], F32)
    is_sigmoid = node.attr("activation", "silu") == "sigmoid"
    gate = node.emit("sigmoid", gate) if is_sigmoid else swish(node, gate)
    return node.cast(node.emit("mul", made, gate), x.tensor.dtype)


def _scaled_silu(node: Context) -> Value:
    x = node[0]
    scale = node.cast(node[1], F32) if node.has(1) else node.attr("alpha", 1.0)
    scaled = node.cast(node.emit("mul", node.cast(x, F32), scale), x.tensor.dtype)
    return node.emit("mul", scaled, node.emit("sigmoid", scaled))


def _gated_add(node: Context) -> Value:
    return node.emit("add", node[0], node.emit("mul", node[1], node[2]))


# ------------------------------------------------------------------ hyper-connections


def _branches(node: Context, x: Value) -> Value:
    """[..., branches, features] of streams that may be flat."""
    count = node.attr("num_branches", 0)
    *outer, last = dims(node, x)
    if not count:
        return x
    if not isinstance(last, int):
        raise Skip(f"{node.op_type} of unknown width")
    return reshape(node, x, *outer, count, last // count)


def _branchwise_norm(node: Context) -> Value:
    x = _branches(node, node[0])
    scale, shape = node.get(1), dims(node, x)
    if scale is not None and scale.tensor.rank == 1 and dims(node, scale)[0] != shape[-1]:
        scale = reshape(node, scale, *shape[-2:])
    out = node.cast(_normalized(node, x, scale), x.tensor.dtype)
    return reshape(node, out, *dims(node, node[0]))


def _weights(node: Context, given: Value, like: Value) -> Value:
    """Weights of branches, [..., branches, 1 or features], in f32."""
    given, shape = node.cast(given, F32), dims(node, like)
    rank, own = len(shape), dims(node, given)
    if len(own) == rank:
        return given
    return node.unsqueeze(given, rank - 1) if own[-1] == shape[-2] else _branches(node, given)


def _premix(node: Context) -> Value:
    x = _branches(node, node[0])
    mixed = node.emit("mul", node.cast(x, F32), _weights(node, node[1], x))
    total = node.emit("reduce_sum", mixed, axes=(len(dims(node, x)) - 2,), keepdims=False)
    scaled = node.emit("mul", total, node.attr("reduction_scale", 1.0))
    return node.cast(scaled, x.tensor.dtype)


def _postmix(node: Context) -> Value:
    x = _branches(node, node[0])
    rank = len(dims(node, x))
    streams, block = (node.cast(value, F32) for value in (x, node[1]))
    if node.has(3):
        perm = (*range(rank - 2), rank - 1, rank - 2)
        streams = node.emit("matmul", transpose(node, node.cast(node[3], F32), *perm), streams)
    branch = node.emit("mul", _weights(node, node[2], x), node.unsqueeze(block, rank - 2))
    mixed = node.cast(node.emit("add", streams, branch), x.tensor.dtype)
    return reshape(node, mixed, *dims(node, node[0]))


RULES: dict[str, Rule] = {
    "LinearAttention": _linear_attention,
    "LinearAttentionGate": _linear_attention_gate,
    "CausalConvWithState": _causal_conv,
    "MRotaryEmbedding": _rotary_embedding,
    "GatedRMSNorm": _gated_rms_norm,
    "ScaledSiLU": _scaled_silu,
    "GatedAdd": _gated_add,
    "BranchwiseRMSNorm": _branchwise_norm,
    "HyperConnectionPreMix": _premix,
    "HyperConnectionPostMix": _postmix,
}
