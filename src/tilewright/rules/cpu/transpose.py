"""Transposes through tiles: read contiguously along one dimension, written along another.

    for tile { part[16, 32] = x[rows of the tile], by vectors;  y = part, vectors across it }

Tiles run along the result, within strips of the source's rows. Threads take strips or, where rows
are short, blocks of rows. Each cache line is read once and written once while it is in L1. Lanes
across the tile are gathered one by one, or the tile holds squares of 4 x 4 elements that are
transposed in registers, also of elements that fill a part of a register only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright import sym
from tilewright.base.machine import Machine
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.cpu.register_transpose import (
    SQUARE_ELEMENTS,
    square_cycles,
    transpose_squares,
)
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
from tilewright.rules.space import Column, Columns, Cost, Space, Value, doublings, unit
from tilewright.sym import ONE, ZERO, Const, Expr, uses_var
from tilewright.tensor.schedule import BlockRef, Schedule

ROWS, COLUMNS = "rows", "columns"  # parallel axis: strips of the source's rows, or blocks of rows


@dataclass(frozen=True)
class TransposePlan:
    """The tiling of a transpose."""

    row_vectors: int = unit("vectors", "of a tile along the source")
    square: int = unit("elements", "side of the squares transposed in registers; 1: none")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows or columns of tiles", "in a thread's chunk")


@dataclass(frozen=True)
class Transpose:
    """A block without reductions with a source that is not contiguous along the result's last
    dimension."""

    nest: Nest
    reads: tuple[Access, ...]  # the transposed sources
    across: int  # the iterator along which the result is contiguous
    along: int  # the iterator along which the sources are contiguous
    lanes: int

    @property
    def is_dynamic(self) -> bool:
        """Whether the tile's extents are dynamic: then tiles are unrolled, and whole ones
        specialized."""
        return self.nest.is_dynamic([self.along, self.across])

    @property
    def others(self) -> list[int]:
        return [at for at in self.nest.spatial if at not in (self.across, self.along)]

    def axes(self, row_vectors: int, context: RuleContext) -> Axes:
        others = total(self.nest, self.others)
        rows = others * self.strips(row_vectors)
        work = 2 * costs.nest_cycles(self.nest, context.target)
        found: dict[str, Work] = {}
        if rows > 1:
            is_dynamic = self.nest.is_dynamic([*self.others, self.along])
            found[ROWS] = Work(rows, work / rows, is_dynamic)
        if self.columns > 1 and self.has_squares and not self.is_dynamic:
            repeats = 1 if self.nest.is_dynamic(self.others) else others  # may be 1
            found[COLUMNS] = Work(self.columns, work / others / self.columns, repeats=repeats)
        return found

    @property
    def columns(self) -> int:
        """Tiles along the result."""
        return int(ceil_div(self.nest.guess(self.across), self.lanes))

    def strips(self, row_vectors: int) -> int:
        return int(ceil_div(self.nest.guess(self.along), row_vectors * self.lanes))

    @cached_property
    def has_squares(self) -> bool:
        """Whether all sources can be transposed by squares."""
        return self.lanes <= SQUARE_ELEMENTS**2 and all(map(self._has_squares, self.reads))

    def _has_squares(self, access: Access) -> bool:
        sides = [_dims(self.nest, access, at) for at in (self.across, self.along)]
        if [len(side) for side in sides] != [1, 1] or sides[0] == sides[1]:
            return False
        return self._offset(access, self.across) is ZERO

    def _offset(self, access: Access, at: int) -> Expr:
        """The offset of a source's index from the iterator."""
        region = next(r for r in self.nest.block.reads if r.buffer is access.buffer)
        start = region.ranges[_dims(self.nest, access, at)[0]].start
        return sym.sub(start, self.nest.var(at))

    @cached_property
    def is_aligned(self) -> bool:
        """Whether all tiles start at a square's boundary, not only those of whole rows."""
        return all(self._offset(access, self.along) is ZERO for access in self.reads)

    def width(self, row_vectors: int, square: int) -> int:
        """Elements of a tile along the source: whole vectors, or a divisor of the row in whole
        squares."""
        extent, strips = self.nest.guess(self.along), self.strips(row_vectors)
        is_even = square > 1 and extent % (strips * square) == 0
        return extent // strips if is_even else row_vectors * self.lanes

    def forms(self, context: RuleContext) -> Forms:
        most = int(ceil_div(self.nest.guess(self.along), self.lanes))
        most = min(most, context.target.machine.lines_ahead)
        values = sorted(doublings(most), key=lambda count: abs(count - 2))  # ties
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
    least = FEW_ELEMENTS  # smaller dimensions do not pay for a tile
    if lanes < least or len(kept) < 2 or nest.guess(kept[-1]) < least:
        return None
    across, short = kept[-1], nest.extent(kept[-1])
    pairs = [(access, _along(nest, access, across)) for access in nest.reads]
    found = [(access, along) for access, along in pairs if along is not None]
    if not found or len({along for _, along in found}) != 1:
        return None
    # Squares are vectors of the copy: of narrow elements not whole registers.
    reads, few = tuple([access for access, _ in found]), min(lanes, SQUARE_ELEMENTS**2)
    made = Transpose(nest, reads, across, found[0][1], few)
    if not made.has_squares:
        made = replace(made, lanes=lanes)
    if isinstance(short, Const) and 2 * int(short.value) <= made.lanes:
        return None  # a vector spans several rows of the result
    return made


