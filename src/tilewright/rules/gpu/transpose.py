"""Transposes on a GPU through shared memory, so that both loads and stores are coalesced.

    for b in blockIdx.x { tile[32, 32] = x[...] in shared memory; y[...] = f(tile[...]) }

Without the tile, either loads or stores of neighbouring threads would be a line apart and move a
sector each. The rest of the element's computation is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.multiprocessor import LINE_BYTES, USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import ceildiv, depth_of
from tilewright.rules.gpu.threads import share_among_threads
from tilewright.rules.match.nest import Access, Nest, fused, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, ZERO, Const
from tilewright.tensor.ir import Buffer, Load
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import exprs

TILES = doublings(2 * WARP, WARP // 2)  # candidates for elements along either axis


@dataclass(frozen=True)
class Plan:
    """The tile, and threads per block."""

    rows: int  # along the axis on which the source is contiguous
    columns: int  # along the axis on which the result is contiguous
    threads: int  # per block


@dataclass(frozen=True)
class Found:
    """A block without reductions with a transposed operand."""

    reference: BlockRef
    nest: Nest
    read: int  # index of the transposed operand among the reads
    row: int  # the iterator along which the source is contiguous
    column: int  # and that of the result
    axis: int  # the source's axis that `column` indexes
    element_bytes: int


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    nest = nest_of(sch, reference)
    if nest is None or len(nest.spatial) != len(nest.loops) or not is_expression(nest.block):
        return None
    (written,) = nest.writes if len(nest.writes) == 1 else (None,)
    if written is None or nest.is_dynamic(nest.spatial):
        return None
    column = _along(nest, written)
    across = [read for read in nest.reads if _is_across(nest, read, column)]
    if column is None or len(across) != 1:
        return None
    buffer, row = across[0].buffer, _along(nest, across[0])
    axes = _axes(nest, buffer, column)
    if row is None or len(axes) != 1:
        return None
    lines = min(nest.guess(row), nest.guess(column)) * buffer.dtype.size_bytes
    if 2 * lines < LINE_BYTES:
        return None  # neighbouring threads use most of such short rows anyway
    read = [region.buffer for region in nest.block.reads].index(buffer)
    return Found(reference, nest, read, row, column, axes[0], buffer.dtype.size_bytes)


def _along(nest: Nest, access: Access) -> int | None:
    """The iterator along which an operand is contiguous."""
    found = [at for at in nest.spatial if access.stride(nest.var(at)) is ONE]
    found = [at for at in found if nest.extent(at) is not ONE]
    return found[0] if len(found) == 1 else None


def _is_across(nest: Nest, access: Access, column: int | None) -> bool:
    """Whether an operand is strided by lines along the result's contiguous iterator."""
    if column is None or _along(nest, access) is None:
        return False
    stride = access.stride(nest.var(column))
    return isinstance(stride, Const) and stride is not ZERO and stride is not ONE


def _axes(nest: Nest, buffer: Buffer, column: int) -> list[int]:
    """The axes of an operand that an iterator indexes; none where it is read twice."""
    nodes = dict.fromkeys(node for node in exprs(nest.block.body) if isinstance(node, Load))
    loads = [node for node in nodes if node.buffer is buffer]
    if len(loads) != 1:
        return []
    return [at for at, index in enumerate(loads[0].index) if index is nest.var(column)]


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    most = multiprocessor_of(context.target).static_shared_bytes

    def legal(c: Columns) -> Column:
        fits: Column = (c["rows"] + WARP) * c["columns"] * found.element_bytes <= most
        return fits & (c["threads"] <= c["rows"] * c["columns"])

    return Space(Plan, {
        "rows": preferring(WARP, TILES),
        "columns": preferring(WARP, TILES),
        "threads": preferring(USUAL_THREADS, doublings(2 * USUAL_THREADS, USUAL_THREADS // 2)),
    }, legal)  # fmt: skip


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Memory traffic of whole tiles and whole sectors; idle multiprocessors."""
    sm, nest = multiprocessor_of(context.target), found.nest
    rows, columns = nest.guess(found.row), nest.guess(found.column)
    tiles = ceildiv(rows, c["rows"]) * ceildiv(columns, c["columns"])
    blocks = tiles * (nest.instances / (rows * columns))
    sector = sm.sector_bytes / found.element_bytes
    waste = (1 + sector / c["rows"]) * (1 + sector / c["columns"])
    moved = sum(access.buffer.dtype.size_bytes for access in nest.accesses)
    elements = blocks * c["rows"] * c["columns"]
    return Cost.of(
        launch=sm.launch_cycles,
        memory=elements * moved * waste / sm.memory_bytes_per_cycle,
        idle=np.maximum(0.0, sm.count - blocks) / sm.count * sm.global_latency_cycles,
    )


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    nest = found.nest
    copy = sch.cache_read(found.reference, found.read, "shared")
    tiles = {found.row: plan.rows, found.column: plan.columns}
    inner = {at: sch.split(nest.loops[at], [None, size]) for at, size in tiles.items()}
    grid = [inner[at][0] if at in inner else nest.loops[at] for at in nest.spatial]
    own = [inner[found.row][1], inner[found.column][1]]
    sch.reorder(*grid, *own)
    block = fused(sch, grid)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(copy, block)
    # Threads that write a row of the result read a column of the tile: pad against bank conflicts.
    sch.attempt(sch.storage_align, copy, 0, found.axis, WARP, 1)
    share_among_threads(sch, sch.get_loops(copy)[depth_of(sch, copy, block) :], plan.threads)
    share_among_threads(sch, own, plan.threads)
    return (copy, found.reference)


TRANSPOSE = Rule("transpose", Plan, match, plans, cost, apply)
