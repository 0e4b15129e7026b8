"""Kernels one after the other become one, in which all blocks meet between them.

    for b in thread(blockIdx.x) 0..130 { for t in thread(threadIdx.x) 0..500 {
      eval grid.wait(); Y[b * 500 + t] = X[...] } }
    for b in thread(blockIdx.x) 0..3 { for t in thread(threadIdx.x) 0..256 {
      S = W[b * 256 + t]; eval grid.wait(); Z[b * 256 + t] = Y[...] * S } }

    for b in thread(blockIdx.x) 0..130 { for t in thread(threadIdx.x) 0..500 {
      eval grid.wait(); Y[b * 500 + t] = X[...]
      if b < 3 and t < 256 { S = W[b * 256 + t] }
      eval barrier.global()
      if b < 3 and t < 256 { Z[b * 256 + t] = Y[...] * S } } }

What a kernel does before its wait, asking for weights, is done before the blocks meet: memory keeps
busy. Barriers stay outside of conditions, so that every thread comes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.sym import Const, Expr
from tilewright.tensor.dependent_launch import LAUNCH, WAIT
from tilewright.tensor.ir import (
    THREAD,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Let,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.scopes import ARRIVALS
from tilewright.tensor.visit import exprs, fresh_copy, kernels_of, substitute, walk

MEET = Call("barrier.global", (), BOOL)
AXES = ("blockIdx.x", "threadIdx.x")


@dataclass(frozen=True)
class Stage:
    """A kernel along one axis of blocks and one of threads."""

    kernel: For
    blocks: int
    threads: int


def stage_of(fn: Function) -> Stage | None:
    """The only kernel of a device function, where it has known extents and waits by itself."""
    if fn.body is not (kernel := next(kernels_of(fn.body), None)):
        return None
    loops = [s for s in walk(kernel) if isinstance(s, For) and s.kind == THREAD]
    extents = {loop.thread: loop.extent for loop in loops}
    if len(loops) != len(extents) or not set(extents) <= set(AXES):
        return None
    if not all(isinstance(loop.start, Const) and loop.start.value == 0 for loop in loops):
        return None
    sizes = [extents.get(axis, sym.ONE) for axis in AXES]
    if not all(isinstance(size, Const) for size in sizes):
        return None
    if sum(node is WAIT for node in exprs(kernel)) != 1:
        return None
    blocks, threads = (int(size.value) for size in sizes if isinstance(size, Const))
    return Stage(kernel, blocks, threads)


def join_kernels(stages: Sequence[Stage], meets: Sequence[bool], most: int) -> Stmt:
    """The one kernel of several, in their order, and what its blocks count. `meets` tells before
    which of them all blocks have to be done with those before. It has so many blocks at most: those
    of a stage that are more come behind the first."""
    blocks = min(most, max(stage.blocks for stage in stages))
    threads = max(stage.threads for stage in stages)
    block, thread = sym.var("block"), sym.var("thread")
    parts = []
    for at, (stage, waits) in enumerate(zip(stages, meets, strict=True)):
        for first in range(0, stage.blocks, blocks):
            own = sym.add(block, first) if first else block
            conds = [sym.lt(own, stage.blocks)] if stage.blocks - first < blocks else []
            conds += [sym.lt(thread, stage.threads)] if stage.threads < threads else []
            guard = sym.all_of(*conds) if conds else None
            index = {"blockIdx.x": own, "threadIdx.x": thread}
            is_first = at == 0 and first == 0
            turn = fresh_copy(stage.kernel)  # with shared memory of its own: nobody has to wait
            parts.append(_Joined(index, guard, is_first, waits and not first)(turn))
    inner = For(thread, sym.ZERO, sym.const(threads), seq(*parts), THREAD, "threadIdx.x")
    kernel = For(block, sym.ZERO, sym.const(blocks), inner, THREAD, "blockIdx.x")
    return Alloc(Buffer("arrived", (sym.ONE,), I64, ARRIVALS.name), kernel)


@dataclass
class _Joined:
    """A stage inside of the kernel that all share."""

    index: dict[str, Expr]
    guard: Expr | None  # of the blocks and threads that it has
    is_first: bool
    meets: bool

    def __call__(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind == THREAD:
            return self(substitute(stmt.body, {stmt.var: self.index[stmt.thread]}))
        if isinstance(stmt, Seq):
            return self._sequence(stmt.stmts)
        if isinstance(stmt, (Alloc, Let)):
            return replace(stmt, body=self(stmt.body))
        if isinstance(stmt, Eval) and isinstance(stmt.value, Call):
            if stmt.value is LAUNCH:
                return stmt if self.is_first else seq()
            if stmt.value is WAIT:
                return stmt if self.is_first else Eval(MEET) if self.meets else seq()
            if stmt.value.op.startswith("barrier."):
                return stmt
        if isinstance(stmt, For) and _meets(stmt):
            return replace(stmt, body=self(stmt.body))
        return self._guarded([stmt])

    def _sequence(self, stmts: Sequence[Stmt]) -> Stmt:
        """Neighbours that nobody waits among are under one condition."""
        done: list[Stmt] = []
        some: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, (Alloc, Let, Seq)) or _meets(stmt):
                done += [self._guarded(some)] if some else []
                done.append(self(stmt))
                some = []
            else:
                some.append(stmt)
        return seq(*done, *([self._guarded(some)] if some else []))

    def _guarded(self, stmts: Sequence[Stmt]) -> Stmt:
        return seq(*stmts) if self.guard is None else If(self.guard, seq(*stmts))


def _meets(stmt: Stmt) -> bool:
    """Whether threads wait for each other, or for other kernels, in a statement."""
    calls = (node.op for node in exprs(stmt) if isinstance(node, Call))
    return any(op.startswith(("barrier.", "grid.")) for op in calls)
