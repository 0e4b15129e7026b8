"""Pooling, channels last, tiled like depthwise convolutions where windows of a row overlap much.

Shared pixels are then loaded, and converted, once. Pools with little overlap are left to the
reduction rule, which reads memory in order, if their channels fill vectors.
"""

from __future__ import annotations

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.windows_tile import (
    MAX_POSITIONS,
    WindowsPlan,
    lanes_of,
    tile_windows,
    windows_cost,
    windows_space,
)
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Windows, pool
from tilewright.rules.rule import Rule
from tilewright.tensor.ir import Call
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import exprs


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Windows | None:
    nest = nest_of(sch, block)
    found = None if nest is None else pool(nest)
    if found is None or found.depth is None:
        return None
    lanes, channels = lanes_of(found, context), found.size(found.out_channels) or 0
    if lanes < 2 or channels < lanes:
        return None
    positions = found.size(found.out_spatial[-1])
    if positions is not None and 2 * positions < MAX_POSITIONS:
        return None  # little overlap
    is_dear = any(isinstance(expr, Call) for expr in exprs(found.nest.block.body))
    shared = (found.size(found.kernel_spatial[-1]) or 1) / found.strides[-1]
    is_whole = channels % context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits) == 0
    return None if is_dear or (shared <= 2 and is_whole) else found


def apply(
    sch: Schedule, found: Windows, plan: WindowsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    return (BlockRef(found.nest.name), *tile_windows(sch, found, plan, context))


POOLING = Rule("pooling", WindowsPlan, match, windows_space, windows_cost, apply)
