"""Kernels start before those they depend on have ended, and wait as late as they may.

    for t in thread(threadIdx.x) 0..128 { S[t] = W[t]; Y[t] = X[t] * S[t] }

    for t in thread(threadIdx.x) 0..128 {
      eval grid.launch(); S[t] = W[t]; eval grid.wait(); Y[t] = X[t] * S[t] }

`tensor/dependent_launch.py` tells what may stand before the wait.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.tensor.dependent_launch import LAUNCH, WAIT, is_early, is_early_value, weights_of
from tilewright.tensor.ir import THREAD, Alloc, Buffer, Eval, For, Function, Let, Seq, Stmt, seq
from tilewright.tensor.passes.rewriter import Rewriter

FEATURE = "dependent-launch"


def launch_dependents(fn: Function, ctx: PassContext) -> Function:
    if ctx.target is None or not ctx.target.has(FEATURE):
        return fn
    body = _Kernels(weights_of(fn))(fn.body)
    assert body is not None
    return replace(fn, body=body)


class _Kernels(Rewriter):
    tracks = False

    def __init__(self, weights: set[Buffer]) -> None:
        super().__init__()
        self.weights = weights

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind != THREAD:
            return super().visit_for(loop)
        return self._waiting(loop, Eval(LAUNCH))

    def _waiting(self, stmt: Stmt, *first: Stmt) -> Stmt:
        """The statement with its wait, after what comes first."""
        if isinstance(stmt, Let) and not is_early_value(stmt, self.weights):
            return seq(*first, Eval(WAIT), stmt)
        if isinstance(stmt, (Alloc, Let)) or (isinstance(stmt, For) and stmt.kind == THREAD):
            return replace(stmt, body=self._waiting(stmt.body, *first))
        steps = list(stmt.stmts) if isinstance(stmt, Seq) else [stmt]
        late = next(at for at, each in enumerate([*steps, None]) if self._is_late(each))
        early, rest = steps[:late], steps[late:]
        if rest and isinstance(rest[0], (Alloc, Let)):
            return seq(*first, *early, self._waiting(rest[0]), *rest[1:])
        return seq(*first, *early, Eval(WAIT), *rest)

    def _is_late(self, stmt: Stmt | None) -> bool:
        return stmt is None or not is_early(stmt, self.weights)
