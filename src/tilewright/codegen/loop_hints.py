"""Hints for LLVM's unroller and vectorizer, as metadata of a loop."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.codegen.machine import Machine
from tilewright.sym import Const, Var
from tilewright.tensor import ir
from tilewright.tensor.ir import Load, MaskedLoad, Stmt
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.visit import exprs, loads, prefetched, walk, written_buffers

SHORT_LOOP = 16  # trip count up to which LLVM may fully unroll any loop


def loop_hints(loop: ir.For, around: Sequence[Var], machine: Machine) -> tuple[str, ...]:
    """The metadata of a loop; `around` are the variables of enclosing loops, the innermost last."""
    if loop.kind == ir.UNROLL:
        how = "enable" if trip_count(loop) is None else "full"
        return (f'!{{!"llvm.loop.unroll.{how}"}}',)
    if loop.kind == ir.VECTOR:
        return ('!{!"llvm.loop.vectorize.enable", i1 true}',)
    if _stays_loop(loop, around, machine):
        return ('!{!"llvm.loop.unroll.disable"}',)
    if machine.loads_lanes and _reads_where_it_wrote(loop):
        return ('!{!"llvm.loop.vectorize.enable", i1 false}',)
    return ()


def trip_count(loop: ir.For) -> int | None:
    extent = loop.extent
    return int(extent.value) if isinstance(extent, Const) else None


def _stays_loop(loop: ir.For, around: Sequence[Var], machine: Machine) -> bool:
    """Whether to keep LLVM from unrolling a loop.

    From an unrolled short loop LLVM hoists loads that are invariant in the outer loop, such as all
    of A out of the loop over panels of B. Beside a register tile those exceed the registers.
    """
    if not _is_shaped(loop.body):
        return False
    count = trip_count(loop)
    if count is None or count > SHORT_LOOP:
        return True
    steps = loop.body.stmts if isinstance(loop.body, ir.Seq) else ()
    sums = sum(isinstance(each, ir.Store) for each in steps)
    if not around or sums < machine.vector_registers // 2:
        return False
    known, written = {*around[:-1], loop.var}, written_buffers(loop.body)
    fixed = sum(
        load.buffer not in written and known.issuperset(sym.free_vars(*load.index))
        for load in exprs(loop.body)
        if isinstance(load, (Load, MaskedLoad))
    )
    return count * fixed >= machine.vector_registers


def _is_shaped(body: Stmt) -> bool:
    """Whether a loop's body is scheduled: it contains loops, vectors or prefetches.

    Plain innermost loops are left to LLVM's vectorizer and unroller.
    """
    return any(
        isinstance(stmt, ir.For)
        or prefetched(stmt) is not None
        or any(expr.dtype.is_vector for expr in stmt.exprs())
        for stmt in walk(body)
    )


def _reads_where_it_wrote(loop: ir.For) -> bool:
    """Whether load indices depend on what the loop stores, as in tree traversals."""
    written = written_buffers(loop.body)
    indices = {
        index
        for load in exprs(loop.body)
        if isinstance(load, Load)
        for index in load.index
        if is_data_dependent(index)
    }
    return any(each.buffer in written for each in loads(*indices))
