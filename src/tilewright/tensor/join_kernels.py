"""Merge consecutive kernels into one, with a grid barrier between them.

    for b in thread(blockIdx.x) 0..130 { for t in thread(threadIdx.x) 0..500 {
      eval grid.wait(); Y[b * 500 + t] = X[...] } }
    for b in thread(blockIdx.x) 0..3 { for t in thread(threadIdx.x) 0..256 {
      S = W[b * 256 + t]; eval grid.wait(); Z[b * 256 + t] = Y[...] * S } }

    for b in thread(blockIdx.x) 0..130 { for t in thread(threadIdx.x) 0..500 {
      eval grid.wait(); Y[b * 500 + t] = X[...]
      if b < 3 and t < 256 { S = W[b * 256 + t] }
      eval barrier.global()
      if b < 3 and t < 256 { Z[b * 256 + t] = Y[...] * S } } }

What a kernel does before its wait, such as prefetching weights, is done before the barrier, which
keeps memory busy. Barriers stay outside of conditions, so that every thread reaches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.sym import Const, Expr, Var
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
    Load,
    MaskedLoad,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.tensor.scopes import ARRIVALS, Owner
from tilewright.tensor.visit import exprs, kernels_of, loads, substitute, walk

GRID_BARRIER = Call("barrier.global", (), BOOL)
AXES = ("blockIdx.x", "threadIdx.x")


@dataclass(frozen=True)
class Stage:
    """A kernel along one axis of blocks and one of threads."""

    kernel: For
    blocks: int
    threads: int

    @property
    def prefetches(self) -> bool:
        """Whether it reads memory before it waits: weights."""
        for stmt in walk(self.kernel):
            if isinstance(stmt, Eval) and stmt.value is WAIT:
                return False
            if isinstance(stmt, (Store, Let)) and any(map(_is_global, loads(stmt.value))):
                return True
        return False


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
    if any(isinstance(s, Let) and _reads(s.value) and _meets(s) for s in walk(kernel)):
        return None  # blocks and threads that it does not have would come by and read too
    blocks, threads = (int(size.value) for size in sizes if isinstance(size, Const))
    return Stage(kernel, blocks, threads)


def join_kernels(stages: Sequence[Stage], meets: Sequence[bool]) -> Stmt:
    """The one kernel of several, in their order, and what its blocks count.

    `meets` tells before which of them all blocks have to be done with those before. What a stage
    does before its wait, it does before stages that have nothing to do before theirs.
    """
    blocks = max(stage.blocks for stage in stages)
    threads = max(stage.threads for stage in stages)
    block, thread = sym.var("block"), sym.var("thread")
    parts: list[Stmt] = []
    short: list[Stmt] = []  # stages since the last that prefetches
    for at, (stage, waits) in enumerate(zip(stages, meets, strict=True)):
        conds = [sym.lt(block, stage.blocks)] if stage.blocks < blocks else []
        conds += [sym.lt(thread, stage.threads)] if stage.threads < threads else []
        late: list[Stmt] = [Eval(GRID_BARRIER if at else WAIT)] if waits or not at else []
        if stage.prefetches:
            late, short = [*short, *late], []
        index = {"blockIdx.x": block, "threadIdx.x": thread}
        joined = _Joined(index, sym.all_of(*conds) if conds else None, late)(stage.kernel)
        (parts if stage.prefetches else short).append(joined)
    body = seq(Eval(LAUNCH), *parts, *short)
    inner = For(thread, sym.ZERO, sym.const(threads), body, THREAD, "threadIdx.x")
    kernel = For(block, sym.ZERO, sym.const(blocks), inner, THREAD, "blockIdx.x")
    return Alloc(Buffer("arrived", (sym.ONE,), I64, ARRIVALS.name), kernel)


@dataclass
class _Joined:
    """A stage inside of the kernel that all share."""

    index: dict[str, Var]
    guard: Expr | None  # of the blocks and threads that it has
    late: Sequence[Stmt]  # what stands where it waited

    def __call__(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind == THREAD:
            return self(substitute(stmt.body, {stmt.var: self.index[stmt.thread]}))
        if isinstance(stmt, Seq):
            return self._sequence(stmt.stmts)
        if isinstance(stmt, Alloc) or (isinstance(stmt, Let) and _meets(stmt)):
            return replace(stmt, body=self(stmt.body))
        if isinstance(stmt, Eval) and isinstance(stmt.value, Call):
            if stmt.value is LAUNCH:
                return seq()
            if stmt.value is WAIT:
                return seq(*self.late)
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
            if isinstance(stmt, (Alloc, Seq)) or _meets(stmt):
                done += [self._guarded(some)] if some else []
                done.append(self(stmt))
                some = []
            else:
                some.append(stmt)
        return seq(*done, *([self._guarded(some)] if some else []))

    def _guarded(self, stmts: Sequence[Stmt]) -> Stmt:
        return seq(*stmts) if self.guard is None else If(self.guard, seq(*stmts))


def _is_global(load: Load | MaskedLoad) -> bool:
    return load.buffer.memory.owner is Owner.DEVICE


def _reads(value: Expr) -> bool:
    return next(iter(loads(value)), None) is not None


def _meets(stmt: Stmt) -> bool:
    """Whether threads wait for each other, or for other kernels, in a statement."""
    calls = (node.op for node in exprs(stmt) if isinstance(node, Call))
    return any(op.startswith(("barrier.", "grid.")) for op in calls)
