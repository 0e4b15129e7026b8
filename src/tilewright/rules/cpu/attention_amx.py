"""Attention in bf16 and int8 on AMX tiles: a tile of queries at a time.

    pack keys and values of all heads              in the instruction's groups of k
    for tile in parallel ... {                     batch, head, 32 queries
      scores[i, j] of the tile                     2 x 2 AMX tiles at a time
      max, exp, sum over j, vectorized along j
      values[i, f] += weights[i, j] * v[j, f]      2 x 2 AMX tiles; over the sum
    }

Lowering has split rows into whole tiles and padded the operands. Cheap stages are recomputed for
the maximum and for the weights instead of being stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.dtype import F32
from tilewright.base.tiles import BLOCK_TILES
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.amx_schedule import (
    TILE_ROWS,
    Blocking,
    kind_of,
    lay_out_b,
    load_tiles,
    pack,
    registers_of,
    split_loops,
    tensorize_tiles,
)
from tilewright.rules.cpu.gemm_model import NONE, ceil_div
from tilewright.rules.cpu.gemm_schedule import maker_of
from tilewright.rules.cpu.vectorize import accumulate_cycles, accumulator_counts, vectorize_stage
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.match.nest import attempt, block_of, fused, inner_nest
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, unit
from tilewright.tensor.ir import REDUCE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import blocks

TILES = "tiles"  # of queries of all heads: the parallel axis


@dataclass(frozen=True)
class AmxAttentionPlan:
    """The tiling of attention on AMX."""

    accumulators: int = unit("vectors", "of partial results of the reductions, at most")
    parallel: str = unit("axis", "split across threads")


@dataclass(frozen=True)
class _Found:
    """Two contractions, and the stages between and after them."""

    first: Contraction  # queries times keys
    second: Contraction  # softmax weights times values
    stages: tuple[str, ...]  # in program order, without the root
    root: BlockRef
    stage_cycles: float  # of all stages, per vector of scores


def plans(found: _Found, context: RuleContext) -> Space[AmxAttentionPlan]:
    axes = (NONE, TILES) if context.threads > 1 else (NONE,)
    return Space(
        AmxAttentionPlan,
        {"accumulators": accumulator_counts(context.target.machine), "parallel": axes},
    )


def cost(found: _Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of both GEMMs in whole register blocks, and of loading and storing scores between
    them."""
    machine, threads = context.target.machine, context.threads
    seen = found.second.nest.summed_share  # other keys are skipped
    gemms = 0.0
    for gemm in (found.first, found.second):
        kind = kind_of(gemm, context)
        assert kind is not None
        gemms += (
            gemm.nest.instances * seen / (TILE_ROWS * TILE_ROWS * kind.depth) * machine.tile_cycles
        )
    lanes = context.target.lanes(F32.bits)
    vectors = found.first.nest.instances * seen / found.first.guess(found.first.k) / lanes
    scores = accumulate_cycles(vectors, c["accumulators"], machine)
    scores = scores + vectors * found.stage_cycles
    tiles = found.first.guess((*found.first.batch, *found.first.m[:-1]))
    share = np.where(c["parallel"] == TILES, ceil_div(tiles, threads) / tiles, 1.0)
    return Cost.of(
        gemms=gemms * share,
        scores=scores * share,
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


def apply(
    sch: Schedule, found: _Found, plan: AmxAttentionPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    stages = [name for name in found.stages if not _inline(sch, name)]
    queries = maker_of(sch, BlockRef(found.first.nest.name), found.first.a.buffer)
    first = _TiledGemm(sch, found.first, context)
    second = _TiledGemm(sch, found.second, context)
    around = sch.get_loops(second.registers.store)[:-2]  # all but the rows and features of a tile
    maps = [found.root]
    sch.reverse_compute_at(found.root, around[-1])
    second.multiply(around)
    for name in (*reversed(stages), first.registers.store.name):
        sch.compute_at(sch.get_block(name), around[-1])
    first.multiply(around)
    if queries is not None:
        sch.compute_at(queries, around[-1])
        maps.append(queries)
    for name in stages:
        block = sch.get_block(name)
        if _is_reduction(sch, name):
            vectorize_stage(sch, block, len(around), context, plan.accumulators)
        else:
            maps.append(block)
    for block in maps:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, context.target.lanes(F32.bits)])
        sch.vectorize(lane)
    if plan.parallel == TILES:
        sch.parallel(fused(sch, around))
        for panel in (first.panel, second.panel):
            sch.parallel(fused(sch, sch.get_loops(panel)[:2]))
    return (*maps, *[sch.get_block(name) for name in stages], *first.blocks, *second.blocks)


