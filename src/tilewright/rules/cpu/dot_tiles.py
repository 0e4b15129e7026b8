"""GEMM of few rows whose operands are both contiguous along k: register tiles of dot products.

    for tiles of n, tiles of m          mr x nr accumulators, each a vector of partial sums
      for k                             a vector of each of mr rows of A and nr columns of B
      horizontal sums of the lanes, then the epilogue

With few rows, transposing B into panels takes longer than using it: a layer with weights [n, k]
that change with every training step, say. The rule competes with `gemm`, which packs B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import NONE, N, ceil_div, tiles_cycles
from tilewright.rules.cpu.vectorize import FEW_ELEMENTS
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.match.nest import fused
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class DotTilesPlan:
    """The register tile of dot products."""

    mr: int = unit("rows", "of the register tile")
    nr: int = unit("columns", "of the register tile")
    parallel: str = unit("axis", "split across threads")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Contraction | None:
    found = find_contraction(sch, block)
    return found if found is not None and is_dots(found, context) else None


def is_dots(found: Contraction, context: RuleContext) -> bool:
    """Whether several rows multiply a non-constant B; all sizes are static."""
    kinds = {load.buffer.dtype for load in (found.a, found.b)}
    kinds.add(found.block.writes[0].buffer.dtype)
    iterators = (found.m, found.n, found.k)
    extents = [found.extent(at) for at in range(len(found.block.iters))]
    if found.b.buffer.name in context.constants or len(kinds) > 1 or None in extents:
        return False
    if any(len(each) != 1 for each in iterators):
        return False
    along = [found.stride(load, found.k[0]) is ONE for load in (found.a, found.b)]
    lanes = context.target.lanes(found.block.writes[0].buffer.dtype.bits)
    rows, steps = found.guess(found.m), found.guess(found.k)
    return all(along) and rows > 1 and lanes > 1 and steps % lanes == 0


def plans(found: Contraction, context: RuleContext) -> Space[DotTilesPlan]:
    target = context.target

    def legal(c: Columns) -> Column:
        found: Column = c["mr"] * c["nr"] + c["nr"] + 1 <= target.vector_registers
        return found

    lanes = target.lanes(found.block.writes[0].buffer.dtype.bits)
    return Space(
        DotTilesPlan,
        {
            "mr": tuple(range(1, min(found.guess(found.m), target.vector_registers) + 1)),
            "nr": doublings(min(found.guess(found.n), lanes)),
            "parallel": (NONE, N) if context.threads > 1 else (NONE,),
        },
        legal,
    )


def cost(found: Contraction, c: Columns, context: RuleContext) -> Cost:
    machine, target = context.target.machine, context.target
    dtype = found.block.writes[0].buffer.dtype
    lanes = target.lanes(dtype.bits)
    batch, m, n, k = map(found.guess, (found.batch, found.m, found.n, found.k))
    threads = np.where(c["parallel"] == N, context.threads, 1)
    n = ceil_div(ceil_div(n, c["nr"]), threads) * c["nr"]
    fma = batch * k / lanes * tiles_cycles(m, n, c["mr"], c["nr"], machine)
    passes = ceil_div(m, c["mr"])
    again = (passes - 1) * batch * n * k * dtype.size_bytes / machine.l1d.bytes_per_cycle
    # Every tile of columns reads all rows of A: from L2 or beyond, unless L1 keeps them.
    a_bytes, l1d = m * k * dtype.size_bytes, machine.l1d
    is_far = a_bytes > machine.l2.kept_bytes
    rate = machine.memory_bytes_per_cycle if is_far else machine.l2.bytes_per_cycle
    rows = batch * n / c["nr"] * a_bytes / rate
    late = machine.exposed_l2_share * rows + np.maximum(0, rows - fma)
    # To halve vectors, and to add the few lanes that are left: a shuffle and an addition each.
    few = min(lanes, FEW_ELEMENTS)
    additions = lanes // few + few - 2
    b_bytes = n * k * dtype.size_bytes
    memory = batch * b_bytes / machine.memory_bytes_per_cycle
    return Cost.of(
        fma=fma,
        loads=machine.exposed_share * fma * (c["mr"] + c["nr"]) / (c["mr"] * c["nr"]),
        memory=np.where(
            b_bytes <= machine.l2.block_bytes, 0.0, machine.exposed_rows_share * memory
        ),
        again=machine.exposed_share * again,
        rows=late * (a_bytes > l1d.kept_bytes),
        lanes=batch * m * n * 2 * additions / machine.fma_per_cycle,
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


def apply(
    sch: Schedule, found: Contraction, plan: DotTilesPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block = BlockRef(found.nest.name)
    lanes = context.target.lanes(found.block.writes[0].buffer.dtype.bits)
    (m,), (n,), (k,) = found.m, found.n, found.k
    _, lane = sch.split(sch.get_loops(block)[k], [None, lanes])
    rank = len(found.block.writes[0].buffer.shape)
    sums, folded = sch.rfactor(lane, rank), None
    if lanes > FEW_ELEMENTS:  # vectors are halved before their lanes are added one by one
        _, few = sch.split(sch.get_loops(block)[-1], [None, FEW_ELEMENTS])
        folded = sch.rfactor(few, rank)
    loops = sch.get_loops(block)
    outer, summed = [loops[at] for at in found.batch], loops[-1]
    rows, row = sch.split(loops[m], [None, plan.mr])
    columns, column = sch.split(loops[n], [None, plan.nr])
    sch.reorder(*outer, columns, rows, row, column, summed)
    for loop in (row, column, summed):
        sch.unroll(loop)
    stores = fuse_epilogue(sch, block, rows, plan.nr, plan.nr)
    if folded is not None:
        _fold(sch, folded, rows)
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, rows)
    all_loops = sch.get_loops(sums)
    apart, *own = all_loops[all_loops.index(rows) + 1 :]
    inside = [own[at] for at in found.batch]
    sch.reorder(*inside, own[k], own[m], own[n], apart)
    for loop in (own[m], own[n]):
        sch.unroll(loop)
    sch.vectorize(apart)
    sch.decompose_reduction(sums, own[k])
    if plan.parallel == N:
        sch.parallel(fused(sch, [*outer, columns]))
    return (block, sums, *([] if folded is None else [folded]), *stores)


def _fold(sch: Schedule, folded: BlockRef, rows: LoopRef) -> None:
    """Place the sums of pieces of vectors beside the sums of whole vectors."""
    sch.set_scope(folded, 0, "local")
    sch.compute_at(folded, rows)
    all_loops = sch.get_loops(folded)
    lane, *own = all_loops[all_loops.index(rows) + 1 :]
    sch.reorder(*own, lane)
    for loop in own:
        sch.unroll(loop)
    sch.vectorize(lane)


DOT_TILES = Rule("dot_tiles", DotTilesPlan, match, plans, cost, apply)
