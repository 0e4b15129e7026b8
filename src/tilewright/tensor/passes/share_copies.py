"""Complete the arguments of asynchronous copies, and bind the threads of warp-level `mma`.

    for g in thread(threadIdx.y) 0..2 { cp.async.tile(T, A[8 * i, k], 64, stride) }

    for l in thread(threadIdx.x) 0..128 { for g in thread(threadIdx.y) 0..2 {
      cp.async.tile(T, A[0, k], 64, stride, height, 8 * i, 256, 1) } }

A copy is distributed over all threads of the block, whose number is an argument. Others are the
rows of the matrix and the start of the box, since elements beyond the last row or column are
zero-filled; the last one says whether there are none. `mma` needs a loop over the 128 threads of
four warps.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.sym import ZERO, Const, Context, Expr
from tilewright.tensor.ir import (
    THREAD,
    THREAD_LEVEL,
    Address,
    Call,
    Eval,
    For,
    Function,
    Stmt,
)
from tilewright.tensor.passes.pipeline_loops import ASYNC_COPY
from tilewright.tensor.passes.rewriter import Rewriter, rewrite_kernels
from tilewright.tensor.visit import exprs

PRODUCT = "mma.tile"
GROUP_THREADS = 128  # four warps, of 16 rows each


def share_copies(fn: Function, ctx: PassContext) -> Function:
    if not _is_shared(fn.body):
        return fn
    body = rewrite_kernels(
        fn.body, lambda kernel: _kernel(kernel) if _is_shared(kernel) else kernel
    )
    return replace(fn, body=body)


def _is_shared(stmt: Stmt) -> bool:
    return any(isinstance(node, Call) and node.op in (ASYNC_COPY, PRODUCT) for node in exprs(stmt))


def _kernel(kernel: For) -> Stmt:
    nest: list[For] = []
    body: Stmt = kernel
    while isinstance(body, For) and body.kind == THREAD:
        nest.append(body)
        body = body.body
    lanes = next((loop for loop in nest if loop.thread == "threadIdx.x"), None)
    if lanes is None:
        lanes = For(
            sym.var("lane"), ZERO, sym.const(GROUP_THREADS), body, THREAD, "threadIdx.x", (),
            kernel.loc,
        )  # fmt: skip
        at = next((i for i, loop in enumerate(nest) if loop.level == THREAD_LEVEL), len(nest))
        nest.insert(at, lanes)
    ctx, threads = sym.EMPTY, 1
    for loop in nest:
        ctx = ctx.bind(loop.var, loop.start, loop.stop)
        if loop.level == THREAD_LEVEL:
            threads *= _number(loop)
    _check_groups(kernel, lanes, nest)
    made = _Copies(ctx, threads)(body)
    assert made is not None
    for loop in reversed(nest):
        made = replace(loop, body=made)
    return made


def _number(loop: For) -> int:
    extent = sym.simplify(loop.extent)
    if not isinstance(extent, Const):
        raise Unsupported(
            "TW2335",
            f"the extent of {loop.thread} is {extent}, and copies are shared by a known number of "
            "threads",
            loop.loc,
            help="bind loops of known extents to threads",
        )
    return int(extent.value)


def _check_groups(kernel: For, lanes: For, nest: list[For]) -> None:
    others = [loop for loop in nest if loop.thread == "threadIdx.z"]
    if _number(lanes) != GROUP_THREADS or others:
        raise Unsupported(
            "TW2335",
            f"copies and products of warps are shared by {GROUP_THREADS} threads along "
            f"threadIdx.x, this kernel has {_number(lanes)}"
            + (" and threads along threadIdx.z" if others else ""),
            kernel.loc,
            help="bind groups of four warps to threadIdx.y",
        )


class _Copies(Rewriter):
    def __init__(self, ctx: Context, threads: int) -> None:
        super().__init__(ctx)
        self.threads = threads

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        call = stmt.value if isinstance(stmt, Eval) else None
        if not isinstance(call, Call) or call.op != ASYNC_COPY:
            return stmt
        assert isinstance(stmt, Eval)
        target, source, rows, stride = call.args
        assert isinstance(source, Address)
        assert isinstance(stride, Call)
        axis = stride.args[1]
        assert isinstance(axis, Const)
        at = int(axis.value)
        height, row = source.buffer.shape[at], source.index[at]
        first = tuple([ZERO if i == at else place for i, place in enumerate(source.index)])
        args = (
            target,
            Address(source.buffer, first),
            rows,
            stride,
            height,
            row,
            sym.const(self.threads),
            sym.const(int(self._is_whole(source, at, rows))),
        )
        return replace(stmt, value=Call(call.op, args, call.dtype))

    def _is_whole(self, source: Address, at: int, rows: Expr) -> bool:
        """Whether the box is inside of the matrix."""
        columns = ROW_BYTES // source.buffer.dtype.size_bytes
        last = source.buffer.rank - 1
        ends = ((at, rows), (last, sym.const(columns)))
        return all(
            sym.prove(
                sym.le(sym.add(source.index[axis], extent), source.buffer.shape[axis]), self.ctx
            )
            for axis, extent in ends
        )


ROW_BYTES = 128  # of a tile
