"""Depthwise convolutions channels first: one plane at a time, lanes along its rows.

for n, channels in parallel
  pad the plane
  for tiles of rows, vectors of a row
    taps x rows multiply-adds       unrolled: rows share what they read
"""

from __future__ import annotations

import math

from tilewright.base.target import CPU
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.depthwise import PARALLEL_CYCLES, vector_cycles
from tilewright.rules.cpu.epilogue import results
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Convolution, planes_of
from tilewright.tensor.schedule import BlockRef, Schedule

UNROLLED = 80  # multiply-adds in a tile's body, at most
ROWS = 8


def planes(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a convolution of every channel on its own, each a plane in memory."""
    nest = nest_of(sch, reference)
    found = None if nest is None else planes_of(nest)
    if found is None or context.target.kind != CPU or len(found.out_spatial) < 2:
        return ()
    lanes = context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    sizes = [found.size(at) for at in (found.out_channels, *found.out_spatial)]
    if lanes < 2 or found.depth is None or found.depth * 2 > UNROLLED or None in sizes:
        return ()
    lanes = _lanes(found, lanes)
    padding = padding_of(sch, found)
    loops = sch.get_loops(reference)
    batch, channel = loops[found.batch], loops[found.out_channels]
    *outer, row, column = (loops[at] for at in found.out_spatial)
    tile, near = sch.split(row, [None, _rows(found)])
    vector, lane = sch.split(column, [None, lanes])
    taps = [loops[at] for at in found.kernel_spatial]
    inner = loops[found.in_channels]
    sch.reorder(batch, channel, *outer, tile, vector, *taps, inner, near, lane)
    sch.vectorize(lane)
    for loop in (near, *taps):
        sch.unroll(loop)
    done = [reference, *results(sch, reference, vector, lanes)]
    if padding is not None:
        sch.compute_at(padding, channel)
        _, along = sch.split(sch.get_loops(padding)[-1], [None, lanes])
        sch.vectorize(along)
        done.append(padding)
    sch.decompose_reduction(reference, taps[0])
    if context.threads > 1 and _cycles(found, lanes) > PARALLEL_CYCLES:
        sch.parallel(sch.fuse(batch, channel))
    return tuple(done)


def _lanes(found: Convolution, lanes: int) -> int:
    """Lanes of a vector: a row has one whole vector at least.

    Elements at a distance are loaded whole and shuffled, but gathered under a mask: of those, rows
    are cut into narrower vectors that leave nothing over.
    """
    width = found.size(found.out_spatial[-1]) or 1
    while lanes > width or (found.strides[-1] > 1 and lanes > 4 and width % lanes):
        lanes //= 2
    return max(1, lanes)


def _rows(found: Convolution) -> int:
    """Rows of a tile: a divisor where there is a good one."""
    total = found.size(found.out_spatial[-2]) or ROWS
    most = max(1, min(ROWS, total, UNROLLED // (found.depth or UNROLLED)))
    return min(range(max(1, most // 2), most + 1), key=lambda n: (-(-total // n) * n - total, -n))


def _cycles(found: Convolution, lanes: int) -> float:
    *outer, last = (
        found.size(at) or 1 for at in (found.batch, found.out_channels, *found.out_spatial)
    )
    return math.prod(outer) * -(-last // lanes) * vector_cycles(found)
