"""Depthwise convolution, channels first: one plane at a time, vectorized along rows.

    for n, channels in parallel
      pad the plane
      for tiles of rows x vectors of a row
        for kernel rows                     unrolled where small: rows of the tile share loads
          kernel columns x tile multiply-adds

With a stride, the padded plane may have its columns apart by phase, columns 0, 2, 4 ... before
columns 1, 3, 5 ...: vectors of a row are contiguous then. A 1D signal is a plane of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.machine import CONVERT_CYCLES, LOOP_CYCLES
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import integer_cycles
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import ceil_div, chain_cycles, partial_cycles
from tilewright.rules.cpu.gemm_schedule import inline_crop
from tilewright.rules.cpu.vectorize import FEW_ELEMENTS
from tilewright.rules.cpu.windows_tile import MAX_POSITIONS, tiles_along
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Convolution, planes_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class PlanesPlan:
    """The tiling of a plane."""

    lanes: int = unit("elements", "of a row in a vector")
    rows: int = unit("rows", "of a tile")
    vectors: int = unit("vectors", "of a row in a tile")
    unroll_axes: int = unit("axes", "of the kernel, innermost first, that are unrolled")
    parallel: bool = unit("flag", "images and channels are split across threads")
    by_phase: bool = unit("flag", "columns of the padded plane are apart by phase of the stride")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else planes_of(nest)
    if found is None or found.depth is None:
        return None
    if found.size(found.out_channels) is None:
        return None
    return replace(found, is_padded=padding_of(sch, found) is not None)


def _plane(found: Convolution) -> list[int]:
    """The output extents; a 1D signal has one row."""
    sizes = [found.positions(at) for at in found.out_spatial]
    return sizes if len(sizes) > 1 else [1, *sizes]


def _most_lanes(found: Convolution, context: RuleContext) -> int:
    """Elements in a vector of the target."""
    return context.target.lanes(found.nest.block.writes[0].buffer.dtype.bits)


def _between_rows(found: Convolution) -> tuple[int, int]:
    """The kernel's rows, and the vertical stride."""
    if len(found.out_spatial) < 2:
        return 1, 1
    return found.size(found.kernel_spatial[-2]) or 1, found.strides[-2]


def _unrolled_positions(found: Convolution, axes: Column) -> Column:
    """Kernel positions of that many innermost axes."""
    kernel = [found.size(at) or 1 for at in found.kernel_spatial]
    counts = [math.prod(kernel[len(kernel) - each :]) for each in range(len(kernel) + 1)]
    return np.array(counts)[axes]


def plans(found: Convolution, context: RuleContext) -> Space[PlanesPlan] | None:
    most = _most_lanes(found, context)
    *_, rows, width = _plane(found)
    all_axes = len(found.kernel_spatial)
    body, registers = context.target.machine.loop_body_instructions, context.target.vector_registers

    def legal(c: Columns) -> Column:
        """Accumulators, a load and a weight fit the registers. One vector is legal for any
        kernel; single elements only where all is unrolled, so that LLVM can vectorize them."""
        sums, is_unrolled = c["rows"] * c["vectors"], c["unroll_axes"] == all_axes
        fits = (sums * _unrolled_positions(found, c["unroll_axes"]) <= body) | (sums == 1)
        fits &= (sums + 2 <= registers) & ((c["vectors"] - 1) * c["lanes"] < width)
        is_alone = (c["vectors"] == 1) & is_unrolled & (c["by_phase"] == 0)
        ok: Column = fits & ((c["lanes"] > 1) | is_alone)
        return ok

    if most < 2:
        return None
    widest = min(most, doublings(2 * width - 1)[-1])  # the last may cover a whole short row
    return Space(
        PlanesPlan,
        {
            "lanes": doublings(widest)[::-1],
            "rows": tuple(range(1, min(MAX_POSITIONS, rows) + 1)),
            "vectors": _vectors(width, widest),
            "unroll_axes": tuple(range(all_axes, -1, -1)),
            "parallel": (0, 1) if context.threads > 1 else (0,),
            "by_phase": (0, 1) if 1 < found.strides[-1] <= FEW_ELEMENTS else (0,),
        },
        legal,
    )


