"""Hoist thread loops to the outside of their kernel, one per axis.

    for b in thread(blockIdx.x) 0..8 { for k in 0..n { for t in thread(threadIdx.x) 0..32 { S } } }
    for b in thread(blockIdx.x) 0..8 { for t in thread(threadIdx.x) 0..32 { for k in 0..n { S } } }

A kernel is an outermost thread loop. Loops bound to the same axis use the same threads, so all of
them become the index of one loop for that axis; a statement runs on all threads of the axes it is
not bound to. An intermediate in global memory that is used inside of one kernel only is private to
the thread, or the block, whose loop encloses all its uses, and moves to local or shared memory. It
stays in global memory where a kernel of one thread exceeds shared memory, and where it has a
dynamic length of which each thread uses a part of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.multiprocessor import STATIC_SHARED_BYTES
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, Const, Context, Expr, Var, var
from tilewright.tensor.injectivity import determined_vars
from tilewright.tensor.ir import THREAD, THREAD_AXES, Buffer, For, Function, Let, Stmt, annotation
from tilewright.tensor.ownership import owning_memory
from tilewright.tensor.passes.accesses import Access, collect, common
from tilewright.tensor.passes.pipeline_loops import STAGE, expanded_plan
from tilewright.tensor.passes.rewriter import Rewriter, as_list, rewrite_kernels, with_body
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.scopes import LOCAL, SHARED
from tilewright.tensor.visit import replace_buffers, walk


def bind_threads(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in walk(fn.body)):
        return fn
    moved = _moved(fn)
    body = rewrite_kernels(replace_buffers(fn.body, moved), _bound)
    allocs = tuple([moved.get(buffer, buffer) for buffer in fn.allocs])
    return replace(fn, body=body, allocs=allocs)


def _moved(fn: Function) -> dict[Buffer, Buffer]:
    """The intermediates in global memory that are private to a thread or to a block."""
    found: dict[Buffer, Buffer] = {}
    single: dict[For, list[Buffer]] = defaultdict(list)  # per kernel of one thread
    for buffer, accesses in collect(fn.body, fn.allocs).items():
        if not accesses:
            continue
        loops = _common_loops(accesses)
        memory = owning_memory(buffer.memory, loops)
        if memory == buffer.memory:
            continue
        kernel = next(loop for loop in loops if loop.kind == THREAD)
        if memory == SHARED and _is_one_thread(kernel):
            single[kernel].append(buffer)
        elif memory != LOCAL or not _is_apart(buffer, accesses, loops):
            found[buffer] = replace(buffer, scope=memory.reference)
    for buffers in single.values():
        found.update((each, replace(each, scope=SHARED.reference)) for each in _that_fit(buffers))
    return found


def _is_apart(buffer: Buffer, accesses: list[Access], loops: list[For]) -> bool:
    """Whether each thread indexes a disjoint part of a buffer of dynamic length: it can stay in
    global memory."""
    known: list[Expr] = []
    rest: list[Expr] = []
    threads = [loop for loop in loops if loop.kind == THREAD]
    inner = {
        p.stmt.var
        for access in accesses
        for p in access.place.ancestors()
        if isinstance(p.stmt, (For, Let)) and p.stmt not in threads
    }
    for axis, dim in enumerate(buffer.shape):
        first, *others = (access.ranges[axis] for access in accesses)
        is_one = first.extent is ONE and all(
            other.start is first.start and other.extent is ONE for other in others
        )
        if is_one and not sym.uses_var(first.start, inner) and not is_data_dependent(first.start):
            known.append(first.start)
        else:
            rest.append(dim)
    if all(isinstance(dim, Const) for dim in rest):
        return False
    ranges = {loop.var: (loop.start, loop.stop) for loop in threads}
    found = determined_vars(known, ranges, Context())
    return all(loop.var in found or sym.simplify(loop.extent) is ONE for loop in threads)


def _is_one_thread(kernel: For) -> bool:
    threads = [s for s in walk(kernel) if isinstance(s, For) and s.kind == THREAD]
    return all(sym.simplify(loop.extent) is ONE for loop in threads)


def _that_fit(buffers: list[Buffer]) -> list[Buffer]:
    """The buffers that fit into shared memory together, smallest first."""
    known = [
        (math.prod(int(dim.value) for dim in dims), buffer)
        for buffer in buffers
        if len(dims := [dim for dim in buffer.shape if isinstance(dim, Const)]) == len(buffer.shape)
    ]
    room, kept = STATIC_SHARED_BYTES, []
    for count, buffer in sorted(known, key=lambda each: each[0]):
        align = SHARED.alignment_bytes
        room -= -(-count * buffer.dtype.size_bytes // align) * align
        if room >= 0:
            kept.append(buffer)
    return kept


def _common_loops(accesses: list[Access]) -> list[For]:
    """The loops around all accesses, outermost first."""
    place = accesses[0].place
    for access in accesses[1:]:
        place = common(place, access.place)
    loops = [p.stmt for p in place.ancestors() if p is not place and isinstance(p.stmt, For)]
    return loops[::-1]


@dataclass(slots=True)
class _Axis:
    var: Var
    extent: Expr


def _bound(kernel: For) -> Stmt:
    axes: dict[str, _Axis] = {}
    for stmt in walk(kernel):
        if isinstance(stmt, For) and stmt.kind == THREAD:
            _note(axes, stmt)
    body = _Bind(axes)(kernel)
    assert body is not None
    for name in reversed(THREAD_AXES):
        if name in axes:
            axis = axes[name]
            body = For(axis.var, sym.ZERO, axis.extent, body, THREAD, name, (), kernel.loc)
    assert isinstance(body, For)
    return replace(body, annotations=kernel.annotations)  # those of the kernel


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
    """Replaces thread loops by the kernel's thread indices."""

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
