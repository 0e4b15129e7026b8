"""Selection: the best k elements of each line.

Some are found by insertion: an element that is no better than the last of the k costs one
comparison. Many, or a dynamic number, are the first of all in order. Where threads are
many, ranks are counted instead (`pieces`): how many elements come before each one; or runs of
elements are merged, all at once (`runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX
from tilewright.lower.base import (
    STORED,
    Lowering,
    Use,
    front_axis,
    placed,
    read_at,
    static,
    wide,
)
from tilewright.lower.merge_sort import binary_search, load, merge_sort
from tilewright.lower.statements import Body, loops, procedure, seq, store, when
from tilewright.sym import ONE, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Stmt

FEW = 512
LAST = te.const(0xFFFFFFFF, I64)  # of the places that a key has bits for
Place = Callable[[Sequence[Expr], Expr], Expr]  # of a candidate in its line


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
    axis = front_axis(use["axis"], x.ndim)
    count = static(use.shape[axis])
    if use["runs"]:
        return _by_merging(use, x, axis)
    if use["pieces"]:
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
    """Some pieces of a line hold its best: those whose own best are. So the best of pieces are
    found, of pieces of those, and so on; then, from the few of the last ones back, the best among
    the elements of the pieces that were chosen. Elements behind an end come after all others."""
    length, count = x.shape[axis], use.shape[axis]
    lines = [dim for at, dim in enumerate(x.shape) if at != axis]

    def element(line: Sequence[Expr], place: Expr) -> Expr:
        inside = sym.maximum(sym.minimum(place, length - 1), 0)
        return read_at(x, (*line[:axis], inside, *line[axis:]), axis)

    levels = [_Level(length, lambda line, place: _key(use, element(line, place)))]
    pieces = [piece for piece in use["pieces"] if piece > 1]
    for number, piece in enumerate(pieces):
        levels.append(levels[-1].best_of_pieces(lines, piece, f"{use.name}_best{number}"))
    *lower, top = levels

    def kept(level: _Level) -> Expr:
        return count if level is levels[0] else sym.minimum(count, level.extent)

    places = _best(top, lines, top.extent, kept(top), lambda _, each: each, f"{use.name}_top")
    for number, (level, piece) in enumerate(zip(lower[::-1], pieces[::-1], strict=True)):
        chosen = places

        def candidate(
            line: Sequence[Expr], each: Expr, chosen: Tensor = chosen, piece: int = piece
        ) -> Expr:
            before = te.cast(chosen[(*line, sym.floordiv(each, piece))], INDEX)
            return before * piece + sym.floormod(each, piece)

        many = chosen.shape[-1] * piece
        places = _best(level, lines, many, kept(level), candidate, f"{use.name}_among{number}")

    def place_at(*at: Expr) -> Expr:
        return places[(*at[:axis], *at[axis + 1 :], at[axis])]

    def value_at(*at: Expr) -> Expr:
        return element((*at[:axis], *at[axis + 1 :]), te.cast(place_at(*at), INDEX))

    values = te.compute(use.shape, value_at, name=use.name)
    indices = te.compute(use.shape, lambda *at: te.cast(place_at(*at), I64), name=f"{use.name}_at")
    return values, indices


def _key(use: Use, value: Expr) -> Expr:
    """An integer for each element, greater for better ones and equal for equals."""
    key = sort_key(value)
    return key if use["largest"] else te.bitwise_not(key)


def sort_key(value: Expr) -> Expr:
    """An integer for each number, in the same order; NaN is the greatest."""
    x = wide(value)
    if x.dtype.is_float:
        of = I32 if x.dtype.bits == I32.bits else I64
        bits, sign = te.bits_of(x), te.const(of.bits - 1, of)
        # Those of numbers below zero run the other way; both zeros are one number.
        low = te.bitwise_and(te.shift_right(bits, sign), te.max_value(of))
        key = te.select(te.eq(x, te.const(0, x.dtype)), te.const(0, of), te.bitwise_xor(bits, low))
        key = te.select(te.isnan(x), te.max_value(of), key)
    elif x.dtype.kind == "uint" and x.dtype.bits == I64.bits:
        key = te.bitwise_xor(te.cast(x, I64), te.min_value(I64))
    else:
        narrow = x.dtype.bits < I32.bits or x.dtype is I32
        key = te.cast(x, I32 if narrow else I64)
    return key


@dataclass(frozen=True)
class _Level:
    """Keys in every line: of all elements, or of the best of pieces."""

    extent: Expr
    at: Callable[[Sequence[Expr], Expr], Expr]

    def key(self, line: Sequence[Expr], place: Expr) -> Expr:
        """The least there is behind the end."""
        found = self.at(line, place)
        return te.if_then_else(place < self.extent, found, te.min_value(found.dtype))

    def best_of_pieces(self, lines: Sequence[Expr], piece: int, name: str) -> _Level:
        extent = sym.ceildiv(self.extent, piece)
        j = te.reduce_axis((0, piece), name="j")

        def best(*at: Expr) -> Expr:
            return te.max(self.key(at[:-1], at[-1] * piece + j), axis=j)

        made = te.compute((*lines, extent), best, name=name)

        def inside(line: Sequence[Expr], place: Expr) -> Expr:
            at = sym.maximum(sym.minimum(place, extent - 1), 0)
            return read_at(made, (*line, at), len(line))

        return _Level(extent, inside)


def _best(
    level: _Level, lines: Sequence[Expr], many: Expr, kept: Expr, place: Place, name: str
) -> Tensor:
    """Where the best `kept` of `many` candidates lie, whose places are told, in every line. Of
    equals the first comes first; a key and a place are one number where that has the bits."""
    i, j = (te.reduce_axis((0, many), name=n) for n in "ij")

    def place_of(*at: Expr) -> Expr:
        return te.cast(place(at[:-1], at[-1]), I64)

    def key_of(*at: Expr) -> Expr:
        key = level.key(at[:-1], place(at[:-1], at[-1]))
        if key.dtype is I64:
            return key
        high = te.shift_left(te.cast(key, I64), te.const(I32.bits, I64))
        return high + (LAST - place_of(*at))

    keys = te.compute((*lines, many), key_of, name=f"{name}_key", attrs=STORED)
    packed = level.key([sym.const(0)] * len(lines), sym.const(0)).dtype is not I64
    places = None
    if not packed:
        places = te.compute((*lines, many), place_of, name=f"{name}_of", attrs=STORED)

    def rank(*at: Expr) -> Expr:
        other = (*at[:-1], i)
        before = keys[other] > keys[at]
        if places is not None:
            first = te.all(te.eq(keys[other], keys[at]), places[other] < places[at])
            before = te.any(before, first)
        return te.sum(te.cast(before, I32), axis=i)

    ranks = te.compute((*lines, many), rank, name=f"{name}_rank")

    def chosen(*at: Expr) -> Expr:
        each = (*at[:-1], j)
        if places is None:
            found = LAST - te.bitwise_and(keys[each], LAST)
        else:
            found = places[each]
        is_it = te.eq(ranks[each], te.cast(at[-1], I32))
        return te.min(te.if_then_else(is_it, found, te.max_value(I64)), axis=j)

    return te.compute((*lines, kept), chosen, name=f"{name}_place")


# ------------------------------------------------------------------------------------ merging


def _by_merging(use: Use, x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """All in order, then the first of them."""
    length = x.shape[axis]
    lines = [dim for at, dim in enumerate(x.shape) if at != axis]

    def key_of(*at: Expr) -> Expr:
        line, place = at[:-1], at[-1]
        return _key(use, read_at(x, (*line[:axis], place, *line[axis:]), axis))

    ordered = in_order(lines, length, key_of, use["runs"], use.name)

    def place_at(*at: Expr) -> Expr:
        return ordered.place(*at[:axis], *at[axis + 1 :], at[axis])

    def value_at(*at: Expr) -> Expr:
        place = sym.maximum(sym.minimum(te.cast(place_at(*at), INDEX), length - 1), 0)
        return read_at(x, placed(at, axis, place), axis)

    values = te.compute(use.shape, value_at, name=use.name)
    return values, te.compute(use.shape, place_at, name=f"{use.name}_at")


@dataclass(frozen=True)
class Ordered:
    """Elements of lines in order: tensors of keys, and of places that keys have no bits for. In a
    statement they are `views` of them."""

    tensors: tuple[Tensor, ...]

    def place(self, *at: Expr, views: Sequence[BufferView] = ()) -> Expr:
        """Where the element of a line and a rank lies."""
        found = self._read(at, views)
        return found[1] if found[1:] else LAST - te.bitwise_and(found[0], LAST)

    def key(self, *at: Expr, views: Sequence[BufferView] = ()) -> Expr:
        found = self._read(at, views)
        if found[1:]:
            return found[0]
        return te.cast(te.shift_right(found[0], te.const(I32.bits, I64)), I32)

    def _read(self, at: Sequence[Expr], views: Sequence[BufferView]) -> list[Expr]:
        if views:
            return [view[tuple(at)] for view in views]
        return [read_at(each, at, *range(each.ndim)) for each in self.tensors]


def in_order(
    lines: Sequence[Expr],
    length: Expr,
    key_of: Callable[..., Expr],
    runs: Sequence[int],
    name: str,
) -> Ordered:
    """The elements of every line, those of greater keys first, of equals the first. Each counts how
    many of its run come before it; then runs are merged, so many at a time as `runs` tells: each
    looks for its place in the others. A key and a place are one number where that has the bits."""
    shape = (*lines, length)
    packed = key_of(*[sym.const(0)] * len(shape)).dtype is not I64

    def with_place(*at: Expr) -> Expr:
        high = te.shift_left(te.cast(key_of(*at), I64), te.const(I32.bits, I64))
        return high + (LAST - te.cast(at[-1], I64))

    made = [te.compute(shape, with_place if packed else key_of, name=f"{name}_key", attrs=STORED)]
    if not packed:
        places = te.compute(shape, lambda *at: te.cast(at[-1], I64), name=f"{name}_of")
        made.append(places)
    width, stages = 1, [(1, made)]
    for number, ways in enumerate(runs):
        made = _merged(lines, length, made, width, ways, f"{name}_merged{number}")
        width *= ways
        stages.append((width, made))
    if static(length) is None:  # where one run is left already, nothing more is merged
        parts = zip(*[tensors for _, tensors in stages], strict=True)
        made = [_first_whole(shape, stages, list(each), name) for each in parts]
    return Ordered(tuple(made))


def _first_whole(
    shape: Sequence[Expr], stages: Sequence[tuple[int, list[Tensor]]], of: list[Tensor], name: str
) -> Tensor:
    """Lines of the first stage that has them in one run."""

    def element(*at: Expr) -> Expr:
        found = of[-1][at]
        for (width, _), tensor in reversed(list(zip(stages[:-1], of[:-1], strict=True))):
            found = te.if_then_else(shape[-1] <= width, tensor[at], found)
        return found

    return te.compute(tuple(shape), element, name=f"{name}_whole", attrs=STORED)


def _merged(
    lines: Sequence[Expr], length: Expr, given: list[Tensor], width: int, ways: int, name: str
) -> list[Tensor]:
    """Runs of `width` sorted elements, `ways` of them as one: each element goes behind those before
    it, of its own run and of the others."""
    shape = (*lines, length)
    found, place = sym.const(0), sym.const(1)  # what the state holds

    def body(ins: list[BufferView], outs: list[BufferView], *at: Expr) -> Stmt:
        *merged, state = outs
        line, i = at[:-1], at[-1]
        first = i - sym.floormod(i, width * ways)
        own = sym.floordiv(i - first, width)

        def is_before(other: Expr) -> Expr:
            theirs, mine = ins[0][(*line, other)], ins[0][at]
            if len(ins) == 1:
                return theirs > mine
            earlier = ins[1][(*line, other)] < ins[1][at]
            return te.any(theirs > mine, te.all(te.eq(theirs, mine), earlier))

        def count(run: Expr) -> Stmt:
            start = first + run * width

            def further(step: Expr) -> Stmt:
                """By so many, if all of them come before."""
                there = start + load(state, *at, found) + step
                inside = there <= sym.minimum(start + width, length)
                taken = store(state, (*at, found), state[(*at, found)] + te.cast(step, I32))
                return when([inside], when([is_before(there - 1)], taken))

            looked = seq(
                store(state, (*at, found), te.const(0, I32)),
                binary_search(width.bit_length(), further),
                store(state, (*at, place), state[(*at, place)] + state[(*at, found)]),
            )
            return when([te.ne(run, own), start < length], looked)

        there = sym.minimum(first + load(state, *at, place), length - 1)
        return seq(
            store(state, (*at, place), te.cast(i - first - own * width, I32)),
            loops([sym.const(ways)], count, "r"),
            *(store(out, (*line, there), one[at]) for out, one in zip(merged, ins, strict=True)),
        )

    types = [I64] * len(given)
    shapes = [shape] * len(given) + [(*shape, sym.const(2))]
    first, *rest = shape
    over = shape if static(length) is not None else (_if_longer(first, length, width), *rest)
    return list(procedure(shapes, given, body, name, [*types, I32], over)[: len(given)])


def _if_longer(extent: Expr, length: Expr, width: int) -> Expr:
    """An extent, where lines are longer than a run; else 0."""
    return sym.minimum(extent, sym.mul(sym.maximum(length - width, 0), I32.max))


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