def _inline(sch: Schedule, name: str) -> bool:
    """Inline a stage that is cheap to recompute; returns whether it was."""
    block = block_of(sch.function, name)
    is_cheap = not _is_reduction(sch, name) and costs.is_cheap(block)
    return is_cheap and attempt(sch, sch.compute_inline, sch.get_block(name))


class _TiledGemm:
    """A contraction being mapped to AMX tiles."""

    def __init__(self, sch: Schedule, found: Contraction, context: RuleContext) -> None:
        self.sch, self.found = sch, found
        self.block = BlockRef(found.nest.name)
        self.plan = _blocking(found, context)
        made = maker_of(sch, self.block, found.b.buffer)
        self.panel = made or sch.cache_read(self.block, found.read_index(found.b), "global")
        self.registers = registers_of(sch, self.block, found, self.plan)
        self.blocks = [self.block, self.panel, *self.registers.all]

    def multiply(self, around: list[LoopRef]) -> None:
        """Compute a tile of queries under the loops around it."""
        sch, found, plan = self.sch, self.found, self.plan
        sch.compute_at(self.block, around[-1])
        nest = inner_nest(sch, self.block, len(around))
        assert nest is not None  # compute_at makes a loop per iterator
        cut = split_loops(sch, found, plan, nest.loops, blocks_first=False)
        sch.reverse_compute_at(self.registers.store, cut.js)
        load_tiles(sch, found, plan, self.registers, cut)
        lay_out_b(sch, found, plan, self.panel)
        pack(sch, found, plan, self.panel)
        self.blocks.append(tensorize_tiles(sch, self.block, found, plan, self.registers, cut))


def _blocking(found: Contraction, context: RuleContext) -> Blocking:
    """2 x 2 tiles per register block; all columns of a tile's rows in turn."""
    kind = kind_of(found, context)
    assert kind is not None
    strips = found.nest.guess(found.n[-1]) // (BLOCK_TILES * TILE_ROWS)
    return Blocking(
        kind,
        TILE_ROWS,
        BLOCK_TILES,
        BLOCK_TILES,
        strips,
        b_is_constant=False,
        parallel=NONE,
        prefetch_b=0,
        prefetch_a=False,
    )


# ------------------------------------------------------------------------------------ finding


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> _Found | None:
    second, roots = _product(sch, reference, context), sch.get_consumers(reference)
    if second is None or len(roots) != 1 or _is_reduction(sch, roots[0].name):
        return None
    before = _ancestors(sch, roots[0])
    products = {
        name: product
        for name in before - {reference.name}
        if (product := _product(sch, sch.get_block(name), context)) is not None
    }
    if len(products) != 1:
        return None
    ((first, product),) = products.items()
    between = before - {first, reference.name, roots[0].name}
    stages = tuple(
        block.name
        for block in blocks(sch.function.body)
        if block.name in between and first in _ancestors(sch, sch.get_block(block.name))
    )
    cycles = sum(costs.body_cycles(block_of(sch.function, name)) for name in stages)
    return _Found(product, second, stages, roots[0], cycles) if stages else None


def _ancestors(sch: Schedule, reference: BlockRef) -> set[str]:
    """A block and all blocks whose results it uses, directly or not."""
    found: set[str] = set()
    stack = [reference]
    while stack:
        reference = stack.pop()
        if reference.name not in found:
            found.add(reference.name)
            stack.extend(sch.get_producers(reference))
    return found


def _is_reduction(sch: Schedule, name: str) -> bool:
    """Whether a block is a reduction."""
    return any(it.kind == REDUCE for it in block_of(sch.function, name).iters)


def _product(sch: Schedule, reference: BlockRef, context: RuleContext) -> Contraction | None:
    """The contraction of whole tiles that a block computes, of rows that are split into tiles."""
    found = find_contraction(sch, reference, is_masked=True)
    if found is None or kind_of(found, context) is None:
        return None
    is_cut = found.m != () and found.extent(found.m[-1]) == BLOCK_TILES * TILE_ROWS
    is_whole = all(
        (found.extent(at) or 1) % (BLOCK_TILES * TILE_ROWS) == 0 for at in (*found.n, *found.k)
    )
    return found if is_cut and is_whole and len(found.n) == len(found.k) == 1 else None


ATTENTION_AMX = Rule("attention_amx", AmxAttentionPlan, match, plans, cost, apply)
