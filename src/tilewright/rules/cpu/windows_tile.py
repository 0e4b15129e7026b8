"""Per-channel windows, channels last: lanes are channels, several windows per tile.

    for n, rows in parallel
      for tiles of output positions along the last axis
        for vectors of channels
          for kernel positions along other axes     only those inside of the image
            kernel x positions operations           unrolled: neighbours share loads

Shared by depthwise convolution and pooling: the plan, its space and cost, the schedule steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtype import I8, I32
from tilewright.base.machine import Machine
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import guarded_times
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import MAX_TAILS, NONE, ceil_div, chain_cycles
from tilewright.rules.match.nest import fused
from tilewright.rules.match.windows import Windows
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, Schedule

MAX_POSITIONS = MAX_TAILS  # of a tile: larger tiles share little more
ROWS, TILES = "rows", "tiles"  # the axis split across threads


@dataclass(frozen=True)
class WindowsPlan:
    """The tiling of per-channel windows."""

    positions: int = unit("output positions", "of a tile along the last axis")
    unroll_kernel: bool = unit("flag", "the last kernel axis is unrolled")
    parallel: str = unit("axis", "split across threads")


def lanes_of(found: Windows, context: RuleContext) -> int:
    """Channels per tile: one vector of sums, or several where the input is narrower, to fill a
    vector of it; fewer of narrow types if those divide the channels."""
    lanes = context.target.lanes(_sum_bits(found)) * vectors_of(found, context)
    channels, least = found.size(found.out_channels), context.target.lanes(I32.bits)
    while lanes > least and channels is not None and channels % lanes:
        lanes //= 2
    return lanes


def _sum_bits(found: Windows) -> int:
    return found.nest.block.writes[0].buffer.dtype.bits


def vectors_of(found: Windows, context: RuleContext) -> int:
    """Vectors of sums per tile and position."""
    lanes, channels = context.target.lanes(_sum_bits(found)), found.size(found.out_channels)
    vectors = max(1, _sum_bits(found) // max(I8.bits, found.x.buffer.dtype.bits))
    while vectors > 1 and (channels is None or channels % (lanes * vectors)):
        vectors //= 2
    return vectors


def windows_space(found: Windows, context: RuleContext) -> Space[WindowsPlan]:
    total = found.size(found.out_spatial[-1]) or MAX_POSITIONS
    body_most = context.target.machine.loop_body_instructions
    kernel = found.size(found.kernel_spatial[-1]) or body_most
    registers, beside = context.target.vector_registers, vectors_of(found, context)

    def legal(c: Columns) -> Column:
        body = beside * c["positions"] * np.where(c["unroll_kernel"] == 1, kernel, 1)
        held = (1 + beside) * c["positions"] + 2
        fits: Column = (c["positions"] == 1) | (held <= registers)
        return fits & (body <= body_most)

    return Space(
        WindowsPlan,
        {
            "positions": tuple(range(1, min(MAX_POSITIONS, total) + 1)),
            "unroll_kernel": (0, 1),
            "parallel": (NONE,) if context.threads == 1 else (NONE, ROWS, TILES),
        },
        legal,
    )


def windows_cost(found: Windows, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last: operations, loads, and what comes from L2."""
    machine, lanes, positions = context.target.machine, lanes_of(found, context), c["positions"]
    *rows, last = [found.positions(at) for at in found.out_spatial]
    vectors = ceil_div(found.nest.guess(found.out_channels), lanes)
    kernel = [found.size(at) or 1 for at in found.kernel_spatial]
    others = math.prod(kernel[:-1])
    depth = others * kernel[-1]
    # A tile loads each weight once, and each pixel once if the kernel axis is unrolled.
    seen = (positions - 1) * found.strides[-1] + kernel[-1]
    seen = np.where(c["unroll_kernel"] == 1, seen, positions * kernel[-1])
    loads = others * (seen + kernel[-1])
    beside = vectors_of(found, context)
    sums = depth * positions * beside
    if found.x.buffer.dtype.bits < _sum_bits(found):
        # Narrow types are widened when loaded; integers multiply and add in two instructions.
        apart = 2 if found.nest.block.writes[0].buffer.dtype.is_int else 1
        sums = apart * sums + beside * loads
    tile = np.maximum(sums / machine.fma_per_cycle, loads / machine.loads_per_cycle)
    tile = np.maximum(tile, chain_cycles(depth, sums + loads, machine))
    tile = tile + others * np.where(c["unroll_kernel"] == 1, 1, kernel[-1])
    lines = found.assumed(found.batch, 1) * math.prod(rows)
    tiles = tiles_along(found, found.out_spatial[-1], positions)
    work = lines * tiles * vectors * tile
    memory = moved_cycles(found, vectors * lanes, context)
    share = shares(c["parallel"], lines, ceil_div(last, positions), context)
    wakes = np.where(c["parallel"] == TILES, lines, 1) * (c["parallel"] != NONE)
    return Cost.of(compute=work * share, memory=memory * share, wake=wakes * machine.wake_cycles)


