"""Transposes: tiles that are read along one dimension and written along another.

    for tile { part[16, 32] = x[rows of the tile], by lanes;  y = part, by lanes across it }

Every line of memory is read once and written once while it is in L1, whichever way the lines of
source and result run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.cpu.vectorize import FEW_ELEMENTS
from tilewright.rules.match.nest import Access, Nest, fused, is_expression, nest_of, total
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
from tilewright.rules.space import Columns, Cost, Space, Value, doublings, unit
from tilewright.sym import ONE, Const, uses_var
from tilewright.tensor.schedule import BlockRef, Schedule

ROWS = "rows"  # of tiles


@dataclass(frozen=True)
class TransposePlan:
    """What is decided about a transpose."""

    row_vectors: int = unit("vectors", "that a tile takes from each row of the source")
    parallel: str = unit("axis", "that threads share out")
    chunk: int = unit("rows of tiles", "that a thread takes at a time")


@dataclass(frozen=True)
class Transpose:
    """A block without reductions that reads across its result's innermost dimension."""

    nest: Nest
    reads: tuple[Access, ...]  # those that go across
    across: int  # the iterator along which the result is contiguous
    along: int  # that along which the source is
    lanes: int

    @property
    def others(self) -> list[int]:
        return [at for at in self.nest.spatial if at not in (self.across, self.along)]

    def axes(self, row_vectors: int, context: RuleContext) -> Axes:
        rows = total(self.nest, self.others) * self.strips(row_vectors)
        work = 2 * costs.nest_cycles(self.nest, context.target)
        is_dynamic = self.nest.is_dynamic([*self.others, self.along])
        return {ROWS: Work(rows, work / rows, is_dynamic)} if rows > 1 else {}

    def strips(self, row_vectors: int) -> int:
        return int(ceil_div(self.nest.guess(self.along), row_vectors * self.lanes))

    def forms(self, context: RuleContext) -> Forms:
        most = self.nest.guess(self.along) // self.lanes
        most = min(most, context.target.machine.lines_ahead)
        values = sorted(doublings(most), key=lambda count: abs(count - 2))  # between equals
        found: dict[Value, Axes] = {count: self.axes(count, context) for count in values}
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Transpose | None:
    nest = nest_of(sch, block)
    if nest is None or not nest.loops or nest.reduce or not is_expression(nest.block):
        return None
    if len(nest.spatial) != len(nest.block.iters):
        return None
    lanes = costs.lanes_of(context.target, nest.block)
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    least = FEW_ELEMENTS  # dimensions below are not worth a tile
    if lanes < least or len(kept) < 2 or nest.guess(kept[-1]) < least:
        return None
    across, short = kept[-1], nest.extent(kept[-1])
    if isinstance(short, Const) and 2 * int(short.value) <= lanes:
        return None  # a vector holds several of them: its lanes come from as many rows, in order
    pairs = [(access, _along(nest, access, across)) for access in nest.reads]
    found = [(access, along) for access, along in pairs if along is not None]
    if not found or len({along for _, along in found}) != 1:
        return None
    return Transpose(nest, tuple(access for access, _ in found), across, found[0][1], lanes)


def _along(nest: Nest, access: Access, across: int) -> int | None:
    """The iterator that an access is contiguous along, if that is not the result's."""
    stride = access.stride(nest.var(across))
    if stride is None or (isinstance(stride, Const) and abs(int(stride.value)) <= FEW_ELEMENTS):
        return None
    for at in nest.spatial:
        if nest.guess(at) >= FEW_ELEMENTS and access.stride(nest.var(at)) is ONE:
            return at if _dims(nest, access, at) else None
    return None


def _dims(nest: Nest, access: Access, along: int) -> list[int]:
    """The dimensions of a buffer that a tile takes a part of along an iterator: none where the
    block reads the buffer at several places, for then a region spans them all."""
    region = next(r for r in nest.block.reads if r.buffer is access.buffer)
    var = {nest.var(along)}
    return [at for at, r in enumerate(region.ranges) if uses_var(r.start, var)]


def plans(found: Transpose, context: RuleContext) -> Space[TransposePlan]:
    forms = found.forms(context)
    return Space(
        TransposePlan,
        {"row_vectors": tuple(int(v) for v in forms), **forms_candidates(forms, context)},
        lambda c: forms_legal(c, "row_vectors", forms, context),
    )


def cost(found: Transpose, c: Columns, context: RuleContext) -> Cost:
    """A tile reads parts of lines of as many rows as a vector has lanes, and writes as many rows
    as it is wide: more of them than L1 holds of one set may come and go twice."""
    l1d, item = context.target.machine.l1d, costs.widest(found.nest.block).size_bytes
    width = c["row_vectors"] * found.lanes
    row_bytes = width * item
    read = (row_bytes + l1d.line_bytes - item) / row_bytes
    written = 1 + np.maximum(0, width - 2 * l1d.ways) / width
    padded = ceil_div(found.nest.guess(found.along), width) * width
    serial = costs.nest_cycles(found.nest, context.target) * (read + written)
    serial = serial * padded / max(1, found.nest.guess(found.along))
    forms = found.forms(context)
    return Cost.of(**forms_terms(c, "row_vectors", forms, serial, context))


def apply(
    sch: Schedule, found: Transpose, plan: TransposePlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    nest, lanes, width = found.nest, found.lanes, plan.row_vectors * found.lanes
    others = [nest.loops[at] for at in found.others]
    outer_row, row = sch.split(nest.loops[found.along], [None, width])
    outer_column, column = sch.split(nest.loops[found.across], [None, lanes])
    sch.reorder(*others, outer_row, outer_column, row, column)
    reference = sch.get_block(nest.name)
    for access in found.reads:
        index = next(
            at for at, region in enumerate(nest.block.reads) if region.buffer is access.buffer
        )
        copy = sch.cache_read(reference, index, "local")
        sch.compute_at(copy, outer_column)
        _copy(sch, copy, found, access, width)
    sch.vectorize(column)
    if plan.parallel != NONE:
        loop = fused(sch, [*others, outer_row])
        if plan.chunk > 1:
            loop, _ = sch.split(loop, [None, plan.chunk])
        sch.parallel(loop)
    return (reference,)


def _copy(sch: Schedule, copy: BlockRef, found: Transpose, access: Access, width: int) -> None:
    """Rows of a tile as they lie in memory: lanes along the last loop of the copy that has any."""
    nest = found.nest
    region = next(r for r in nest.block.reads if r.buffer is access.buffer)
    loops = sch.get_loops(copy)[-len(region.ranges) :]
    loop = loops[_dims(nest, access, found.along)[-1]]
    if width > found.lanes:
        _, loop = sch.split(loop, [None, found.lanes])
    sch.vectorize(loop)


TRANSPOSE = Rule("transpose", TransposePlan, match, plans, cost, apply)
