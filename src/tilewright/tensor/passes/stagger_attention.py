"""Pipeline the consumer's loop of attention: GEMMs overlap the exponentials of another step.

    for k { wait(full[k]); S = Q K; T = mask(S); attend(T, V, O); arrive(empty[k]) }

    wait(full[0]); S = Q K; P, O = powers(mask(S), O)
    for k in 1.. {
      wait(full[k]); start S = Q K; start O += P V, of k - 1; wait for S
      P, O = powers(mask(S), O), O awaited at the end; arrive(empty[k - 1]) }
    O += P V, of the last; arrive(empty[last])

`powers` is `attend` without its GEMM. A slot is freed one step later, so a ring has at least three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.sym import ONE, ZERO, Expr
from tilewright.tensor.ir import Address, Alloc, Buffer, Call, Eval, For, If, Seq, Stmt, seq
from tilewright.tensor.roles import effect
from tilewright.tensor.visit import exprs, fresh_copy, rewrite, substitute

ATTEND, TILE, START = "wgmma.attend", "wgmma.tile", "wgmma.start"
LEFT_SCOPE = "wgmma.left"
LEAST_SLOTS = 3


def calls_of(stmt: Stmt, op: str) -> list[Call]:
    return [node for node in exprs(stmt) if isinstance(node, Call) and node.op == op]


def can_stagger(ring: For, slots: int) -> bool:
    """Whether a loop consists of one GEMM of scores and one step of attention, with enough
    slots."""
    sums = {tile.args[0] for tile in calls_of(ring, TILE)}
    return slots >= LEAST_SLOTS and len(calls_of(ring, ATTEND)) == 1 and len(sums) == 1


def staggered(ring: For, wait: Stmt, done: Stmt, version: Callable[[Expr], Expr]) -> Stmt:
    """The pipelined loop. `wait` waits for a slot and `done` frees it, as functions of the loop's
    variable; `version` turns an address into that of the slot."""
    (attend,) = calls_of(ring, ATTEND)
    scores, values, top, total, sums, keys, features, *scale = attend.args
    assert isinstance(values, Address)
    rows = sym.const(64)
    left = Buffer("powers", (rows, keys), values.buffer.dtype, LEFT_SCOPE)
    packed = Address(left, (ZERO, ZERO))

    def weigh(waits: Expr) -> Stmt:
        return effect("wgmma.weigh", sums, packed, version(values), keys, features, waits)

    def powers(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Eval) and stmt.value is attend:
            args = (scores, top, total, sums, packed, keys, features, *scale)
            return Eval(Call("wgmma.powers", args, BOOL), stmt.loc)
        return stmt

    def at(stmt: Stmt, place: Expr) -> Stmt:
        return fresh_copy(substitute(stmt, {ring.var: place}))

    body = rewrite(ring.body, powers, version)
    assert body is not None
    previous = sym.sub(ring.var, 1)
    started = _overlapped(body, at(weigh(ZERO), previous))
    last = sym.sub(ring.stop, 1)
    stages = seq(
        at(seq(wait, body), ring.start),
        replace(
            ring,
            start=sym.add(ring.start, 1),
            body=seq(wait, started, at(done, previous)),
            annotations=(),
        ),
        at(seq(weigh(ONE), done), last),
    )
    made: Stmt = Alloc(left, stages)
    if not sym.prove(sym.lt(ring.start, ring.stop)):
        made = If(sym.lt(ring.start, ring.stop), made, None, ring.loc)
    return made


def _overlapped(body: Stmt, weigh: Stmt) -> Stmt:
    """Issue the GEMM of scores, then that of the last step's values; wait for the scores."""
    tile = calls_of(body, TILE)[0]
    ready = effect("wgmma.wait", tile.args[0], tile.args[3], ONE)

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Eval) and isinstance(stmt.value, Call) and stmt.value.op == TILE:
            return Eval(Call(START, stmt.value.args, stmt.value.dtype), stmt.loc)
        if isinstance(stmt, Seq):
            starts = [at for at, each in enumerate(stmt.stmts) if calls_of(each, START)]
            if starts and not any(_has_later(each) for each in stmt.stmts[: starts[-1] + 1]):
                cut = starts[-1] + 1
                if any(_has_later(each) for each in stmt.stmts[cut:]):
                    return seq(*stmt.stmts[:cut], weigh, ready, *stmt.stmts[cut:])
        return stmt

    made = rewrite(body, rule)
    assert made is not None
    return made


def _has_later(stmt: Stmt) -> bool:
    """Whether a statement computes a step's exponentials."""
    return bool(calls_of(stmt, "wgmma.powers"))
