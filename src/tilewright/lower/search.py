"""Search operators: nonzero elements, distinct elements, positions in sorted rows.

Output sizes are data-dependent: they are given, having been computed by `count_nonzero` and
`count_unique`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX, U8
from tilewright.lower.base import (
    STORED,
    Lowering,
    Use,
    front_axis,
    product,
    read_at,
    split_index,
    static,
    wide,
)
from tilewright.lower.merge_sort import Compare, binary_search, load, merge_sort
from tilewright.lower.reduction import Running
from tilewright.lower.sorting import Ordered, in_order, sort_key
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import If, Stmt

_ZERO, _ONE, _NONE = te.const(0, I64), te.const(1, I64), te.const(-1, I64)


def inside(index: Expr, size: Expr) -> Expr:
    """Clamp an index from memory to a dimension."""
    return sym.maximum(sym.minimum(te.cast(index, INDEX), sym.sub(size, 1)), 0)


# ------------------------------------------------------------------------------------ nonzero


def _is_set(value: Expr) -> Expr:
    return value if value.dtype.is_bool else te.ne(wide(value), te.const(0, wide(value).dtype))


def count_nonzero(x: Tensor, name: str) -> Expr:
    """The number of nonzero elements."""

    def element() -> Expr:
        axes = [te.reduce_axis((0, dim), name=f"k{at}") for at, dim in enumerate(x.shape)]
        one = te.cast(_is_set(x[tuple(axes)]), I64)
        return te.sum(one, axis=axes) if axes else one

    return te.compute((), element, name=f"{name}_count")[()]


def _counts(flag: Callable[[Expr], Expr], length: Expr, piece: int, name: str) -> Tensor:
    """The number of set flags up to and including each position."""
    running = Running(lambda a, b: a + b, 0, I64, (), piece)
    _, up_to = running.prefixes(lambda t: te.cast(flag(t), I64), length, name)
    return te.compute((length,), lambda i: up_to(i), name=f"{name}_counts", attrs=STORED)


def positions(counts: Tensor, shape: Sequence[Expr], name: str) -> Tensor:
    """The positions of set flags, in order, followed by the number of positions."""
    length = counts.shape[0]
    known = static(length)
    bits = I32.bits if known is None else known.bit_length()

    def body(ins: list[BufferView], outs: list[BufferView], at: Expr) -> Stmt:
        (counted,), (out, found) = ins, outs

        def further(step: Expr) -> Stmt:
            there = load(found, at) + step
            taken = store(found, (at,), found[at] + te.cast(step, I64))
            before = when([counted[there - 1] <= te.cast(at, I64)], taken)
            return when([there <= length], before)

        looked = binary_search(bits, further)
        return seq(store(found, (at,), _ZERO), looked, store(out, (at,), found[at]))

    return procedure([shape, shape], [counts], body, name, [I64, I64], shape)[0]


def _nonzero(use: Use, x: Tensor) -> Tensor:
    count = use.shape[1]
    if use["piece"] and x.ndim:
        total = product(x.shape)
        counts = _counts(
            lambda t: _is_set(read_at(x, split_index(t, x.shape), *range(x.ndim))),
            total,
            use["piece"],
            use.name,
        )
        places = positions(counts, (count,), f"{use.name}_places")

        def coordinate(axis: Expr, column: Expr) -> Expr:
            index = split_index(inside(places[column], total), x.shape)
            found = te.cast(index[-1], I64)
            for at, each in reversed(list(enumerate(index[:-1]))):
                found = te.select(te.eq(axis, at), te.cast(each, I64), found)
            return found

        return te.compute(use.shape, coordinate, name=use.name)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (out, cursor) = ins, outs
        column = cursor[ZERO]

        def element(*index: Expr) -> Stmt:
            place = inside(column, count)
            put = [
                store(out, (sym.const(at), place), te.cast(i, I64)) for at, i in enumerate(index)
            ]
            taken = seq(*put, store(cursor, (ZERO,), column + _ONE))
            return when([_is_set(source[index]), column < te.cast(count, I64)], taken)

        return seq(store(cursor, (ZERO,), _ZERO), loops(x.shape, element))

    if not x.ndim:  # a scalar has no coordinates
        return te.compute(use.shape, lambda i, j: _ZERO, name=use.name)
    return procedure([use.shape, (ONE,)], [x], body, use.name, [I64, I64])[0]


# ------------------------------------------------------------------------------------ unique


class _Slices:
    """The elements of x, or its slices along an axis, as items to compare."""

    def __init__(self, x: Tensor, axis: int | None) -> None:
        self.x, self.axis = x, None if axis is None else front_axis(axis, x.ndim)
        self.rest: tuple[Expr, ...] = ()
        self.count = product(x.shape)
        if self.axis is not None:
            self.rest = (*x.shape[: self.axis], *x.shape[self.axis + 1 :])
            self.count = x.shape[self.axis]

    def at(self, which: Expr, rest: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index in x of an element of the slice `which`."""
        if self.axis is None:
            return split_index(which, self.x.shape)
        return (*rest[: self.axis], which, *rest[self.axis :])

    def placed(self, which: Expr, rest: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index in the result."""
        return (which,) if self.axis is None else self.at(which, rest)

    def compare(self, source: BufferView, verdict: BufferView) -> Compare:
        """Store -1, 0 or 1: lexicographic comparison of slices; NaN is the greatest, and equal to
        itself."""

        def run(a: Expr, b: Expr) -> Stmt:
            def element(*rest: Expr) -> Stmt:
                one, two = source[self.at(a, rest)], source[self.at(b, rest)]
                found = te.select(_below(one, two), _NONE, te.select(_below(two, one), _ONE, _ZERO))
                return when([te.eq(verdict[ZERO], _ZERO)], store(verdict, (ZERO,), found))

            return seq(store(verdict, (ZERO,), _ZERO), loops(self.rest, element, "s"))

        return run


def _below(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_bool:
        a, b = te.cast(a, U8), te.cast(b, U8)
    a, b = wide(a), wide(b)
    if not a.dtype.is_float:
        return a < b
    return te.any(a < b, te.all(te.isnan(b), te.logical_not(te.isnan(a))))


def _groups(use: Use, x: Tensor, slices: _Slices) -> tuple[Tensor, Tensor]:
    """For each slice, the number of distinct lesser ones; and the total number of distinct ones."""
    count = slices.count

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (group, total, order, spare, cursor, verdict) = ins, outs
        compare = slices.compare(source, verdict)

        def number(rank: Expr) -> Stmt:
            before, here = sym.maximum(sym.sub(rank, 1), 0), load(order, rank)
            new = te.any(te.eq(rank, 0), te.ne(verdict[ZERO], _ZERO))
            return seq(
                compare(load(order, before), here),
                when([new], store(total, (ZERO,), total[ZERO] + _ONE)),
                store(group, (here,), total[ZERO] - _ONE),
            )

        return seq(
            merge_sort(count, order, spare, cursor, compare, verdict),
            store(total, (ZERO,), _ZERO),
            loops([count], number, "r"),
        )

    shapes = [(count,), (ONE,), (count,), (count,), (sym.const(2),), (ONE,)]
    made = procedure(shapes, [x], body, f"{use.name}_groups", [I64] * 6)
    return made[0], made[1]


@dataclass(frozen=True)
class _Sorted:
    """Sorted elements, and the number of distinct ones up to each."""

    ordered: Ordered
    counts: Tensor


def _sorted(use: Use, x: Tensor) -> _Sorted:
    """All elements, in parallel."""
    total = product(x.shape)

    def key_of(at: Expr) -> Expr:
        value = read_at(x, split_index(at, x.shape), *range(x.ndim))
        return te.bitwise_not(sort_key(te.cast(value, U8) if value.dtype.is_bool else value))

    ordered = in_order((), total, key_of, use["runs"], f"{use.name}_order")

    def is_new(rank: Expr) -> Expr:
        before = ordered.key(sym.maximum(rank - 1, 0))
        return te.any(te.eq(rank, 0), te.ne(ordered.key(rank), before))

    return _Sorted(ordered, _counts(is_new, total, use["runs"][0], f"{use.name}_groups"))


def _unique_side_by_side(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    total, found, name = product(x.shape), use.shape[0], use.name
    made = _sorted(use, x)
    ordered, counts = made.ordered, made.counts
    starts = positions(counts, (found + 1,), f"{name}_starts")

    def element(place: Expr) -> Expr:
        index = split_index(inside(place, total), x.shape)
        if x.ndim > 1:  # for dynamic sizes, bounds cannot be proved
            index = tuple([inside(at, dim) for at, dim in zip(index, x.shape, strict=True)])
        return read_at(x, index, *range(x.ndim))

    def first_of(group: Expr) -> Expr:
        return ordered.place(inside(starts[group], total))

    def labels(ins: list[BufferView], outs: list[BufferView], rank: Expr) -> Stmt:
        counted, *views = ins
        place = inside(ordered.place(rank, views=views), total)
        return store(outs[0], (place,), counted[rank] - _ONE)

    given = [counts, *ordered.tensors]
    (which,) = procedure([(total,)], given, labels, f"{name}_which", [I64], (total,))
    if use["sorted"]:
        which_of = which

        def groups(g: Expr) -> Expr:
            return g

        firsts = te.compute((found,), first_of, name=f"{name}_first")
    else:
        # By first occurrence: an element counts if it begins its group.
        begins = te.compute((found,), first_of, name=f"{name}_begins", attrs=STORED)

        def begin_of(place: Expr) -> Expr:
            group = inside(read_at(which, (place,), 0), found)
            return read_at(begins, (group,), 0)

        def is_first(place: Expr) -> Expr:
            return te.eq(begin_of(place), te.cast(place, I64))

        seen = _counts(is_first, total, use["runs"][0], f"{name}_seen")
        firsts = positions(seen, (found,), f"{name}_first")
        which_of = te.compute(
            (total,),
            lambda i: read_at(seen, (inside(begin_of(i), total),), 0) - _ONE,
            name=f"{name}_label",
        )

        def groups(g: Expr) -> Expr:
            return inside(read_at(which, (inside(firsts[g], total),), 0), found)

    values = te.compute((found,), lambda g: element(firsts[g]), name=name)
    often = te.compute(
        (found,), lambda g: starts[groups(g) + 1] - starts[groups(g)], name=f"{name}_often"
    )
    return (values, firsts, which_of, often)[: len(use.outputs)]


def count_unique(use: Use, x: Tensor) -> Expr:
    """The number of distinct elements, or slices along the axis."""
    if use["runs"]:
        counts = _sorted(use, x).counts
        most = read_at(counts, (sym.maximum(counts.shape[0] - 1, 0),), 0)
        return te.compute((), lambda: most, name=f"{use.name}_distinct")[()]
    _, total = _groups(use, x, _Slices(x, use["axis"]))
    return total[ZERO]


def _unique(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """By first occurrence, groups are numbered as they are encountered."""
    if use["runs"]:
        return _unique_side_by_side(use, x)
    slices = _Slices(x, use["axis"])
    group, _ = _groups(use, x, slices)
    count, found = slices.count, use.shape[slices.axis or 0]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source, groups), (out, first, which, often, label, cursor) = ins, outs

        def take(i: Expr) -> Stmt:
            g = load(groups, i)
            if not use["sorted"]:
                g = load(label, g)
            g = inside(g, found)

            def copy(*rest: Expr) -> Stmt:
                return store(out, slices.placed(g, rest), source[slices.at(i, rest)])

            new = seq(store(first, (g,), te.cast(i, I64)), loops(slices.rest, copy, "s"))
            return seq(
                store(which, (i,), te.cast(g, I64)),
                when([te.eq(often[g], _ZERO)], new),
                store(often, (g,), often[g] + _ONE),
            )

        def name(i: Expr) -> Stmt:
            g = load(groups, i)
            named = seq(
                store(label, (g,), cursor[ZERO]), store(cursor, (ZERO,), cursor[ZERO] + _ONE)
            )
            return when([label[g] < _ZERO], named)

        return seq(
            store(cursor, (ZERO,), _ZERO),
            loops([count], lambda i: store(label, (i,), _NONE), "l"),
            loops([count], name, "n"),
            loops([found], lambda g: store(often, (g,), _ZERO), "o"),
            when([sym.lt(0, found)], loops([count], take, "t")),
        )

    shapes = [use.shape, (found,), (count,), (found,), (count,), (ONE,)]
    types = [x.dtype, I64, I64, I64, I64, I64]
    return procedure(shapes, [x, group], body, use.name, types)[: len(use.outputs)]


# ------------------------------------------------------------------------------------ lookup


def _lookup(use: Use, x: Tensor, keys: Tensor, values: Tensor, default: Tensor) -> Tensor:
    """The last of equal keys counts."""
    count = keys.shape[0]
    other = default[(0,) * default.ndim]
    if static(count) == 0:
        return te.compute(use.shape, lambda *_: other, name=use.name)

    def place(*index: Expr) -> Expr:
        k = te.reduce_axis((0, count), name="k")
        have, want = wide(keys[k]), wide(x[index])
        same = te.eq(have, want)
        if have.dtype.is_float:
            same = te.any(same, te.all(te.isnan(have), te.isnan(want)))
        return te.max(te.select(same, te.cast(k, I64), _NONE), axis=k)

    places = te.compute(use.shape, place, name=f"{use.name}_places")

    def element(*index: Expr) -> Expr:
        found = read_at(values, (inside(places[index], values.shape[0]),), 0)
        return te.select(places[index] >= _ZERO, found, other)

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ sorted rows


def _search_sorted(use: Use, rows: Tensor, values: Tensor) -> Tensor:
    """Binary search for the position of each value."""
    length = rows.shape[-1]
    known = static(length)
    halvings = sym.const(I64.bits if known is None else known.bit_length())
    low, high = sym.const(0), sym.const(1)  # the components of the state

    def body(ins: list[BufferView], outs: list[BufferView], *index: Expr) -> Stmt:
        (sorted_, given), (out, state) = ins, outs
        row, value = index[: rows.ndim - 1], given[index]

        def halve(_: Expr) -> Stmt:
            middle = sym.floordiv(load(state, *index, low) + load(state, *index, high), 2)
            here = sorted_[(*row, middle)]
            before = te.logical_not(_below(value, here)) if use["right"] else _below(here, value)
            step = If(
                before,
                store(state, (*index, low), te.cast(middle + 1, I64)),
                store(state, (*index, high), te.cast(middle, I64)),
            )
            return when([state[(*index, low)] < state[(*index, high)]], step)

        return seq(
            store(state, (*index, low), te.const(0, I64)),
            store(state, (*index, high), te.cast(length, I64)),
            loops([halvings], halve, "h"),
            store(out, index, state[(*index, low)]),
        )

    shapes = [values.shape, (*values.shape, sym.const(2))]
    return procedure(shapes, [rows, values], body, use.name, [I64, I64], values.shape)[0]


LOWERINGS: dict[str, Lowering] = {
    "nonzero": _nonzero,
    "unique": _unique,
    "lookup": _lookup,
    "search_sorted": _search_sorted,
}