def tiles_along(found: Windows, at: int, positions: Column) -> Column:
    """Tiles along an axis; the tail of a dynamic one may have any extent, and counts by its
    mean."""
    extent = found.positions(at)
    tiles: Column = ceil_div(extent, positions)
    return (extent + (positions - 1) / 2) / positions if found.size(at) is None else tiles


def guarded_tiles(found: Windows, tiles: Column, machine: Machine) -> Column:
    """The cost of predicates on the padding of a dynamic row, in tiles: the first and the last tile
    test every position."""
    guarded: Column = guarded_times(machine) * np.minimum(tiles, 2)
    return guarded if found.size(found.out_spatial[-1]) is None else np.zeros_like(guarded)


def copied_cycles(found: Windows, channels: int, context: RuleContext) -> float:
    """Cycles of a padded copy of the image."""
    target = context.target
    sizes = [found.positions(at) for at in found.out_spatial]
    pixels = found.assumed(found.batch, 1) * math.prod(sizes) * math.prod(found.strides)
    vectors = ceil_div(channels, target.lanes(found.x.buffer.dtype.bits))
    return float(2 * pixels * vectors * target.vector_bytes / target.machine.l2.bytes_per_cycle)


def moved_cycles(found: Windows, channels: int, context: RuleContext) -> float:
    """Cycles of the image and the results through L2, at the width of the sums."""
    target = context.target
    pixels = found.assumed(found.batch, 1) * math.prod(
        found.positions(at) for at in found.out_spatial
    )
    vectors = channels // (target.lanes(_sum_bits(found)) * vectors_of(found, context))
    moved = target.vector_bytes * (1 + math.prod(found.strides)) * pixels * vectors
    return 2 * moved / target.machine.l2.bytes_per_cycle


def shares(parallel: Column, lines: int, tiles: Column, context: RuleContext) -> Column:
    """The share of the thread that finishes last."""
    threads = context.threads
    found: Column = np.where(
        parallel == ROWS,
        ceil_div(lines, threads) / lines,
        np.where(parallel == TILES, ceil_div(tiles, threads) / tiles, 1.0),
    )
    return found


def tile_windows(
    sch: Schedule, found: Windows, plan: WindowsPlan, context: RuleContext
) -> list[BlockRef]:
    """Split into vectors of channels and tiles of windows; returns the blocks that store the
    results."""
    block, lanes = BlockRef(found.nest.name), lanes_of(found, context)
    loops = sch.get_loops(block)
    vector, lane = sch.split(loops[found.out_channels], [None, lanes])
    *rows, last = found.out_spatial
    tile, position = sch.split(loops[last], [None, plan.positions])
    outer = [loops[found.batch], *[loops[at] for at in rows]]
    kernel = [loops[at] for at in found.kernel_spatial]
    others = [loops[at] for at in found.nest.reduce if at not in found.kernel_spatial]
    sch.reorder(*outer, tile, vector, *kernel, *others, position, lane)
    sch.vectorize(lane)
    sch.unroll(position)
    if plan.unroll_kernel:
        sch.unroll(kernel[-1])
    done = fuse_epilogue(sch, block, vector, lanes, lanes)
    sch.decompose_reduction(block, kernel[0])
    if found.size(last) is None:
        sch.annotate(tile, TAILS, True)
    if plan.parallel != NONE:
        sch.parallel(fused(sch, outer) if plan.parallel == ROWS else tile)
    return done
