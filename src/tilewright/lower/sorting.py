"""Selection: the best k elements of each line.

Some are found by insertion: an element that is no better than the last of the k costs one
comparison. Many, or as many as only the run tells, are the first of all in order. Where threads are
many, ranks are counted instead (`piece`): how many elements come before each one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX
from tilewright.lower.base import Lowering, Use, front_axis, placed, static, wide
from tilewright.lower.merge import load, merge_sort
from tilewright.lower.statements import Body, loops, procedure, seq, store, when
from tilewright.sym import ONE, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Stmt

FEW = 512
Place = Callable[[Sequence[Expr], Expr], Expr]  # of a candidate in its line


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
    axis = front_axis(use["axis"], x.ndim)
    count = static(use.shape[axis])
    if use["piece"]:
        return _by_counting(use, x, axis)
    shape = placed(x.shape, axis, use.shape[axis])
    shapes, types = [shape, shape], [x.dtype, I64]
    if count is not None and count <= FEW:
        body = _by_insertion(use, x, axis)
        shapes.append((sym.const(3),))
        return procedure(shapes, [x], body, use.name, [*types, I64])[:2]
    line = (x.shape[axis],)
    shapes += [line, line, (sym.const(2),), (ONE,)]
    body = _by_sorting(use, x, axis)
    return procedure(shapes, [x], body, use.name, [*types, I64, I64, I64, I64])[:2]


def _better(use: Use, new: Expr, old: Expr) -> Expr:
    """Strictly, so that of equals the first stays before the others. NaN is the greatest."""
    a, b = wide(new), wide(old)
    if not a.dtype.is_float:
        return a > b if use["largest"] else a < b
    if use["largest"]:
        return te.any(a > b, te.all(te.isnan(a), te.logical_not(te.isnan(b))))
    return te.any(a < b, te.all(te.isnan(b), te.logical_not(te.isnan(a))))


def _by_insertion(use: Use, x: Tensor, axis: int) -> Body:
    """The best so far are kept in order; where a better one belongs is found by halving."""
    count, length = use.shape[axis], x.shape[axis]
    rest = [dim for at, dim in enumerate(x.shape) if at != axis]
    low, high, kept = (sym.const(at) for at in range(3))  # what the state holds

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (values, places, state) = ins, outs

        def line(*index: Expr) -> Stmt:
            def at(position: Expr) -> tuple[Expr, ...]:
                return (*index[:axis], position, *index[axis:])

            def halve(i: Expr) -> Stmt:
                middle = sym.floordiv(load(state, low) + load(state, high), 2)
                before = _better(use, source[at(i)], values[at(middle)])
                step = If(
                    before,
                    store(state, (high,), te.cast(middle, I64)),
                    store(state, (low,), te.cast(middle + 1, I64)),
                )
                return when([state[low] < state[high]], step)

            def down(q: Expr) -> Stmt:
                """From the last place upwards: what is worse moves by one."""
                p = load(state, kept) - q
                return seq(
                    store(places, at(p), places[at(p - 1)]), store(values, at(p), values[at(p - 1)])
                )

            def insert(i: Expr) -> Stmt:
                """`kept` is the place that what is worst moves to."""
                have, q = load(state, kept), sym.var("q")
                last = te.cast(sym.minimum(have, count - 1), I64)
                here = load(state, low)
                return seq(
                    store(state, (low,), te.const(0, I64)),
                    store(state, (high,), state[kept]),
                    loops([_halvings(use, axis)], lambda _: halve(i), "h"),
                    store(state, (kept,), last),
                    For(q, sym.const(0), load(state, kept) - here, down(q)),
                    store(places, at(here), te.cast(i, I64)),
                    store(values, at(here), source[at(i)]),
                    store(state, (kept,), te.cast(load(state, kept) + 1, I64)),
                )

            def element(i: Expr) -> Stmt:
                worst = values[at(sym.maximum(load(state, kept) - 1, 0))]
                room = load(state, kept) < count
                return when([te.any(room, _better(use, source[at(i)], worst))], insert(i))

            return seq(store(state, (kept,), te.const(0, I64)), loops([length], element, "e"))

        return when([sym.lt(0, count)], loops(rest, line))

    return body


def _halvings(use: Use, axis: int) -> Expr:
    """How often a range of as many places can be halved."""
    return sym.const((static(use.shape[axis]) or 0).bit_length() + 1)


def _by_sorting(use: Use, x: Tensor, axis: int) -> Body:
    length, count = x.shape[axis], use.shape[axis]
    rest = [dim for at, dim in enumerate(x.shape) if at != axis]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (values, places, order, spare, cursor, verdict) = ins, outs

        def line(*index: Expr) -> Stmt:
            def at(position: Expr) -> tuple[Expr, ...]:
                return (*index[:axis], position, *index[axis:])

            def compare(a: Expr, b: Expr) -> Stmt:
                """Only whether the second comes strictly before the first matters."""
                later = _better(use, source[at(b)], source[at(a)])
                return store(verdict, (sym.const(0),), te.cast(later, I64))

            def take(p: Expr) -> Stmt:
                found = load(order, p)
                return seq(
                    store(places, at(p), te.cast(found, I64)),
                    store(values, at(p), source[at(found)]),
                )

            ranked = merge_sort(length, order, spare, cursor, compare, verdict)
            return seq(ranked, loops([sym.minimum(count, length)], take, "p"))

        return loops(rest, line)

    return body


def _by_counting(use: Use, x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """The best of every piece of a line, then the best among those. Elements behind the end of the
    last piece come after all others."""
    length, count = x.shape[axis], use.shape[axis]
    rest, piece = [dim for at, dim in enumerate(x.shape) if at != axis], sym.const(use["piece"])
    pieces, kept = sym.ceildiv(length, piece), sym.minimum(count, piece)

    def element(line: Sequence[Expr], place: Expr) -> Expr:
        inside = sym.maximum(sym.minimum(place, length - 1), 0)
        return x[(*line[:axis], inside, *line[axis : len(rest)])]

    def best(lines: Sequence[Expr], many: Expr, few: Expr, place: Place, name: str) -> Tensor:
        """Where the best `few` of `many` lie that are told by `place`, in every line."""
        i, j = (te.reduce_axis((0, many), name=n) for n in "ij")

        def is_before(line: Sequence[Expr], a: Expr, b: Expr) -> Expr:
            first, second = place(line, a), place(line, b)
            left, right = (element(line, each) for each in (first, second))
            as_good = te.all(te.logical_not(_better(use, right, left)), a < b)
            wins = te.any(second >= length, _better(use, left, right), as_good)
            return te.all(first < length, wins)

        def rank(*at: Expr) -> Expr:
            return te.sum(te.cast(is_before(at[:-1], i, at[-1]), I32), axis=i)

        ranks = te.compute((*lines, many), rank, name=f"{name}_rank")

        def chosen(*at: Expr) -> Expr:
            is_it = te.eq(ranks[(*at[:-1], j)], te.cast(at[-1], I32))
            found = te.cast(place(at[:-1], j), I32)
            return te.min(te.if_then_else(is_it, found, te.cast(length, I32)), axis=j)

        return te.compute((*lines, few), chosen, name=f"{name}_place")

    places = best(
        (*rest, pieces), piece, kept, lambda line, j: line[-1] * piece + j, f"{use.name}_piece"
    )

    def candidate(line: Sequence[Expr], j: Expr) -> Expr:
        return te.cast(places[(*line, sym.floordiv(j, kept), sym.floormod(j, kept))], INDEX)

    if static(pieces) != 1:
        places = best(rest, pieces * kept, count, candidate, use.name)

    def place_at(*at: Expr) -> Expr:
        line, q = (*at[:axis], *at[axis + 1 :]), at[axis]
        return places[(*line, q)] if static(pieces) != 1 else places[(*line, sym.const(0), q)]

    def value_at(*at: Expr) -> Expr:
        return element((*at[:axis], *at[axis + 1 :]), te.cast(place_at(*at), INDEX))

    values = te.compute(use.shape, value_at, name=use.name)
    indices = te.compute(use.shape, lambda *at: te.cast(place_at(*at), I64), name=f"{use.name}_at")
    return values, indices


# ------------------------------------------------------------------------------------ cumulative


def _cumulative(*, greatest: bool) -> Lowering:
    """The best of each line so far and its place; a later one that is as good replaces it."""

    def rule(use: Use, x: Tensor) -> tuple[Tensor, ...]:
        axis = front_axis(use["axis"], x.ndim)
        rest = [dim for at, dim in enumerate(x.shape) if at != axis]

        def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
            (source,), (values, places) = ins, outs

            def line(*index: Expr) -> Stmt:
                def at(position: Expr) -> tuple[Expr, ...]:
                    return (*index[:axis], position, *index[axis:])

                def take(p: Expr, value: Expr, place: Expr) -> Stmt:
                    return seq(store(values, at(p), value), store(places, at(p), place))

                def element(p: Expr) -> Stmt:
                    new, before = source[at(p)], sym.maximum(p - 1, 0)
                    old = values[at(before)]
                    better = _as_good(new, old, greatest=greatest)
                    return If(
                        te.any(te.eq(p, 0), better),
                        take(p, new, te.cast(p, I64)),
                        take(p, old, places[at(before)]),
                    )

                return loops([x.shape[axis]], element, "p")

            return loops(rest, line)

        return procedure([x.shape, x.shape], [x], body, use.name, [x.dtype, I64])

    return rule


def _as_good(new: Expr, old: Expr, *, greatest: bool) -> Expr:
    a, b = wide(new), wide(old)
    better = a >= b if greatest else a <= b
    return te.any(better, te.isnan(a)) if a.dtype.is_float else better


LOWERINGS: dict[str, Lowering] = {
    "top_k": _top_k,
    "cummax": _cumulative(greatest=True),
    "cummin": _cumulative(greatest=False),
}
