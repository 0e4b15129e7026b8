"""Skip the steps of attention in which every score is masked.

    for k in 0..n [specialize = ..] { copy K, V; S = ..; T[i, j] = select(128 k + j <= i, S[i, j],
      -inf); attend(T, ..) }
    for k in 0..min(n, last + 1) [specialize = ..] { ... }

`attend` does not change its results where all scores are -inf, and nothing else in the loop has an
effect outside. A condition on a step's scores that holds up to some step, for all threads of the
block, bounds the loop: it halves causal attention, and skips padding beyond each sequence's length.
Programs with such loops are simplified on the way, while grid extents are still known.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ZERO, Const, Context, Expr, Le, Lt, Select, Var
from tilewright.tensor.ir import (
    THREAD,
    Address,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    Stmt,
    Store,
    annotation,
)
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.passes.simplify_program import simplify_program
from tilewright.tensor.passes.stagger_attention import ATTEND
from tilewright.tensor.roles import COPY, MULTICAST, SPECIALIZE
from tilewright.tensor.visit import walk

Ranges = dict[Var, tuple[Expr, Expr]]
# Calls whose results stay inside of the loop.
INSIDE = (COPY, MULTICAST, "wgmma.clear", "wgmma.tile", "barrier.shared")


def skip_masked_steps(fn: Function, ctx: PassContext) -> Function:
    if not any(_is_ring(stmt) for stmt in walk(fn.body)):
        return fn
    fn = simplify_program(fn, ctx)  # while grid extents bound the block indices
    body = _Trim()(fn.body)
    assert body is not None
    return fn if body is fn.body else replace(fn, body=body)


def _is_ring(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and annotation(stmt, SPECIALIZE) is not None


class _Trim(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.threads: Ranges = {}  # of the current block

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind == THREAD and loop.thread.startswith("threadIdx"):
            outer = self.threads
            self.threads = {**outer, loop.var: (loop.start, loop.stop)}
            try:
                return super().visit_for(loop)
            finally:
                self.threads = outer
        return _trimmed(loop, self.threads, self.ctx) if _is_ring(loop) else super().visit_for(loop)


def _trimmed(loop: For, threads: Ranges, ctx: Context) -> Stmt:
    scores = _scores(loop)
    stores = [s for s in walk(loop.body) if isinstance(s, Store) and s.buffer is scores]
    if scores is None or len(stores) != 1:
        return loop
    stops = [
        last
        for cond, inner in _masks(loop.body, scores, threads)
        if (last := _last(cond, loop.var, inner)) is not None
    ]
    if not stops:
        return loop
    stop = sym.minimum(loop.stop, sym.add(stops[0], 1))
    # A dynamic length may be anything, and a block with a split of the keys may have no step.
    if not sym.prove(sym.le(loop.start, stop), ctx):
        stop = sym.maximum(loop.start, stop)
    return replace(loop, stop=sym.simplify(stop))


def _scores(loop: For) -> Buffer | None:
    """The scores buffer of the only call with results outside of the loop."""
    own = {stmt.buffer for stmt in walk(loop) if isinstance(stmt, Alloc)}
    found: Buffer | None = None
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and stmt.buffer not in own:
            return None
        if not isinstance(stmt, Eval):
            continue
        call = stmt.value
        if isinstance(call, Call) and call.op == ATTEND and found is None:
            at = call.args[0]
            found = at.buffer if isinstance(at, Address) else None
        elif not isinstance(call, Call) or call.op not in INSIDE:
            return None
    return found


def _masks(stmt: Stmt, scores: Buffer, ranges: Ranges) -> list[tuple[Expr, Ranges]]:
    """Conditions on every score, with the ranges of their variables."""
    if isinstance(stmt, For):
        ranges = {**ranges, stmt.var: (stmt.start, stmt.stop)}
    if isinstance(stmt, Store) and stmt.buffer is scores:
        value = stmt.value
        if not isinstance(value, Select):
            return []
        cond, _, never = value.children()
        if not isinstance(never, Const) or never.value != -math.inf:
            return []
        return [(part, ranges) for part in sym.conjuncts(cond)]
    return [each for child in stmt.children() for each in _masks(child, scores, ranges)]


def _last(cond: Expr, var: Var, ranges: Ranges) -> Expr | None:
    """The last value of a variable for which a condition can hold within the ranges."""
    if not isinstance(cond, (Lt, Le)):
        return None
    gap = sym.sub(cond.b, cond.a)
    if isinstance(cond, Lt):
        gap = sym.sub(gap, 1)
    bounds = sym.symbolic_bounds(sym.simplify(gap), ranges)
    if bounds is None:
        return None
    most = sym.simplify(bounds[1])
    found = sym.linear(most, (var,))
    slope = None if found is None else found[0].get(var, ZERO)
    if not isinstance(slope, Const) or slope.value >= 0:
        return None
    rest = sym.substitute(most, {var: ZERO})
    return sym.simplify(sym.floordiv(rest, -int(slope.value)))
