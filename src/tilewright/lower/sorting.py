"""Selection (top-k) and sorting along lines.

On CPUs lines are independent work items. First, keys are computed: integers in the order of the
elements. Few elements are found by insertion: most are no better than the worst of the best so far,
which is tested for many at once. Many are selected, then sorted; a dynamic k chooses at run time.
With many threads, ranks are counted instead (`pieces`): the number of elements before each one; or
runs of elements are merged in parallel (`runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import UNROLL, For, If, Stmt

FEW = 256  # up to this k, insertion is faster than sorting, for any line length
PIECE = 32  # elements tested together: a few vectors
SEARCHES = 16  # interleaved searches per thread, each in a few registers (Multiprocessor.searches)
LAST = te.const(0xFFFFFFFF, I64)  # the last position that fits in a key's spare bits
Place = Callable[[Sequence[Expr], Expr], Expr]  # the position of a candidate in its line


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
    axis = front_axis(use["axis"], x.ndim)
    if use["runs"]:
        return _by_merging(use, x, axis)
    if use["pieces"]:
        return _by_counting(use, x, axis)
    return _by_lines(use, x, axis)


def _by_lines(use: Use, x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Each line separately: compute keys, then find the best by insertion or sorting."""
    length, count = x.shape[axis], use.shape[axis]
    lines = tuple(dim for at, dim in enumerate(x.shape) if at != axis)
    known = static(count)
    key = _key(use, x[(sym.const(0),) * x.ndim]).dtype
    shape = placed(x.shape, axis, count)
    rooms = {"keys": ((*lines, length), key), "rank": ((*lines, ONE), I32)}
    if known is None or known <= FEW:
        rooms["best"] = ((*lines, sym.const(max(1, FEW if known is None else known))), key)
        rooms["top"] = ((*lines, ONE), key)
    if known is None or known > FEW:
        rooms |= dict.fromkeys(("order", "spare"), ((*lines, length), I64))
        rooms |= {"cursor": ((*lines, sym.const(2)), I64), "verdict": ((*lines, ONE), I64)}
        rooms["limit"] = ((*lines, ONE), key)

    def body(ins: list[BufferView], outs: list[BufferView], *line: Expr) -> Stmt:
        (source,), (values, places) = ins, outs[:2]
        room = dict(zip(rooms, outs[2:], strict=True))

        def at(position: Expr) -> tuple[Expr, ...]:
            return (*line[:axis], position, *line[axis:])

        def key_of(place: Expr) -> Stmt:
            return store(room["keys"], (*line, place), _key(use, source[at(place)]))

        def take(p: Expr) -> Stmt:
            return store(values, at(p), source[at(load(places, *at(p)))])

        here = _Line(count, length, line, room, places, at)
        few = here.by_insertion() if "best" in room else seq()
        many = here.by_sorting() if "order" in room else seq()
        found = If(count <= FEW, few, many) if known is None else seq(few, many)
        return seq(loops([length], key_of, "e"), found, loops([count], take, "p"))

    shapes = [shape, shape, *(of for of, _ in rooms.values())]
    types = [x.dtype, I64, *(of for _, of in rooms.values())]
    return procedure(shapes, [x], body, use.name, types, lines)[:2]


