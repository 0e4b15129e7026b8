"""Interleave the iterations of a loop with those of another one right before it.

    for k in 0..24 [interleave = "host"] { P(k) }
    for r in 0..32 [interleave = "guest"] { S(r) }

    for k in 0..24 {
      P(k)
      for q in unroll 0..2 { if k * 2 + q < 32 { S(k * 2 + q) } }
    }

The two kinds of work then use different execution units concurrently. The host may be nested in
other loops, which run before the guest with all they contain. A guest stays where it is if there is
no host, if one writes what the other uses, or if extents are dynamic or would put too many guest
iterations into one of the host.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    Alloc,
    For,
    Function,
    If,
    Seq,
    Stmt,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.passes.pipeline_loops import touched
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.visit import fresh_copy, rewrite, walk

INTERLEAVE = "interleave"
HOST, GUEST = "host", "guest"
MAX_AT_ONCE = 8  # guest iterations, unrolled, per iteration of the host


def interleave_loops(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(stmt, For) and annotation(stmt, INTERLEAVE) for stmt in walk(fn.body)):
        return fn
    body = _Interleave()(fn.body)
    assert body is not None
    return replace(fn, body=rewrite(body, _without_mark))


def _without_mark(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, For) or annotation(stmt, INTERLEAVE) is None:
        return stmt
    return replace(stmt, annotations=annotated(stmt.annotations, INTERLEAVE, None))


class _Interleave(Rewriter):
    tracks = False

    def visit_seq(self, stmt: Seq) -> Stmt | None:
        done: list[Stmt] = []
        for child in stmt.stmts:
            new = self(child)
            assert new is not None
            merged = _merged(done[-1], new) if done and _is(new, GUEST) else None
            if merged is None:
                done.append(new)
            else:
                done[-1] = merged
        return seq(*done)


def _is(stmt: Stmt, mark: str) -> bool:
    return isinstance(stmt, For) and stmt.kind == SERIAL and annotation(stmt, INTERLEAVE) == mark


def _merged(before: Stmt, guest: Stmt) -> Stmt | None:
    """The preceding statement with the guest's iterations in it; None where they cannot be
    interleaved."""
    assert isinstance(guest, For)
    around, guest = _loops_to_host(before), _without_single(guest)
    sizes = [loop.extent for loop in (*around, guest)]
    known = [int(size.value) for size in sizes if isinstance(size, Const)]
    if not around or len(known) < len(sizes) or 0 in known or _conflict(before, guest):
        return None
    *extents, count = known
    each = -(-count // prod(extents))
    if each > MAX_AT_ONCE:
        return None
    turn: Expr = ZERO
    for loop, extent in zip(around, extents, strict=True):
        turn = sym.add(sym.mul(turn, extent), sym.sub(loop.var, loop.start))
    q = sym.var(guest.var.name)
    at = sym.add(sym.mul(turn, each), q)
    body = fresh_copy(guest.body, {guest.var: sym.add(guest.start, at)})
    some = For(
        q,
        ZERO,
        sym.const(each),
        If(sym.lt(at, count), body, None, guest.loc),
        UNROLL,
        loc=guest.loc,
    )
    host = around[-1]
    hosting = replace(host, body=seq(host.body, some))
    return rewrite(before, lambda stmt: hosting if stmt is host else stmt)


def _loops_to_host(before: Stmt) -> list[For]:
    """The loops from a statement down to the only host in it, outermost first; all serial and
    unconditional."""
    found: list[list[For]] = []
    stack: list[tuple[Stmt, list[For]]] = [(before, [])]
    while stack:
        stmt, around = stack.pop()
        if isinstance(stmt, For) and stmt.kind == SERIAL:
            around = [*around, stmt]
        elif not isinstance(stmt, (Seq, Alloc)):
            continue
        if _is(stmt, HOST):
            found.append(around)
        else:
            stack += [(child, around) for child in stmt.children()]
    return found[0] if len(found) == 1 else []


def _without_single(loop: For) -> For:
    """The loop inside of loops of one iteration."""
    while loop.extent is ONE and isinstance(loop.body, For) and loop.body.kind == SERIAL:
        body = fresh_copy(loop.body, {loop.var: loop.start})
        assert isinstance(body, For)
        loop = body
    return loop


def _conflict(first: Stmt, second: Stmt) -> bool:
    """Whether one statement writes what the other uses."""
    used, others = touched(first), touched(second)
    return any(used[buffer] or others[buffer] for buffer in used.keys() & others.keys())
