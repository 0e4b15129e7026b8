"""Epilogues: the consumers of a reduction that a schedule may fuse into it."""

from __future__ import annotations

from tilewright import sym
from tilewright.rules.match.nest import block_of, is_expression, nest_of
from tilewright.sym import ONE, Const
from tilewright.tensor.ir import SPATIAL, Block, Buffer, Load
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import exprs


def epilogue_blocks(sch: Schedule, block: BlockRef) -> list[BlockRef]:
    """All consumers of a block, if each is a nest of its own without reductions."""
    consumers = sch.get_consumers(block)
    made = block_of(sch.function, block.name).writes[0].buffer
    for reference in consumers:
        body = block_of(sch.function, reference.name)
        if any(it.kind != SPATIAL for it in body.iters) or not is_expression(body):
            return []
        if nest_of(sch, reference) is None or not _keeps_lanes(body, made):
            return []
    return consumers


def is_repeated(sch: Schedule, block: BlockRef, consumer: BlockRef) -> bool:
    """Whether a consumer reads each result many times, such as a sum that scales all it is of: more
    work than the threads that hold results should do."""
    made = block_of(sch.function, block.name).writes[0].buffer
    body = block_of(sch.function, consumer.name)
    loads = [expr for expr in exprs(body.body) if isinstance(expr, Load) and expr.buffer is made]
    own = {it.var for it in body.iters if it.extent is not ONE}
    return any(
        not any(sym.uses_var(at, {var}) for at in load.index) for load in loads for var in own
    )


def _keeps_lanes(body: Block, made: Buffer) -> bool:
    """Whether a consumer stays contiguous along the last axis of what it reads: a transpose or a
    broadcast is scheduled by itself."""
    wide = [at for at, dim in enumerate(made.shape) if dim is not ONE]
    if not wide:
        return all(it.extent is ONE for it in body.iters)
    last = next((it.var for it in reversed(body.iters) if it.extent is not ONE), None)
    loads = [expr for expr in exprs(body.body) if isinstance(expr, Load) and expr.buffer is made]
    ends = [load.index[wide[-1]] for load in loads]
    return all(end is last or isinstance(end, Const) for end in ends)