@dataclass(frozen=True)
class _Line:
    """Selection of the best elements of a line, with named memory for work and results."""

    count: Expr
    length: Expr
    line: Sequence[Expr]
    room: Mapping[str, BufferView]
    places: BufferView
    at: Callable[[Expr], tuple[Expr, ...]]

    def by_insertion(self) -> Stmt:
        """The best so far are kept in order, stably; an element that is not better than the worst
        of them costs one comparison."""
        count, length, line, places, at = self.count, self.length, self.line, self.places, self.at
        room = self.room
        keys, best, rank = room["keys"], room["best"], (*line, sym.const(0))

        def insert(e: Expr, kept: Expr) -> Stmt:
            """The insertion point among the first `kept`: after those that are no worse."""
            new, here, q = keys[(*line, e)], load(room["rank"], *rank), sym.var("q")

            def passed(j: Expr) -> Stmt:
                is_before = te.cast(best[(*line, j)] >= new, I32)
                return store(room["rank"], rank, room["rank"][rank] + is_before)

            last = kept - q  # from the end, each moves by one
            down = seq(
                store(best, (*line, last), best[(*line, last - 1)]),
                store(places, at(last), places[at(last - 1)]),
            )
            return seq(
                store(room["rank"], rank, te.const(0, I32)),
                loops([kept], passed, "j"),
                For(q, sym.const(0), kept - here, down),
                store(best, (*line, here), new),
                store(places, at(here), te.cast(e, I64)),
            )

        def is_better(key: Expr) -> Expr:
            return key > best[(*line, count - 1)]

        def replace_last(e: Expr) -> Stmt:
            return when([is_better(keys[(*line, e)])], insert(e, count - 1))

        def piece(number: Expr) -> Stmt:
            """Most pieces have no candidate, as their maximum shows."""
            start = count + number * PIECE
            end = sym.minimum(start + PIECE, length)
            found, top, e = room["top"], (*line, sym.const(0)), sym.var("e")
            greatest = store(found, top, te.max(found[top], keys[(*line, e)]))
            each = sym.var("e")
            return seq(
                store(found, top, te.min_value(found.dtype)),
                For(e, start, end, greatest),
                when([is_better(found[top])], For(each, start, end, replace_last(each))),
            )

        first = loops([count], lambda e: insert(e, e), "f")
        pieces = loops([sym.ceildiv(length - count, PIECE)], piece, "piece")
        return when([sym.lt(0, count)], seq(first, pieces))

    def select(self) -> Stmt:
        """Store the positions of the best in `order`, ascending. The key of the last of them, the
        greatest that at least `count` keys reach, is found bit by bit, by a vectorized count of all
        keys each."""
        line, room, count = self.line, self.room, self.count
        keys, order, cursor = room["keys"], room["order"], room["cursor"]
        limit, rank = room["limit"], room["rank"]
        one, done, left = (*line, sym.const(0)), (*line, ZERO), (*line, ONE)
        of = limit.dtype

        def count_keys(is_in: Callable[[Expr], Expr]) -> Stmt:
            def add(e: Expr) -> Stmt:
                return store(rank, one, rank[one] + te.cast(is_in(keys[(*line, e)]), I32))

            return seq(store(rank, one, te.const(0, I32)), loops([self.length], add, "e"))

        def bit(level: Expr) -> Stmt:
            """Keys are signed: the highest bit of the least one is set."""
            place = te.const(of.bits - 1, of) - te.cast(level, of)
            raised = te.bitwise_xor(limit[one], te.shift_left(te.const(1, of), place))
            kept = seq(store(limit, one, raised), store(cursor, left, te.cast(rank[one], I64)))
            tried = seq(
                count_keys(lambda key: key >= raised), when([load(rank, *one) >= count], kept)
            )
            return when([load(cursor, *left) > count], tried)

        first = seq(
            store(limit, one, te.min_value(of)), store(cursor, left, te.cast(self.length, I64))
        )
        equals = store(cursor, left, te.cast(count - load(rank, *one), I64))

        def take(e: Expr) -> Stmt:
            key = keys[(*line, e)]
            found = seq(
                store(order, (*line, load(cursor, *done)), te.cast(e, I64)),
                store(cursor, done, cursor[done] + te.const(1, I64)),
            )
            equal = seq(found, store(cursor, left, cursor[left] - te.const(1, I64)))
            greater = If(key > limit[one], found, when([cursor[left] > te.const(0, I64)], equal))
            return when([key >= limit[one]], greater)

        return seq(
            first,
            loops([sym.const(of.bits)], bit, "bit"),
            count_keys(lambda key: key > limit[one]),
            equals,
            store(cursor, done, te.const(0, I64)),
            loops([self.length], take, "e"),
        )

    def by_sorting(self) -> Stmt:
        """Sort the best, out of all elements or of those selected."""
        line, room = self.line, self.room
        keys, order, verdict = room["keys"], room["order"], room["verdict"]

        def compare(a: Expr, b: Expr) -> Stmt:
            """The order only needs the test whether the second comes strictly before the first."""
            later = te.cast(keys[(*line, b)] > keys[(*line, a)], I64)
            return store(verdict, (*line, sym.const(0)), later)

        def place(p: Expr) -> Stmt:
            return store(self.places, self.at(p), order[(*line, p)])

        spare, cursor = room["spare"], room["cursor"]
        every = loops([self.length], lambda e: store(order, (*line, e), te.cast(e, I64)), "f")
        fill = If(self.count < self.length, when([sym.lt(0, self.count)], self.select()), every)
        ranked = merge_sort(self.count, order, spare, cursor, compare, verdict, line, fill)
        return seq(ranked, loops([self.count], place, "p"))


