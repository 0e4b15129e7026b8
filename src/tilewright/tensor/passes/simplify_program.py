"""Simplify every expression by the facts of the loops and branches around it.

Removes conditions that always hold, unreachable code, and loops of one iteration.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import FALSE, ONE, TRUE, Const, Context
from tilewright.tensor.ir import THREAD, For, Function, If, Let, Seq, Stmt
from tilewright.tensor.passes.rewriter import Rewriter, with_body
from tilewright.tensor.visit import substitute


def simplify_program(fn: Function, ctx: PassContext) -> Function:
    body = _Simplify(known(fn))(fn.body)
    if body is fn.body:
        return fn
    return replace(fn, body=Seq(()) if body is None else body)


def known(fn: Function) -> Context:
    """The facts that hold in the whole function: its requirements."""
    ctx = Context()
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    return ctx


class _Simplify(Rewriter):
    def _exprs(self, stmt: Stmt) -> Stmt:
        old = stmt.exprs()
        if not old:
            return stmt
        new = tuple([sym.simplify(expr, self.ctx) for expr in old])
        return stmt if new == old else stmt.with_exprs(new)

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        return self._exprs(stmt)

    def visit_let(self, stmt: Let) -> Stmt | None:
        done = self._exprs(stmt)
        assert isinstance(done, Let)
        # Not `super()`: a let names a value on purpose, so it is kept.
        return with_body(done, self(done.body))

    def visit_if(self, stmt: If) -> Stmt | None:
        done = self._exprs(stmt)
        assert isinstance(done, If)
        if done.cond is TRUE:
            return self(done.then)
        if done.cond is FALSE:
            return None if done.otherwise is None else self(done.otherwise)
        return super().visit_if(done)

    def visit_for(self, loop: For) -> Stmt | None:
        done = self._exprs(loop)
        assert isinstance(done, For)
        extent = sym.simplify(done.extent, self.ctx)
        if isinstance(extent, Const) and extent.value <= 0:
            return None
        lowered = super().visit_for(done)
        marked = bool(done.annotations)  # for later passes
        if extent is ONE and done.kind != THREAD and isinstance(lowered, For) and not marked:
            return substitute(lowered.body, {lowered.var: lowered.start})
        return lowered
