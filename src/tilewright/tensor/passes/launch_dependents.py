"""Programmatic dependent launch: kernels start before their predecessors end, and wait late.

    for t in thread(threadIdx.x) 0..128 { S[t] = W[t]; Y[t] = X[t] * S[t] }

    for t in thread(threadIdx.x) 0..128 {
      eval grid.launch(); S[t] = W[t]; eval grid.wait(); Y[t] = X[t] * S[t] }

`tensor/dependent_launch.py` determines which statements may precede the wait.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.tensor.dependent_launch import LAUNCH, WAIT, is_early, is_early_value, weights_of
from tilewright.tensor.ir import THREAD, Alloc, Buffer, Eval, For, Function, Let, Stmt, seq
from tilewright.tensor.passes.rewriter import as_list, rewrite_kernels

FEATURE = "dependent-launch"


def launch_dependents(fn: Function, ctx: PassContext) -> Function:
    if ctx.target is None or not ctx.target.has(FEATURE):
        return fn
    weights = weights_of(fn)
    body = rewrite_kernels(fn.body, lambda kernel: _waiting(kernel, weights, Eval(LAUNCH)))
    return replace(fn, body=body)


def _waiting(stmt: Stmt, weights: set[Buffer], *first: Stmt) -> Stmt:
    """The statement with `grid.wait` inserted, after the leading statements."""
    if isinstance(stmt, Let) and not is_early_value(stmt, weights):
        return seq(*first, Eval(WAIT), stmt)
    if isinstance(stmt, (Alloc, Let)) or (isinstance(stmt, For) and stmt.kind == THREAD):
        return replace(stmt, body=_waiting(stmt.body, weights, *first))
    steps = as_list(stmt)
    late = (at for at, each in enumerate(steps) if not is_early(each, weights))
    at = next(late, len(steps))
    early, rest = steps[:at], steps[at:]
    if rest and isinstance(rest[0], (Alloc, Let)):
        return seq(*first, *early, _waiting(rest[0], weights), *rest[1:])
    return seq(*first, *early, Eval(WAIT), *rest)
