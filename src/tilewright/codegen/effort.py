"""Choose LLVM's optimization pipeline per function.

Most of LLVM's O3 pipeline looks for what schedules have done already: loops to unroll, interchange
or vectorize. It takes half of the compile time of a register tile, several hundred vector
statements in a row, and leaves its instructions unchanged. Such functions go through a few passes
that promote memory to registers and form addressing modes. So do functions that run once, such as
weight packers: they are memory-bound.

Scalar loops are not unrolled further: nests of short loops, fully unrolled, take LLVM up to 30
times as long, and run no faster.
"""

from __future__ import annotations

from itertools import filterfalse, groupby
from typing import Any

from tilewright.codegen import llvm
from tilewright.codegen.machine import Machine
from tilewright.tensor.ir import Function, Seq, Stmt, Store
from tilewright.tensor.visit import prefetched, walk

REGISTER_TILE = 64  # consecutive vector statements: only register tiles have as many


def optimized(
    text: str,
    fn: Function,
    machine: Machine,
    *,
    runs_once: bool = False,
    is_scheduled: bool = True,
) -> Any:
    """The LLVM module of a flat function's text, verified and optimized."""
    module = llvm.parse(text)
    if runs_once or has_register_tile(fn):
        llvm.clean(module, machine, unrolls=not runs_once)
    else:
        llvm.optimize(module, machine, unrolls=is_scheduled)
    return module


def has_register_tile(fn: Function) -> bool:
    """Whether a loop's body has a long run of vector statements, prefetches aside. LLVM's whole
    pipeline would hoist loads of later steps to the first, where accumulators need all
    registers."""
    return any(
        are_vectors and sum(1 for _ in run) >= REGISTER_TILE
        for stmt in walk(fn.body)
        if isinstance(stmt, Seq)
        for are_vectors, run in groupby(filterfalse(_prefetches, stmt.stmts), _is_vector)
    )


def _is_vector(stmt: Stmt) -> bool:
    return isinstance(stmt, Store) and any(expr.dtype.is_vector for expr in stmt.exprs())


def _prefetches(stmt: Stmt) -> bool:
    """Whether a statement only prefetches, conditionally or not."""
    return all(prefetched(leaf) is not None for leaf in walk(stmt) if not leaf.children())