def _along(nest: Nest, access: Access, across: int) -> int | None:
    """The iterator along which an access is contiguous, if it is not the result's."""
    stride = access.stride(nest.var(across))
    if stride is None or (isinstance(stride, Const) and abs(int(stride.value)) <= FEW_ELEMENTS):
        return None
    for at in nest.spatial:
        if nest.guess(at) >= FEW_ELEMENTS and access.stride(nest.var(at)) is ONE:
            return at if _dims(nest, access, at) else None
    return None


def _dims(nest: Nest, access: Access, along: int) -> list[int]:
    """The dimensions of a buffer that a tile covers in part along an iterator; none where the block
    reads the buffer at several positions, since their region spans all of it."""
    region = next(r for r in nest.block.reads if r.buffer is access.buffer)
    var = {nest.var(along)}
    return [at for at, r in enumerate(region.ranges) if uses_var(r.start, var)]


def plans(found: Transpose, context: RuleContext) -> Space[TransposePlan]:
    forms = found.forms(context)
    return Space(
        TransposePlan,
        {
            "row_vectors": tuple(int(v) for v in forms),
            "square": (1, SQUARE_ELEMENTS) if found.has_squares else (1,),
            **forms_candidates(forms, context),
        },
        lambda c: (
            forms_legal(c, "row_vectors", forms, context)
            & _is_even(found, c)
            & _fits_squares(found, c)
            & ((c["parallel"] != COLUMNS) | (c["square"] > 1))
        ),
    )


def _fits_squares(found: Transpose, c: Columns) -> Column:
    """Whether tiles start at squares' boundaries; whole rows do."""
    if not found.has_squares or found.is_aligned:
        return np.ones(len(c["square"]), bool)
    strips = np.array([found.strips(count) for count in c["row_vectors"].tolist()])
    fits: Column = (c["square"] == 1) | (strips == 1)
    return fits


def _is_even(found: Transpose, c: Columns) -> Column:
    """Whether chunks divide evenly: otherwise the tiles of a chunk in a fused parallel loop are not
    known."""
    strips = np.array([found.strips(count) for count in c["row_vectors"].tolist()])
    loops = sum(found.nest.extent(at) is not ONE for at in found.others)
    is_columns = c["parallel"] == COLUMNS
    plain = loops + (~is_columns & (strips > 1)) <= 1
    units = np.where(is_columns, found.columns, total(found.nest, found.others) * strips)
    even: Column = plain | (units % c["chunk"] == 0)
    return even


