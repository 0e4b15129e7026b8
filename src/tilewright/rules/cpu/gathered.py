"""Gathers: elements read at positions that are loaded from memory, each position loaded once.

    for chunk in parallel ... { for tile of lanes { for row in 0..16 { for l in vector 0..4 {
        out[row, l] = x[row, at[l]] * share[l] + ... } } } }

An axis being resized, an image being sampled: all channels, or all rows, use the same positions.
Several of those rows are processed per vector of positions, which stays in registers along with
interpolation weights. Where positions roam a whole image, all of them are visited for some
channels, which stay in a cache, before the next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.machine import CONVERT_CYCLES
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import (
    Access,
    Nest,
    fused,
    groups,
    guess,
    is_expression,
    nest_of,
    total,
)
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
from tilewright.rules.space import Column, Columns, Cost, Space, Value, doublings, unit
from tilewright.sym import ONE, Var, free_vars, uses_var, walk
from tilewright.tensor.ir import Load
from tilewright.tensor.schedule import BlockRef, Schedule

ROWS = "rows"


@dataclass(frozen=True)
class GatheredPlan:
    """The tiling of a gather."""

    reuse: int = unit("rows", "gathered per vector of positions")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("blocks of rows", "in a thread's chunk")


@dataclass(frozen=True)
class Gathered:
    """A gather without reductions, its loops grouped into those that can be fused."""

    nest: Nest
    parts: tuple[tuple[int, ...], ...]  # the last is vectorized
    shared: int  # the part that positions do not depend on: rows
    gathers: int  # gathering accesses per vector
    has_streams: bool  # some gather within one row, so rows are read in order
    lanes: int

    @property
    def rows(self) -> int:
        return total(self.nest, self.parts[self.shared])

    def reuses(self, context: RuleContext) -> tuple[int, ...]:
        """Candidates for `reuse`, in descending order. The rows' lines must stay in L1 even where
        rows map to few sets; rows that are read in order must not be more streams, with those
        written, than the hardware prefetches."""
        machine = context.target.machine
        lines = machine.l1d.period_bytes // machine.l1d.line_bytes
        most = min(self.rows, max(1, lines // (self.gathers + 1)))
        if self.has_streams:
            most = min(most, machine.prefetch_streams // 2)
        whole = (self.rows,) if self.rows <= most and self._is_known else ()
        return tuple(dict.fromkeys((*whole, *doublings(most)[::-1])))

    @property
    def _is_known(self) -> bool:
        return not self.nest.is_dynamic(self.parts[self.shared])

    def forms(self, context: RuleContext) -> Forms:
        """Threads share blocks of rows, and the loops around them."""
        outer = [at for n, part in enumerate(self.parts[:-1]) if n != self.shared for at in part]
        work = costs.nest_cycles(self.nest, context.target)
        is_dynamic = self.nest.is_dynamic([*outer, *self.parts[self.shared]])
        found: dict[Value, Axes] = {}
        for reuse in self.reuses(context):
            units = total(self.nest, outer) * -(-self.rows // reuse)
            found[reuse] = {ROWS: Work(units, work / units, is_dynamic)} if units > 1 else {}
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Gathered | None:
    nest = nest_of(sch, block)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.block.iters):
        return None
    lanes = costs.lanes_of(context.target, nest.block)
    if not is_expression(nest.block) or lanes < 2:
        return None
    parts = groups(nest, range(len(nest.loops)))
    lane = nest.var(parts[-1][-1])
    found = [access for access in nest.reads if access.stride(lane) is None and _looks_up(access)]
    positions = [place for access in found for place in _positions(access)]
    # A row loop may index other axes' positions, as long as those along the lanes are shared.
    free = _shared(nest, parts[:-1], positions) or _shared(
        nest, parts[:-1], [place for place in positions if uses_var(place, {lane})]
    )
    if not found or not free or total(nest, parts[-1]) < lanes:
        return None
    has_streams = any(_stays_in_row(nest, access) for access in found)
    return Gathered(nest, tuple(map(tuple, parts)), free[-1], len(found), has_streams, lanes)


def _positions(access: Access) -> list[Load]:
    """The loads in the index of an access."""
    return [expr for expr in walk(access.offset) if isinstance(expr, Load)]


def _looks_up(access: Access) -> bool:
    return bool(_positions(access))


def _stays_in_row(nest: Nest, access: Access) -> bool:
    """Whether an access gathers along the last dimension only."""
    row = access.buffer.dtype.size_bytes * guess(access.buffer.shape[-1], nest.likely)
    return costs.roamed_bytes(nest, access) <= row


def _shared(nest: Nest, parts: Sequence[Sequence[int]], positions: Sequence[Load]) -> list[int]:
    """The loops that positions do not depend on."""
    used = set(free_vars(*positions))
    return [n for n, part in enumerate(parts) if _is_shared(nest, part, used)]


def _is_shared(nest: Nest, part: Sequence[int], used: Collection[Var]) -> bool:
    """Whether positions do not depend on a loop of more than one iteration."""
    several = [at for at in part if nest.extent(at) is not ONE]
    return total(nest, part) > 1 and not any(nest.var(at) in used for at in several)


def plans(found: Gathered, context: RuleContext) -> Space[GatheredPlan]:
    forms = found.forms(context)
    return Space(
        GatheredPlan,
        {"reuse": found.reuses(context), **forms_candidates(forms, context)},
        lambda c: forms_legal(c, "reuse", forms, context),
    )


def cost(found: Gathered, c: Columns, context: RuleContext) -> Cost:
    """Cycles of gathers. Without a fast gather instruction, positions become addresses once per
    block of rows; with one, for each row. Each row in a block is a stream of its own."""
    nest, machine = found.nest, context.target.machine
    loads = found.gathers * found.lanes
    each, spread = loads / machine.loads_per_cycle, loads * machine.gather_lane_cycles
    places = found.gathers * (1 / machine.loads_per_cycle + CONVERT_CYCLES)
    if context.target.has_gather and not machine.loads_lanes:
        body = max(each, spread) * (1 + costs.TIE_SHARE * c["reuse"]) + places / c["reuse"]
    else:
        body = each + spread / c["reuse"]
    body = costs.body_cycles(nest.block) + body
    serial: Column = np.maximum(
        costs.nest_cycles(nest, context.target), nest.instances / found.lanes * body
    )
    return Cost.of(**forms_terms(c, "reuse", found.forms(context), serial, context))


def apply(
    sch: Schedule, found: Gathered, plan: GatheredPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    loops = [fused(sch, [found.nest.loops[at] for at in part]) for part in found.parts]
    *around, lane_loop = loops
    shared = around.pop(found.shared)
    units, row = sch.split(shared, [None, plan.reuse])
    tile, lane = sch.split(lane_loop, [None, found.lanes])
    outer = [*around, units] if found.has_streams else [units, *around]
    sch.reorder(*outer, tile, row, lane)
    sch.vectorize(lane)
    if plan.parallel != NONE:
        whole = fused(sch, outer)
        chunk, _ = sch.split(whole, [None, plan.chunk])
        sch.parallel(chunk)
    return (BlockRef(found.nest.name),)


GATHERED = Rule("gathered", GatheredPlan, match, plans, cost, apply)
