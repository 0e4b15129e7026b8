"""Depthwise convolutions channels last: lanes are channels, several pixels at a time.

    for n, rows in parallel
      for tiles of pixels along the last axis
        for vectors of channels          weights as [vector, taps, lane]: one stream
          for taps along other axes      without those outside of the image
            taps x pixels multiply-adds  unrolled: neighbours share what they read

Padding is a condition on the taps; lowering splits the borders from the inside of the image, where
there is none.
"""

from __future__ import annotations

import math

from tilewright.base.target import CPU
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import DYNAMIC_SPATIAL
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.epilogue import results
from tilewright.rules.match.nest import block_of, fused, nest_of
from tilewright.rules.match.windows import Convolution, Windows, convolution
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, Schedule

UNROLLED = 80  # multiply-adds in a tile's body, at most
PIXELS, FEW_PIXELS = 8, 4
PARALLEL_CYCLES = 30_000  # of all threads together: less is not worth waking another
MEMORY_CYCLES = 4  # of a vector that is fetched, or written


def depthwise(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a convolution of every channel on its own."""
    nest = nest_of(sch, reference)
    found = None if nest is None else convolution(nest)
    if found is None or not found.is_depthwise or context.target.kind != CPU:
        return ()
    lanes = context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    if lanes < 2 or found.depth is None:
        return ()
    padding = padding_of(sch, found)
    done = [reference]
    if padding is not None:
        sch.compute_inline(padding)
    done += _tiled(sch, found, lanes, context)
    return tuple(done)


def _tiled(sch: Schedule, found: Convolution, lanes: int, context: RuleContext) -> list[BlockRef]:
    block = BlockRef(found.nest.name)
    reads = block_of(sch.function, block.name).reads  # without padding, there are others
    index = next(i for i, read in enumerate(reads) if read.buffer is found.w.buffer)
    packed = sch.cache_read(block, index, "global")
    done = [packed, *tile_windows(sch, found, lanes, context)]
    names = [f"k{at}" for at in range(len(found.kernel_spatial))]
    order = ", ".join([f"o // {lanes}", *names, "c", f"o % {lanes}"])
    sch.transform_layout(packed, ("write", 0), f"({', '.join(['o', 'c', *names])}) -> ({order})")
    if found.w.buffer.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
    return done


def tile_windows(sch: Schedule, found: Windows, lanes: int, context: RuleContext) -> list[BlockRef]:
    """Cut into vectors of channels and several pixels at a time; what takes results to memory."""
    block = BlockRef(found.nest.name)
    loops = sch.get_loops(block)
    vector, lane = sch.split(loops[found.out_channels], [None, lanes])
    *rows, last = found.out_spatial
    tile, pixel = sch.split(loops[last], [None, pixels_of(found)])
    outer = [loops[found.batch], *[loops[at] for at in rows]]
    taps = [loops[at] for at in found.kernel_spatial]
    others = [loops[at] for at in found.nest.reduce if at not in found.kernel_spatial]
    sch.reorder(*outer, tile, vector, *taps, *others, pixel, lane)
    sch.vectorize(lane)
    sch.unroll(pixel)
    if (found.size(found.kernel_spatial[-1]) or UNROLLED) * pixels_of(found) <= UNROLLED:
        sch.unroll(taps[-1])
    done = results(sch, block, vector, lanes)
    sch.decompose_reduction(block, taps[0])
    if context.threads > 1 and _cycles(found, lanes) > PARALLEL_CYCLES:
        lines = math.prod(found.size(at) or context.threads for at in (found.batch, *rows))
        sch.parallel(fused(sch, outer) if rows and lines >= context.threads else tile)
    return done


def pixels_of(found: Windows) -> int:
    """Pixels of a tile along the last axis: a divisor where there is a good one."""
    total = found.size(found.out_spatial[-1])
    if total is None:  # what is left over is slow
        return FEW_PIXELS
    row = found.size(found.kernel_spatial[-1]) or 1
    most = max(1, min(PIXELS, total, UNROLLED // row))
    return min(range(max(1, most // 2), most + 1), key=lambda n: (-(-total // n) * n - total, -n))


def _cycles(found: Windows, lanes: int) -> float:
    places = math.prod(found.size(at) or DYNAMIC_SPATIAL for at in found.out_spatial)
    vectors = -(-(found.size(found.out_channels) or DYNAMIC_SPATIAL) // lanes)
    return (found.size(found.batch) or 1) * places * vectors * vector_cycles(found)


def vector_cycles(found: Windows) -> float:
    """Of a vector of the result: its terms, and what it reads and writes."""
    return (found.depth or 1) / 2 + MEMORY_CYCLES * (1 + math.prod(found.strides))