def cost(found: Transpose, c: Columns, context: RuleContext) -> Cost:
    """Cycles of a transpose. A tile reads partial lines of one row per lane and writes `width`
    rows; beyond L1's associativity lines are fetched twice. Lanes across the tile are moved one by
    one, or by squares."""
    machine, item = context.target.machine, costs.widest(found.nest.block).size_bytes
    l1d = machine.l1d
    pairs = zip(c["row_vectors"].tolist(), c["square"].tolist(), strict=True)
    width = np.array([found.width(*pair) for pair in pairs])
    row_bytes = width * item
    read = (row_bytes + l1d.line_bytes - item) / row_bytes
    written = 1 + np.maximum(0, width - 2 * l1d.ways) / width
    extent = max(1, found.nest.guess(found.along))
    strips = ceil_div(extent, width)
    padded = strips * width / extent
    moved = costs.nest_cycles(found.nest, context.target) * (read + written) / 2 * padded
    lanes = found.nest.instances * machine.gather_lane_cycles
    serial = np.maximum(moved, lanes + machine.exposed_share * moved)
    # The rows of the source that a strip runs through.
    across, is_columns = found.nest.guess(found.across), c["parallel"] == COLUMNS
    rows = np.where(is_columns, np.minimum(across, c["chunk"] * found.lanes), across)
    turned = _square_cycles(found, width, rows, context)
    forms = found.forms(context)
    serial = np.where(c["square"] == 1, serial, turned)
    return Cost.of(**forms_terms(c, "row_vectors", forms, serial, context))


def _square_cycles(found: Transpose, width: Column, rows: Column, context: RuleContext) -> Column:
    """Cycles of tiles of squares: a load and a shuffle per row of a square on either side, or the
    memory traffic if that takes longer. In a partial strip, lanes are moved one by one."""
    machine, nest = context.target.machine, found.nest
    once = costs.nest_cycles(nest, context.target)
    again = _refetch_cycles(found, width, rows, context)
    late = again + _scattered_cycles(found, width, rows, context)
    extent = max(1, nest.guess(found.along))
    partial = np.where(extent % width == 0, 0.0, 1.0 / ceil_div(extent, width))
    gathered = partial * machine.gather_lane_cycles
    turned: Column = (
        np.maximum(once + late, nest.instances * square_cycles(machine)) + nest.instances * gathered
    )
    return turned


def _refetch_cycles(found: Transpose, width: Column, rows: Column, context: RuleContext) -> Column:
    """Cycles to load lines again from L2 that L1 evicted before all of them was used: lines of the
    source that strips read in part, and of the result that tiles write in part. A line that is
    written whole may still be evicted between its prefetch and its store."""
    machine, nest = context.target.machine, found.nest
    line_bytes = machine.l1d.line_bytes
    until_strip, until_tile = (
        _evicted_share(found, width, each, machine) for each in (rows, found.lanes)
    )
    moved: Column = np.zeros(len(width))
    for access in found.reads:
        parts = np.maximum(1, line_bytes / (width * access.buffer.dtype.size_bytes))
        moved = moved + until_strip * (parts - 1) * costs.guess_bytes(access.buffer, nest.likely)
    for access in nest.writes:
        others = line_bytes / (found.lanes * access.buffer.dtype.size_bytes) - 1
        moved = moved + until_tile * max(1, others) * costs.guess_bytes(access.buffer, nest.likely)
    return moved / machine.l2.bytes_per_cycle


def _evicted_share(found: Transpose, width: Column, rows: Column | int, machine: Machine) -> Column:
    """The share of lines that L1 evicts: of one line in each of so many source rows and of a tile's
    result rows, those that exceed the sets they map to."""
    nest, l1d = found.nest, machine.l1d

    def room(access: Access, at: int) -> int:
        stride, item = access.stride(nest.var(at)), access.buffer.dtype.size_bytes
        apart = int(stride.value) * item if isinstance(stride, Const) else l1d.line_bytes
        return l1d.ways * l1d.sets_apart(apart)

    read = sum(rows / room(access, found.across) for access in found.reads)
    written = sum(width / room(access, found.along) for access in nest.writes)
    lost: Column = np.maximum(0, 1 - 1 / (read + written))
    return lost


