"""Decision trees: every row traverses every tree."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.graph.ops.trees import EQ, GT, GTE, LEQ, LT, NEQ
from tilewright.lower.base import Lowering, Use
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import Const, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import Stmt

GROUP = 16  # interleaved traversals, to overlap the latency of loads; with many rows, of one tree
STEPS = 4  # steps of all traversals of a group between checks whether any continues


def _tree_leaves(use: Use, x: Tensor, *columns: Tensor) -> Tensor:
    """The output holds the current node of a row; a group continues while any row does."""
    nodes, features = columns[0].shape[0], x.shape[1]
    depth = nodes if use["depth"] is None else sym.const(use["depth"])
    rounds = sym.ceildiv(depth, STEPS)
    at_once = (
        sym.ceildiv(depth, rounds) if isinstance(depth, Const) and depth.value else sym.const(STEPS)
    )
    is_forest = use["leaves"] is not None
    rows, trees = use.shape
    zero, minus = te.const(0, I64), te.const(-1, I64)

    def walks(
        ins: list[BufferView],
        outs: list[BufferView],
        count: Expr,
        place: Callable[[Expr], tuple[Expr, Expr]],
    ) -> Stmt:
        """`count` interleaved traversals, each of a row and a tree."""
        values, feature, splits, modes, children, missing, roots = ins
        (out,) = outs

        def step(row: Expr, tree: Expr) -> Stmt:
            here = out[row, tree]
            first = te.cast(te.select(here >= zero, here, zero), INDEX)  # at a leaf, stay there
            node = first if is_forest else _kept(here, nodes)
            value = values[row, _kept(feature[node], features)]
            hit = _hit(use["modes"], te.cast(modes[node], I64), value, splits[node])
            if use["is_missing"] and value.dtype.is_float:
                hit = te.any(hit, te.all(te.isnan(value), missing[node]))
            child = te.cast(children[node, te.cast(hit, INDEX)], I64)  # avoids a branch
            return store(out, (row, tree), te.select(here >= zero, child, here))

        def each(made: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return loops([count], lambda at: made(*place(at)), "walk")

        def some(_: Expr) -> Stmt:
            ends = [place(sym.minimum(at, sym.sub(count, 1))) for at in range(GROUP)]
            goes_on = te.any(*(out[row, tree] >= zero for row, tree in ends))
            return when([goes_on], loops([at_once], lambda _: each(step), "step"))

        start = each(lambda row, tree: store(out, (row, tree), te.cast(roots[tree], I64)))
        down = loops([rounds], some, "steps")
        end = each(lambda row, tree: store(out, (row, tree), minus - out[row, tree]))
        return seq(start, when([sym.lt(0, nodes), sym.lt(0, features)], down), end)

    def of_trees(ins: list[BufferView], outs: list[BufferView], row: Expr, group: Expr) -> Stmt:
        first = sym.mul(group, GROUP)
        count = sym.minimum(GROUP, sym.sub(trees, first))
        made = walks(ins, outs, count, lambda at: (row, sym.add(first, at)))
        return when([sym.lt(rows, GROUP)], made)

    def of_rows(ins: list[BufferView], outs: list[BufferView], group: Expr, tree: Expr) -> Stmt:
        first = sym.mul(group, GROUP)
        count = sym.minimum(GROUP, sym.sub(rows, first))
        made = walks(ins, outs, count, lambda at: (sym.add(first, at), tree))
        return when([sym.le(GROUP, rows)], made)

    few = (sym.minimum(rows, GROUP - 1), sym.ceildiv(trees, GROUP))
    many = (sym.ceildiv(rows, GROUP), trees)
    given = [x, *columns]
    if isinstance(rows, Const):
        over, body = (few, of_trees) if int(rows.value) < GROUP else (many, of_rows)
        return procedure([use.shape], given, body, use.name, [I64], over)[0]
    return procedure([use.shape], given, of_trees, use.name, [I64], few, [(many, of_rows)])[0]


def _hit(which: tuple[int, ...], mode: Expr, value: Expr, split: Expr) -> Expr:
    """Whether a row passes a node's test."""
    tests = {
        LEQ: value <= split,
        LT: value < split,
        GTE: value >= split,
        GT: value > split,
        EQ: te.eq(value, split),
        NEQ: te.ne(value, split),  # also for NaN
    }
    hit = tests[which[0]] if which else te.const(False, "bool")
    for each in which[1:]:
        hit = te.select(te.eq(mode, te.const(each, I64)), tests[each], hit)
    return hit


def _kept(index: Expr, size: Expr) -> Expr:
    return sym.maximum(sym.minimum(te.cast(index, INDEX), sym.sub(size, 1)), 0)


LOWERINGS: dict[str, Lowering] = {"tree_leaves": _tree_leaves}
