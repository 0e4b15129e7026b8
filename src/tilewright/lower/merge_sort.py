"""Stable bottom-up merge sort as loops and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.lower.statements import loops, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView
from tilewright.tensor.ir import For, If, Stmt

# Stores a negative, zero or positive verdict on the elements at two positions.
Compare = Callable[[Expr, Expr], Stmt]

ROUNDS = 40  # supports 2**40 elements


def load(view: BufferView, *index: Expr) -> Expr:
    """An integer from memory as an index."""
    return te.cast(view[index], INDEX)


def binary_search(bits: int, further: Callable[[Expr], Stmt]) -> Stmt:
    """Run further(step) for steps from the largest power of two below 2**bits down to 1."""
    most = te.const((1 << bits) >> 1, I64)

    def one(level: Expr) -> Stmt:
        return further(te.cast(te.shift_right(most, te.cast(level, I64)), INDEX))

    return loops([sym.const(bits)], one, "h") if bits else seq()


def merge_sort(
    count: Expr,
    order: BufferView,
    spare: BufferView,
    cursor: BufferView,
    compare: Compare,
    verdict: BufferView,
    line: Sequence[Expr] = (),
    fill: Stmt | None = None,
) -> Stmt:
    """Sort the numbers below `count` to `order`, stably.

    `fill` stores the initial numbers, `count` of them, to `order`.

    `spare` has room for as many; `cursor` for two: the positions of the merge in both runs.
    `compare` stores its verdict in the first element of `verdict`. In memory shared by many lines,
    `at` selects this line's.
    """

    def merge(start: Expr, width: Expr) -> Stmt:
        middle = sym.minimum(start + width, count)
        end = sym.minimum(middle + width, count)
        left, right = load(cursor, *line, ZERO), load(cursor, *line, ONE)
        k = sym.var("k")

        def take(side: int, at: Expr) -> Stmt:
            step = store(cursor, (*line, sym.const(side)), te.cast(at + 1, I64))
            return seq(store(spare, (*line, k), order[(*line, at)]), step)

        # If both runs have elements left, take from the right one only if it is strictly less.
        both = seq(
            compare(load(order, *line, left), load(order, *line, right)),
            If(verdict[(*line, ZERO)] > te.const(0, I64), take(1, right), take(0, left)),
        )
        rest = If(left < middle, take(0, left), take(1, right))
        begin = seq(
            store(cursor, (*line, ZERO), te.cast(start, I64)),
            store(cursor, (*line, ONE), te.cast(middle, I64)),
        )
        step = If(te.all(left < middle, right < end), both, rest)
        return seq(begin, For(k, start, end, step))

    def one_round(level: Expr) -> Stmt:
        width = te.cast(te.shift_left(te.const(1, I64), te.cast(level, I64)), INDEX)
        pairs = sym.ceildiv(count, sym.mul(width, 2))
        merges = loops([pairs], lambda p: merge(p * width * 2, width), "p")
        back = loops([count], lambda i: store(order, (*line, i), spare[(*line, i)]), "b")
        return when([width < count], seq(merges, back))

    if fill is None:
        fill = loops([count], lambda i: store(order, (*line, i), te.cast(i, I64)), "f")
    return seq(fill, loops([sym.const(ROUNDS)], one_round, "level"))