def _by_counting(use: Use, x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """A line's best are in the pieces with the best maxima. So the best pieces are found, among the
    best pieces of pieces, and so on; then, back from the smallest level, the best elements of the
    selected pieces. Padding elements come after all others."""
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
    """An integer key for each element: greater for better ones, equal for equal ones."""
    key = sort_key(value)
    return key if use["largest"] else te.bitwise_not(key)


def sort_key(value: Expr) -> Expr:
    """An integer for each number, in the same order; NaN is the greatest."""
    x = wide(value)
    if x.dtype.is_float:
        of = I32 if x.dtype.bits == I32.bits else I64
        bits, sign = te.bits_of(x), te.const(of.bits - 1, of)
        # Those of negative numbers are in reverse order; both zeros are equal.
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
    """Keys of every line: of all elements, or of the best of pieces."""

    extent: Expr
    at: Callable[[Sequence[Expr], Expr], Expr]

    def key(self, line: Sequence[Expr], place: Expr) -> Expr:
        """The least key for padding."""
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
    """The positions of the best `kept` of `many` candidates in every line, stably. Key and position
    are combined to one number if they fit."""
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
    """Sort everything, then take the first."""
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
    """Sorted elements of lines: tensors of keys, and of positions that do not fit in keys. In a
    statement they are `views`."""

    tensors: tuple[Tensor, ...]

    def place(self, *at: Expr, views: Sequence[BufferView] = ()) -> Expr:
        """The index of the element of a line with a rank."""
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
    """Sort every line in descending order, stably. Each element counts its predecessors in its run;
    then runs are merged, in the numbers given by `runs`: each element searches for its position in
    the other runs. Key and position are combined to one number if they fit."""
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
    if static(length) is None:  # if a single run remains, nothing more is merged
        parts = zip(*[tensors for _, tensors in stages], strict=True)
        made = [_first_whole(shape, stages, list(each), name) for each in parts]
    return Ordered(tuple(made))


def _first_whole(
    shape: Sequence[Expr], stages: Sequence[tuple[int, list[Tensor]]], of: list[Tensor], name: str
) -> Tensor:
    """Lines of the first stage with a single run."""

    def element(*at: Expr) -> Expr:
        found = of[-1][at]
        for (width, _), tensor in reversed(list(zip(stages[:-1], of[:-1], strict=True))):
            found = te.if_then_else(shape[-1] <= width, tensor[at], found)
        return found

    return te.compute(tuple(shape), element, name=f"{name}_whole", attrs=STORED)


def _merged(
    lines: Sequence[Expr], length: Expr, given: list[Tensor], width: int, ways: int, name: str
) -> list[Tensor]:
    """Merge `ways` sorted runs of `width` elements: the position of each element is the number of
    its predecessors in its own run and the others. Several runs are searched in an interleaved way,
    to overlap the latency of loads."""
    shape = (*lines, length)
    # Groups of runs include an element's own; if all runs are one group, it is skipped.
    is_one_group = ways <= SEARCHES or ways % SEARCHES > 0
    abreast = ways - 1 if is_one_group else SEARCHES
    bits, known = (width - 1).bit_length(), static(length)
    is_whole = known is not None and known % (width * ways) == 0 and width == 1 << bits
    of = I32 if known is not None and known + width * ways <= I32.max else I64

    def body(ins: list[BufferView], outs: list[BufferView], *at: Expr) -> Stmt:
        *merged, state = outs
        line, i = at[:-1], at[-1]
        first = i - sym.floormod(i, width * ways)
        own = sym.floordiv(i - first, width)
        place = (*at, sym.const(abreast))  # in the state, after the counts of predecessors per run

        def is_before(other: Expr) -> Expr:
            theirs, mine = ins[0][(*line, other)], ins[0][at]
            if len(ins) == 1:
                return theirs > mine
            earlier = ins[1][(*line, other)] < ins[1][at]
            return te.any(theirs > mine, te.all(te.eq(theirs, mine), earlier))

        def group(number: Expr) -> Stmt:
            """The number of predecessors in some runs."""

            def each(change: Callable[[Expr], Stmt]) -> Stmt:
                return loops([sym.const(abreast)], change, "r", UNROLL)

            def further(step: Expr) -> Stmt:
                """Advance by a step, if all these elements come before."""

                def taken(at_run: Expr) -> Stmt:
                    run = number * abreast + at_run
                    if is_one_group:
                        run = run + te.select(run < own, ZERO, ONE)
                    found, start = (*at, at_run), first + run * width
                    there = te.cast(start, of) + state[found] + te.cast(step, of)
                    last = there if is_whole else te.min(there, te.cast(length, of))
                    before = te.cast(is_before(te.cast(last, INDEX) - 1), of)
                    if not is_whole:
                        # Steps of half, a quarter ... and one more stay in a run of 2**bits.
                        end = length if width == 1 << bits else sym.minimum(start + width, length)
                        before = te.bitwise_and(before, te.cast(there <= te.cast(end, of), of))
                    return store(state, found, state[found] + before * te.cast(step, of))

                return each(taken)

            def add(run: Expr) -> Stmt:
                return store(state, place, state[place] + state[(*at, run)])

            return seq(
                each(lambda run: store(state, (*at, run), te.const(0, of))),
                binary_search(bits, further),
                further(ONE),
                each(add),
            )

        there = sym.minimum(first + load(state, *place), length - 1)
        before = i - first - own * width if is_one_group else ZERO
        return seq(
            store(state, place, te.cast(before, of)),
            group(ZERO) if is_one_group else loops([sym.const(ways // abreast)], group, "g"),
            *(store(out, (*line, there), one[at]) for out, one in zip(merged, ins, strict=True)),
        )

    types = [I64] * len(given)
    shapes = [shape] * len(given) + [(*shape, sym.const(abreast + 1))]
    first, *rest = shape
    over = shape if known is not None else (_if_longer(first, length, width), *rest)
    return list(procedure(shapes, given, body, name, [*types, of], over)[: len(given)])


def _if_longer(extent: Expr, length: Expr, width: int) -> Expr:
    """An extent if lines are longer than a run; else 0."""
    return sym.minimum(extent, sym.mul(sym.maximum(length - width, 0), I32.max))


# ------------------------------------------------------------------------------------ cumulative


def _cumulative(*, greatest: bool) -> Lowering:
    """The running best of each line and its position; a later equal one replaces it."""

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
