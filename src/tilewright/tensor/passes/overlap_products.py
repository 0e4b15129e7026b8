"""Pipeline a consumer's loop so that `wgmma`s of successive steps are issued without waiting
between.

    for k { wait(full[k]); C += A[k] B[k]; arrive(empty[k]) }

    wait(full[0]); start C += A[0] B[0]
    for k in 1.. { wait(full[k]); start C += A[k] B[k]; wait for all but this one;
                   arrive(empty[k - 1]) }
    wait for C; arrive(empty[last])

For a warpgroup that has the tensor cores to itself. A slot is freed one step later.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.sym import ONE, ZERO, Expr
from tilewright.tensor.ir import Call, Eval, For, Stmt, seq
from tilewright.tensor.passes.stagger_attention import START, TILE, calls_of
from tilewright.tensor.roles import effect
from tilewright.tensor.visit import fresh_copy, rewrite, substitute

WAIT = "wgmma.wait"


def overlapped(ring: For, wait: Stmt, done: Stmt, before: Stmt, after: Stmt) -> Stmt:
    """The pipelined loop, which has at least one iteration. `wait` waits for a slot and `done`
    frees it, as functions of the loop's variable; `before` runs before the first `wgmma`, `after`
    once all are issued."""
    product = calls_of(ring, TILE)[0]
    sums, width = product.args[0], product.args[3]

    def started(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Eval) and isinstance(stmt.value, Call) and stmt.value.op == TILE:
            return Eval(Call(START, stmt.value.args, stmt.value.dtype), stmt.loc)
        return stmt

    def at(stmt: Stmt, place: Expr) -> Stmt:
        return fresh_copy(substitute(stmt, {ring.var: place}))

    body = rewrite(ring.body, started)
    assert body is not None
    free = seq(effect(WAIT, sums, ZERO, ONE), at(done, sym.sub(ring.var, 1)))
    later = replace(ring, start=sym.add(ring.start, 1), body=seq(wait, body, free), annotations=())
    end = seq(effect(WAIT, sums, width, ZERO), at(done, sym.sub(ring.stop, 1)))
    return seq(before, at(seq(wait, body), ring.start), later, after, end)
