"""Cost model of a register tile, shared by GEMM and convolutions.

A tile of mr rows and nr vectors takes mr * nr multiply-adds and mr + nr loads per step of k. A step
takes as long as issuing these, but never less than the latency of a multiply-add, since every
accumulator depends on its previous value.
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

N, M, BATCH, NONE = "n", "m", "batch", "none"  # the axis split across threads


MAX_TAILS = 8  # sizes of a tail tile that get specialized code each


def step_cycles(mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles of one step of k of a register tile; takes numbers or columns."""
    compute = mr * nr / machine.fma_per_cycle
    loads = (mr + nr) / machine.loads_per_cycle
    issue = issue_cycles(mr, nr, machine)
    return np.maximum.reduce([compute, loads, issue, machine.fma_latency_cycles + 0 * issue])


def issue_cycles(mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles to issue a step: multiply-adds, loads, and prefetches of vectors of B."""
    return (mr * nr + mr + 2 * nr) / machine.issue_per_cycle


def has_spare_slots(mr: Any, nr: Any, k_unroll: Any, machine: Machine) -> Any:
    """Whether multiply-adds leave time to issue a prefetch and its address for every row of A, once
    in a loop body of `k_unroll` steps."""
    body = k_unroll * issue_cycles(mr, nr, machine) + 2 * mr / machine.issue_per_cycle
    return body < k_unroll * mr * nr / machine.fma_per_cycle


def load_share(mr: Any, nr: Any, machine: Machine) -> Any:
    """Cost of a step's loads, as a share of the time of its multiply-adds."""
    return machine.exposed_share * (mr + nr) / (mr * nr)


def fits_registers(mr: Any, nr: Any, target: Target, k_interleave: int = 1, spare: int = 0) -> Any:
    """Whether the accumulators of a register tile, a row of B and the broadcast elements of A fit
    the registers.

    A broadcast element that is used once may be overwritten by its sum, which then takes two
    registers, unless multiply-adds take it as a memory operand. With `k_interleave`, several terms
    are in flight.
    """
    is_read = target.has_fma_broadcast and k_interleave == 1
    becomes_sum = (nr == 1) & (target.fma_overwrites_operand and not is_read)
    ahead = np.where(
        (nr == 1) & is_read, 1, np.minimum(target.broadcasts_in_flight, ceil_div(mr, 2))
    )
    needed = np.where(becomes_sum, 2 * mr, mr * nr + nr + ahead)
    return needed + spare <= target.vector_registers


def tiles_cycles(m: Any, n: Any, mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles of one step of k over all tiles of m rows and n vectors, tails included."""
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
    """Cycles per tile of dependent accumulations, where successive tiles of so many instructions
    overlap in the processor's out-of-order window."""
    in_flight = np.maximum(1.0, machine.reorder_window / instructions)
    return steps * machine.fma_latency_cycles / in_flight


def strided_cycles(stride: Any, lanes: Any, machine: Machine) -> Any:
    """Cycles to load a strided vector: whole vectors and shuffles, or lane by lane for large
    strides."""
    return np.minimum(2 * stride - 1, lanes * machine.gather_lane_cycles)


def partial_cycles(rest: int, machine: Machine) -> float:
    """Cycles to load a partial vector without masks: one load per power-of-two piece."""
    return rest.bit_count() * machine.gather_lane_cycles


def longest_chain(dtype: DType) -> int:
    """The longest accumulation chain whose rounding error, which grows as the square root of its
    length, costs at most a quarter of the digits."""
    return 1 << dtype.significand_bits // 2 if dtype.is_float else sys.maxsize


def shortest_part() -> int:
    """The least number of terms of a partial sum for which loading, storing and restarting it does
    not matter."""
    return round(1 / TIE_SHARE)


def most_vectors(target: Target) -> int:
    """The largest nr: a row of accumulators, one of B, and a broadcast register."""
    return (target.vector_registers - 2) // 2


def k_unroll_candidates(machine: Machine) -> tuple[int, ...]:
    """Unroll factors along k for a loop that streams B: up to the prefetch distance in lines."""
    return doublings(machine.lines_ahead)


def near_unroll_candidates(machine: Machine) -> tuple[int, ...]:
    """Unroll factors along k for a loop whose operands are in L1: up to the latency of an
    accumulation."""
    return doublings(machine.fma_latency_cycles)


def unrolled_steps(total: int, body: int, machine: Machine) -> int:
    """An unroll factor along k, a divisor of the total, for so many multiply-adds per step."""
    steps = near_unroll_candidates(machine)
    fitting = [n for n in steps if is_unrollable(total, body, n, machine)]
    return max(fitting, default=1)


def is_unrollable(total: Any, body: Any, steps: Any, machine: Machine) -> Any:
    """Whether an unroll factor divides the total number of steps and keeps the body small."""
    is_little = steps * body <= machine.loop_body_instructions
    return (steps == 1) | (is_little & (total % steps == 0))


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def as_flags(*conditions: Any) -> Column:
    """The number of conditions that hold, row by row."""
    total: Column = np.sum(np.broadcast_arrays(*conditions), axis=0)
    return total
