"""Pooling, channels first: separable where possible, vectorized along rows.

    for n, channels in parallel
      for rows
        for vectors of the input row
          seen = all kernel rows combined         one line, in L1
        for tiles of vectors of output positions
          kernel columns of `seen` combined

A k x k window then takes k + k operations, padding is handled along one line only, and strided
elements are picked from L1. Where windows of a row do not overlap, each window is reduced at once
instead, without a line buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.base.machine import LOOP_CYCLES
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import NONE, ceil_div, chain_cycles
from tilewright.rules.cpu.vectorize import FEW_ELEMENTS
from tilewright.rules.cpu.windows_tile import ROWS
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Windows, pool_planes
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

PLANES = "planes"  # the other parallel axis, beside rows


@dataclass(frozen=True)
class PoolRowsPlan:
    """The tiling of a pool."""

    separate: bool = unit("flag", "kernel rows are reduced before kernel columns")
    lanes: int = unit("elements", "of a row in a vector")
    vectors: int = unit("vectors", "of a row in a tile")
    unroll_rows: bool = unit("flag", "kernel rows are unrolled, as columns always are")
    parallel: str = unit("axis", "split across threads")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Windows | None:
    nest = nest_of(sch, block)
    found = None if nest is None else pool_planes(nest)
    if found is None or found.depth is None or found.size(found.out_spatial[-1]) == 1:
        return None
    order = [found.batch, found.out_channels, *found.out_spatial, *found.kernel_spatial]
    if order != sorted(order):
        return None
    if _kernel(found)[1] > context.target.machine.loop_body_instructions:
        return None  # kernel columns are unrolled
    return found if _most_lanes(found, context) > 1 else None


def _most_lanes(found: Windows, context: RuleContext) -> int:
    return context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)


def _kernel(found: Windows) -> tuple[int, int]:
    """The kernel's extent on all axes but the last, and on the last."""
    *rows, columns = [found.size(at) or 1 for at in found.kernel_spatial]
    return math.prod(rows), columns


def _can_separate(found: Windows) -> bool:
    """Whether the window has two dimensions, and windows of a row leave no gaps."""
    (rows, columns), stride, dilation = _kernel(found), found.strides[-1], found.dilations[-1]
    if stride % dilation == 0:
        return min(rows, columns) > 1 and stride <= columns * dilation
    width = found.size(found.out_spatial[-1]) or 1
    return min(rows, columns) > 1 and dilation % stride == 0 and dilation <= width * stride


def plans(found: Windows, context: RuleContext) -> Space[PoolRowsPlan]:
    rows, columns = _kernel(found)
    width = found.positions(found.out_spatial[-1])
    body, registers = context.target.machine.loop_body_instructions, context.target.vector_registers

    def legal(c: Columns) -> Column:
        depth = np.where(c["separate"] == 1, max(rows, columns), rows * columns)
        terms = np.where(c["unroll_rows"] == 1, depth, columns)
        is_one = c["vectors"] == 1
        held = (2 * c["vectors"] < registers) & ((c["vectors"] - 1) * c["lanes"] < width)
        ok: Column = (c["vectors"] * terms <= body) & (is_one | held)
        return ok

    most = min(_most_lanes(found, context), max(2, width))
    threads = (NONE,) if context.threads == 1 else (NONE, PLANES, ROWS)
    return Space(
        PoolRowsPlan,
        {
            "separate": (0, 1) if _can_separate(found) else (0,),
            "lanes": doublings(most)[:0:-1],
            "vectors": doublings(context.target.machine.fma_latency_cycles),
            "unroll_rows": (0,) if rows == 1 else (0, 1),
            "parallel": threads[:2] if len(found.out_spatial) == 1 else threads,
        },
        legal,
    )


