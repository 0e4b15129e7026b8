"""What a register tile of dot products costs: the part that GEMM and convolutions share.

A tile of mr rows and nr vectors takes mr * nr instructions per group of k, nr loads of B, and a
load of A for every row, unless one register holds several groups of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dots import Dot
from tilewright.base.machine import Machine
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.match.nest import block_of
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

MR = tuple(range(1, 17))  # rows of a register tile; 16 general registers address them
NR = (1, 2, 3, 4, 5, 6, 8)  # vectors of a register tile
BODY_DOTS = 64  # instructions in the body of a loop over k: more code does not help the front end
K_UNROLL = (1, 2, 4)  # calls
EPILOGUE_CYCLES_PER_VECTOR = 4.0  # conversions and a store: a sum's way to memory
SUM_BYTES = 4  # of a lane: what a group of B takes too
PACKING_CYCLES_PER_VECTOR = 6.0  # of sums, where results are narrower
EPILOGUE_CYCLES_PER_ROW = 2.0  # its loop: short rows of a tile take more of them
TILE_CYCLES = 12.0  # of the loops around a register tile


def fits_registers(dot: Dot, mr: Any, nr: Any, registers: int) -> Any:
    """Whether sums and what is held of A and B are in registers, and one is left over."""
    held = mr + dot.groups if dot.groups > 1 else 2 + nr
    scratch = 0 if dot.adds else 1
    return mr * nr + held + scratch < registers


def register_tile(dot: Dot, rows: Sequence[LoopRef], vector: LoopRef) -> list[LoopRef]:
    """The loops of a register tile, outermost first.

    A row of A meets all vectors of B, which are held. Where one register holds several groups of A,
    all rows are held instead, and meet the groups of one vector of B after the other.
    """
    return [vector, *rows] if dot.groups > 1 else [*rows, vector]


def is_unrollable(dot: Dot, calls: int, mr: Any, nr: Any, unroll: Any) -> Any:
    """Whether so many calls along k may be unrolled: they divide all, and are little code.

    Not where a second instruction adds to the sums: LLVM would add several products first, and
    have too few registers for them.
    """
    is_little = unroll * mr * nr * dot.groups <= BODY_DOTS
    return (unroll == 1) | (dot.adds & is_little & (calls % unroll == 0))


def tile_cycles(dot: Dot, machine: Machine, mr: Any, nr: Any, k: int, near: Any) -> Any:
    """Cycles of the sums of a register tile, B from L1 where it is near, else from L2; numbers or
    columns."""
    instructions = mr * nr * (1 if dot.adds else 2) + mr * dot.shares
    loads = (mr / dot.groups + nr) / machine.loads_per_cycle
    step = np.maximum(np.maximum(instructions / machine.fma_per_cycle, loads), dot.chain_cycles)
    rate = np.where(near, machine.l1d.bytes_per_cycle, machine.l2.bytes_per_cycle)
    return ceil_div(k, dot.group) * np.maximum(step, nr * dot.lanes * SUM_BYTES / rate)


def result_cycles(mr: Any, nr: Any, narrower: int) -> Any:
    """Cycles around the sums of a register tile: its loops, and its results' way to memory.

    Results may be several times narrower than sums: rounding, saturating and packing them takes
    as long for a part of a vector of them as for a whole one.
    """
    packed = ceil_div(nr, narrower) * narrower if narrower > 1 else 0
    vectors = nr * EPILOGUE_CYCLES_PER_VECTOR + packed * PACKING_CYCLES_PER_VECTOR
    return mr * (vectors + EPILOGUE_CYCLES_PER_ROW) + TILE_CYCLES


def narrower_of(sch: Schedule, block: BlockRef, sum_bytes: int) -> int:
    """How many times narrower than sums the results are that follow them; 1 where none do."""
    made = [block_of(sch.function, each.name).writes for each in sch.get_consumers(block)]
    sizes = [writes[0].buffer.dtype.size_bytes for writes in made if writes]
    return max(1, sum_bytes // max(1, min(sizes, default=sum_bytes)))


def whole(dots: Sequence[Dot], k: int | None) -> Dot:
    """The instruction for whole groups of k; of several at a time only where none is left over."""
    found = (dot for dot in dots if k is not None and k % dot.steps == 0)
    return next(found, next(dot for dot in dots if dot.groups == 1))
