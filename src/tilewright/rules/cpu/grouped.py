"""Grouped convolution with few channels per group, channels last: lanes span several groups.

    for n, rows
      for tiles of output positions along the last axis
        for vectors of channels                       whole groups, or a part of one
          for kernel positions along other axes       only those inside of the image
            for c                                     unrolled where a vector has several groups
              positions x kernel multiply-adds        unrolled: neighbours share loads

Each lane multiplies channel c of its own group. With several groups per vector, the image is loaded
as one vector for all windows that contain it, and shuffled for each c; with one group, the element
is broadcast. All groups of an image row are read together, so padding can be a predicate on kernel
positions; with rows of dynamic length, whose borders are unknown, a padded copy may be made first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.machine import LOOP_CYCLES
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.depthwise import by_vectors, pack_weights
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import MAX_TAILS, NONE, ceil_div, chain_cycles
from tilewright.rules.cpu.windows_tile import ROWS, copied_cycles, guarded_tiles, tiles_along
from tilewright.rules.match.nest import fused, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, Schedule

VECTORS = "vectors"  # the other parallel axis, beside rows


@dataclass(frozen=True)
class GroupedPlan:
    """The tiling of a grouped convolution."""

    groups: int = unit("groups", "of channels in a vector")
    positions: int = unit("output positions", "of a tile along the last axis")
    parallel: str = unit("loops", "split across threads: rows, or rows, tiles and vectors")
    copy_padding: bool = unit("flag", "the image is copied with padding, instead of predicates")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or found.is_depthwise or not found.out_channels_per_group:
        return None
    dtypes = {load.buffer.dtype for load in (found.x, found.w)}
    is_plain = dtypes == {found.nest.block.writes[0].buffer.dtype}
    sizes = (found.size(found.out_channels), found.size(found.in_channels), found.depth)
    if not is_plain or None in sizes:
        return None
    return replace(found, is_padded=padding_of(sch, found) is not None)


def plans(found: Convolution, context: RuleContext) -> Space[GroupedPlan] | None:
    """All tilings; None where a vector holds no whole groups and a group no whole vectors."""
    target, inner = context.target, found.size(found.in_channels) or 1
    beside = _groups_per_vector(found, target.lanes(found.nest.block.writes[0].buffer.dtype.bits))
    kernel = found.size(found.kernel_spatial[-1]) or 1
    total = found.size(found.out_spatial[-1])
    most = min(total or MAX_TAILS, target.vector_registers)

    def held(positions: Any, groups: Any) -> Any:
        """Registers for accumulators, weights, and the windows' pixels, shuffled for one c."""
        seen = (positions - 1) * found.strides[-1] + kernel
        return positions + kernel + np.where(groups > 1, seen, 2)

    def legal(c: Columns) -> Column:
        fits: Column = held(c["positions"], c["groups"]) <= target.vector_registers
        return fits & (c["positions"] * inner <= target.machine.loop_body_instructions)

    if beside is None or inner > target.machine.loop_body_instructions:
        return None
    if held(1, beside) > target.vector_registers:
        return None
    return Space(
        GroupedPlan,
        {
            "groups": (beside,),
            "positions": tuple(range(1, most + 1)),
            "parallel": (NONE,) if context.threads == 1 else (NONE, ROWS, VECTORS),
            "copy_padding": (0, 1) if found.is_padded and total is None else (0,),
        },
        legal,
    )


