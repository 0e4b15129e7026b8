"""A consumer's loop whose products follow each other without a wait between steps.

    for k { wait(full[k]); C += A[k] B[k]; arrive(empty[k]) }

    wait(full[0]); start C += A[0] B[0]
    for k in 1.. { wait(full[k]); start C += A[k] B[k]; all but this one are over;
                   arrive(empty[k - 1]) }
    wait for C; arrive(empty[last])

For a warpgroup that has the matrix units to itself: none else uses them while it waits. A slot is
free one step later.
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
    """The loop in stages; `wait` for a slot and sign that it is `done` are those of its variable.
    It has one iteration or more. `before` is what it waits for, `after` what it tells when all of
    its products have been started."""
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
