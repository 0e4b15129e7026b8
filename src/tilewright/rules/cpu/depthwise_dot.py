"""Depthwise convolution of int8, channels last, by dot products along a column of the window.

    for n, rows
      for tiles of output positions along the last axis
        for vectors of channels
          other kernel axes x positions    unrolled: each column of pixels is interleaved once
            a dot product per vector of lanes, of vertically adjacent pixels (`intrin/taps.py`)

Weights are packed as [vector, other kernel axes, group, lane, tap in group].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dots import Dot, tap_dot_of
from tilewright.base.dtype import I32
from tilewright.intrin.taps import column_instructions, is_zipped, spare_places
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.depthwise import pack_weights
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import NONE, ceil_div, chain_cycles
from tilewright.rules.cpu.windows_tile import MAX_POSITIONS, ROWS, moved_cycles, shares
from tilewright.rules.match.nest import fused, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.schedule import BlockRef, Schedule


@dataclass(frozen=True)
class Problem:
    """A depthwise convolution, and the instruction for its types."""

    found: Convolution
    dot: Dot
    channels: int
    taps: int  # kernel extent along the first axis, which the dot products reduce

    @property
    def groups(self) -> int:
        return math.ceil(self.taps / self.dot.group)

    def columns(self, positions: Column) -> Column:
        """Columns of pixels in the windows of neighbouring positions, per position on other
        axes."""
        found = self.found
        if len(found.kernel_spatial) == 1:
            return positions
        kernel = found.size(found.kernel_spatial[-1]) or 1
        return (positions - 1) * found.strides[-1] + (kernel - 1) * found.dilations[-1] + 1

    @property
    def between(self) -> int:
        """Kernel positions on the axes between the first and the last."""
        return math.prod(self.found.size(at) or 1 for at in self.found.kernel_spatial[1:-1])

    @property
    def across(self) -> int:
        """Kernel positions on all axes but the first."""
        return math.prod(self.found.size(at) or 1 for at in self.found.kernel_spatial[1:])


@dataclass(frozen=True)
class DepthwiseDotPlan:
    """The tiling of a depthwise convolution by dot products."""

    dot: str = unit("intrinsic", "dot product along a column")
    vectors: int = unit("vectors", "of channels at a time")
    positions: int = unit("output positions", "of a tile along the last axis")
    parallel: str = unit("axis", "split across threads")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Problem | None:
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or not found.is_depthwise or found.depth is None:
        return None
    dot = tap_dot_of(context.target, found.x.buffer.dtype.name, found.w.buffer.dtype.name)
    channels, taps = found.size(found.out_channels), found.size(found.kernel_spatial[0]) or 1
    if dot is None or found.nest.block.writes[0].buffer.dtype is not I32:
        return None
    if channels is None or channels % dot.lanes or taps == 1 or found.dilations[0] > 1:
        return None
    padded = replace(found, is_padded=padding_of(sch, found) is not None)
    return Problem(padded, dot, channels, taps)


def plans(problem: Problem, context: RuleContext) -> Space[DepthwiseDotPlan]:
    found, target = problem.found, context.target
    total = found.size(found.out_spatial[-1]) or MAX_POSITIONS
    most = target.vector_bytes // problem.dot.lanes  # that a load of bytes fills
    vectors = [n for n in range(1, most + 1) if most % n == 0]

    def legal(c: Columns) -> Column:
        # LLVM hoists the loads of all columns of a tile.
        columns = problem.between * problem.groups * problem.columns(c["positions"])
        held = c["vectors"] * (c["positions"] + columns)
        fits: Column = (c["positions"] * c["vectors"] == 1) | (held <= target.vector_registers)
        body = c["vectors"] * c["positions"] * problem.groups * problem.across
        return fits & (body <= target.machine.loop_body_instructions)

    return Space(
        DepthwiseDotPlan,
        {
            "dot": (problem.dot.name,),
            "vectors": tuple(n for n in vectors if problem.channels % (n * problem.dot.lanes) == 0),
            "positions": tuple(range(1, min(MAX_POSITIONS, total) + 1)),
            "parallel": (NONE,) if context.threads == 1 else (NONE, ROWS),
        },
        legal,
    )


def cost(problem: Problem, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last: dot products, interleaving, loads."""
    found, dot, machine = problem.found, problem.dot, context.target.machine
    vectors, positions = c["vectors"], c["positions"]
    seen = problem.between * problem.columns(positions)
    sums = positions * problem.across * problem.groups * vectors * (1 if dot.adds else 2)
    joins = column_instructions(dot, problem.taps, vectors)
    loads = problem.across * problem.groups * vectors
    if is_zipped(dot):  # interleaving takes load ports
        loads = loads + seen * problem.taps
    tile = np.maximum(
        (sums + seen * joins) / machine.fma_per_cycle,
        chain_cycles(problem.across * problem.groups, sums + loads, machine),
    )
    tile = tile + loads / machine.loads_per_cycle
    *rows, last = [found.positions(at) for at in found.out_spatial]
    lines = found.assumed(found.batch, 1) * math.prod(rows)
    tiles, parts = ceil_div(last, positions), problem.channels // (vectors * dot.lanes)
    share = shares(c["parallel"], lines, tiles, context)
    moved = moved_cycles(found, problem.channels, context)
    return Cost.of(
        compute=lines * tiles * parts * tile * share,
        memory=moved * share * (1 + found.is_padded),
        wake=(c["parallel"] != NONE) * machine.wake_cycles * (1 + found.is_padded),
    )


def apply(
    sch: Schedule, problem: Problem, plan: DepthwiseDotPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    found, dot, block = problem.found, problem.dot, BlockRef(problem.found.nest.name)
    width = plan.vectors * dot.lanes
    packed = pack_weights(sch, found, _order(problem, width), context)
    loops = sch.get_loops(block)
    vector, lane = sch.split(loops[found.out_channels], [None, width])
    *rows, last = found.out_spatial
    tile, position = sch.split(loops[last], [None, plan.positions])
    outer = [loops[found.batch], *[loops[at] for at in rows]]
    taps, *others = [loops[at] for at in found.kernel_spatial]
    whole = loops[found.in_channels]  # of extent 1: outside of the reduction
    sch.reorder(*outer, tile, vector, whole, position, *others, lane, taps)
    for loop in (position, *others):  # in this order, columns are reused soon
        sch.unroll(loop)
    done = fuse_epilogue(sch, block, vector, dot.lanes, width)
    init = sch.decompose_reduction(block, whole)
    column = intrinsic(plan.dot, rows=problem.taps, vectors=plan.vectors)
    sch.tensorize(lane, column)
    sch.tensorize(sch.get_loops(init)[-1], column)
    if plan.parallel == ROWS:
        sch.parallel(fused(sch, outer))
    return (block, packed, *done, init)


def _order(problem: Problem, width: int) -> list[str]:
    """The layout of packed weights: taps of a lane's group are contiguous."""
    dot, others = problem.dot, [f"k{at}" for at in range(1, len(problem.found.kernel_spatial))]
    order = [f"o // {width}", *others, "c"]
    place = f"(k0 + {spare_places(dot, problem.taps)})"
    if problem.groups == 1:
        return [*order, f"o % {width}", place]
    return [*order, f"{place} // {dot.group}", f"o % {width}", f"{place} % {dot.group}"]


DEPTHWISE_DOT = Rule("depthwise_dot", DepthwiseDotPlan, match, plans, cost, apply)
