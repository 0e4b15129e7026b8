"""What a register tile costs: the part of the cost model that GEMM and convolutions share.

A tile of mr rows and nr vectors takes mr * nr multiply-adds, mr + nr loads per step of k, and never
less than the latency of a multiply-add, since every accumulator waits for its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.machine import Cache, Machine
from tilewright.rules.space import Column

N, M, BATCH, NONE = "n", "m", "batch", "none"  # what threads share out

BODY_FMAS = 128  # multiply-adds in the body of a loop over k: more code does not help the front end
K_UNROLL = (8, 4, 2, 1)  # steps of k in a body, the most that BODY_FMAS allows first


def step_cycles(mr: Any, nr: Any, machine: Machine) -> Any:
    """Cycles of one step of k in a register tile; numbers or columns."""
    compute = mr * nr / machine.fma_per_cycle
    loads = (mr + nr) / machine.loads_per_cycle
    return np.maximum(np.maximum(compute, loads), machine.fma_latency_cycles)


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


def unrolled_steps(total: int, body: int, most: int = 4) -> int:
    """Steps of k that are unrolled, of so many multiply-adds each: a divisor of the total."""
    return next(n for n in K_UNROLL if n == 1 or is_unrollable(total, body, n, most))


def is_unrollable(total: Any, body: Any, steps: Any, most: Any = 4) -> Any:
    """Whether so many steps of k may be unrolled: they divide the total, and are little code."""
    return (steps <= most) & (steps * body <= BODY_FMAS) & (total % steps == 0)


def same_set_rows(l1d: Cache) -> int:
    """Rows whose addresses fall into one set of L1 that it holds, while other data streams by."""
    return max(2, l1d.ways * 2 // 3)


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def as_flags(*conditions: Any) -> Column:
    """How many of some conditions hold, row by row."""
    total: Column = np.sum(np.broadcast_arrays(*conditions), axis=0)
    return total