def _scattered_cycles(
    found: Transpose, width: Column, rows: Column, context: RuleContext
) -> Column:
    """Latency exposed where there are more rows than the hardware prefetches.

    Of the source: the first line of each row in a strip, unless L1 keeps it until the next strip or
    the next row follows in memory; beyond L2, all lines of rows that are not consecutive. Of the
    result: the first line of each piece of a row, and lines of too many rows, if they are beyond L2
    or not written whole.
    """
    machine, nest = context.target.machine, found.nest
    in_order = costs.shared_bytes_per_cycle(nest, machine)
    late = max(0.0, 1 / machine.scattered_bytes_per_cycle - 1 / in_order)
    lost, is_whole = _evicted_share(found, width, rows, machine), width >= nest.guess(found.along)
    moved: Column = np.zeros(len(width))
    for access in found.reads:
        size_bytes = costs.guess_bytes(access.buffer, nest.likely)
        is_one = _are_consecutive(found, access)
        share = np.where(is_one & is_whole, 0, lost * _first_line_share(width, access, machine))
        if not is_one and size_bytes > machine.l2.kept_bytes:
            share = np.ones(len(width))
        moved = moved + np.where(rows > machine.prefetch_streams, share * size_bytes, 0)
    for access in nest.writes:
        size_bytes = costs.guess_bytes(access.buffer, nest.likely)
        is_part = found.lanes * access.buffer.dtype.size_bytes < machine.l1d.line_bytes
        is_late = is_part or size_bytes > machine.l2.kept_bytes
        beyond = np.maximum(0, 1 - machine.prefetch_streams / width) if is_late else 0
        first = np.where(
            rows < nest.guess(found.across), _first_line_share(rows, access, machine), 0
        )
        moved = moved + np.maximum(beyond, first) * size_bytes
    return moved * late


def _first_line_share(elements: Column, access: Access, machine: Machine) -> Column:
    """The first line's share of a run of elements."""
    run_bytes = elements * access.buffer.dtype.size_bytes
    share: Column = np.minimum(1, machine.l1d.line_bytes / run_bytes)
    return share


def _are_consecutive(found: Transpose, access: Access) -> bool:
    """Whether the rows of a source follow one another in memory."""
    stride = access.stride(found.nest.var(found.across))
    return isinstance(stride, Const) and int(stride.value) <= found.nest.guess(found.along)


def apply(
    sch: Schedule, found: Transpose, plan: TransposePlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    nest, lanes, width = found.nest, found.lanes, found.width(plan.row_vectors, plan.square)
    units = [nest.loops[at] for at in found.others if nest.extent(at) is ONE]
    others = [nest.loops[at] for at in found.others if nest.extent(at) is not ONE]
    outer_row, row = sch.split(nest.loops[found.along], [None, width])
    outer_column, column = sch.split(nest.loops[found.across], [None, lanes])
    shared, inside = [*others, outer_row], []
    if plan.parallel == COLUMNS:
        piece, outer_column = sch.split(outer_column, [None, plan.chunk])
        shared, inside = [*others, piece], [outer_row]
    sch.reorder(*units, *shared, *inside, outer_column, row, column)
    reference = sch.get_block(nest.name)
    copies: list[tuple[BlockRef, Access]] = []
    for access in found.reads:
        index = next(
            at for at, region in enumerate(nest.block.reads) if region.buffer is access.buffer
        )
        copy = sch.cache_read(reference, index, "local")
        sch.compute_at(copy, outer_column)
        copies.append((copy, access))
        if plan.square == 1:
            _copy(sch, copy, found, access, width)
    sch.vectorize(column)
    if found.is_dynamic:
        sch.unroll(row)
    if plan.parallel != NONE:
        loop = fused(sch, shared)
        if plan.parallel == ROWS and plan.chunk > 1:
            loop, _ = sch.split(loop, [None, plan.chunk])
        sch.parallel(loop)
    for copy, access in copies if plan.square > 1 else ():  # after all loops are in place
        _transpose_squares(sch, copy, found, access, plan.square)
    return (reference,)


def _copy(sch: Schedule, copy: BlockRef, found: Transpose, access: Access, width: int) -> None:
    """Copy rows of a tile as they are, vectorized along the last loop."""
    nest = found.nest
    region = next(r for r in nest.block.reads if r.buffer is access.buffer)
    loops = sch.get_loops(copy)[-len(region.ranges) :]
    loop = loops[_dims(nest, access, found.along)[-1]]
    if width > found.lanes:
        _, loop = sch.split(loop, [None, found.lanes])
    sch.vectorize(loop)


def _transpose_squares(
    sch: Schedule, copy: BlockRef, found: Transpose, access: Access, side: int
) -> None:
    (across,), (along,) = (_dims(found.nest, access, at) for at in (found.across, found.along))
    for loop in transpose_squares(sch, copy, access.buffer.rank, across, along, side):
        if found.is_dynamic:
            sch.unroll(loop)


TRANSPOSE = Rule("transpose", TransposePlan, match, plans, cost, apply)
