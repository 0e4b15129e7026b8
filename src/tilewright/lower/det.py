"""Determinants, by Gaussian elimination with partial pivoting."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64
from tilewright.lower.base import Lowering, Use, wide_type
from tilewright.lower.merge_sort import load
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, Stmt


def _det(use: Use, x: Tensor) -> Tensor:
    side, of = x.shape[-1], wide_type(x.dtype)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (out, rows, best, held) = ins, outs
        pivot = load(best, ZERO)

        def one(*stack: Expr) -> Stmt:
            def choose(column: Expr) -> Stmt:
                row = sym.var("row")
                better = te.abs(rows[row, column]) > te.abs(rows[pivot, column])
                found = store(best, (ZERO,), te.cast(row, I64))
                first = store(best, (ZERO,), te.cast(column, I64))
                return seq(first, For(row, column + 1, side, when([better], found)))

            def swap(column: Expr) -> Stmt:
                def exchange(at: Expr) -> Stmt:
                    return seq(
                        store(held, (ZERO,), rows[column, at]),
                        store(rows, (column, at), rows[pivot, at]),
                        store(rows, (pivot, at), held[ZERO]),
                    )

                turned = store(out, stack, te.const(0, of) - out[stack])
                return when([te.ne(pivot, column)], seq(loops([side], exchange, "s"), turned))

            def eliminate(column: Expr) -> Stmt:
                row, at = sym.var("row"), sym.var("at")
                less = rows[row, at] - held[ZERO] * rows[column, at]
                factor = store(held, (ZERO,), rows[row, column] / rows[column, column])
                line = seq(factor, For(at, column + 1, side, store(rows, (row, at), less)))
                whole = For(row, column + 1, side, line)
                return when([te.ne(rows[column, column], te.const(0, of))], whole)

            def step(column: Expr) -> Stmt:
                grown = store(out, stack, out[stack] * rows[column, column])
                return seq(choose(column), swap(column), grown, eliminate(column))

            def copy(i: Expr, j: Expr) -> Stmt:
                return store(rows, (i, j), te.cast(source[(*stack, i, j)], of))

            return seq(
                loops([side, side], copy, "m"),
                store(out, stack, te.const(1, of)),
                loops([side], step, "column"),
            )

        return loops(use.shape, one)

    shapes = [use.shape, (side, side), (ONE,), (ONE,)]
    made = procedure(shapes, [x], body, f"{use.name}_wide", [of, of, I64, of])[0]
    return te.compute(use.shape, lambda *index: te.cast(made[index], use.dtype), name=use.name)


LOWERINGS: dict[str, Lowering] = {"det": _det}
