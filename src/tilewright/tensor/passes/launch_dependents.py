"""Programmatic dependent launch: kernels start before their predecessors end, and wait late.

    for t in thread(threadIdx.x) 0..128 { S[t] = W[t]; Y[t] = X[t] * S[t] }

    for t in thread(threadIdx.x) 0..128 {
      eval grid.launch(); S[t] = W[t]; eval grid.wait(); Y[t] = X[t] * S[t] }

`tensor/dependent_launch.py` determines which statements may precede the wait.

A kernel whose neighbouring threads load pieces of lines apart needs L1 for the rest of those lines.
It does not start early: little of L1 is left beside a block with much shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.base.multiprocessor import LINE_BYTES, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Expr, Var
from tilewright.tensor.dependent_launch import LAUNCH, WAIT, is_early, is_early_value, weights_of
from tilewright.tensor.ir import (
    THREAD,
    Alloc,
    Buffer,
    Eval,
    For,
    Function,
    Let,
    Load,
    MaskedLoad,
    Ramp,
    Stmt,
    seq,
)
from tilewright.tensor.passes.rewriter import as_list, rewrite_kernels
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import exprs, walk

FEATURE = "dependent-launch"


def launch_dependents(fn: Function, ctx: PassContext) -> Function:
    if ctx.target is None or not ctx.target.has(FEATURE):
        return fn
    weights = weights_of(fn)
    sector = multiprocessor_of(ctx.target).sector_bytes

    def waiting(kernel: For) -> Stmt:
        if _needs_l1(kernel, sector):
            return kernel
        return _waiting(kernel, weights, Eval(LAUNCH))

    return replace(fn, body=rewrite_kernels(fn.body, waiting))


def _needs_l1(kernel: For, sector_bytes: int) -> bool:
    """Whether neighbouring threads load less than a sector each, a line or more apart."""
    stmts = list(walk(kernel))
    threads = [s.var for s in stmts if isinstance(s, For) and s.thread == "threadIdx.x"]
    names = {s.var: s.value for s in stmts if isinstance(s, Let)}
    found = {node for node in exprs(kernel) if isinstance(node, (Load, MaskedLoad))}
    return any(
        load.buffer.memory.owner is Owner.DEVICE
        and load.dtype.size_bytes < sector_bytes
        and _step(load, threads, names) * load.buffer.dtype.size_bytes >= LINE_BYTES
        for load in found
    )


def _step(load: Load | MaskedLoad, threads: Sequence[Var], names: Mapping[Var, Expr]) -> int:
    """Elements from the first thread's access to the second's; 0 if unknown."""
    (index,) = load.index
    index = index.base if isinstance(index, Ramp) else index
    for _ in names:  # values may use other names
        if not sym.uses_var(index, names):
            break
        index = sym.substitute(index, names)
    first, second = (sym.substitute(index, dict.fromkeys(threads, n)) for n in (ZERO, ONE))
    step = sym.simplify(sym.sub(second, first))
    return abs(int(step.value)) if isinstance(step, Const) else 0


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