def cost(found: Windows, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last: loads and operations of both passes, or of one."""
    machine, lanes, vectors = context.target.machine, c["lanes"], c["vectors"]
    (rows, columns), stride = _kernel(found), found.strides[-1]
    *outer, width = [found.positions(at) for at in found.out_spatial]
    planes = found.assumed(found.batch, 1) * found.nest.guess(found.out_channels)
    is_dynamic = found.size(found.out_spatial[-1]) is None
    is_masked = context.target.has_masked_load(found.x.buffer.dtype.bits)
    reach = (width - 1) * stride + (columns - 1) * found.dilations[-1] + 1

    def swept(terms: int, loads: Column | int, length: int) -> Column:
        """Cycles of a line of `length` elements, each a reduction of `terms`."""
        work = (
            vectors * terms * np.maximum(1 / machine.fma_per_cycle, loads / machine.loads_per_cycle)
        )
        chain = chain_cycles(terms, vectors * terms * (1 + loads), machine)
        tile = np.maximum(work, chain) + vectors / machine.stores_per_cycle + LOOP_CYCLES
        tiles = (
            length / (lanes * vectors) + 1 / 2 if is_dynamic else ceil_div(length, lanes * vectors)
        )
        whole: Column = tiles * tile
        if is_masked:
            # With a dynamic line, tiles at both ends test and choose what they load.
            ends = 2 * vectors * terms * (1 + loads) / machine.fma_per_cycle
            return whole + is_dynamic * ends
        # A partial vector at the end of a line is loaded lane by lane; with a dynamic line, tiles
        # at both ends.
        ragged = 2 * lanes * vectors if is_dynamic else (length % lanes > 0) * lanes
        lost: Column = ragged * terms * machine.gather_lane_cycles
        return whole + lost

    # Small strides load whole vectors and shuffle; large ones load lane by lane.
    apart = np.where(stride > FEW_ELEMENTS, lanes * machine.gather_lane_cycles, 2 * stride - 1)
    at_once = swept(rows * columns, apart, width)
    in_two = swept(rows, 1, reach) + swept(columns, apart, width)
    lines = planes * math.prod(outer)
    each = np.where(c["separate"] == 1, in_two, at_once)
    swept_over = np.where(c["separate"] == 1, reach, width)
    loops = ceil_div(swept_over, lanes * vectors) * rows * LOOP_CYCLES
    work = lines * (each + np.where(c["unroll_rows"] == 1, 0, loops))
    item = found.x.buffer.dtype.size_bytes
    moved = item * lines * width * (1 + math.prod(found.strides))
    shares = np.where(c["parallel"] == PLANES, planes, outer[-1] if outer else 1)
    threads = np.where(c["parallel"] == NONE, 1, context.threads)
    share = ceil_div(shares, threads) / shares
    wakes = np.where(c["parallel"] == ROWS, lines / shares, 1) * (c["parallel"] != NONE)
    return Cost.of(
        compute=work * share,
        memory=moved / machine.l2.bytes_per_cycle * share,
        wake=wakes * machine.wake_cycles,
    )


def apply(
    sch: Schedule, found: Windows, plan: PoolRowsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block = BlockRef(found.nest.name)
    rank = len(found.nest.block.writes[0].ranges)
    done = [block]
    seen = None
    loops = sch.get_loops(block)
    if plan.separate:
        seen = sch.rfactor(loops[found.kernel_spatial[-1]], rank)
        sch.merge_windows(seen, rank - 1, rank)
        done.append(seen)
        loops = sch.get_loops(block)
    spatial, kernel = loops[:rank], loops[rank:]
    done += _tile_line(sch, block, spatial[-1], kernel, plan)
    row = spatial[-2]
    if seen is not None:
        done.append(_line(sch, seen, row, rank, plan))
    if plan.parallel == PLANES:
        sch.parallel(sch.fuse(*spatial[:2]))
    elif plan.parallel == ROWS:
        sch.parallel(row)
    return tuple(done)


def _line(sch: Schedule, seen: BlockRef, row: LoopRef, rank: int, plan: PoolRowsPlan) -> BlockRef:
    """Compute the line that a row of windows reads where it is read, tile by tile in registers;
    returns the block that stores it."""
    store = sch.cache_write(seen, 0, "local")
    sch.compute_at(store, row)
    tile, vector, lane = sch.split(sch.get_loops(store)[-1], [None, plan.vectors, plan.lanes])
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.compute_at(seen, tile)
    loops = sch.get_loops(seen)
    *_, line = own = loops[loops.index(tile) + 1 :][:rank]
    kernel = loops[loops.index(tile) + 1 + rank :]
    vector, lane = sch.split(line, [None, plan.lanes])
    sch.reorder(*own[:-1], *kernel, vector, lane)
    sch.vectorize(lane)
    sch.unroll(vector)
    for loop in kernel if plan.unroll_rows else ():
        sch.unroll(loop)
    sch.decompose_reduction(seen, kernel[0])
    return store


def _tile_line(
    sch: Schedule, block: BlockRef, line: LoopRef, kernel: list[LoopRef], plan: PoolRowsPlan
) -> list[BlockRef]:
    """Split a line into tiles of vectors that stay in registers over the kernel."""
    tile, vector, lane = sch.split(line, [None, plan.vectors, plan.lanes])
    sch.reorder(tile, *kernel, vector, lane)
    sch.vectorize(lane)
    sch.unroll(vector)
    done = fuse_epilogue(sch, block, tile, plan.lanes, plan.vectors * plan.lanes)
    for loop in kernel if plan.unroll_rows else kernel[-1:]:
        sch.unroll(loop)
    sch.decompose_reduction(block, kernel[0])
    return done


POOLING_ROWS = Rule("pooling_rows", PoolRowsPlan, match, plans, cost, apply)
