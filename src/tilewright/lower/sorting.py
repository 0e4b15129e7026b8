"""Selection: the best k elements of each line, by insertion.

An element that is no better than the last of the k costs one comparison.
"""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64
from tilewright.lower.base import Lowering, Use, front_axis, placed, wide
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import Stmt


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
    axis, count = front_axis(use["axis"], x.ndim), use.shape[front_axis(use["axis"], x.ndim)]
    rest = [dim for at, dim in enumerate(x.shape) if at != axis]

    def better(new: Expr, old: Expr) -> Expr:
        """Strictly, so that of equals the first stays before the others. NaN is the greatest."""
        a, b = wide(new), wide(old)
        if not a.dtype.is_float:
            return a > b if use["largest"] else a < b
        if use["largest"]:
            return te.any(a > b, te.all(te.isnan(a), te.logical_not(te.isnan(b))))
        return te.any(a < b, te.all(te.isnan(b), te.logical_not(te.isnan(a))))

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
                return te.any(free, better(source[at(i)], values[at(p)]))

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

    shape = placed(x.shape, axis, count)
    return procedure([shape, shape], [x], body, use.name, [x.dtype, I64])


LOWERINGS: dict[str, Lowering] = {"top_k": _top_k}
