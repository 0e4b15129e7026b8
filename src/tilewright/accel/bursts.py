"""Transfers as requests on the bus: contiguous runs of bytes, cut where bursts must end."""

from __future__ import annotations

import numpy as np

from tilewright.accel.isa.steps import box
from tilewright.accel.isa.stream import Instruction
from tilewright.accel.isa.table import BURST_BEATS, dram_bytes
from tilewright.base.geometry import Geometry


def bursts(task: Instruction, geometry: Geometry) -> list[int]:
    """Beats of each request of a transfer.

    Buffers begin at a multiple of 4 KB. A burst ends where its size divides the address, so that
    none crosses 4 KB.
    """
    width, bus = dram_bytes(task.format, geometry), geometry.bus_bytes
    starts = task["offset"] + box(task).dram * width
    if not len(starts):
        return []
    breaks = np.flatnonzero(np.diff(starts) != width) + 1
    begins = starts[np.concatenate(([0], breaks))]
    ends = starts[np.concatenate((breaks - 1, [len(starts) - 1]))] + width
    size = BURST_BEATS * bus
    found = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        while begin < end:
            stop = min(end, (begin // size + 1) * size)
            found.append(-(-stop // bus) - begin // bus)
            begin = stop
    return found
