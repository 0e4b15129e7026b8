"""Pools channels last whose windows overlap, cut as those of depthwise convolutions are.

Neighbours share what they read, and convert it once. Windows side by side are rows of their own.
"""

from __future__ import annotations

from tilewright.base.target import CPU
from tilewright.rules.depthwise import tile_windows
from tilewright.rules.nest import nest_of
from tilewright.rules.setting import Setting
from tilewright.rules.windowed import pool
from tilewright.tensor.schedule import BlockRef, Schedule


def pooling(sch: Schedule, reference: BlockRef, setting: Setting) -> tuple[BlockRef, ...]:
    """Schedule a reduction over windows of every channel on its own."""
    nest = nest_of(sch, reference)
    found = None if nest is None else pool(nest)
    if found is None or setting.target.kind != CPU or found.depth is None:
        return ()
    lanes = setting.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    overlaps = (found.size(found.taps[-1]) or 0) > 2 * found.strides[-1]
    if lanes < 2 or (found.size(found.out) or 0) < lanes or not overlaps:
        return ()
    return (reference, *tile_windows(sch, found, lanes, setting))
