"""Parallel scatter: updates are sorted by destination, so that each has a single writer.

Updates of one destination keep their order: sums are deterministic, and as in sequential execution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX, DType
from tilewright.lower.base import Use, static, wide_type
from tilewright.lower.merge_sort import binary_search, load
from tilewright.lower.sorting import in_order
from tilewright.lower.statements import procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, Stmt

Combine = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class Lines:
    """Updates in lines, each with a destination in its line of results."""

    dims: tuple[Expr, ...]
    many: Expr  # updates per line
    results: Expr  # destinations, plus one for updates that are dropped
    place: Callable[[Sequence[Expr], Expr], Expr]  # the destination of a line's update
    inner: tuple[Expr, ...]  # extents of the elements per destination
    result: Callable[[Sequence[Expr], Expr, Sequence[Expr]], tuple[Expr, ...]]
    update: Callable[[Sequence[Expr], Expr, Sequence[Expr]], tuple[Expr, ...]]  # by its number

    @property
    def places_type(self) -> DType:
        count = static(self.results)
        return I32 if count is not None and count < 1 << (I32.bits - 1) else I64


def by_order(use: Use, x: Tensor, updates: Tensor, lines: Lines, combine: Combine | None) -> Tensor:
    """x with all updates: the last one of each destination, or all combined. The first update of
    each destination does the work."""
    key_type, of = lines.places_type, x.dtype if combine is None else wide_type(x.dtype)

    def key_of(*at: Expr) -> Expr:
        return te.bitwise_not(te.cast(lines.place(at[:-1], at[-1]), key_type))

    ordered = in_order(lines.dims, lines.many, key_of, use["runs"], f"{use.name}_order")
    known = static(lines.many)
    bits = I32.bits if known is None else known.bit_length()

    def copy(ins: list[BufferView], outs: list[BufferView], *at: Expr) -> Stmt:
        return store(outs[0], at, ins[0][at])

    def change(ins: list[BufferView], outs: list[BufferView], *at: Expr) -> Stmt:
        (source, added, *views), (out, total, state) = ins, outs
        line, first, inner = at[: len(lines.dims)], at[len(lines.dims)], at[len(lines.dims) + 1 :]
        key, stop = ordered.key(*line, first, views=views), (*at, ZERO)

        def further(step: Expr) -> Stmt:
            """Loop while destinations are equal."""
            there = load(state, *stop) + step
            same = te.eq(ordered.key(*line, there - 1, views=views), key)
            taken = store(state, stop, state[stop] + te.cast(step, I64))
            return when([there <= lines.many], when([same], taken))

        def new(rank: Expr) -> Expr:
            found = te.cast(ordered.place(*line, rank, views=views), INDEX)
            return te.cast(added[lines.update(line, _below(found, lines.many), inner)], of)

        place = te.cast(te.bitwise_not(key), INDEX)
        there = lines.result(line, _below(place, lines.results), inner)
        rank, end = sym.var("j"), load(state, *stop)
        if combine is None:
            joined: Stmt = store(total, at, new(end - 1))
        else:
            step = store(total, at, combine(total[at], new(rank)))
            begun = store(total, at, te.cast(source[there], of))
            joined = seq(begun, For(rank, first, end, step))
        before = ordered.key(*line, sym.maximum(first - 1, 0), views=views)
        after = ordered.key(*line, sym.minimum(first + 1, lines.many - 1), views=views)
        # Few destinations have several updates, whose end must be searched.
        is_several = [first + 1 < lines.many, te.eq(after, key)]
        taken = seq(
            store(state, stop, te.cast(first + 1, I64)),
            when(is_several, binary_search(bits, further)),
            joined,
            store(out, there, te.cast(total[at], use.dtype)),
        )
        is_first = te.any(te.eq(first, 0), te.ne(before, key))
        return when([is_first, place < lines.results], taken)

    over = (*lines.dims, lines.many, *lines.inner)
    shapes, types = [x.shape, over, (*over, ONE)], [use.dtype, of, I64]
    given = [x, updates, *ordered.tensors]
    then = [(over, change)]
    return procedure(shapes, given, copy, use.name, types, x.shape, then)[0]


def _below(index: Expr, dim: Expr) -> Expr:
    """Clamp an index from memory to a dimension."""
    return sym.maximum(sym.minimum(index, sym.sub(dim, 1)), 0)
