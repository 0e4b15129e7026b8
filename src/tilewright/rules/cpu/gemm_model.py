"""What a register tile costs: the part of the cost model that GEMM and convolutions share.

A tile of mr rows and nr vectors takes mr * nr multiply-adds and mr + nr loads per step of k, and as
long as it takes to issue these; never less than the latency of a multiply-add, since every
accumulator waits for its own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.machine import Machine
from tilewright.base.target import Target
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.space import Column, doublings

N, M, BATCH, NONE = "n", "m", "batch", "none"  # what threads share out


MAX_TAILS = 8  # sizes that a last tile may have: each is code of its own


def step_cycles(mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles of one step of k in a register tile; numbers or columns."""
    compute = mr * nr / machine.fma_per_cycle
    loads = (mr + nr) / machine.loads_per_cycle
    issue = issue_cycles(mr, nr, machine)
    return np.maximum.reduce([compute, loads, issue, machine.fma_latency_cycles + 0 * issue])


def issue_cycles(mr: Any, nr: Any, machine: Machine) -> Any:
    """Of the instructions of a step: multiply-adds, loads, and prefetches of vectors of B."""
    return (mr * nr + mr + 2 * nr) / machine.issue_per_cycle


def load_share(mr: Any, nr: Any, machine: Machine) -> Any:
    """Of the time of multiply-adds: what the loads of a step cost beside them."""
    return machine.exposed_share * (mr + nr) / (mr * nr)


def fits_registers(mr: Any, nr: Any, target: Target, k_interleave: int = 1, spare: int = 0) -> Any:
    """Whether the sums of a register tile, a row of B and the numbers that it is multiplied by
    stay in registers.

    A number that is used once may become its sum, which then needs two registers; but for where
    multiply-adds read it from memory. Several terms of a sum side by side are no single number.
    """
    is_read = target.multiplies_from_memory and k_interleave == 1
    becomes_sum = (nr == 1) & (target.overwrites_factors and not is_read)
    ahead = np.where((nr == 1) & is_read, 1, np.minimum(target.numbers_ahead, ceil_div(mr, 2)))
    needed = np.where(becomes_sum, 2 * mr, mr * nr + nr + ahead)
    return needed + spare <= target.vector_registers


def tiles_cycles(m: Any, n: Any, mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles of one step of k over all tiles of m rows and n vectors, their tails included."""
    full_m, rest_m, full_n, rest_n = m // mr, m % mr, n // nr, n % nr

    def part(count: Any, rows: Any, vectors: Any) -> Any:
        return np.where(count * rows * vectors > 0, count * step_cycles(rows, vectors, machine), 0)

    return (
        part(full_m * full_n, mr, nr)
        + part(full_n, rest_m, nr)
        + part(full_m, mr, rest_n)
        + part(1, rest_m, rest_n)
    )


def chain_cycles(steps: Any, instructions: Any, machine: Machine) -> Any:
    """Of sums that each wait for the one before, per tile, where tiles of so many instructions
    follow one another: as many as the processor's window holds wait at the same time."""
    in_flight = np.maximum(1.0, machine.reorder_window / instructions)
    return steps * machine.fma_latency_cycles / in_flight


def strided_cycles(stride: Any, lanes: Any, machine: Machine) -> Any:
    """Of a vector of elements that are apart: loaded whole and shuffled, far ones lane by lane."""
    return np.minimum(2 * stride - 1, lanes * machine.gather_lane_cycles)


def partial_cycles(rest: int, machine: Machine) -> float:
    """Of a vector of which only some elements are there, without masks: pieces of a power of two
    elements each, loaded by themselves."""
    return rest.bit_count() * machine.gather_lane_cycles


def longest_chain(dtype: DType) -> int:
    """Terms of a sum whose roundings, which grow as the root of their number, take no more than a
    quarter of the digits."""
    return 1 << dtype.significand_bits // 2 if dtype.is_float else sys.maxsize


def shortest_part() -> int:
    """Terms of a sum that is added to others, and so loaded, stored and begun anew: so many that it
    would not decide between plans."""
    return round(1 / TIE_SHARE)


def most_vectors(target: Target) -> int:
    """Of a register tile: a row of accumulators, one of B, and what is broadcast."""
    return (target.vector_registers - 2) // 2


def k_unroll_candidates(machine: Machine) -> tuple[int, ...]:
    """Steps of k in the body of a loop that streams B: as far as lines are prefetched."""
    return doublings(machine.lines_ahead)


def near_unroll_candidates(machine: Machine) -> tuple[int, ...]:
    """Steps of k in the body of a loop whose operands are near: as many as one sum takes cycles."""
    return doublings(machine.fma_latency_cycles)


def unrolled_steps(total: int, body: int, machine: Machine) -> int:
    """Steps of k that are unrolled, of so many multiply-adds each: a divisor of the total."""
    steps = near_unroll_candidates(machine)
    fitting = [n for n in steps if is_unrollable(total, body, n, machine)]
    return max(fitting, default=1)


def is_unrollable(total: Any, body: Any, steps: Any, machine: Machine) -> Any:
    """Whether so many steps of k may be unrolled: they divide the total, and are little code."""
    is_little = steps * body <= machine.loop_body_instructions
    return (steps == 1) | (is_little & (total % steps == 0))


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def as_flags(*conditions: Any) -> Column:
    """How many of some conditions hold, row by row."""
    total: Column = np.sum(np.broadcast_arrays(*conditions), axis=0)
    return total
