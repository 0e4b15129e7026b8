"""Remove code without effect: empty loops, dead lets, unread buffers, constant branches."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr, Var
from tilewright.tensor.ir import (
    THREAD,
    Address,
    Alloc,
    Buffer,
    ExternCall,
    For,
    Function,
    If,
    Let,
    Load,
    MaskedLoad,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.visit import rewrite, substitute, walk


def remove_no_ops(fn: Function, ctx: PassContext) -> Function:
    variables, read = _uses(fn.body)

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, If) and isinstance(stmt.cond, Const):
            return stmt.then if stmt.cond.value else stmt.otherwise
        if isinstance(stmt, For) and stmt.kind != THREAD:
            extent = stmt.extent
            if isinstance(extent, Const) and extent.value <= 0:
                return None
            if isinstance(extent, Const) and extent.value == 1:
                return substitute(stmt.body, {stmt.var: stmt.start})
        if isinstance(stmt, Let) and stmt.var not in variables:
            return stmt.body
        if isinstance(stmt, Store) and stmt.buffer in unread:
            return None
        if isinstance(stmt, Alloc) and stmt.buffer in unread:
            return stmt.body
        return None if isinstance(stmt, Seq) and not stmt.stmts else stmt

    allocated = [stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, Alloc)]
    unread = {buffer for buffer in allocated if buffer not in read}
    body = rewrite(fn.body, rule)
    return fn if body is fn.body else replace(fn, body=body)


def _uses(root: Stmt) -> tuple[set[Var], set[Buffer]]:
    """The variables used and the buffers whose contents matter."""
    roots: list[Expr] = []
    read: set[Buffer] = set()
    for stmt in walk(root):
        roots += stmt.exprs()
        if isinstance(stmt, (ExternCall, TensorCall)):
            read.update(region.buffer for region in stmt.regions)
    variables: set[Var] = set()
    for node in sym.walk(*roots):
        if isinstance(node, Var):
            variables.add(node)
        elif isinstance(node, (Load, MaskedLoad, Address)):
            read.add(node.buffer)
    return variables, read
