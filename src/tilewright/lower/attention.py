"""Attention as stages: scores, softmax along the keys, weighted values."""

from __future__ import annotations

import math

from tilewright import sym, te
from tilewright.base.dtype import F64, INDEX, DType
from tilewright.lower.base import Lowering, Use, read_broadcast, static, wide, wide_type
from tilewright.lower.linalg import summed
from tilewright.lower.reduction import reduced
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor

BLOCK = 32  # queries that together leave out the keys that none of them sees


def _scale(use: Use, features: Expr, of: DType) -> Expr:
    """The scale of the scores: given, or the inverse root of the number of features."""
    if use["scale"] is not None:
        return te.const(use["scale"], of)
    size = static(features)
    if size is not None:
        return te.const(1 / math.sqrt(size) if size else math.inf, of)
    return te.cast(te.const(1, F64) / te.sqrt(te.cast(features, F64)), of)


def _shared(head: Expr, heads: Expr, shared: Expr) -> Expr:
    """The key head that a query head looks at."""
    if heads is shared or sym.equal(heads, shared):
        return head
    return sym.floordiv(head, sym.simplify(sym.floordiv(heads, shared)))


def _attention(
    use: Use, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None
) -> Tensor | tuple[Tensor, ...]:
    of, name = wide_type(q.dtype), use.name
    batch, heads, rows, features = q.shape
    columns = k.shape[2]
    shape = (batch, heads, rows, columns)
    scale = _scale(use, features, of)

    def product(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        key = _shared(h, heads, k.shape[1])
        return summed(
            features, lambda d: wide(q[b, h, i, d]) * wide(k[b, key, j, d]), te.const(0, of), "d"
        )

    products = te.compute(shape, product, name=f"{name}_products")
    raw = te.compute(shape, lambda *i: products[i] * scale, name=f"{name}_raw")
    cap = te.const(use["softcap"], of)
    capped = raw
    if use["softcap"]:
        capped = te.compute(shape, lambda *i: te.tanh(raw[i] / cap) * cap, name=f"{name}_capped")

    def near(i: Expr, j: Expr) -> Expr:
        return sym.all_of(*_near(use, lengths, rows, i, j))

    def is_near(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        return near(i, j)

    def masked(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        score, never = capped[b, h, i, j], te.const(-math.inf, of)
        tests = _allowed(use, lengths, rows, b, i, j)
        if tests:
            score = te.select(te.all(*tests), score, never)
        if mask is not None:
            added = read_broadcast(mask, shape, (b, h, i, j))
            if added.dtype.is_bool:
                added = te.select(added, te.const(0, of), never)
            score = score + te.cast(added, of)
        return te.select(near(i, j), score, never)

    scores = te.compute(shape, masked, name=f"{name}_scores")
    top = reduced(scores, (3,), te.max, keep=False, name=f"{name}_max", where=is_near)

    def power(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        greatest = top[b, h, i]
        nothing = te.eq(greatest, te.const(-math.inf, of))
        value = te.exp(scores[b, h, i, j] - te.select(nothing, te.const(0, of), greatest))
        return te.select(near(i, j), value, te.const(0, of))

    powers = te.compute(shape, power, name=f"{name}_exp")
    total = reduced(powers, (3,), te.sum, keep=False, name=f"{name}_sum", where=is_near)

    whole = te.compute(  # nothing to attend to gives zeros
        total.shape,
        lambda *i: te.select(te.eq(total[i], te.const(0, of)), te.const(1, of), total[i]),
        name=f"{name}_whole",
    )

    def value(b: Expr, h: Expr, i: Expr, f: Expr) -> Expr:
        key = _shared(h, heads, v.shape[1])
        return summed(
            columns,
            lambda j: powers[b, h, i, j] * wide(v[b, key, j, f]),
            te.const(0, of),
            where=lambda j: near(i, j),
        )

    values = te.compute(use.shape, value, name=f"{name}_values")
    out = te.compute(
        use.shape,
        lambda b, h, i, f: te.cast(values[b, h, i, f] / whole[b, h, i], use.dtype),
        name=name,
    )
    if use.call.outputs == 1:
        return out
    weights = te.compute(
        shape, lambda b, h, i, j: powers[b, h, i, j] / whole[b, h, i], name=f"{name}_weights"
    )
    shown = {"raw": raw, "capped": capped, "masked": scores, "weights": weights}[use["scores"]]
    return out, te.compute(shape, lambda *i: te.cast(shown[i], use.dtype), name=f"{name}_shown")


def _near(use: Use, lengths: Tensor | None, rows: Expr, i: Expr, key: Expr) -> list[Expr]:
    """What holds of all keys that any query of the same block may see.

    Others count for nothing, whatever they are: a schedule that takes blocks, or parts of them, at
    a time need not look at them.
    """
    left, right = use["window"]
    count = static(rows)
    if lengths is not None or (count is not None and count <= BLOCK):
        return []
    first = sym.add(sym.mul(sym.floordiv(i, BLOCK), BLOCK), use["past"])
    tests: list[Expr] = []
    if use["causal"] or right >= 0:
        beyond = 0 if use["causal"] else right
        tests.append(sym.lt(key, sym.add(first, BLOCK + beyond)))
    if left >= 0:
        tests.append(sym.le(sym.sub(first, left), key))
    return tests


def _allowed(
    use: Use, lengths: Tensor | None, rows: Expr, b: Expr, i: Expr, key: Expr
) -> list[Expr]:
    """When query i may see a key: causal, within a window, not behind the end."""
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
