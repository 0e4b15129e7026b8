"""Products of few rows: B is read once, in the order of memory.

    for jb in parallel         strips of columns, whose results stay in the first cache
      for kb                   a few rows of B at a time
        for j                  vectors along them
          rows x steps multiply-adds

Every element of B is used for a handful of multiply-adds only, so nothing counts but reading it at
the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.rules.contraction import Contraction
from tilewright.rules.epilogue import results
from tilewright.rules.nest import fused
from tilewright.rules.setting import Setting
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, Schedule

MOST_ROWS = 8
# Rows of B at a time: streams that keep memory busy where pages are small, while registers hold
# the numbers of A that go with them.
NUMBERS, LEAST_STEPS = 16, 4
PARALLEL_BYTES = 256 * 1024  # of B: what one thread reads before a second one is awake


@dataclass(frozen=True)
class Stream:
    """Columns of a strip, steps of the sum at a time."""

    width: int
    steps: int
    lanes: int
    is_parallel: bool


def stream_of(found: Contraction, setting: Setting) -> Stream | None:
    """The decisions for a product of few rows; None where it is none, or B is small."""
    rows = found.guess(found.rows)
    last = found.columns[-1]
    columns = found.extent(last)
    of = found.block.writes[0].buffer.dtype
    lanes = setting.target.lanes(of.bits)
    known = all(found.extent(at) is not None for at in (*found.rows, *found.depth))
    if rows > MOST_ROWS or not known or columns is None or columns < lanes:
        return None
    if found.stride(found.b, last) is not ONE:
        return None
    total = found.guess(found.depth) * columns * found.b.buffer.dtype.size_bytes
    if total < setting.target.l1d_bytes:
        return None
    # The strip's results take half of the first cache; each thread has strips of its own.
    is_parallel = setting.threads > 1 and total > PARALLEL_BYTES
    widest = setting.target.l1d_bytes // 2 // (rows * of.size_bytes)
    strips = max(-(-columns // widest), setting.threads if is_parallel else 1)
    strips = -(-strips // setting.threads) * setting.threads if is_parallel else strips
    width = -(-columns // strips // lanes) * lanes
    steps = max(LEAST_STEPS, NUMBERS // (1 << (rows - 1).bit_length()))
    return Stream(width, steps, lanes, is_parallel)


def streamed(
    sch: Schedule, c: BlockRef, found: Contraction, stream: Stream
) -> tuple[BlockRef, ...]:
    """Strips of columns; in each, B row by row."""
    loops = sch.get_loops(c)
    outer = [loops[at] for at in (*found.stack, *found.columns[:-1])]
    rows = [loops[at] for at in found.rows]
    jb, j, lane = sch.split(
        loops[found.columns[-1]], [None, stream.width // stream.lanes, stream.lanes]
    )
    *far, last = [loops[at] for at in found.depth]
    kb, k = sch.split(last, [None, stream.steps])
    sch.reorder(*outer, jb, *far, kb, j, *rows, k, lane)
    for loop in (*rows, k):
        sch.unroll(loop)
    sch.vectorize(lane)
    stores = results(sch, c, jb, stream.lanes, unrolled=False)
    sch.decompose_reduction(c, (*far, kb)[0])
    if stream.is_parallel:
        sch.parallel(fused(sch, [*outer, jb]))
    return (c, *stores)
