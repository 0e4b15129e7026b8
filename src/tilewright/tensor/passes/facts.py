"""Facts that hold inside of a loop, a branch or a binding, unless they depend on memory written
there."""

from __future__ import annotations

from collections.abc import Iterable

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
    """The context inside of one arm of a branch."""
    body = stmt.then if taken else stmt.otherwise
    assert body is not None
    cond = stmt.cond if taken else sym.logical_not(stmt.cond)
    for fact in lasting(sym.conjuncts(cond), body):
        ctx = ctx.assume(fact)
    return ctx


def in_loop(ctx: Context, loop: For) -> Context:
    kept = lasting((loop.start, loop.stop), loop.body)
    if loop.start in kept and loop.stop in kept:
        return ctx.bind(loop.var, loop.start, loop.stop)
    if loop.start in kept:
        ctx = ctx.assume(sym.le(loop.start, loop.var))
    return ctx.assume(sym.lt(loop.var, loop.stop)) if loop.stop in kept else ctx


def in_let(ctx: Context, stmt: Let) -> Context:
    if stmt.var.dtype is not INDEX or not lasting((stmt.value,), stmt.body):
        return ctx
    return ctx.assume(sym.eq(stmt.var, stmt.value))


def lasting(exprs: Iterable[Expr], body: Stmt) -> list[Expr]:
    """Those of some expressions whose value a statement does not change."""
    read = {expr: {load.buffer for load in loads(expr)} for expr in exprs}
    if not any(read.values()):
        return list(read)
    written = {buffer for stmt in walk(body) for buffer in _written(stmt)}
    return [expr for expr, buffers in read.items() if not buffers & written]


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
