"""Hoist allocations out of loops.

    for k { alloc S in shared; .. }      alloc S in shared; for k { .. }

Scope `local` and registers of special units (`amx.tile`) stay: they cost nothing. Other memory is
hoisted to the function, to the parallel or vector loop whose iterations need their own, or to the
thread block that shares it. A size that depends on a loop keeps the allocation inside of that loop.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.tensor.ir import (
    BLOCK_LEVEL,
    SERIAL,
    THREAD,
    UNROLL,
    Alloc,
    Buffer,
    For,
    Function,
    Stmt,
)
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import walk


def hoist_allocations(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(s, Alloc) and _costs(s.buffer) for s in walk(fn.body)):
        return fn
    body = _Hoist()(fn.body)
    return fn if body is fn.body or body is None else replace(fn, body=body)


class _Hoist(Rewriter):
    """`self.lifted` holds the buffers being hoisted out of the enclosing loops."""

    tracks = False

    def __init__(self) -> None:
        super().__init__()
        self.lifted: list[Buffer] = []
        self.loops = 0  # enclosing loops that an allocation may be hoisted out of

    def visit_for(self, loop: For) -> Stmt | None:
        outer, self.lifted = self.lifted, []
        depth = self.loops
        self.loops = depth + 1
        body = self(loop.body)
        self.loops = depth
        assert body is not None
        kept = [buffer for buffer in self.lifted if _stays_inside(buffer, loop)]
        if kept == _leading(loop.body, body):
            body = loop.body  # unchanged
        else:
            for buffer in reversed(kept):
                body = Alloc(buffer, body, loop.loc)
        self.lifted = outer + [buffer for buffer in self.lifted if buffer not in kept]
        done: Stmt = loop if body is loop.body else replace(loop, body=body)
        return done if self.loops else self._landed(done)

    def visit_alloc(self, stmt: Alloc) -> Stmt | None:
        if self.loops and _costs(stmt.buffer):
            self.lifted.append(stmt.buffer)
            return self(stmt.body)
        return super().visit_alloc(stmt)

    def _landed(self, stmt: Stmt) -> Stmt:
        for buffer in reversed(self.lifted):
            stmt = Alloc(buffer, stmt, stmt.loc)
        self.lifted = []
        return stmt


def _costs(buffer: Buffer) -> bool:
    """Whether an allocation costs anything: heap, or space in shared memory."""
    return buffer.memory.owner in (Owner.DEVICE, Owner.BLOCK)


def _leading(body: Stmt, inner: Stmt) -> list[Buffer] | None:
    """The buffers allocated between a body and a statement inside, if there is nothing else
    between."""
    found = []
    while body is not inner:
        if not isinstance(body, Alloc):
            return None
        found.append(body.buffer)
        body = body.body
    return found


def _stays_inside(buffer: Buffer, loop: For) -> bool:
    if any(sym.uses_var(dim, {loop.var}) for dim in buffer.shape):
        return True
    if loop.kind == THREAD:
        return buffer.memory.owner is Owner.BLOCK and loop.level == BLOCK_LEVEL
    return loop.kind not in (SERIAL, UNROLL)
