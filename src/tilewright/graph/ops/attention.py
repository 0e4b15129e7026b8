"""Attention: weighted sums of values, by the similarity of keys to a query.

Shapes are [batch, heads, sequence, features]; several query heads may share a key head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.tiles import BLOCK_TILES
from tilewright.base.tiles import ROWS as TILE_ROWS
from tilewright.graph.op import (
    ANY,
    COMPLEX,
    FLOAT,
    INTEGER,
    OPAQUE,
    Attr,
    Call,
    Input,
    Op,
)
from tilewright.graph.ops.linalg import wide
from tilewright.graph.ops.rules import broadcast_shapes, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr

Array = np.ndarray[Any, Any]

# Values of `scores`: GEMM results, after the softcap, with the mask, or after softmax.
SCORES = ("raw", "capped", "masked", "weights")

# Queries per block in schedules, which skip keys that are masked for all of them.
QUERY_BLOCK = BLOCK_TILES * TILE_ROWS


def _check_heads(call: Call) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    """The shapes of queries, keys and values, checked for consistency."""
    q, k, v = (call.shape(at) for at in range(3))
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise call.error("TW1214", f"{name} of {call.op} has rank {len(shape)}, not 4")
    same_dim(call, q[0], k[0], "the batches")
    same_dim(call, k[1], v[1], "the heads of keys and values")
    same_dim(call, k[2], v[2], "the lengths of keys and values")
    same_dim(call, q[3], k[3], "the features of queries and keys")
    if isinstance(q[1], Const) and isinstance(k[1], Const) and q[1].value % k[1].value:
        raise call.error("TW1214", f"{q[1]} query heads cannot share {k[1]} key heads")
    return q, k, v


def _attention_type(call: Call) -> tuple[Type, ...]:
    q, k, v = _check_heads(call)
    if call["scores"] not in SCORES:
        raise call.error("TW1214", f"attention has no scores {call['scores']!r}", f"use {SCORES}")
    scores = (q[0], q[1], q[2], k[2])
    if call.has(3):
        broadcast_shapes(call, [scores, call.shape(3)])
    of = call["to"] or call.tensor(0).dtype
    return (TensorType(of, (*q[:3], v[3])), TensorType(of, scores))[: call.outputs]


def _attention(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    batch, heads, rows = q.shape[:3]
    shared = k.shape[1]
    scale = 1 / math.sqrt(q.shape[3]) if call["scale"] is None else call["scale"]
    # Heads that share a key head are rows of one GEMM.
    grouped = wide(q).reshape(batch, shared, heads // shared * rows, q.shape[3])
    keys = np.swapaxes(wide(k), 2, 3)
    raw = np.matmul(grouped * grouped.dtype.type(scale), keys)
    raw = raw.reshape(batch, heads, rows, k.shape[2])
    cap = call["softcap"]
    capped = np.tanh(raw / cap) * cap if cap else raw
    scores = np.where(_allowed(call, q, k, lengths), capped, -np.inf)
    if mask is not None:
        added = np.where(mask, 0, -np.inf) if mask.dtype == bool else wide(mask)
        scores = scores + added
    scores = scores.astype(raw.dtype)
    greatest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(greatest), 0, greatest))
    if call["round_weights"]:
        powers = wide(powers.astype(v.dtype))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)  # a fully masked row gives zeros
    together = weights.reshape(batch, shared, heads // shared * rows, k.shape[2])
    values = np.matmul(together, wide(v))
    shown = {"raw": raw, "capped": capped, "masked": scores, "weights": weights}[call["scores"]]
    out = values.reshape(batch, heads, rows, v.shape[3])
    of = q.dtype if call["to"] is None else call["to"].numpy
    return (out.astype(of), shown.astype(of))[: call.outputs]


def _allowed(call: Call, q: Array, k: Array, lengths: Array | None) -> Array:
    """The visible keys of each query: causal, within the window and length. [b, 1, q, k]"""
    rows, columns = q.shape[2], k.shape[2]
    key = np.arange(columns)
    if lengths is None:
        offset = np.array([[[[call["past"]]]]])
        allowed = np.ones((1, 1, rows, columns), bool)
    else:
        ends = lengths.reshape(-1, 1, 1, 1)
        offset = ends - rows
        allowed = np.broadcast_to(key < ends, (len(lengths), 1, rows, columns))
    place = np.arange(rows)[:, None] + offset
    if call["causal"]:
        allowed = allowed & (key <= place)
    left, right = call["window"]
    if left >= 0:
        allowed = allowed & (key >= place - left)
    if right >= 0:
        allowed = allowed & (key <= place + right)
    return np.asarray(allowed)


def _linear_attention_type(call: Call) -> tuple[Type, ...]:
    q, k, v = _check_heads(call)
    same_dim(call, q[2], k[2], "the lengths of queries and keys")
    state = (k[0], k[1], k[3], v[3])
    of = call.tensor(0).dtype
    kept = call.tensor(3).dtype if call.has(3) else of
    return (TensorType(of, (*q[:3], v[3])), TensorType(kept, state))[: call.outputs]


def _linear_attention(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, ...]:
    batch, heads, steps = q.shape[:3]
    shared = k.shape[1]
    kept = q.dtype if state is None else state.dtype
    queries = wide(q).reshape(batch, shared, heads // shared, steps, q.shape[3])
    keys, values = wide(k), wide(v)
    memory = (
        np.zeros((batch, shared, k.shape[3], v.shape[3]), keys.dtype)
        if state is None
        else wide(state)
    )
    out = np.zeros((batch, shared, heads // shared, steps, v.shape[3]), keys.dtype)
    for step in range(steps):
        key, value = keys[:, :, step], values[:, :, step]
        if decay is not None:
            memory = memory * np.exp(wide(decay)[:, :, step])[..., None]
        if beta is not None:
            found = np.einsum("bhk,bhkv->bhv", key, memory)
            value = (value - found) * wide(beta)[:, :, step]
        memory = memory + key[..., None] * value[..., None, :]
        out[:, :, :, step] = np.matmul(queries[:, :, :, step], memory)
    scale = 1 / math.sqrt(q.shape[3]) if call["scale"] is None else call["scale"]
    result = (out * scale).reshape(batch, heads, steps, v.shape[3])
    return (result.astype(q.dtype), memory.astype(kept))[: call.outputs]


_HEADS = (Input("q", FLOAT), Input("k", FLOAT), Input("v", FLOAT))

OPS = (
    Op(
        "attention",
        "softmax(q @ k' * scale) @ v with a mask, which is true where a key is visible or added "
        "to the scores, and the number of valid keys of each sequence. A query without visible "
        "keys gives zeros.",
        (*_HEADS, Input("mask", ANY, optional=True), Input("lengths", INTEGER, optional=True)),
        _attention_type,
        _attention,
        COMPLEX,
        (
            Attr("scale", float, None),  # default: 1 / sqrt(features)
            Attr("softcap", float, 0.0),  # scores become cap * tanh(score / cap)
            Attr("causal", bool, False),
            Attr("window", tuple, (-1, -1)),  # visible keys before and after; -1: all
            # The number of keys before those of the queries; with lengths, derived from these.
            Attr("past", (int, Expr), 0),
            Attr("scores", str, "raw"),  # content of the second output
            # Whether weights are rounded to the type of the values before the GEMM.
            Attr("round_weights", bool, False),
            Attr("to", DType, None),  # of the results; default: that of the queries
            # Keys per step of a streaming softmax; 0: all at once.
            Attr("keys", int, 0),
            # Whether keys that no query of a block sees are skipped; else they weigh zero.
            Attr("skips", bool, True),
        ),
    ),
    Op(
        "linear_attention",
        "Attention with a state instead of all keys: state = state * exp(decay) + key x value, "
        "read by each query. With beta, the stored value replaces the fraction beta of the value "
        "read by the key.",
        (
            *_HEADS,
            Input("state", FLOAT, optional=True),  # [batch, heads, features of k, features of v]
            Input("decay", FLOAT, optional=True),  # [batch, heads, sequence, 1 or features]
            Input("beta", FLOAT, optional=True),  # [batch, heads or 1, sequence, 1]
        ),
        _linear_attention_type,
        _linear_attention,
        OPAQUE,
        (Attr("scale", float, None),),
    ),
)
