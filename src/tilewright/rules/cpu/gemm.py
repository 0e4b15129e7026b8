"""GEMM with register tiles: B packed into panels, k and n blocked for L2, fused epilogue.

    for kb, jb                 blocks of kc steps of k; blocks of nc panels that stay in L2
      for io, jp               register tiles of m, panels of n: mr x nr accumulators
        for k                  mr * nr multiply-adds, B prefetched ahead

The rule takes GEMMs with enough rows to reuse B, and those whose B is a constant, which is packed
once. Threads share blocks of n, tiles of m, or the batch. `gemm_schedule` has the schedule steps;
`gemv` takes GEMMs of few rows, which read B once, unpacked.
"""

from __future__ import annotations

import numpy as np

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_cost import cost
from tilewright.rules.cpu.gemm_model import M, ceil_div
from tilewright.rules.cpu.gemm_plan import (
    GemmPlan,
    Sizes,
    n_chunks,
    part_terms,
    plans,
    row_tile,
    square_steps,
)
from tilewright.rules.cpu.gemm_schedule import WEIGHT, Blocking, tiled
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.rule import Rule
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Contraction | None:
    return find_contraction(sch, block)


def apply(
    sch: Schedule, found: Contraction, plan: GemmPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    size, machine = Sizes.of(found, context), context.target.machine
    lanes, row_lines = size.lanes, ceil_div(plan.nr * size.vector_bytes, machine.l2.line_bytes)
    blocks = ceil_div(size.n, plan.nr * plan.nc_panels)
    n_parts = int(n_chunks(np.array(blocks), np.array(plan.parallel), context.threads))
    blocking = Blocking(
        row_tile(found, plan.mr),
        plan.nr,
        lanes,
        plan.parallel,
        plan.m_chunks if plan.parallel == M else n_parts,
        plan.nc_panels,
        plan.nr * lanes if plan.pad_n else lanes,
        plan.kc,
        plan.kc_outermost,
        plan.pack_b,
        plan.k_unroll,
        plan.prefetch_b,
        plan.prefetch_next_panel,
        plan.prefetch_a,
        plan.alternate,
        plan.pack_a,
        max(1, machine.lines_ahead // row_lines),
        0 if plan.pack_b == WEIGHT else square_steps(found, plan.kc, context),
        part_terms(found, plan, context),
    )
    return tiled(sch, BlockRef(found.nest.name), found, blocking)


GEMM = Rule("gemm", GemmPlan, match, plans, cost, apply)
