"""Hoist the loads of an epilogue ahead of earlier stores, to have several in flight.

    D[0] = f(C[0], R[0]); D[1] = f(C[1], R[1]); D[2] = f(C[2], R[2])

    let r0 = R[0]; let r1 = R[1]; D[0] = f(C[0], r0); let r2 = R[2]; D[1] = f(C[1], r1); ...

Applies to consecutive stores of sums in registers: ptxas does not move a load above a store that
might alias, so each step would wait for memory. Only loads from buffers that none of the stores
writes are hoisted.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from tilewright import sym
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import Buffer, Function, Let, Load, MaskedLoad, Seq, Stmt, Store, seq
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import loads

SUMS = ("wgmma.rows", "wgmma.sum")  # scopes of accumulators


def prefetch_epilogue(fn: Function, ctx: PassContext) -> Function:
    body = _Runs(multiprocessor_of(ctx.target).loads_ahead)(fn.body)
    assert body is not None
    return fn if body is fn.body else replace(fn, body=body)


class _Runs(Rewriter):
    tracks = False

    def __init__(self, distance: int) -> None:
        super().__init__()
        self.distance = distance

    def visit_seq(self, stmt: Seq) -> Stmt | None:
        done: list[Stmt | None] = []
        run: list[Store] = []
        for each in (*stmt.stmts, None):
            if isinstance(each, Store) and _is_of_sums(each):
                run.append(each)
                continue
            done += _ahead(run, self.distance) if len(run) > 1 else run
            run = []
            done.append(None if each is None else self(each))
        kept = [each for each in done if each is not None]
        if len(kept) == len(stmt.stmts) and all(map(operator.is_, kept, stmt.stmts)):
            return stmt
        return seq(*kept) if kept else None


def _is_of_sums(store: Store) -> bool:
    return any(load.buffer.memory.name in SUMS for load in loads(store.value))


def _ahead(run: list[Store], distance: int) -> list[Stmt]:
    """The stores of a run, each after the loads of some that follow it."""
    written = {store.buffer for store in run}
    names: dict[Expr, Var] = {}
    turns: list[list[Expr]] = []  # new loads of each store
    for store in run:
        new = [load for load in dict.fromkeys(loads(store.value)) if _is_hoistable(load, written)]
        turns.append([load for load in new if load not in names])
        names.update((load, sym.var("ahead", load.dtype)) for load in turns[-1])
    if not names:
        return list(run)

    def rule(node: Expr) -> Expr:
        return names.get(node, node)

    body: list[Stmt] = []
    for at in reversed(range(len(run))):
        step = replace(run[at], value=sym.rewrite(run[at].value, rule))
        soon = turns[at + distance] if at + distance < len(run) else []
        first = [load for turn in turns[:distance] for load in turn] if at == 0 else []
        body = [_named([*first, *soon], names, seq(step, *body))]
    return body


def _is_hoistable(load: Load | MaskedLoad, written: set[Buffer]) -> bool:
    shown = load.buffer.memory.owner is Owner.DEVICE
    return isinstance(load, Load) and shown and load.buffer not in written


def _named(found: list[Expr], names: dict[Expr, Var], body: Stmt) -> Stmt:
    for load in reversed(found):
        body = Let(names[load], load, body)
    return body
