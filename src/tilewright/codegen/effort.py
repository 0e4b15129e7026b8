"""How much LLVM is asked to do to a function.

Most of LLVM's O3 pipeline looks for what schedules have done already: loops to unroll, to
interchange, to vectorize. It takes half of the time of compiling a register tile, which is a few
hundred vector statements in a row, and leaves its instructions as they were. Such functions go
through a few passes that turn memory into registers and addresses into what instructions take. So
do functions that run once, such as packers of weights: they wait for memory, not for instructions.

Plain loops keep their form: nests of short ones, unrolled whole, take LLVM up to 30 times as long,
and run no faster.
"""

from __future__ import annotations

from itertools import filterfalse, groupby
from typing import Any

from tilewright.codegen import llvm
from tilewright.codegen.machine import Machine
from tilewright.tensor.ir import Function, Seq, Stmt, Store
from tilewright.tensor.visit import prefetched, walk

REGISTER_TILE = 64  # vector statements in a row: no schedule but of a register tile has as many


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
    """Whether a loop's body has a long run of vector statements, with prefetches between them or
    not. LLVM's whole pipeline moves loads of later steps up to the first, where sums need all
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
    """Whether a statement does nothing but prefetch, on a condition or not."""
    return all(prefetched(leaf) is not None for leaf in walk(stmt) if not leaf.children())
