"""Decision trees: every row walks down every tree."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.graph.ops.trees import EQ, GT, GTE, LEQ, LT, NEQ
from tilewright.lower.base import Lowering, Use
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import Stmt


def _tree_leaves(use: Use, x: Tensor, *columns: Tensor) -> Tensor:
    """The output holds the node a row has come to; a walk is no longer than there are nodes."""
    nodes, features = columns[0].shape[0], x.shape[1]
    zero, minus = te.const(0, I64), te.const(-1, I64)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        rows, feature, splits, modes, yes, no, missing, roots = ins
        (out,) = outs

        def step(row: Expr, tree: Expr) -> Stmt:
            here = out[row, tree]
            node = _kept(here, nodes)
            value, split = rows[row, _kept(feature[node], features)], splits[node]
            mode = te.cast(modes[node], I64)
            hit = te.const(False, "bool")
            for which, test in (
                (LEQ, value <= split),
                (LT, value < split),
                (GTE, value >= split),
                (GT, value > split),
                (EQ, te.eq(value, split)),
                (NEQ, te.ne(value, split)),
            ):
                hit = te.select(te.eq(mode, te.const(which, I64)), test, hit)
            if value.dtype.is_float:
                unequal = te.eq(mode, te.const(NEQ, I64))
                hit = te.select(te.isnan(value), te.any(missing[node], unequal), hit)
            child = te.select(hit, te.cast(yes[node], I64), te.cast(no[node], I64))
            return when([here >= zero], store(out, (row, tree), child))

        def walk(row: Expr, tree: Expr) -> Stmt:
            start = store(out, (row, tree), te.cast(roots[tree], I64))
            end = store(out, (row, tree), minus - out[row, tree])
            down = loops([nodes], lambda _: step(row, tree), "step")
            return seq(start, when([sym.lt(0, nodes), sym.lt(0, features)], down), end)

        return loops(use.shape, walk)

    (leaves,) = procedure([use.shape], [x, *columns], body, use.name, [I64])
    return leaves


def _kept(index: Expr, size: Expr) -> Expr:
    return sym.maximum(sym.minimum(te.cast(index, INDEX), sym.sub(size, 1)), 0)


LOWERINGS: dict[str, Lowering] = {"tree_leaves": _tree_leaves}
