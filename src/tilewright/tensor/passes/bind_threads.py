"""Raises thread loops to the outside of their kernel, one per axis.

    for b in thread(blockIdx.x) 0..8 { for k in 0..n { for t in thread(threadIdx.x) 0..32 { S } } }
    for b in thread(blockIdx.x) 0..8 { for t in thread(threadIdx.x) 0..32 { for k in 0..n { S } } }

A kernel is an outermost loop with thread loops inside. Loops bound to the same axis are the same
threads at work, so each becomes the index of the one loop for its axis. A store to memory that
threads share is done by one thread along the axes it is not bound to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.sym import Context, Expr, Var, var
from tilewright.tensor.ir import (
    THREAD,
    For,
    Function,
    If,
    Stmt,
    Store,
)
from tilewright.tensor.passes.rewriter import Rewriter, with_body
from tilewright.tensor.visit import walk

AXES = tuple(f"{level}.{axis}" for level in ("blockIdx", "threadIdx") for axis in "xyz")


def bind_threads(fn: Function, ctx: PassContext) -> Function:
    body = _FindKernels()(fn.body)
    return fn if body is fn.body or body is None else replace(fn, body=body)


class _FindKernels(Rewriter):
    tracks = False

    def visit_for(self, loop: For) -> Stmt | None:
        axes: dict[str, _Axis] = {}
        for stmt in walk(loop):
            if isinstance(stmt, For) and stmt.kind == THREAD:
                _note(axes, stmt)
        if not axes:
            return loop
        body = _Bind(axes)(loop)
        assert body is not None
        for name in reversed(AXES):
            if name in axes:
                axis = axes[name]
                body = For(axis.var, sym.ZERO, axis.extent, body, THREAD, name, (), loop.loc)
        return body


@dataclass(slots=True)
class _Axis:
    var: Var
    extent: Expr


def _note(axes: dict[str, _Axis], loop: For) -> None:
    extent = sym.simplify(loop.extent)
    known = axes.get(loop.thread)
    if known is None:
        axes[loop.thread] = _Axis(var(loop.var.name), extent)
    elif not sym.equal(known.extent, extent, Context()):
        raise Unsupported(
            "TW2202",
            f"loop %{loop.var.name} over {loop.thread} has extent {extent}, another one in the "
            f"same kernel {known.extent}",
            loop.loc,
            help="give all loops of a kernel that are bound to one axis the same extent",
        )


class _Bind(Rewriter):
    """Puts the kernel's thread indices in place of thread loops."""

    tracks = False

    def __init__(self, axes: dict[str, _Axis]) -> None:
        super().__init__()
        self.axes = axes
        self.memo: dict[Expr, Expr] = {}
        self.bound: list[str] = []

    def __call__(self, stmt: Stmt) -> Stmt | None:
        old = stmt.exprs()
        if old and self.memo:
            new = tuple([sym.rewrite(expr, sym.rebuild, self.memo) for expr in old])
            if any(a is not b for a, b in zip(old, new, strict=True)):
                stmt = stmt.with_exprs(new)
        return super().__call__(stmt)

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind != THREAD:
            return with_body(loop, self(loop.body))
        outer = self.memo
        self.memo = {**outer, loop.var: sym.add(self.axes[loop.thread].var, loop.start)}
        self.bound.append(loop.thread)
        body = self(loop.body)
        self.bound.pop()
        self.memo = outer
        return body

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer.scope != "local":
            others = [axis for name, axis in self.axes.items() if name not in self.bound]
            first = sym.all_of(*[sym.eq(axis.var, 0) for axis in others])
            if first is not sym.TRUE:
                return If(first, stmt, None, stmt.loc)
        return stmt