def _groups_per_vector(found: Convolution, lanes: int) -> int | None:
    """Groups per vector: as many as fit with all of their inputs. None if groups have a partial
    vector."""
    out, inner = found.out_channels_per_group, found.size(found.in_channels) or 1
    groups = (found.size(found.out_channels) or out) // out
    if out > lanes:
        return 1 if out % lanes == 0 else None
    fitting = [n for n in range(1, lanes // out + 1) if groups % n == 0]
    return max(n for n in fitting if n == 1 or n * inner <= lanes)


def _lanes(found: Convolution, groups: int, context: RuleContext) -> int:
    """Channels of a vector: of whole groups, or a part of one."""
    most = context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)
    return min(groups * found.out_channels_per_group, most)


def cost(found: Convolution, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last: operations, loads, and what comes from L2."""
    machine, positions = context.target.machine, c["positions"]
    *rows, last = [found.positions(at) for at in found.out_spatial]
    lanes = _lanes(found, int(c["groups"].max(initial=1)), context)
    vectors = (found.size(found.out_channels) or 1) // lanes
    inner = found.size(found.in_channels) or 1
    *others, width = [found.size(at) or 1 for at in found.kernel_spatial]
    steps = math.prod(others) * inner
    # A tile loads each pixel of its windows once, and shuffles a vector out of it for each c.
    seen = (positions - 1) * found.strides[-1] + width
    sums = steps * positions * width
    shuffles = steps * seen * (c["groups"] > 1)
    loads = steps * (np.where(c["groups"] > 1, seen / inner, seen) + width)
    tile = np.maximum((sums + shuffles) / machine.fma_per_cycle, loads / machine.loads_per_cycle)
    tile = np.maximum(tile, chain_cycles(steps * width, sums + shuffles + loads, machine))
    tile = tile + math.prod(others) * LOOP_CYCLES
    lines = found.assumed(found.batch, 1) * math.prod(rows)
    tiles, is_copied = tiles_along(found, found.out_spatial[-1], positions), c["copy_padding"] == 1
    guarded = guarded_tiles(found, tiles, machine) * (found.is_padded & ~is_copied)
    copied = copied_cycles(found, vectors * lanes, context)
    item = found.x.buffer.dtype.size_bytes
    moved = item * (1 + math.prod(found.strides)) * lines * last * vectors * lanes
    units = np.where(c["parallel"] == ROWS, lines, lines * ceil_div(last, positions) * vectors)
    share = np.where(c["parallel"] == NONE, 1.0, ceil_div(units, context.threads) / units)
    return Cost.of(
        compute=lines * (tiles + guarded) * vectors * tile * share,
        memory=(2 * moved / machine.l2.bytes_per_cycle + is_copied * copied) * share,
        wake=(c["parallel"] != NONE) * machine.wake_cycles * (1 + is_copied),
    )


def apply(
    sch: Schedule, found: Convolution, plan: GroupedPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block, lanes = BlockRef(found.nest.name), _lanes(found, plan.groups, context)
    padding = padding_of(sch, found)
    if padding is not None and not plan.copy_padding:
        sch.compute_inline(padding)
    packed = pack_weights(sch, found, by_vectors(found, lanes), context)
    loops = sch.get_loops(block)
    vector, lane = sch.split(loops[found.out_channels], [None, lanes])
    *rows, last = found.out_spatial
    tile, position = sch.split(loops[last], [None, plan.positions])
    outer = [loops[found.batch], *[loops[at] for at in rows]]
    *others, width = [loops[at] for at in found.kernel_spatial]
    inner = loops[found.in_channels]
    sch.reorder(*outer, tile, vector, *others, inner, position, width, lane)
    # With one group per vector, c stays a loop: unrolled, LLVM hoists loads and spills them.
    for loop in (inner, position, width) if plan.groups > 1 else (position, width):
        sch.unroll(loop)
    sch.vectorize(lane)
    done = fuse_epilogue(sch, block, vector, lanes, lanes)
    sch.decompose_reduction(block, [*others, inner][0])
    if found.size(last) is None:
        sch.annotate(tile, TAILS, True)
    if plan.parallel != NONE:
        shared = outer if plan.parallel == ROWS else [*outer, tile, vector]
        sch.parallel(fused(sch, shared))
    return (block, packed, *done)


GROUPED = Rule("grouped", GroupedPlan, match, plans, cost, apply)
