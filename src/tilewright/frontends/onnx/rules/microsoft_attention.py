"""ONNX Runtime's attention operators (com.microsoft), with projections, masks and caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, I64, DType
from tilewright.frontends.common.loops import Values, either
from tilewright.frontends.onnx.rules.attention import rotate
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.microsoft import scaled_product
from tilewright.frontends.onnx.rules.tensors import (
    Dim,
    dims,
    item,
    join_heads,
    part,
    split_heads,
    stack,
    transpose,
)
from tilewright.graph import Value


def _scale(node: Context) -> float | None:
    scale = node.attr("scale", 0.0)
    return float(scale) if scale else None


def _added_mask(node: Context, mask: Value | None, like: Value, total: Dim) -> Value | None:
    """Convert an integer mask to an additive one: zero where a key is visible, a large negative
    number elsewhere.

    Rank 1 gives the number of valid keys of each sequence (optionally followed by their starts);
    rank 2 is [batch, keys], rank 3 [batch, queries, keys].
    """
    if mask is None:
        return None
    rank, shape = len(dims(node, mask)), dims(node, mask)
    if rank == 1:
        batch = dims(node, like)[0]
        keys = node.emit("range", start=0, limit=total, delta=1, to=I64)
        ends = node.emit("cast", mask, to=I64)
        if shape[0] == batch:
            seen = node.emit("less", keys, node.unsqueeze(ends, 1))
        elif isinstance(batch, int) and shape[0] == 2 * batch:
            starts = part(node, ends, batch, 2 * batch, 0)
            ends = part(node, ends, 0, batch, 0)
            seen = node.emit(
                "logical_and",
                node.emit("less", keys, node.unsqueeze(ends, 1)),
                node.emit("greater_equal", keys, node.unsqueeze(starts, 1)),
            )
        else:
            raise Skip(f"{node.op_type} with a mask of shape {shape}")
    elif rank in (2, 3):
        seen = node.emit("greater", mask, 0)
    else:
        raise Skip(f"{node.op_type} with a mask of rank {rank}")
    seen = node.unsqueeze(seen, 1) if rank == 3 else node.unsqueeze(seen, 1, 2)
    hidden = node.like(like, node.attr("mask_filter_value", -10000.0))
    return node.emit("where", seen, node.like(like, 0.0), hidden)


def _sum(node: Context, a: Value | None, b: Value | None) -> Value | None:
    if a is None or b is None:
        return b if a is None else a
    return node.emit("add", a, b)


def _attend(
    node: Context, q: Value, k: Value, v: Value, mask: Value | None, past: Dim, **more: Any
) -> Value:
    causal = bool(node.attr("unidirectional", 0))
    made = {"scale": _scale(node), "causal": causal, "past": past, **more}
    return join_heads(node, node.emit("attention", q, k, v, mask, **made))


# ------------------------------------------------------------------ joint projection


def _projected_attention(
    node: Context, qkv: Value, mask: Value | None, past: Value | None, bias: Value | None
) -> tuple[Value | None, ...]:
    """Attention from concatenated projections of queries, keys and values."""
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        raise Skip(f"{node.op_type} with rotation or a shared cache")
    heads, width = node.attr("num_heads"), dims(node, qkv)[2]
    if not isinstance(width, int):
        raise Skip(f"{node.op_type} of unknown width")
    sizes = node.attr("qkv_hidden_sizes") or (width // 3,) * 3
    ends = (sizes[0], sizes[0] + sizes[1], sum(sizes))
    q, k, v = (
        split_heads(node, part(node, qkv, end - size, end, 2), heads)
        for size, end in zip(sizes, ends, strict=True)
    )
    before: Dim = 0
    if past is not None:
        before = dims(node, past)[3]
        k = node.emit("concat", item(node, past, 0), k, axis=2)
        v = node.emit("concat", item(node, past, 1), v, axis=2)
    added = _sum(node, _added_mask(node, mask, q, dims(node, k)[2]), bias)
    out = _attend(node, q, k, v, added, before)
    return (out, stack(node, (k, v), 0) if node.wants(1) else None)


def _attention(node: Context) -> tuple[Value | None, ...]:
    qkv = node.emit("matmul", node[0], node[1])
    if node.has(2):
        qkv = node.emit("add", qkv, node[2])
    return _projected_attention(node, qkv, node.get(3), node.get(4), node.get(5))


def _qattention(node: Context) -> tuple[Value | None, ...]:
    zeros = (node.get(6), node.get(7))
    scales = (node[3], node[4])
    qkv = scaled_product(node, (node[0], node[1]), scales, zeros, node[2])
    return _projected_attention(node, qkv, node.get(5), node.get(8), None)


# ------------------------------------------------------------------ separate projections


def _multi_head_attention(node: Context) -> tuple[Value | None, ...]:
    heads = node.attr("num_heads")
    if node.has(8) or node.has(9):
        raise Skip("MultiHeadAttention with a shared cache")
    q, k, v = _packed_heads(node, heads)
    before: Dim = 0
    if node.has(6):
        before = dims(node, node[6])[2]
        k = node.emit("concat", node[6], k, axis=2)
        v = node.emit("concat", node[7], v, axis=2)
    mask = _added_mask(node, node.get(4), q, dims(node, k)[2])
    out = _attend(node, q, k, v, _sum(node, mask, node.get(5)), before)
    return (out, k, v)


def _decoder_masked_attention(node: Context) -> tuple[Value | None, ...]:
    """One query with a cache: complete (keys of rank 4), or one to which the new key is added."""
    heads, bias = node.attr("num_heads"), _biases(node, 10)
    if node.wants(3):
        raise Skip("DecoderMaskedMultiHeadAttention with its scores as an output")
    q = split_heads(node, _plus(node, node[0], bias[0]), heads)
    if node[1].tensor.rank == 4:
        mask = _added_mask(node, node.get(3), q, dims(node, node[1])[2])
        out = _attend(node, q, node[1], node[2], _sum(node, mask, node.get(4)), 0)
        return (out, None, None)
    k, v = (split_heads(node, _plus(node, node[at], bias[at]), heads) for at in (1, 2))
    if not node.has(5):
        mask = _added_mask(node, node.get(3), q, 1)
        return (_attend(node, q, k, v, _sum(node, mask, node.get(4)), 0), k, v)
    olds = tuple(_of_beams(node, node[at]) for at in (5, 6))
    if not node.attr("past_present_share_buffer", 0):
        keys, values = (
            node.emit("concat", old, new, axis=2) for old, new in zip(olds, (k, v), strict=True)
        )
        mask = _added_mask(node, node.get(3), q, dims(node, keys)[2])
        out = _attend(node, q, keys, values, _sum(node, mask, node.get(4)), 0)
        return (out, *(node.emit("concat", node[at], new, axis=2) for at, new in ((5, k), (6, v))))
    return _into_shared_cache(node, q, (k, v), olds)


def _of_beams(node: Context, past: Value) -> Value:
    """A cache reordered so that each position is from the beam that the sequence continues."""
    if not node.has(9):
        return past
    origin = node.emit("cast", node[9], to=I64)  # [batch, beams, positions]
    batch, beams, length = dims(node, origin)
    rows, heads, room, features = dims(node, past)
    first = node.emit("range", start=0, limit=batch, delta=1, to=I64)
    first = node.unsqueeze(node.emit("mul", first, _number(node, beams)), 1, 2)
    row = node.reshape(node.emit("add", first, origin), (rows, 1, length, 1))
    if length != room:
        row = part(node, row, 0, room, 2)
    row = node.emit("expand", row, shape=(rows, heads, room, features))
    return node.emit("gather_elements", past, row, axis=0)


def _number(node: Context, dim: Dim) -> Value:
    return node.emit("dims", values=dim)


def _into_shared_cache(
    node: Context, q: Value, new: tuple[Value, Value], olds: tuple[Value, ...]
) -> tuple[Value | None, ...]:
    """Write the new key and value to the first free position of a preallocated cache."""
    room = dims(node, olds[0])[2]
    length = node.emit("cast", node.reshape(node[7], ()), to=I64)
    places = node.emit("range", start=0, limit=room, delta=1, to=I64)
    here = node.unsqueeze(node.emit("equal", places, length), 0, 1, 3)
    keys, values = (
        node.emit("where", here, fresh, old) for fresh, old in zip(new, olds, strict=True)
    )
    seen = node.unsqueeze(node.emit("less_equal", places, length), 0, 1, 2)
    # Mask the positions after the new one, whose contents are undefined.
    free = node.emit("where", seen, node.like(q, 0.0), node.like(q, -np.inf))
    added = free
    for at in (3, 4):
        given = node.get(at)
        if given is not None:
            more = _added_mask(node, given, q, room) if at == 3 else given
            assert more is not None
            added = node.emit("add", added, _padded(node, more, room))
    out = _attend(node, q, keys, values, added, 0)
    present = [
        node.emit("where", here, fresh, node[at]) for at, fresh in zip((5, 6), new, strict=True)
    ]
    return (out, *present)


def _padded(node: Context, mask: Value, room: Dim) -> Value:
    """A mask of the positions so far, padded to the cache."""
    *_, width = dims(node, mask)
    if width == room:
        return mask
    rank = len(dims(node, mask))
    return node.emit("pad", mask, pads=(*[0] * (2 * rank - 1), room - width))


def _packed_heads(node: Context, heads: int) -> tuple[Value, Value, Value]:
    """Queries, keys and values [batch, heads, sequence, features], with biases added."""
    query = node[0]
    if query.tensor.rank == 5:  # [batch, sequence, heads, 3, features]
        return tuple(_piece(node, query, at) for at in range(3))  # type: ignore[return-value]
    biases = _biases(node)
    q = split_heads(node, _plus(node, query, biases[0]), heads)
    key = node[1]
    if key.tensor.rank == 5:
        return q, _piece(node, key, 0), _piece(node, key, 1)
    if key.tensor.rank == 4:
        return q, key, node[2]
    k, v = (
        split_heads(node, _plus(node, node[at], bias), heads)
        for at, bias in ((1, biases[1]), (2, biases[2]))
    )
    return q, k, v


def _piece(node: Context, packed: Value, at: int) -> Value:
    return transpose(node, item(node, packed, at, 3), 0, 2, 1, 3)


def _plus(node: Context, value: Value, bias: Value | None) -> Value:
    return value if bias is None else node.emit("add", value, bias)


def _biases(node: Context, at: int = 3) -> tuple[Value | None, ...]:
    bias = node.get(at)
    if bias is None:
        return (None, None, None)
    width, total = dims(node, node[0])[2], dims(node, bias)[0]
    if not isinstance(width, int) or not isinstance(total, int):
        raise Skip(f"{node.op_type} with a bias of unknown width")
    ends = (width, 2 * width, total)
    starts = (0, *ends[:2])
    return tuple(part(node, bias, a, b, 0) for a, b in zip(starts, ends, strict=True))


def _group_query_attention(node: Context) -> tuple[Value | None, ...]:
    """New keys are appended to each sequence, in a cache that grows or is preallocated."""
    unusual = ("sliding_window_cache", "qk_output")
    if any(node.attr(name, 0) > 0 for name in unusual) or any(map(node.has, (12, 13))):
        raise Skip("GroupQueryAttention with a cache of a window, a quantized one, or its scores")
    heads, shared = node.attr("num_heads"), node.attr("kv_num_heads")
    q, k, v = _grouped_heads(node, heads, shared)
    q, k = (_head_norm(node, x, node.get(at)) for x, at in ((q, 14), (k, 15)))
    length, sink = dims(node, q)[2], _sink(node)
    room = _cache_places(node) if node.has(3) else None
    starts = None if room is None else _starts(node, length, dims(node, room)[0])
    if node.attr("do_rotary", 0):
        if node.has(9):
            places = node[9]
        else:
            places = node.unsqueeze(node.iota(length), 0)
            if starts is not None:
                places = node.emit("add", node.unsqueeze(starts, 1), places)
        tables = [node.emit("gather", node[at], places, axis=0) for at in (7, 8)]
        neighbours = bool(node.attr("rotary_interleaved", 0))
        width = dims(node, node[7])[1]
        features = 2 * width if isinstance(width, int) else 0
        q, k = (rotate(node, x, *tables, interleaved=neighbours, features=features) for x in (q, k))
    if room is None or starts is None:
        return (_attend_grouped(node, q, k, v, node.get(10), sink=sink), k, v)
    keys, values = (_appended(node, node[at], x, room, starts) for at, x in ((3, k), (4, v)))
    return (_attend_cached(node, (q, k, v), (keys, values), starts, sink), keys, values)


def _head_norm(node: Context, x: Value, scale: Value | None) -> Value:
    """Queries or keys, those of each head normalized."""
    if scale is None:
        return x
    return node.emit("rms_norm", x, scale, axis=3, epsilon=node.attr("qk_norm_epsilon", 1e-6))


def _sink(node: Context) -> Value | None:
    """The score, for each head, of a key without a value."""
    if node.has(11):
        return node.cast(node[11], F32)
    return node.constant(np.zeros(1, np.float32)) if node.attr("smooth_softmax", 0) > 0 else None


def _attend_grouped(node: Context, *inputs: Value | None, sink: Value | None = None) -> Value:
    """Attention to q, k, v with additive bias and the numbers of valid keys."""
    window = max(node.attr("local_window_size", -1), 0) - 1  # the size includes the key itself
    out, *scores = node.emit_many(
        "attention",
        *inputs,
        outputs=1 if sink is None else 2,
        scale=_scale(node),
        causal=bool(node.attr("causal", 1)),
        softcap=float(node.attr("softcap", 0.0)),
        window=(window, -1),
        scores="raw" if sink is None else "masked",
    )
    if sink is not None:
        out = node.emit("mul", out, _share(node, scores[0], sink, out.tensor.dtype))
    return join_heads(node, out)


def _share(node: Context, scores: Value, sink: Value, of: DType) -> Value:
    """The share of the keys in a softmax over their scores and a sink:
    1 / (1 + exp(sink) / sum(exp(scores)))."""
    scores = node.cast(scores, F32)
    greatest = node.emit("reduce_max", scores, axes=(3,), keepdims=True)
    greatest = node.emit("maximum", greatest, float(np.finfo(np.float32).min))  # all are masked
    powers = node.emit("exp", node.emit("sub", scores, greatest))
    total = node.emit("reduce_sum", powers, axes=(3,), keepdims=True)
    size = node.emit("add", node.emit("log", total), greatest)
    less = node.emit("sub", size, node.unsqueeze(sink, 1, 2))
    return node.cast(node.emit("sigmoid", less), of)


def _attend_cached(
    node: Context,
    new: tuple[Value, Value, Value],
    cache: tuple[Value, Value],
    starts: Value,
    sink: Value | None,
) -> Value:
    """Queries from `starts` of each sequence on attend to the keys up to their own.

    A first prompt attends only to the new keys, which is determined from sizes, so that neither old
    keys nor the unused cache are read.
    """
    length, room = dims(node, new[0])[2], dims(node, cache[0])[2]
    has_bias = node.has(10)
    optional = [value for value in (node.get(10), sink) if value is not None]

    def options(given: Values) -> tuple[Value | None, Value | None]:
        return (given[0] if has_bias else None, given[-1] if sink is not None else None)

    def first(node: Context, given: Values) -> Values:
        q, k, v, _, _, _, *rest = given
        bias, sink = options(rest)
        if bias is not None and dims(node, bias)[3] != length:
            bias = part(node, bias, 0, length, 3)
        return (_attend_grouped(node, q, k, v, bias, sink=sink),)

    def later(node: Context, given: Values) -> Values:
        q, _, _, keys, values, starts, *rest = given
        bias, sink = options(rest)
        added = None if bias is None else _padded(node, bias, room)
        ends = node.emit("add", starts, node.number(length))
        return (_attend_grouped(node, q, keys, values, added, ends, sink=sink),)

    given = [*new, *cache, starts, *optional]
    if length == 1:
        return later(node, given)[0]
    return either(node, _is_first(node, length), given, first, later)[0]


def _is_first(node: Context, length: Dim) -> Value:
    """Whether the new keys are the first ones."""
    return node.emit("equal", node.cast(node.reshape(node[6], ()), I64), node.number(length))


def _starts(node: Context, length: Dim, room: Dim) -> Value:
    """The first position of the new keys of each sequence: after the old ones, or 0 in a first
    prompt.

    All new keys of a prompt are treated as valid: no query before the padding attends to it.
    """
    last = node.cast(node.reshape(node[5], (dims(node, node[0])[0],)), I64)
    olds = node.emit("sub", node.emit("add", last, 1), node.number(length))
    starts = node.emit("where", _is_first(node, length), node.like(olds, 0), olds)
    ends = node.emit("add", starts, node.number(length))
    outside = [
        node.emit("less", starts, 0),
        node.emit("greater", starts, node.number(dims(node, node[3])[2])),
        node.emit("greater", ends, node.number(room)),
    ]
    wrong = node.emit("logical_or", outside[0], node.emit("logical_or", *outside[1:]))
    fits = node.emit("logical_not", node.emit("reduce_max", wrong, keepdims=False))
    message = "GroupQueryAttention is given lengths that do not fit its cache"
    return node.emit("require", fits, starts, message=message)


def _cache_places(node: Context) -> Value:
    """The positions of the resulting cache: those of the input, or more if it has too few."""
    before, total = node.dims(3)[2], node.known(6)
    if total is not None:
        return node.iota(sym.simplify(sym.maximum(before, total[0])))
    limit = node.cast(node.reshape(node[6], ()), I64)
    limit = node.emit("maximum", limit, node.number(before))
    return node.emit("range", None, limit, start=0, delta=1, to=I64)


def _appended(node: Context, old: Value, new: Value, places: Value, starts: Value) -> Value:
    """Insert new rows into a cache at `starts` of each sequence, followed by zeros."""
    batch, heads, rows, features = dims(node, new)
    before, (room,) = dims(node, old)[2], dims(node, places)
    steps = node.emit("sub", places, node.unsqueeze(starts, 1))
    steps = node.reshape(steps, (batch, 1, room, 1))
    last = node.emit("sub", node.number(rows), 1)
    row = node.emit("minimum", node.emit("maximum", steps, 0), last)
    row = node.emit("expand", row, shape=(batch, heads, room, features))
    fresh = node.emit("gather_elements", new, row, axis=2)
    fresh = node.emit("where", node.emit("less_equal", steps, last), fresh, node.like(new, 0.0))
    kept = node.emit("pad", old, pads=(0, room - before), axes=(2,))
    return node.emit("where", node.emit("less", steps, 0), kept, fresh)


def _grouped_heads(node: Context, heads: int, shared: int) -> tuple[Value, Value, Value]:
    if node.has(1):
        counts = ((0, heads), (1, shared), (2, shared))
        q, k, v = (split_heads(node, node[at], count) for at, count in counts)
        return q, k, v
    all_heads = split_heads(node, node[0], heads + 2 * shared)
    ends = (heads, heads + shared, heads + 2 * shared)
    starts = (0, *ends[:2])
    q, k, v = (part(node, all_heads, a, b, 1) for a, b in zip(starts, ends, strict=True))
    return q, k, v


def _rotary_embedding(node: Context) -> Value:
    """Like ONNX's, with positions before the tables; a single position is an offset."""
    x, places, cos, sin = (node[at] for at in range(4))
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1.0:
        raise Skip("RotaryEmbedding of packed batches or with a scale")
    packed, features = x.tensor.rank == 3, node.attr("rotary_embedding_dim", 0)
    if packed:
        width, half = dims(node, x)[2], dims(node, cos)[1]
        heads = node.attr("num_heads", 0)
        if not heads:
            if not isinstance(width, int) or not isinstance(half, int):
                raise Skip("RotaryEmbedding with an unknown number of heads")
            heads = width // (2 * half)
        x = split_heads(node, x, heads)
    if places.tensor.rank == 1:
        steps = node.emit("range", start=0, limit=dims(node, x)[2], delta=1, to=I64)
        places = node.unsqueeze(node.emit("add", steps, places), 0)
    cos, sin = (node.emit("gather", table, places, axis=0) for table in (cos, sin))
    neighbours = bool(node.attr("interleaved", 0))
    out = rotate(node, x, cos, sin, interleaved=neighbours, features=features)
    return join_heads(node, out) if packed else out


RULES: dict[str, Rule] = {
    "Attention": _attention,
    "QAttention": _qattention,
    "MultiHeadAttention": _multi_head_attention,
    "DecoderMaskedMultiHeadAttention": _decoder_masked_attention,
    "GroupQueryAttention": _group_query_attention,
    "RotaryEmbedding": _rotary_embedding,
}
