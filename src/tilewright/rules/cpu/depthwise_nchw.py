"""Depthwise convolution, channels first: one plane at a time, lanes along its rows.

for n, channels in parallel
  pad the plane
  for tiles of rows, vectors of a row
    kernel x rows multiply-adds       unrolled: rows share what they read
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.epilogue import results
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.cpu.windows_tile import BODY_OPERATIONS, MAX_POSITIONS
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Convolution, planes_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.schedule import BlockRef, Schedule

GATHER_CYCLES = 2.0  # per lane of a strided vector that ends a row, gathered under a mask


@dataclass(frozen=True)
class PlanesPlan:
    """What is decided about planes."""

    lanes: int = unit("elements", "of a row in a vector")
    rows: int = unit("rows", "of a tile")
    parallel: bool = unit("flag", "threads share out images and channels")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else planes_of(nest)
    if found is None or len(found.out_spatial) < 2 or found.depth is None:
        return None
    sizes = [found.size(at) for at in (found.out_channels, *found.out_spatial)]
    return None if None in sizes or 2 * found.depth > BODY_OPERATIONS else found


def plans(found: Convolution, context: RuleContext) -> Space[PlanesPlan] | None:
    most = context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    width = found.size(found.out_spatial[-1]) or 1
    rows = found.size(found.out_spatial[-2]) or 1
    lanes = [n for n in (16, 8, 4, 2, 1) if n <= min(most, width)]
    depth = found.depth or 1

    def legal(c: Columns) -> Column:
        small: Column = (c["rows"] == 1) | (c["rows"] * depth <= BODY_OPERATIONS)
        return small

    if most < 2:
        return None
    return Space(
        PlanesPlan,
        {
            "lanes": tuple(lanes),
            "rows": tuple(range(1, min(MAX_POSITIONS, rows) + 1)),
            "parallel": (0, 1) if context.threads > 1 else (0,),
        },
        legal,
    )


def cost(found: Convolution, c: Columns, context: RuleContext) -> Cost:
    machine, lanes, rows = context.target.machine, c["lanes"], c["rows"]
    *outer, height, width = [found.size(at) or 1 for at in found.out_spatial]
    planes = found.assumed(found.batch, 1) * (found.size(found.out_channels) or 1)
    depth, kernel = found.depth or 1, [found.size(at) or 1 for at in found.kernel_spatial]
    vectors, tiles = ceil_div(width, lanes), ceil_div(height, rows)
    seen = ((rows - 1) * found.strides[-2] + kernel[-2]) * math.prod(kernel) / kernel[-2]
    tile = np.maximum(depth * rows / machine.fma_per_cycle, seen / machine.loads_per_cycle)
    tile = np.maximum(tile, depth * machine.fma_latency_cycles / 2)
    # Strided elements are loaded whole and shuffled, but gathered where a vector is not full.
    ragged = (found.strides[-1] > 1) & (width % lanes > 0)
    gathers = np.where(ragged, GATHER_CYCLES * lanes * depth * rows, 0)
    each = math.prod(outer) * tiles * (vectors * tile + gathers)
    item = found.nest.block.writes[0].buffer.dtype.size_bytes
    moved = planes * math.prod(outer) * height * width * item * (1 + math.prod(found.strides))
    threads = np.where(c["parallel"] == 1, context.threads, 1)
    share = ceil_div(planes, threads) / planes
    return Cost.of(
        compute=planes * each * share,
        memory=2 * moved / machine.l2.bytes_per_cycle * share,
        wake=c["parallel"] * machine.wake_cycles,
    )


def apply(
    sch: Schedule, found: Convolution, plan: PlanesPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block = BlockRef(found.nest.name)
    padding = padding_of(sch, found)
    loops = sch.get_loops(block)
    batch, channel = loops[found.batch], loops[found.out_channels]
    *outer, row, column = (loops[at] for at in found.out_spatial)
    tile, near = sch.split(row, [None, plan.rows])
    vector, lane = sch.split(column, [None, plan.lanes])
    kernel = [loops[at] for at in found.kernel_spatial]
    sch.reorder(batch, channel, *outer, tile, vector, *kernel, loops[found.in_channels], near, lane)
    sch.vectorize(lane)
    for loop in (near, *kernel):
        sch.unroll(loop)
    done = [block, *results(sch, block, vector, plan.lanes, plan.lanes)]
    if padding is not None:
        sch.compute_at(padding, channel)
        _, along = sch.split(sch.get_loops(padding)[-1], [None, plan.lanes])
        sch.vectorize(along)
        done.append(padding)
    sch.decompose_reduction(block, kernel[0])
    if plan.parallel:
        sch.parallel(sch.fuse(batch, channel))
    return tuple(done)


DEPTHWISE_NCHW = Rule("depthwise_nchw", PlanesPlan, match, plans, cost, apply)
