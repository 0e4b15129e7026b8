"""Turns the init of a reduction into a block of its own, in front of the loops that reduce.

    for i { for k { block C { init { C[i] = 0 }  C[i] += A[k] } } }
    for i { block C_init { C[i] = 0 }  for k { block C { C[i] += A[k] } } }

So no branch stays inside. Where another statement stands in the way, or a loop runs over spatial
and reduce iterators at once, the init stays in place behind `if every reduce iterator == 0`. A
reduction over nothing gives its identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import TRUE, Expr, Var, var
from tilewright.tensor.ir import (
    PARALLEL,
    REDUCE,
    UNROLL,
    Block,
    Buffer,
    For,
    Function,
    If,
    Iter,
    Stmt,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.passes.rewriter import Rewriter, fresh_copy
from tilewright.tensor.regions import substitute_region
from tilewright.tensor.visit import blocks, loads, walk, written_buffers


def lower_inits(fn: Function, ctx: PassContext) -> Function:
    if not any(block.init is not None for block in blocks(fn.body)):
        return fn
    names = {block.name for block in blocks(fn.body)}
    body = _LowerInits(names)(fn.body)
    assert body is not None
    return replace(fn, body=body)


class _Frame:
    """A loop on the way to the current block, and the inits that go in front of it."""

    def __init__(self, loop: For, ctx: sym.Context) -> None:
        self.loop = loop
        self.ctx = ctx  # what holds in front of the loop
        self.before: list[Stmt] = []


class _LowerInits(Rewriter):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.frames: list[_Frame] = []  # loops between the enclosing block and here

    def visit_for(self, loop: For) -> Stmt | None:
        frame = _Frame(loop, self.ctx)
        self.frames.append(frame)
        lowered = super().visit_for(loop)
        self.frames.pop()
        assert lowered is not None
        return seq(*frame.before, lowered) if frame.before else lowered

    def visit_if(self, stmt: If) -> Stmt | None:
        return self._enclosed(lambda: super(_LowerInits, self).visit_if(stmt))

    def visit_block(self, block: Block) -> Stmt | None:
        body = self._enclosed(lambda: self(block.body))
        assert body is not None
        lowered = block if body is block.body else replace(block, body=body)
        if block.init is None:
            return lowered
        init = self._enclosed(lambda: self(block.init))  # type: ignore[arg-type]
        assert init is not None
        lowered = replace(lowered, init=init)
        return self._hoisted(lowered) or self._guarded(lowered)

    def _enclosed(self, visit):  # type: ignore[no-untyped-def]
        """Inits of what is visited do not leave it."""
        outer, self.frames = self.frames, []
        try:
            return visit()
        finally:
            self.frames = outer
