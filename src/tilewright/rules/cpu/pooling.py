"""Pools channels last, cut as depthwise convolutions are where windows of a row share much.

What several windows see is then read, and converted, once. Pools whose windows share little are
left to the rules of reductions, which read memory in order.
"""

from __future__ import annotations

from tilewright.base.target import CPU
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.depthwise import FEW_PIXELS, pixels_of, tile_windows
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import pool
from tilewright.tensor.ir import Call
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import exprs

SHARED = 2  # windows of a row that see a pixel: with no more, reading in order is faster


def pooling(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a reduction over windows of every channel on its own."""
    nest = nest_of(sch, reference)
    found = None if nest is None else pool(nest)
    if found is None or context.target.kind != CPU or found.depth is None:
        return ()
    lanes = context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    if lanes < 2 or (found.size(found.out_channels) or 0) < lanes or pixels_of(found) < FEW_PIXELS:
        return ()
    is_dear = any(isinstance(expr, Call) for expr in exprs(found.nest.block.body))
    if is_dear or (found.size(found.kernel_spatial[-1]) or 1) <= SHARED * found.strides[-1]:
        return ()
    return (reference, *tile_windows(sch, found, lanes, context))
