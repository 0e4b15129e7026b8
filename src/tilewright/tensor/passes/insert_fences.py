"""Insert fences between what threads write to shared memory and what asynchronous instructions read
there.

    S[t] = A[t]                              S[t] = A[t]
    eval barrier.shared()                    eval fence.async()
    eval wgmma.dot(C, S, B)                  eval barrier.shared()
                                             eval wgmma.dot(C, S, B)

`tensor/proxies.py` says which instructions those are. Between the write and the product there is a
barrier in any case; every thread executes the fence in front of it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.tensor.ir import Eval, For, Function, Stmt, seq
from tilewright.tensor.passes.insert_barriers import BARRIER
from tilewright.tensor.passes.rewriter import rewrite_kernels
from tilewright.tensor.proxies import FENCE, crossing
from tilewright.tensor.visit import rewrite


def insert_fences(fn: Function, ctx: PassContext) -> Function:
    body = rewrite_kernels(fn.body, _fenced)
    return fn if body is fn.body else replace(fn, body=body)


def _fenced(kernel: For) -> Stmt:
    def rule(stmt: Stmt) -> Stmt:
        is_barrier = isinstance(stmt, Eval) and stmt.value is BARRIER
        return seq(Eval(FENCE, stmt.loc), stmt) if is_barrier else stmt

    if not crossing(kernel):
        return kernel
    made = rewrite(kernel, rule)
    assert made is not None
    return made
