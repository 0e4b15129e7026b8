"""GEMMs computed by a BLAS library, `cblas_sgemm`, where the user allows it.

    found = with_library(fn)        the function with its first plain GEMM as a library call

A GEMM is plain where it reads and writes whole row-major f32 matrices, with nothing transposed. Its
epilogue stays as it is, for rules to schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.dtype import F32
from tilewright.rules.match.contraction import operands
from tilewright.sym import TRUE, Expr
from tilewright.tensor.ir import Block, Buffer, ExternCall, For, Function, Stmt, Update
from tilewright.tensor.regions import whole
from tilewright.tensor.visit import rewrite

SGEMM = "cblas_sgemm"


@dataclass(frozen=True)
class InLibrary:
    """A function one of whose GEMMs is a library call."""

    function: Function
    block: str  # the name of the GEMM's block


def with_library(fn: Function) -> InLibrary | None:
    """Replace the first plain GEMM by a call into BLAS; None where there is none."""
    taken: list[str] = []

    def rule(stmt: Stmt) -> Stmt:
        block = _nested(stmt)
        matrices = None if block is None or taken else plain_gemm(block)
        if block is None or matrices is None:
            return stmt
        taken.append(block.name)
        *reads, written = (whole(each) for each in matrices)
        call = ExternCall(SGEMM, (*reads, written), 1, block.loc)
        return Block(block.name, (), (), tuple(reads), (written,), call, loc=block.loc)

    body = rewrite(fn.body, rule)
    return InLibrary(replace(fn, body=body), taken[0]) if taken else None


def _nested(stmt: Stmt) -> Block | None:
    """The block of a perfect nest with one loop per iterator."""
    loops = []
    while isinstance(stmt, For):
        loops.append(stmt.var)
        stmt = stmt.body
    if not isinstance(stmt, Block) or stmt.predicate is not TRUE:
        return None
    return stmt if len(loops) == len(stmt.iters) and {*stmt.bindings} == {*loops} else None


def plain_gemm(block: Block) -> tuple[Buffer, Buffer, Buffer] | None:
    """A, B and C of C[i, j] = sum over k of A[i, k] * B[k, j]; None for anything else."""
    loads = operands(block)
    if loads is None or not isinstance(block.body, Update) or len(block.iters) != 3:
        return None
    (result,), index = block.body.buffers, block.body.index
    matrices = (loads[0].buffer, loads[1].buffer, result)
    if len(index) != 2 or any(each.dtype is not F32 or each.rank != 2 for each in matrices):
        return None
    i, j = index
    summed = [it.var for it in block.iters if it.var not in (i, j)]
    if len(summed) != 1:
        return None
    (k,) = summed
    a, b = loads if loads[0].index == (i, k) else loads[::-1]
    if a.index != (i, k) or b.index != (k, j):
        return None
    extents: dict[Expr, Expr] = {it.var: it.extent for it in block.iters}
    spans = ((a.buffer, a.index), (b.buffer, b.index), (result, index))
    if any(each.shape != tuple(extents[at] for at in over) for each, over in spans):
        return None
    return a.buffer, b.buffer, result
