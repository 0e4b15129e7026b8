"""Cost model of a register tile of dot products, shared by GEMM and convolutions.

A tile of mr rows and nr vectors takes mr * nr dot products per group of k, nr loads of B, and a
load of A per row, unless one register holds several groups of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dots import Dot
from tilewright.base.dtype import I32
from tilewright.base.machine import (
    CONVERT_STORE_CYCLES,
    LOOP_CYCLES,
    NARROW_CYCLES,
    Machine,
)
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.match.nest import block_of
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


def row_counts(machine: Machine) -> tuple[int, ...]:
    """Candidates for mr: each row needs an address register."""
    return tuple(range(1, machine.address_registers + 1))


def fits_registers(dot: Dot, mr: Any, nr: Any, registers: int) -> Any:
    """Whether accumulators and held operands fit the registers, with one to spare."""
    held = mr + dot.groups if dot.groups > 1 else 2 + nr
    scratch = 0 if dot.adds else 1
    return mr * nr + held + scratch < registers


def register_tile(dot: Dot, rows: Sequence[LoopRef], vector: LoopRef) -> list[LoopRef]:
    """The loops of a register tile, outermost first.

    The vectors of B are held, and each row of A is multiplied by all of them. Where one register
    holds several groups of A, all rows are held instead, and multiplied by the groups of one vector
    of B.
    """
    return [vector, *rows] if dot.groups > 1 else [*rows, vector]


def is_unrollable(dot: Dot, machine: Machine, calls: int, mr: Any, nr: Any, unroll: Any) -> Any:
    """Whether so many calls along k may be unrolled: they divide the total, and the body stays
    small.

    Not where accumulation takes a second instruction: LLVM would reassociate several products
    before adding them, and run out of registers.
    """
    is_little = unroll * mr * nr * dot.groups <= machine.loop_body_instructions // 2
    return (unroll == 1) | (dot.adds & is_little & (calls % unroll == 0))


def tile_cycles(dot: Dot, machine: Machine, mr: Any, nr: Any, k: int, near: Any) -> Any:
    """Cycles of the reduction of a register tile; B is loaded from L1 if near, else from L2. Takes
    numbers or columns."""
    instructions = mr * nr * (1 if dot.adds else 2) + mr * dot.shares
    loads = (mr / dot.groups + nr) / machine.loads_per_cycle
    step = np.maximum(np.maximum(instructions / machine.fma_per_cycle, loads), dot.chain_cycles)
    rate = np.where(near, machine.l1d.bytes_per_cycle, machine.l2.bytes_per_cycle)
    return ceil_div(k, dot.group) * np.maximum(step, nr * dot.lanes * I32.size_bytes / rate)


def result_cycles(mr: Any, nr: Any, narrower: int, machine: Machine) -> Any:
    """Cycles per register tile outside of its reduction: loop overhead and the stores.

    Results may be narrower than the sums: rounding, saturating and packing a partial vector of them
    takes as long as a whole one.
    """
    packed = ceil_div(nr, narrower) * narrower if narrower > 1 else 0
    vectors = nr * CONVERT_STORE_CYCLES + packed * NARROW_CYCLES
    return mr * (vectors + LOOP_CYCLES) + machine.branch_miss_cycles


def narrower_of(sch: Schedule, block: BlockRef, sum_bytes: int) -> int:
    """How many times narrower than the sums the epilogue's results are; 1 without an epilogue."""
    made = [block_of(sch.function, each.name).writes for each in sch.get_consumers(block)]
    sizes = [writes[0].buffer.dtype.size_bytes for writes in made if writes]
    return max(1, sum_bytes // max(1, min(sizes, default=sum_bytes)))


def whole(dots: Sequence[Dot], k: int | None) -> Dot:
    """The widest instruction whose step divides k: those of several groups leave no tail."""
    found = (dot for dot in dots if k is not None and k % dot.steps == 0)
    return next(found, next(dot for dot in dots if dot.groups == 1))
