"""GEMM of few rows: B is read once, in memory order, at memory bandwidth.

    for strip in parallel      columns whose results stay in L2
      for kb                   a few rows of B at a time, each one a stream
        for j                  a tile of all rows of A and some vectors of n
          for k                the rows of B of this block

Each element of B takes part in a handful of multiply-adds only, so the GEMM is memory-bound: the
number of streams is one that the hardware prefetchers can follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.gemm_model import (
    NONE,
    N,
    ceil_div,
    is_unrollable,
    k_unroll_candidates,
    most_vectors,
    tiles_cycles,
)
from tilewright.rules.cpu.gemm_schedule import UNPACKED, Blocking, tiled
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import MAX_THREAD_CHUNKS
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, Schedule

GEMV_MAX_ROWS = 3  # up to so many rows, packing B takes longer than using it


@dataclass(frozen=True)
class GemvPlan:
    """The blocking of a GEMM of few rows."""

    nr: int = unit("vectors", "of the register tile")
    parallel: str = unit("axis", "split across threads")
    streams: int = unit("rows of B", "read concurrently, as streams")
    strips: int = unit("strips of n", "per thread, whose results stay in L2")
    k_unroll: int = unit("steps of k", "per iteration of the unrolled loop")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Contraction | None:
    found = find_contraction(sch, block)
    return found if found is not None and streams_b(found, context) else None


def streams_b(found: Contraction, context: RuleContext) -> bool:
    """Whether few rows of A read an unpacked B that is contiguous along n and exceeds the near
    caches."""
    target, last = context.target, found.n[-1]
    rows, columns = found.guess(found.m), found.extent(last)
    lanes = target.lanes(found.block.writes[0].buffer.dtype.bits)
    is_known = all(found.extent(at) is not None for at in (*found.m, *found.k))
    if (
        found.b.buffer.name in context.constants
        or found.unpacks_b
        or rows > target.machine.address_registers
        or not is_known
    ):
        return False
    if columns is None or columns < lanes or found.stride(found.b, last) is not ONE:
        return False
    k = found.guess(found.k)
    near = target.l1d_bytes if rows <= GEMV_MAX_ROWS + 1 else 2 * target.l2_bytes
    size = k * columns * found.b.buffer.dtype.size_bytes
    return len(found.k) == 1 and size >= near and k > target.machine.prefetch_streams


def plans(found: Contraction, context: RuleContext) -> Space[GemvPlan]:
    target, m = context.target, found.guess(found.m)
    lanes = target.lanes(found.block.writes[0].buffer.dtype.bits)
    n, k = ceil_div(found.nest.guess(found.n[-1]), lanes), found.guess(found.k)

    def legal(c: Columns) -> Column:
        unrolls = is_unrollable(c["streams"], m * c["nr"], c["k_unroll"], target.machine)
        unrolls &= 2 * c["k_unroll"] <= c["streams"]
        fits = (c["nr"] == 1) | ((m + 1) * c["nr"] < target.vector_registers)
        found: Column = unrolls & fits
        return found

    followed = target.machine.prefetch_streams
    return Space(
        GemvPlan,
        {
            "nr": doublings(min(most_vectors(target), n)),
            "parallel": (NONE, N) if context.threads > 1 else (NONE,),
            "streams": tuple(s for s in (followed, followed // 2, 2 * followed) if s < k),
            "strips": doublings(2 * MAX_THREAD_CHUNKS),
            "k_unroll": k_unroll_candidates(target.machine),
        },
        legal,
    )


def cost(found: Contraction, c: Columns, context: RuleContext) -> Cost:
    machine, target = context.target.machine, context.target
    followed = machine.prefetch_streams
    of = found.block.writes[0].buffer.dtype
    lanes, m, k = target.lanes(of.bits), found.guess(found.m), found.guess(found.k)
    n, batch = ceil_div(found.nest.guess(found.n[-1]), lanes), found.guess(found.batch)
    threads = np.where(c["parallel"] == N, context.threads, 1)
    padded = ceil_div(n, c["nr"]) * c["nr"]
    b_bytes = batch * k * n * lanes * found.b.buffer.dtype.size_bytes
    memory = b_bytes / machine.memory_bytes_per_cycle / threads
    compute = batch * k * tiles_cycles(m, padded, m, c["nr"], machine) / threads
    strip_bytes = m * n * lanes * of.size_bytes / (threads * c["strips"])
    # Partial sums of a strip are loaded and stored once per block of k.
    sums = 2 * batch * m * n * lanes * of.size_bytes * (k / c["streams"]) / threads
    spill = np.where(
        strip_bytes > machine.l2.block_bytes,
        sums / machine.scattered_bytes_per_cycle,
        0.0,
    )
    return Cost.of(
        memory=np.maximum(memory, compute),
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
        sums=sums / machine.l1d.bytes_per_cycle + spill,
        streams=machine.exposed_share * memory * np.abs(np.log2(c["streams"] / followed)),
        strips=c["strips"] * machine.fma_latency_cycles * k / c["streams"],
        narrow=TIE_SHARE * memory / c["nr"],
        unroll=batch * k * ceil_div(n, c["nr"]) / threads / c["k_unroll"],
    )


def apply(
    sch: Schedule, found: Contraction, plan: GemvPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    lanes = context.target.lanes(found.block.writes[0].buffer.dtype.bits)
    threads = context.threads if plan.parallel == N else 1
    blocking = Blocking(
        mr=tuple(found.extent(at) or 1 for at in found.m),
        nr=plan.nr,
        lanes=lanes,
        parallel=plan.parallel,
        parallel_chunks=plan.strips * threads,
        nc_panels=1,
        pad_n_to=plan.nr * lanes,
        kc=plan.streams,
        kc_outermost=True,
        pack_b=UNPACKED,
        k_unroll=plan.k_unroll,
        prefetch_b=0,
        prefetch_next_panel=False,
        prefetch_a=False,
    )
    return tiled(sch, BlockRef(found.nest.name), found, blocking)


GEMV = Rule("gemv", GemvPlan, match, plans, cost, apply)