def _vectors(width: int, lanes: int) -> tuple[int, ...]:
    """Candidates for the vectors of a tile: powers of two, or all whole vectors of a row."""
    found = doublings(min(MAX_POSITIONS, -(-width // lanes)))
    whole = width // lanes
    is_new = 0 < whole <= MAX_POSITIONS and whole not in found
    return (*found, whole) if is_new else found


def cost(found: Convolution, c: Columns, context: RuleContext) -> Cost:
    machine, lanes, rows = context.target.machine, c["lanes"], c["rows"]
    *outer, height, width = _plane(found)
    is_image = len(found.out_spatial) > 1
    planes = found.assumed(found.batch, 1) * (found.size(found.out_channels) or 1)
    depth, is_unrolled = found.depth or 1, c["unroll_axes"] == len(found.kernel_spatial)
    # LLVM vectorizes contiguous single elements, by half of a register as it prefers.
    half = max(1, _most_lanes(found, context) // 2) if found.strides[-1] == 1 else 1
    alone = np.where(lanes == 1, half, lanes)
    vectors = tiles_along(found, found.out_spatial[-1], alone * c["vectors"])
    tiles = tiles_along(found, found.out_spatial[-2], rows) if is_image else ceil_div(1, rows)
    sums = rows * c["vectors"]
    # Rows of a tile share loads where all kernel rows are unrolled.
    kernel_rows, step = _between_rows(found)
    shared = ((rows - 1) * step + kernel_rows) / kernel_rows
    seen = depth * c["vectors"] * np.where(is_unrolled, shared, rows)
    # Strided elements are loaded whole and shuffled.
    stride = np.where(c["by_phase"] == 1, 1, found.strides[-1])
    work = (depth * sums + (stride - 1) * seen) / machine.fma_per_cycle
    types = (found.nest.block.writes[0].buffer.dtype, found.x.buffer.dtype, found.w.buffer.dtype)
    work = work + integer_cycles(types, machine, depth * sums, seen)
    tile = np.maximum(work, stride * seen / machine.loads_per_cycle)
    tile = np.maximum(tile, chain_cycles(depth, depth * sums + seen, machine)) + LOOP_CYCLES
    turns = depth / _unrolled_positions(found, c["unroll_axes"])
    tile = tile + np.where(is_unrolled, _spilled_cycles(found, sums, context), turns * LOOP_CYCLES)
    each = (
        math.prod(outer)
        * tiles
        * (vectors * tile + depth * rows * _tail_load_cycles(found, c, context))
    )
    item = found.nest.block.writes[0].buffer.dtype.size_bytes
    moved = planes * math.prod(outer) * height * width * item * (1 + math.prod(found.strides))
    threads = np.where(c["parallel"] == 1, context.threads, 1)
    share = ceil_div(planes, threads) / planes
    return Cost.of(
        compute=planes * each * share,
        padding=planes * _padding_cycles(found, c, context) * share,
        memory=2 * moved / machine.l2.bytes_per_cycle * share,
        wake=c["parallel"] * machine.wake_cycles,
    )


def _spilled_cycles(found: Convolution, sums: Column, context: RuleContext) -> Column:
    """Cycles of spills in a tile of so many vectors: loads that kernel rows share stay in registers
    beside the accumulators, one vector per kernel column."""
    machine, (kernel_rows, step) = context.target.machine, _between_rows(found)
    columns = found.size(found.kernel_spatial[-1]) or 1
    held = sums * (1 + columns * (kernel_rows > step))
    spilled = np.maximum(0, held - context.target.vector_registers)
    cycles: Column = spilled * (1 / machine.stores_per_cycle + 1 / machine.loads_per_cycle)
    return cycles


def _tail_load_cycles(found: Convolution, c: Columns, context: RuleContext) -> Column:
    """Cycles to load a vector that extends beyond a row: gathered if strided, else in pieces where
    the target has no masked loads."""
    machine, bits, lanes = context.target.machine, found.x.buffer.dtype.bits, c["lanes"]
    width = found.size(found.out_spatial[-1])
    if width is None:
        return np.zeros(len(lanes))  # planes are rounded up
    rest = width % lanes
    if found.strides[-1] > 1:
        is_gathered = (rest > 0) & (c["by_phase"] == 0)
        return np.where(is_gathered, machine.gather_lane_cycles * lanes, 0)
    if context.target.has_masked_load(bits):
        return np.zeros(len(lanes))
    return np.array([partial_cycles(each, machine) for each in rest.tolist()])


def _padding_cycles(found: Convolution, c: Columns, context: RuleContext) -> Column:
    """Cycles to copy a plane with its border: load, select, shuffle if by phase, store."""
    machine, by_phase = context.target.machine, c["by_phase"] == 1
    spatial = zip(found.out_spatial, found.kernel_spatial, found.strides, strict=True)
    *rows, width = [
        (found.positions(out) - 1) * stride + (found.size(kernel) or 1)
        for out, kernel, stride in spatial
    ]
    vector = 1 / machine.loads_per_cycle + CONVERT_CYCLES + 1 / machine.stores_per_cycle
    most, stride = _most_lanes(found, context), found.strides[-1]
    whole = vector * -(-width // most)
    apart = (vector + stride - 1) * stride * ceil_div(width, stride * c["lanes"])
    copied = np.where(by_phase, apart, whole) * math.prod(rows)
    is_copied = found.is_padded | by_phase | (found.size(found.out_spatial[-1]) is None)
    return np.where(is_copied, copied, 0)


def apply(
    sch: Schedule, found: Convolution, plan: PlanesPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block = BlockRef(found.nest.name)
    padding = _padded_plane(sch, found, plan)
    loops = sch.get_loops(block)
    batch, channel = loops[found.batch], loops[found.out_channels]
    *outer, column = (loops[at] for at in found.out_spatial)
    near: list[LoopRef] = []  # the rows of a tile
    if outer:
        tile, row = sch.split(outer.pop(), [None, plan.rows])
        outer, near = [*outer, tile], [row]
    vector, beside, lane = sch.split(column, [None, plan.vectors, plan.lanes])
    kernel = [loops[at] for at in found.kernel_spatial]
    inner = (loops[found.in_channels], *near, beside, lane)
    sch.reorder(batch, channel, *outer, vector, *kernel, *inner)
    sch.vectorize(lane)
    for loop in (*near, beside, *kernel[len(kernel) - plan.unroll_axes :]):
        sch.unroll(loop)
    done = [block, *fuse_epilogue(sch, block, vector, plan.lanes, plan.vectors * plan.lanes)]
    if padding is not None:
        _copy_plane(sch, padding, channel, found, plan, context)
        done.append(padding)
    sch.decompose_reduction(block, kernel[0])
    if plan.parallel:
        sch.parallel(sch.fuse(batch, channel))
    return tuple(done)


def _copy_plane(
    sch: Schedule,
    padding: BlockRef,
    channel: LoopRef,
    found: Convolution,
    plan: PlanesPlan,
    context: RuleContext,
) -> None:
    """Copy a plane where it is read, by whole vectors; by phase, each is one contiguous load and a
    store per phase."""
    width = _most_lanes(found, context)
    sch.compute_at(padding, channel)
    if plan.by_phase:
        *names, column = [f"x{axis}" for axis in range(len(found.x.index))]
        stride = found.strides[-1]
        width = stride * plan.lanes
        places = ", ".join([*names, f"{column} % {stride}", f"{column} // {stride}"])
        sch.transform_layout(padding, ("write", 0), f"({', '.join(names)}, {column}) -> ({places})")
    _, along = sch.split(sch.get_loops(padding)[-1], [None, width])
    sch.vectorize(along)


def _padded_plane(sch: Schedule, found: Convolution, plan: PlanesPlan) -> BlockRef | None:
    """The block that pads a plane, if there is one. With dynamic extents, and by phase, planes are
    padded to whole tiles, so that only stores need predicates."""
    block, padding = BlockRef(found.nest.name), padding_of(sch, found)
    tile = (*[1] * (len(found.out_spatial) - 2), plan.rows, plan.vectors * plan.lanes)
    multiples = [1] * len(found.nest.block.iters)
    for at, extent in zip(found.out_spatial, tile[-len(found.out_spatial) :], strict=True):
        is_last = at == found.out_spatial[-1]
        if found.size(at) is None or (plan.by_phase and is_last):
            multiples[at] = extent
    before = sch.get_producers(block)
    sch.pad(block, multiples)
    inline_crop(sch, block)
    made = [each for each in sch.get_producers(block) if each not in before]
    if made and padding is not None:
        sch.compute_inline(padding)
    if made or not plan.by_phase:
        return made[0] if made else padding
    return padding or sch.cache_read(block, found.read_index(found.x), "global")


DEPTHWISE_NCHW = Rule("depthwise_nchw", PlanesPlan, match, plans, cost, apply)
