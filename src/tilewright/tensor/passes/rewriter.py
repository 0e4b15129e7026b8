"""Top-down rewriting with the facts that hold at every point.

`visit.rewrite` goes children first and sees no surroundings; a `Rewriter` goes parents first and
carries a `sym.Context` with the ranges of the loops and the conditions around. It recurses, since
statements nest only as deep as loops do; expressions are left to `sym`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright import sym
from tilewright.sym import Context
from tilewright.tensor.ir import (
    THREAD,
    Alloc,
    Block,
    For,
    If,
    Let,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.passes.facts import in_branch, in_let, in_loop


class Rewriter:
    """Visits statements by kind: a subclass overrides those it handles. None drops a statement.

    `self.ctx` holds at the statement being visited, unless the subclass does not track it. A
    statement whose parts stay the same objects is returned unchanged.
    """

    tracks = True

    def __init__(self, ctx: Context = sym.EMPTY) -> None:
        self.ctx = ctx

    def __call__(self, stmt: Stmt) -> Stmt | None:
        name = _METHODS.get(type(stmt), "visit_leaf")
        result: Stmt | None = getattr(self, name)(stmt)
        return result

    def scoped(self, ctx: Context, stmt: Stmt) -> Stmt | None:
        """Visit `stmt` where `ctx` holds."""
        outer, self.ctx = self.ctx, ctx
        try:
            return self(stmt)
        finally:
            self.ctx = outer

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        return stmt

    def visit_seq(self, stmt: Seq) -> Stmt | None:
        done = tuple([self(child) for child in stmt.stmts])
        if done == stmt.stmts:
            return stmt
        kept = [child for child in done if child is not None]
        return seq(*kept) if kept else None

    def visit_for(self, loop: For) -> Stmt | None:
        if not self.tracks:
            return with_body(loop, self(loop.body))
        return with_body(loop, self.scoped(in_loop(self.ctx, loop), loop.body))

    def visit_if(self, stmt: If) -> Stmt | None:
        if not self.tracks:
            otherwise = None if stmt.otherwise is None else self(stmt.otherwise)
            return with_branches(stmt, self(stmt.then), otherwise)
        then = self.scoped(in_branch(self.ctx, stmt, taken=True), stmt.then)
        if stmt.otherwise is None:
            return with_branches(stmt, then, None)
        no = in_branch(self.ctx, stmt, taken=False)
        return with_branches(stmt, then, self.scoped(no, stmt.otherwise))

    def visit_let(self, stmt: Let) -> Stmt | None:
        inner = in_let(self.ctx, stmt) if self.tracks else self.ctx
        return with_body(stmt, self.scoped(inner, stmt.body))

    def visit_alloc(self, stmt: Alloc) -> Stmt | None:
        return with_body(stmt, self(stmt.body))

    def visit_block(self, block: Block) -> Stmt | None:
        body = self(block.body)
        init = None if block.init is None else self(block.init)
        if body is block.body and init is block.init:
            return block
        return None if body is None else replace(block, body=body, init=init)


_METHODS: dict[type[Stmt], str] = {
    Seq: "visit_seq",
    For: "visit_for",
    If: "visit_if",
    Let: "visit_let",
    Alloc: "visit_alloc",
    Block: "visit_block",
}


class _Kernels(Rewriter):
    tracks = False

    def __init__(self, change: Callable[[For], Stmt]) -> None:
        super().__init__()
        self.change = change

    def visit_for(self, loop: For) -> Stmt | None:
        return self.change(loop) if loop.kind == THREAD else super().visit_for(loop)


def rewrite_kernels(stmt: Stmt, change: Callable[[For], Stmt]) -> Stmt:
    """The statement with every kernel (outermost thread loop) replaced."""
    made = _Kernels(change)(stmt)
    assert made is not None
    return made


def with_body(stmt: For | Let | Alloc, body: Stmt | None) -> Stmt | None:
    """The loop or binder with another body; None without a body."""
    if body is stmt.body:
        return stmt
    return None if body is None else stmt.with_children((body,))


def with_branches(stmt: If, then: Stmt | None, otherwise: Stmt | None) -> Stmt | None:
    """The branch with other arms; an empty arm is dropped."""
    if then is stmt.then and otherwise is stmt.otherwise:
        return stmt
    if then is None:
        if otherwise is None:
            return None
        return If(sym.logical_not(stmt.cond), otherwise, None, stmt.loc)
    return If(stmt.cond, then, otherwise, stmt.loc)


def join(*stmts: Stmt | None) -> Stmt | None:
    """A sequence of the statements that are not None."""
    kept = [stmt for stmt in stmts if stmt is not None]
    return seq(*kept) if kept else None


def as_list(stmt: Stmt) -> list[Stmt]:
    """The statements of a sequence, or a single statement."""
    return list(stmt.stmts) if isinstance(stmt, Seq) else [stmt]
