"""Raises thread loops to the outside of their kernel, one per axis.

    for b in thread(blockIdx.x) 0..8 { for k in 0..n { for t in thread(threadIdx.x) 0..32 { S } } }
    for b in thread(blockIdx.x) 0..8 { for t in thread(threadIdx.x) 0..32 { for k in 0..n { S } } }

A kernel is an outermost thread loop. Loops bound to the same axis are the same threads at work, so
each becomes the index of the one loop for its axis; a statement runs on all threads of the axes
that it is not bound to. An intermediate in global memory that is used inside one kernel only
belongs to the thread, or the block of threads, whose loop holds all its uses: it moves to local or
shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.sym import Context, Expr, Var, var
from tilewright.tensor.ir import THREAD, THREAD_AXES, Buffer, For, Function, Stmt, annotation
from tilewright.tensor.ownership import owning_memory
from tilewright.tensor.passes.accesses import Access, collect, common
from tilewright.tensor.passes.pipeline_loops import STAGE, expanded_plan
from tilewright.tensor.passes.rewriter import Rewriter, as_list, with_body
from tilewright.tensor.visit import replace_buffers, walk


def bind_threads(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in walk(fn.body)):
        return fn
    moved = _moved(fn)
    body = _FindKernels()(replace_buffers(fn.body, moved))
    assert body is not None
    allocs = tuple([moved.get(buffer, buffer) for buffer in fn.allocs])
    return replace(fn, body=body, allocs=allocs)


def _moved(fn: Function) -> dict[Buffer, Buffer]:
    """The intermediates in global memory that belong to a thread or to a block of threads."""
    found: dict[Buffer, Buffer] = {}
    for buffer, accesses in collect(fn.body, fn.allocs).items():
        if accesses:
            memory = owning_memory(buffer.memory, _common_loops(accesses))
            if memory != buffer.memory:
                found[buffer] = replace(buffer, scope=memory.reference)
    return found


def _common_loops(accesses: list[Access]) -> list[For]:
    """The loops around all accesses, from the outermost in."""
    place = accesses[0].place
    for access in accesses[1:]:
        place = common(place, access.place)
    loops = [p.stmt for p in place.ancestors() if p is not place and isinstance(p.stmt, For)]
    return loops[::-1]


@dataclass(slots=True)
class _Axis:
    var: Var
    extent: Expr


class _FindKernels(Rewriter):
    tracks = False

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind != THREAD:
            return super().visit_for(loop)
        axes: dict[str, _Axis] = {}
        for stmt in walk(loop):
            if isinstance(stmt, For) and stmt.kind == THREAD:
                _note(axes, stmt)
        body = _Bind(axes)(loop)
        assert body is not None
        for name in reversed(THREAD_AXES):
            if name in axes:
                axis = axes[name]
                body = For(axis.var, sym.ZERO, axis.extent, body, THREAD, name, (), loop.loc)
        return body


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

    def __call__(self, stmt: Stmt) -> Stmt | None:
        old = stmt.exprs()
        if old and self.memo:
            new = tuple([sym.replaced(expr, self.memo) for expr in old])
            if any(a is not b for a, b in zip(old, new, strict=True)):
                stmt = stmt.with_exprs(new)
        return super().__call__(stmt)

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind != THREAD:
            if annotation(loop, STAGE) is None:
                return with_body(loop, self(loop.body))
            groups = [self(stmt) for stmt in as_list(loop.body)]
            return expanded_plan(loop, [as_list(done) for done in groups if done is not None])
        outer = self.memo
        self.memo = {**outer, loop.var: sym.add(self.axes[loop.thread].var, loop.start)}
        body = self(loop.body)
        self.memo = outer
        return body
