"""Products of few rows: B is read once, in the order of memory.

    for strip in parallel      columns whose results stay in the second cache
      for part                 a few rows of B at a time
        for j                  a tile of all rows and some vectors
          for k                the rows of B: each a stream that goes on with the next tile

Every element of B is used for a handful of multiply-adds only, so nothing counts but reading it at
the speed of memory: in a few streams, which the processor follows by itself.
"""

from __future__ import annotations

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu import gemm_model
from tilewright.rules.cpu.gemm_schedule import NOWHERE, Plan
from tilewright.rules.match.contraction import Contraction
from tilewright.sym import ONE

NEAR_ROWS, FAR_ROWS = 4, 14  # at most, of B in the second cache and beyond it
STREAMS = 16  # rows of B at a time
WIDTHS = (8, 4, 2, 1)  # vectors of a tile
FILLED = 8  # the columns of which one may be filled up
PARALLEL_BYTES = 256 * 1024  # of B: what one thread reads before a second one is awake


def stream_plan(found: Contraction, context: RuleContext) -> Plan | None:
    """The decisions for a product of few rows; None where it is none, or B is small."""
    target, last = context.target, found.n[-1]
    rows, columns = found.guess(found.m), found.extent(last)
    of = found.block.writes[0].buffer.dtype
    lanes = target.lanes(of.bits)
    is_known = all(found.extent(at) is not None for at in (*found.m, *found.k))
    if rows > FAR_ROWS or not is_known or len(found.k) > 1:
        return None
    if columns is None or columns < lanes or found.stride(found.b, last) is not ONE:
        return None
    depth = found.guess(found.k)
    size = depth * columns * found.b.buffer.dtype.size_bytes
    far = target.l1d_bytes if rows <= NEAR_ROWS else 2 * target.l2_bytes
    if size < far or depth <= STREAMS:
        return None
    is_parallel = context.threads > 1 and size * found.guess(found.batch) > PARALLEL_BYTES
    threads = context.threads if is_parallel else 1
    strips = -(-rows * columns * of.size_bytes // (target.l2_bytes // 4))
    vectors = _vectors(rows, -(-columns // lanes), target.vector_registers)
    return Plan(
        gemm_model.Tile(rows, vectors, gemm_model.COLUMNS if is_parallel else gemm_model.ALONE),
        lanes,
        tuple(found.extent(at) or 1 for at in found.m),
        panels=1,
        multiple=vectors * lanes,
        chunks=-(-strips // threads) * threads,
        part=STREAMS,
        parts_outside=True,
        packing=NOWHERE,
        steps=gemm_model.unrolled_steps(STREAMS, rows * vectors, STREAMS // 2),
        ahead=0,
        prefetch_block=False,
        prefetch_rows=False,
    )


def _vectors(rows: int, columns: int, registers: int) -> int:
    """How wide a tile is: as registers allow, little of the last one empty."""
    fitting = [each for each in WIDTHS if (rows + 1) * each < registers]
    return next((each for each in fitting if -columns % each <= columns // FILLED), 1)
