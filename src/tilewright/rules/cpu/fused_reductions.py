"""Softmax, normalizations and the like: all stages of a row are fused while the row is in cache.

    for chunk in parallel ... { for row in ... { max of row; exp and sum of row; row / sum } }

A *row* is an index of the loops that all reductions keep (`match/rows.py`). Stages are moved under
the loop over rows, each vectorized on its own, and intermediate buffers shrink to one row. Where
the row index itself is contiguous in memory, stages are vectorized across rows: a tile of
neighbouring rows takes the place of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import (
    SPATIAL_LANES,
    accumulate_cycles,
    accumulator_counts,
    preferred_lanes,
    row_cycles,
    vectorize_stage,
)
from tilewright.rules.match.nest import fused, groups, total
from tilewright.rules.match.rows import Stages, is_part_of_later, stages_of
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import (
    NONE,
    Axes,
    Forms,
    Work,
    forms_candidates,
    forms_legal,
    forms_terms,
)
from tilewright.rules.space import Column, Columns, Cost, Space, Value, unit
from tilewright.sym import ONE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

ROWS = "rows"


@dataclass(frozen=True)
class RowsPlan:
    """The tiling of stages that share rows."""

    tile: int = unit("rows", "adjacent in memory that form a tile; 1: one row at a time")
    accumulators: int = unit("vectors", "of partial results, at most")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows or tiles", "in a thread's chunk")


@dataclass(frozen=True)
class _Found:
    """The stages, and which of their rows are adjacent in memory."""

    stages: Stages
    across: tuple[int, ...]  # iterators of the root over adjacent rows; () if there are none
    lanes: int
    tile_vectors: tuple[int, ...]  # candidates: vectors of adjacent rows in a tile
    box_rows: int  # adjacent rows in a tile at most

    @cached_property
    def order(self) -> list[int]:
        """The root's iterators that are no rows."""
        return [at for at in self.stages.root.loops if at not in self.stages.rows]

    @property
    def whole(self) -> tuple[int, ...]:
        """The dimensions of adjacent rows that a tile covers in full: pieces of several dimensions
        at once would be no boxes."""
        return self.across[-1:] if self._is_long else self.across

    @property
    def _is_long(self) -> bool:
        return bool(self.across) and self.stages.root.guess(self.across[-1]) >= self.lanes

    def is_box(self, tile: int) -> bool:
        """Whether a tile is all adjacent rows, rather than a piece of the last dimension."""
        around = [at for at in self.stages.rows if at not in self.whole]
        return bool(around) and tile == total(self.stages.root, self.whole)

    def tiles(self) -> tuple[int, ...]:
        """Candidates for `tile`, in order of preference."""
        if not self.across:
            return (1,)
        root = self.stages.root
        together = total(root, self.whole)
        last, piece = total(root, self.across[-1:]), self.tile_vectors[0] * self.lanes
        # All of them where pieces would leave a tail, which is a predicate in every one.
        is_ragged = last % piece > 0 and not root.is_dynamic(self.across)
        most = self.box_rows if is_ragged else piece
        box = [together] if together <= most else []
        pieces = [
            count * self.lanes
            for count in self.tile_vectors
            if count == 1 or last >= count * self.lanes
        ]
        boxes = [tile for tile in box if self.is_box(tile)]
        return tuple(dict.fromkeys((*boxes, *[p for p in pieces if p > 1], 1)))

    def units(self, tile: int) -> int:
        """The number of tiles, or rows."""
        root, rows = self.stages.root, self.stages.rows
        if tile == 1:
            return total(root, rows)
        if self.is_box(tile):
            return total(root, [at for at in rows if at not in self.whole])
        outer = total(root, [at for at in rows if at not in self.across[-1:]])
        return outer * -(-total(root, self.across[-1:]) // tile)

    def forms(self, context: RuleContext) -> Forms:
        work = sum(costs.nest_cycles(nest, context.target) for nest in self.stages.nests)
        is_dynamic = self.stages.root.is_dynamic(self.stages.rows)
        found: dict[Value, Axes] = {}
        for tile in self.tiles():
            units = self.units(tile)
            found[tile] = {ROWS: Work(units, work / units, is_dynamic)} if units > 1 else {}
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> _Found | None:
    found = stages_of(sch, block)
    if found is None or not _has_rows(found, context) or is_part_of_later(sch, block):
        return None
    lanes = costs.lanes_of(context.target, found.root.block)
    counts = accumulator_counts(context.target.machine)  # rows are independent chains, too
    # The other half is for what else a stage reads.
    near = context.target.machine.l1d.size_bytes // 2
    box_rows = max(counts[0] * lanes, near // _row_bytes(found))
    return _Found(found, tuple(_neighbours(found, lanes)), lanes, counts, box_rows)


def _row_bytes(found: Stages) -> int:
    """Bytes of a row's intermediate results."""
    size_bytes = 1
    for name, nest in found.members.items():
        own = [at for at in nest.spatial if at not in found.row_axis_of[name].values()]
        items = sum(region.buffer.dtype.size_bytes for region in nest.block.writes)
        size_bytes += items * total(nest, own)
    return size_bytes


def _has_rows(found: Stages, context: RuleContext) -> bool:
    """Whether there are rows for all threads, or too little work to split: few long rows are left
    to rules that split them."""
    work = sum(costs.nest_cycles(nest, context.target) for nest in found.nests)
    is_little = work < 2 * context.target.machine.wake_cycles
    return is_little or total(found.root, found.rows) >= context.threads


def _neighbours(found: Stages, lanes: int) -> list[int]:
    """The row iterators that are adjacent in memory: the result's innermost loops are rows, and the
    reductions run across them."""
    root = found.root
    order = [at for at in root.loops if at not in found.rows]
    kept = [at for at in root.loops if root.extent(at) is not ONE]
    if not kept or kept[-1] not in found.rows:
        return []
    last = [at for at in kept if at > max([at for at in order if at in kept], default=-1)]
    part = groups(root, last)[-1]
    reductions = [nest for nest in found.members.values() if nest.reduce]
    is_across = any(preferred_lanes(nest, lanes) == SPATIAL_LANES for nest in reductions)
    return part if total(root, part) > 1 and is_across else []


def plans(found: _Found, context: RuleContext) -> Space[RowsPlan]:
    forms = found.forms(context)
    return Space(
        RowsPlan,
        {
            "tile": found.tiles(),
            "accumulators": accumulator_counts(context.target.machine),
            **forms_candidates(forms, context),
        },
        lambda c: forms_legal(c, "tile", forms, context),
    )


def cost(found: _Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all stages. Reductions along a row end with a horizontal reduction; those of a tile
    keep one row per lane; without a tile, adjacent rows are strided loads."""
    target, machine, root = context.target, context.target.machine, found.stages.root
    rows = total(root, found.stages.rows)
    padded = np.zeros(len(c["tile"]))
    for tile in found.tiles():
        done = rows if tile == 1 else found.units(tile) * -(-tile // found.lanes) * found.lanes
        padded = np.where(c["tile"] == tile, done / rows, padded)
    is_apart = (c["tile"] == 1) & bool(found.across)
    serial: Column = np.zeros(len(c["tile"]))
    members = found.stages.members.values()
    made = [region.buffer for nest in members for region in nest.block.writes]
    # Each vector is loaded and stored; other operations take an FMA port each.
    between = sum(
        nest.instances / found.lanes * (2 + machine.fma_per_cycle * costs.body_cycles(nest.block))
        for nest in found.stages.nests
    )
    for nest in found.stages.nests:
        base = np.asarray(costs.stage_cycles(nest, made, target))
        if nest.reduce:
            # The vectors of a tile are separate sums; those of a row are combined at its end.
            vectors = nest.instances / found.lanes
            sums = np.clip(c["tile"] // found.lanes, 1, c["accumulators"])
            tiled = accumulate_cycles(vectors, sums, machine)
            single = rows * row_cycles(
                vectors / rows, found.lanes, c["accumulators"], machine, between / rows
            )
            base = np.maximum(base, np.where(c["tile"] == 1, single, tiled))
        lines = np.where(is_apart, machine.l1d.line_bytes / costs.widest(nest.block).size_bytes, 1)
        serial = serial + base * padded * lines
    # Stages of a tile communicate through L1; each has its own loop overhead.
    starts = np.zeros(len(c["tile"]))
    for tile in found.tiles():
        here = found.units(tile) * len(found.stages.nests) * machine.fma_latency_cycles
        starts = np.where(c["tile"] == tile, here, starts)
    terms = forms_terms(c, "tile", found.forms(context), serial + starts, context)
    return Cost.of(**terms)


def apply(
    sch: Schedule, found: _Found, plan: RowsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    row = _row_loop(sch, found, plan)
    depth = 1
    if plan.parallel != NONE:
        chunk, row = sch.split(row, [None, plan.chunk])
        sch.parallel(chunk)
        depth = 2
    for name in found.stages.members:
        sch.compute_at(sch.get_block(name), row)
    names = [*found.stages.members, found.stages.root.name]
    for name in names:
        vectorize_stage(sch, sch.get_block(name), depth, context, plan.accumulators)
    return tuple(sch.get_block(name) for name in names)


# ------------------------------------------------------------------------------------ loops


def _row_loop(sch: Schedule, found: _Found, plan: RowsPlan) -> LoopRef:
    """The loop over rows, or over tiles of adjacent ones."""
    root, rows = found.stages.root, found.stages.rows
    inner = [root.loops[at] for at in found.order]
    if plan.tile == 1:
        if inner:
            sch.reorder(*[root.loops[at] for at in (*rows, *found.order)])
        return fused(sch, [root.loops[at] for at in rows])
    if found.is_box(plan.tile):
        around = [root.loops[at] for at in rows if at not in found.whole]
        sch.reorder(*around, *inner, *[root.loops[at] for at in found.whole])
        return fused(sch, around)
    around = [root.loops[at] for at in rows if at not in found.across[-1:]]
    tile, lane = sch.split(root.loops[found.across[-1]], [None, plan.tile])
    sch.reorder(*around, tile, *inner, lane)
    return fused(sch, [*around, tile])


# ------------------------------------------------------------------------------------ stages


FUSED_REDUCTIONS = Rule("fused_reductions", RowsPlan, match, plans, cost, apply)
