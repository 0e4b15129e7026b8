"""Selection: the best k elements of each line.

A few are found by insertion: an element that is no better than the last of the k costs one
comparison. Many, or as many as only the run tells, are the first of all in order.
"""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64
from tilewright.lower.base import Lowering, Use, front_axis, placed, static, wide
from tilewright.lower.merge import load, merge_sort
from tilewright.lower.statements import Body, loops, procedure, seq, store, when
from tilewright.sym import ONE, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import Stmt

FEW = 32


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
    axis = front_axis(use["axis"], x.ndim)
    count = static(use.shape[axis])
    shape = placed(x.shape, axis, use.shape[axis])
    shapes, types = [shape, shape], [x.dtype, I64]
    if count is not None and count <= FEW:
        body = _by_insertion(use, x, axis)
        return procedure(shapes, [x], body, use.name, types)
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
    count = use.shape[axis]
    rest = [dim for at, dim in enumerate(x.shape) if at != axis]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (values, places) = ins, outs

        def line(*index: Expr) -> Stmt:
            def at(position: Expr) -> tuple[Expr, ...]:
                return (*index[:axis], position, *index[axis:])

            def clear(p: Expr) -> Stmt:
                none = te.const(-1, I64)
                return seq(store(places, at(p), none), store(values, at(p), te.const(0, x.dtype)))

            def belongs(i: Expr, p: Expr) -> Expr:
                free = places[at(p)] < te.const(0, I64)
                return te.any(free, _better(use, source[at(i)], values[at(p)]))

            def insert(i: Expr, q: Expr) -> Stmt:
                """From the last place upwards: what is worse moves down by one."""
                p = sym.sub(sym.sub(count, 1), q)
                below = sym.add(p, 1)
                down = seq(
                    store(places, at(below), places[at(p)]), store(values, at(below), values[at(p)])
                )
                put = seq(
                    store(places, at(p), te.cast(i, I64)), store(values, at(p), source[at(i)])
                )
                return when([belongs(i, p)], seq(when([sym.lt(below, count)], down), put))

            def element(i: Expr) -> Stmt:
                last = sym.sub(count, 1)
                return when(
                    [sym.lt(0, count), belongs(i, last)],
                    loops([count], lambda q: insert(i, q), "q"),
                )

            return seq(loops([count], clear, "p"), loops([x.shape[axis]], element, "e"))

        return loops(rest, line)

    return body


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


LOWERINGS: dict[str, Lowering] = {"top_k": _top_k}
