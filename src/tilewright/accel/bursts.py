"""Split transfers into bus requests: rows of entries, cut at burst boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilewright.accel.isa.stream import Instruction
from tilewright.accel.isa.table import BURST_BEATS, dram_bytes
from tilewright.base.geometry import Geometry


class Request(NamedTuple):
    """One burst. `words` are those that the scratchpad takes, one per cycle: beats, or entries if
    several share a beat. `pads` are padding entries before the burst's first entry."""

    pads: int
    address: int  # offset in the buffer, in bytes
    beats: int
    words: int


def requests(task: Instruction, geometry: Geometry) -> Iterator[Request]:
    """The requests of a transfer, in order.

    A row of adjacent entries is one run of bytes; otherwise every entry is a run. Buffers are
    aligned to 4 KB. A burst ends at multiples of its maximal size, so that none crosses 4 KB.
    """
    width, bus = dram_bytes(task.format, geometry), geometry.bus_bytes
    x, y, z = task["x"], task["y"], task["z"]
    if not x * y * z:
        return
    padded = task.op != "store"
    x0, x1, y0, y1 = (task[name] if padded else 0 for name in ("x0", "x1", "y0", "y1"))
    count, run = (1, x) if task["xstride"] == 1 else (x, 1)
    size = BURST_BEATS * bus
    pads = 0
    for at_z in range(z):
        pads += y0 * (x0 + x + x1)
        for at_y in range(y):
            pads += x0
            row = at_z * task["zstride"] + at_y * task["ystride"]
            for at_x in range(count):
                begin = task["offset"] + (row + at_x * task["xstride"]) * width
                end = begin + run * width
                while begin < end:
                    stop = min(end, (begin // size + 1) * size)
                    beats = -(-stop // bus) - begin // bus
                    yield Request(pads, begin, beats, max(beats, (stop - begin) // width))
                    begin, pads = stop, 0
            pads += x1
        pads += y1 * (x0 + x + x1)


def bursts(task: Instruction, geometry: Geometry) -> list[int]:
    """Beats of each request of a transfer."""
    return [one.beats for one in requests(task, geometry)]
