"""Attention in stages: scores, softmax along the keys, weighted values.

Or, with `keys` at a time (streaming softmax), as one reduction along the keys of three values: the
maximum score, the sum of exponentials relative to it, and the values weighted by those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, INDEX, DType
from tilewright.base.multiprocessor import KEY_PARTS, STREAMED_FEATURES, STREAMED_QUERIES
from tilewright.graph.ops.attention import QUERY_BLOCK
from tilewright.lower.base import Lowering, Use, read_broadcast, static, wide, wide_type
from tilewright.lower.linalg import summed
from tilewright.lower.reduction import reduced
from tilewright.sym import TRUE, ZERO, Expr
from tilewright.te import Tensor


def _scale(use: Use, features: Expr, of: DType) -> Expr:
    """The scale of the scores: given, or 1 / sqrt(features)."""
    if use["scale"] is not None:
        return te.const(use["scale"], of)
    size = static(features)
    if size is not None:
        return te.const(1 / math.sqrt(size) if size else math.inf, of)
    return te.cast(te.const(1, F64) / te.sqrt(te.cast(features, F64)), of)


def _shared(head: Expr, heads: Expr, shared: Expr) -> Expr:
    """The key head of a query head."""
    if heads is shared or sym.equal(heads, shared):
        return head
    return sym.floordiv(head, sym.simplify(sym.floordiv(heads, shared)))


@dataclass(frozen=True)
class _Grid:
    """Layout of the scores: in rows, or in tiles of QUERY_BLOCK queries.

    Tiles are whole: padding rows, keys and features are ignored.
    """

    batch: Expr
    heads: Expr
    rows: Expr
    in_tiles: bool

    @property
    def lead(self) -> tuple[Expr, ...]:
        """The shape of a tensor with one number per query."""
        if not self.in_tiles:
            return (self.batch, self.heads, self.rows)
        return (
            self.batch,
            self.heads,
            sym.ceildiv(self.rows, QUERY_BLOCK),
            sym.as_expr(QUERY_BLOCK),
        )

    def query(self, at: Sequence[Expr]) -> Expr:
        """The query of an index into such a tensor."""
        return sym.add(sym.mul(at[2], QUERY_BLOCK), at[3]) if self.in_tiles else at[2]

    def block(self, at: Sequence[Expr]) -> Expr:
        """The block of QUERY_BLOCK queries that contains the query."""
        return at[2] if self.in_tiles else sym.floordiv(at[2], QUERY_BLOCK)

    def place(self, b: Expr, h: Expr, i: Expr) -> tuple[Expr, ...]:
        """The index of a query in such a tensor."""
        if not self.in_tiles:
            return (b, h, i)
        return (b, h, sym.floordiv(i, QUERY_BLOCK), sym.floormod(i, QUERY_BLOCK))

    def whole(self, size: Expr) -> Expr:
        """A number of keys or features, padded to whole tiles."""
        return (
            sym.simplify(sym.mul(sym.ceildiv(size, QUERY_BLOCK), QUERY_BLOCK))
            if self.in_tiles
            else size
        )

    def queries(self, q: Tensor, name: str) -> Tensor:
        """The queries by tile."""
        if not self.in_tiles:
            return q
        return te.compute(
            (*self.lead, self.whole(q.shape[3])),
            lambda b, h, t, r, d: _filled(q, (b, h, self.query((b, h, t, r)), d)),
            name=name,
        )

    def filled(self, x: Tensor, name: str) -> Tensor:
        """Keys or values, zero-padded in rows and features."""
        if not self.in_tiles:
            return x
        shape = (*x.shape[:2], self.whole(x.shape[2]), self.whole(x.shape[3]))
        return te.compute(shape, lambda *at: _filled(x, at), name=name)


def _filled(x: Tensor, at: tuple[Expr, ...]) -> Expr:
    """An element of [batch, heads, rows, features]; zero beyond the last row or feature."""
    inside = sym.all_of(sym.lt(at[2], x.shape[2]), sym.lt(at[3], x.shape[3]))
    return te.select(inside, x[at], te.const(0, x.dtype))


def _raw_scores(
    use: Use, grid: _Grid, q: Tensor, k: Tensor, shape: tuple[Expr, ...]
) -> tuple[Tensor, Tensor]:
    """Products of queries and keys, scaled; and the same capped, before any mask."""
    of, name = wide_type(q.dtype), use.name
    scale = _scale(use, q.shape[3], of)
    queries, keys = grid.queries(q, f"{name}_queries"), grid.filled(k, f"{name}_keys")

    def product(*at: Expr) -> Expr:
        key = _shared(at[1], grid.heads, k.shape[1])
        return summed(
            keys.shape[3],
            lambda d: wide(queries[(*at[:-1], d)]) * wide(keys[at[0], key, at[-1], d]),
            te.const(0, of),
            "d",
        )

    products = te.compute(shape, product, name=f"{name}_products")
    raw = te.compute(shape, lambda *i: products[i] * scale, name=f"{name}_raw")
    if not use["softcap"]:
        return raw, raw
    cap = te.const(use["softcap"], of)
    return raw, te.compute(shape, lambda *i: te.tanh(raw[i] / cap) * cap, name=f"{name}_capped")


def _attention(
    use: Use, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None
) -> Tensor | tuple[Tensor, ...]:
    if use["keys"]:
        return _online(use, q, k, v, mask, lengths)
    of, name = wide_type(q.dtype), use.name
    batch, heads, rows, _ = q.shape
    columns = k.shape[2]
    grid = _Grid(batch, heads, rows, in_tiles=use["round_weights"])
    shape = (*grid.lead, grid.whole(columns))
    raw, capped = _raw_scores(use, grid, q, k, shape)
    weighted = grid.filled(v, f"{name}_weighted")

    def is_near(*at: Expr) -> Expr:
        return sym.all_of(*_near(use, lengths, grid, grid.block(at), at[-1]))

    def is_near_tile(*at: Expr) -> Expr:
        """Tiles are multiplied whole: masked keys in them have a weight of zero."""
        tile = sym.floordiv(at[-1], QUERY_BLOCK)
        return sym.all_of(*_near(use, lengths, grid, grid.block(at), tile, by_tile=True))

    def masked(*at: Expr) -> Expr:
        score, never = capped[at], te.const(-math.inf, of)
        b, h, i, j = *at[:2], grid.query(at), at[-1]
        tests = _allowed(use, lengths, rows, b, i, j)
        if tests:
            score = te.select(te.all(*tests), score, never)
        if mask is not None:
            inside = sym.minimum(i, sym.sub(rows, 1)) if grid.in_tiles else i
            added = read_broadcast(mask, (batch, heads, rows, columns), (b, h, inside, j))
            if added.dtype.is_bool:
                added = te.select(added, te.const(0, of), never)
            score = score + te.cast(added, of)
        exists = sym.lt(j, columns) if grid.in_tiles else TRUE
        return te.select(sym.all_of(is_near(*at), exists), score, never)

    scores = te.compute(shape, masked, name=f"{name}_scores")
    last = (len(shape) - 1,)
    top = reduced(scores, last, te.max, keep=False, name=f"{name}_max", where=is_near)

    def power(*at: Expr) -> Expr:
        greatest = top[at[:-1]]
        nothing = te.eq(greatest, te.const(-math.inf, of))
        value = te.exp_nonpositive(scores[at] - te.select(nothing, te.const(0, of), greatest))
        value = te.select(is_near(*at), value, te.const(0, of))
        return te.cast(value, v.dtype) if use["round_weights"] else value

    powers = te.compute(shape, power, name=f"{name}_exp")
    total = reduced(powers, last, te.sum, keep=False, name=f"{name}_sum", where=is_near)

    share = te.compute(  # a fully masked row gives zeros
        total.shape,
        lambda *i: te.select(
            te.eq(total[i], te.const(0, of)), total[i], te.const(1, of) / total[i]
        ),
        name=f"{name}_share",
    )

    weights = te.compute(shape, lambda *i: share[i[:-1]] * wide(powers[i]), name=f"{name}_weights")
    # A softmax and a GEMM, or a GEMM and fewer divisions.
    factors = powers if use["skips"] else weights

    def value(*at: Expr) -> Expr:
        key = _shared(at[1], heads, v.shape[1])
        return summed(
            shape[-1],
            lambda j: wide(factors[(*at[:-1], j)]) * wide(weighted[at[0], key, j, at[-1]]),
            te.const(0, of),
            where=lambda j: is_near_tile(*at[:-1], j) if grid.in_tiles else is_near(*at[:-1], j),
        )

    values = te.compute((*grid.lead, weighted.shape[3]), value, name=f"{name}_values")

    def result(b: Expr, h: Expr, i: Expr, f: Expr) -> Expr:
        at = grid.place(b, h, i)
        found = values[(*at, f)]
        return te.cast(share[at] * found if use["skips"] else found, use.dtype)

    out = te.compute(use.shape, result, name=name)
    if use.call.outputs == 1:
        return out
    shown = {"raw": raw, "capped": capped, "masked": scores, "weights": weights}[use["scores"]]

    def seen(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        return te.cast(shown[(*grid.place(b, h, i), j)], use.dtype)

    return out, te.compute(use.outputs[1].shape or (), seen, name=f"{name}_shown")


def _combined(x: Sequence[Expr], y: Sequence[Expr]) -> tuple[Expr, ...]:
    """Combine two parts of a row, rescaling each to the common maximum."""
    top = te.max(x[0], y[0])
    never, zero = te.const(-math.inf, F32), te.const(0, F32)
    fade = [te.select(te.eq(part[0], never), zero, te.exp(part[0] - top)) for part in (x, y)]
    return (top, *(x[at] * fade[0] + y[at] * fade[1] for at in (1, 2)))


ONLINE_SOFTMAX = te.comm_reducer(
    _combined,
    lambda *of: (te.const(-math.inf, F32), te.const(0, F32), te.const(0, F32)),
    name="online_softmax",
)
# Queries per block of a rule such as rules/gpu/attention_hopper.py.
QUERIES = (STREAMED_QUERIES, 2 * STREAMED_QUERIES)


def _online(
    use: Use, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Numbers of queries, keys and features are rounded up: padding is ignored."""
    name = use.name
    batch, heads, rows, features = q.shape
    most = max(static(x.shape[3]) or 0 for x in (q, v))
    deep = sym.const(next(whole for whole in STREAMED_FEATURES if most <= whole))
    columns = k.shape[2]
    few, many = QUERIES
    together = few if sym.prove(sym.le(rows, few)) else many
    high = sym.simplify(sym.mul(sym.ceildiv(rows, together), together))
    whole = use["keys"] * (_key_parts(columns, use["keys"]) if together == few else 1)
    long = sym.simplify(sym.mul(sym.ceildiv(columns, whole), whole))
    queries = _stage(q, high, deep, f"{name}_queries")
    keys = _stage(k, long, deep, f"{name}_keys")
    weighted = _stage(v, long, deep, f"{name}_weighted")
    scale = _scale(use, features, F32)

    def product(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        key = _shared(h, heads, k.shape[1])
        return summed(
            deep,
            lambda d: wide(queries[b, h, i, d]) * wide(keys[b, key, j, d]),
            te.const(0, F32),
            "d",
        )

    def masked(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        score, never = products[b, h, i, j] * scale, te.const(-math.inf, F32)
        if use["softcap"]:
            cap = te.const(use["softcap"], F32)
            score = te.tanh(score / cap) * cap
        tests = _allowed(use, lengths, rows, b, i, j)
        if mask is not None:
            at = (b, h, sym.minimum(i, sym.sub(rows, 1)), sym.minimum(j, sym.sub(columns, 1)))
            added = read_broadcast(mask, (batch, heads, rows, columns), at)
            if added.dtype.is_bool:
                added = te.select(added, te.const(0, F32), never)
            score = score + te.cast(added, F32)
        if not sym.equal(long, columns):
            tests.append(sym.lt(j, columns))
        return te.select(te.all(*tests), score, never) if tests else score

    shape = (batch, heads, high, long)
    products = te.compute(shape, product, name=f"{name}_products")
    scores = te.compute(shape, masked, name=f"{name}_scores", tag=STAGE)
    key = te.reduce_axis((0, long), name="key")

    def reduced_row(b: Expr, h: Expr, i: Expr, f: Expr) -> tuple[Expr, ...]:
        value = wide(weighted[b, _shared(h, heads, v.shape[1]), key, f])
        return ONLINE_SOFTMAX((scores[b, h, i, key], te.const(1, F32), value), axis=key)

    _, total, values = te.compute((batch, heads, high, deep), reduced_row, name=f"{name}_values")

    def result(b: Expr, h: Expr, i: Expr, f: Expr) -> Expr:
        none = te.eq(total[b, h, i, f], te.const(0, F32))
        share = te.const(1, F32) / total[b, h, i, f]
        found = values[b, h, i, f] * te.select(none, te.const(0, F32), share)
        return te.cast(found, use.dtype)

    return te.compute(use.shape, result, name=name, tag=STAGE)


def _key_parts(columns: Expr, keys: int) -> int:
    """A divisor of the number of steps over keys, so that blocks may share them. Additional steps
    are masked and skipped; for a static number of keys there are few."""
    size = static(columns)
    if size is None:
        return KEY_PARTS
    steps = -(-size // keys)
    return min(KEY_PARTS, 1 << max(0, (steps // 8).bit_length() - 1))


def _stage(x: Tensor, rows: Expr, features: Expr, name: str) -> Tensor:
    """Queries, keys or values, zero-padded in rows and features, as a separate stage that a rule
    places."""
    shape = (*x.shape[:2], rows, features)
    filled = [at for at in (2, 3) if not sym.equal(shape[at], x.shape[at])]
    if not filled:
        return te.compute(shape, lambda *at: x[at], name=name, tag=STAGE)

    def element(*at: Expr) -> Expr:
        inside = sym.all_of(*[sym.lt(at[axis], x.shape[axis]) for axis in filled])
        return te.select(inside, x[at], te.const(0, x.dtype))

    return te.compute(shape, element, name=name, tag=STAGE)


STAGE = "attention_stage"  # attribute of blocks that a rule places


def _near(
    use: Use, lengths: Tensor | None, grid: _Grid, block: Expr, key: Expr, *, by_tile: bool = False
) -> list[Expr]:
    """Necessary conditions for a key to be visible to any query of a block; in tiles, for any of
    the key's tile, whose number may take the place of the key.

    Other keys have no influence: schedules that process blocks or parts of them may skip these.
    """
    left, right = use["window"]
    count = static(grid.rows)
    if not use["skips"] or lengths is not None:
        return []
    past, beyond = sym.as_expr(use["past"]), 0 if use["causal"] else right

    def place(offset: Expr, rounded: Callable[[Expr, int], Expr]) -> Expr:
        """The key so many places after the block's first query, or its tile."""
        if not grid.in_tiles:
            return sym.add(sym.mul(block, QUERY_BLOCK), offset)
        tile = sym.simplify(sym.add(block, rounded(offset, QUERY_BLOCK)))
        return tile if by_tile else sym.mul(tile, QUERY_BLOCK)

    tests: list[Expr] = []
    if beyond >= 0 and (count is None or count > QUERY_BLOCK):
        tests.append(sym.lt(key, place(sym.add(past, QUERY_BLOCK + beyond), sym.ceildiv)))
    if left >= 0:
        tests.append(sym.le(place(sym.sub(past, left), sym.floordiv), key))
    return tests


def _allowed(
    use: Use, lengths: Tensor | None, rows: Expr, b: Expr, i: Expr, key: Expr
) -> list[Expr]:
    """Conditions for query i to see a key: causal, within the window and the length."""
    tests: list[Expr] = []
    offset = sym.as_expr(use["past"])
    if lengths is not None:
        end = te.cast(lengths[(ZERO if static(lengths.shape[0]) == 1 else b,)], INDEX)
        offset = end - rows
        tests.append(key < end)
    place = sym.add(i, offset)
    left, right = use["window"]
    if use["causal"]:
        tests.append(sym.le(key, place))
    if left >= 0:
        tests.append(sym.le(sym.sub(place, left), key))
    if right >= 0:
        tests.append(sym.le(key, sym.add(place, right)))
    return tests


def _linear_attention(
    use: Use,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    decay: Tensor | None,
    beta: Tensor | None,
) -> Tensor | tuple[Tensor, ...]:
    """A scan whose step t holds the state after t keys."""
    of, name = wide_type(q.dtype), use.name
    batch, heads, steps, features = q.shape
    shared, width = k.shape[1], v.shape[3]
    times = sym.simplify(sym.add(steps, 1))
    rest = (batch, shared, features, width)
    memory = te.placeholder((times, *rest), of, name=f"{name}_memory")
    begin = te.compute(
        (1, *rest),
        lambda _, *i: te.const(0, of) if state is None else te.cast(state[i], of),
        name=f"{name}_start",
    )

    def kept(t: Expr, b: Expr, h: Expr, f: Expr, w: Expr) -> Expr:
        before = memory[t - 1, b, h, f, w]
        if decay is None:
            return before
        at = read_broadcast(decay, (batch, shared, steps, features), (b, h, t - 1, f))
        return before * te.exp(te.cast(at, of))

    old = te.compute((times, *rest), kept, name=f"{name}_kept")

    def written(t: Expr, b: Expr, h: Expr, w: Expr) -> Expr:
        value = wide(v[b, h, t - 1, w])
        if beta is None:
            return value
        part = read_broadcast(beta, (batch, shared, steps, sym.ONE), (b, h, t - 1, ZERO))
        return (value - found[t, b, h, w]) * te.cast(part, of)

    if beta is not None:
        found = te.compute(
            (times, batch, shared, width),
            lambda t, b, h, w: summed(
                features, lambda f: wide(k[b, h, t - 1, f]) * old[t, b, h, f, w], te.const(0, of)
            ),
            name=f"{name}_found",
        )
    update = te.compute(
        (times, *rest),
        lambda t, b, h, f, w: old[t, b, h, f, w] + wide(k[b, h, t - 1, f]) * written(t, b, h, w),
        name=f"{name}_step",
    )
    states = te.scan(begin, update, memory, name=f"{name}_states")
    scale = _scale(use, features, of)

    def read(b: Expr, h: Expr, i: Expr, w: Expr) -> Expr:
        key = _shared(h, heads, shared)
        sums = summed(
            features, lambda f: wide(q[b, h, i, f]) * states[i + 1, b, key, f, w], te.const(0, of)
        )
        return te.cast(sums * scale, use.dtype)

    out = te.compute(use.shape, read, name=name)
    if use.call.outputs == 1:
        return out
    to = use.outputs[1].dtype
    last = te.compute(rest, lambda *i: te.cast(states[(steps, *i)], to), name=f"{name}_state")
    return out, last


LOWERINGS: dict[str, Lowering] = {
    "attention": _attention,
    "linear_attention": _linear_attention,
}
