"""What holds inside a loop, a branch or a binding: what it says, unless it says so of memory that
is written there."""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.sym import Context, Expr
from tilewright.tensor.ir import (
    Address,
    Block,
    Buffer,
    ExternCall,
    For,
    If,
    Let,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.regions import called_regions
from tilewright.tensor.visit import loads, walk


def in_branch(ctx: Context, stmt: If, *, taken: bool) -> Context:
    """What holds in one side of a branch."""
    body = stmt.then if taken else stmt.otherwise
    assert body is not None
    cond = stmt.cond if taken else sym.logical_not(stmt.cond)
    for fact in sym.conjuncts(cond):
        if lasts(fact, body):
            ctx = ctx.assume(fact)
    return ctx


def in_loop(ctx: Context, loop: For) -> Context:
    start, stop = lasts(loop.start, loop.body), lasts(loop.stop, loop.body)
    if start and stop:
        return ctx.bind(loop.var, loop.start, loop.stop)
    if start:
        ctx = ctx.assume(sym.le(loop.start, loop.var))
    return ctx.assume(sym.lt(loop.var, loop.stop)) if stop else ctx


def in_let(ctx: Context, stmt: Let) -> Context:
    if stmt.var.dtype is not INDEX or not lasts(stmt.value, stmt.body):
        return ctx
    return ctx.assume(sym.eq(stmt.var, stmt.value))


def lasts(expr: Expr, body: Stmt) -> bool:
    """Whether an expression keeps its value while a statement runs."""
    read = {load.buffer for load in loads(expr)}
    return not read or not any(buffer in read for stmt in walk(body) for buffer in _written(stmt))


def _written(stmt: Stmt) -> list[Buffer]:
    """The buffers that a statement itself may write."""
    if isinstance(stmt, Store):
        return [stmt.buffer]
    if isinstance(stmt, Update):
        return list(stmt.buffers)
    if isinstance(stmt, TensorCall | ExternCall):
        return [region.buffer for region in called_regions(stmt)[1]]
    if isinstance(stmt, Block):
        return [region.buffer for region in stmt.writes]
    return [node.buffer for node in sym.walk(*stmt.exprs()) if isinstance(node, Address)]
