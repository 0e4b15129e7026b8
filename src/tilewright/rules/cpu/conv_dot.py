"""Convolution, channels last, of int8, i16 and bf16 by dot-product instructions.

    for n, group, chunk, rows      output channels whose weights stay in L2; blocks of rows
      pad the rows that are read, unless padded before
      for tiles, panel             register tiles of output positions; panels of channels
        for kernel positions, c    mr x nr dot products of a group of channels per lane
        the epilogue, and the store

Weights are packed as [panel, kernel positions, c // group, channel in panel, c % group], before the
first call where they are constant. Input channels are a multiple of a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.base.dots import Dot, dots_of
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.dot_model import (
    fits_registers,
    is_unrollable,
    narrower_of,
    register_tile,
    result_cycles,
    row_counts,
    tile_cycles,
)
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import ceil_div, most_vectors
from tilewright.rules.cpu.gemm_schedule import inline_crop
from tilewright.rules.match.nest import attempt, block_of, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import chunk_cycles, late_cycles
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, tile_sizes, unit
from tilewright.sym import Const
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class Problem:
    """The sizes of a convolution, and the instruction for its types; dynamic sizes are guessed."""

    found: Convolution
    dot: Dot
    batch: int
    out_spatial: tuple[int, ...]
    channels: int  # of the result, of one group
    groups: int
    inner: int  # input channels per group
    kernel: int  # positions of the kernel
    narrower: int  # how many times narrower than the sums the results are
    is_padded: bool  # the input is a padded copy

    @property
    def depth(self) -> int:
        return self.kernel * self.inner

    @property
    def panel_vector_bytes(self) -> int:
        """Bytes of the weights of one vector of channels."""
        return self.depth * self.dot.lanes * self.found.w.buffer.dtype.size_bytes

    @property
    def row_bytes(self) -> int:
        """Input bytes per output row."""
        found = self.found
        total = self.inner * self.groups * found.x.buffer.dtype.size_bytes * found.strides[0]
        for place, stride in zip(self.out_spatial[1:], found.strides[1:], strict=True):
            total *= place * stride
        return total


@dataclass(frozen=True)
class ConvDotPlan:
    """The tiling of a convolution by dot products."""

    dot: str = unit("intrinsic", "dot product of a group of channels")
    mr: int = unit("output positions", "of the register tile")
    nr: int = unit("vectors", "of channels in the register tile")
    chunk_panels: int = unit("panels", "of channels whose weights stay in L2")
    block_rows: int = unit("register tiles", "along the first axis whose image stays in L2")
    k_unroll: int = unit("calls along the channels", "per iteration of the unrolled loop")
    parallel: bool = unit("flag", "blocks of rows and chunks of channels are split across threads")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Problem | None:
    """A convolution of types with a dot-product instruction, in whole groups of channels."""
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or found.is_depthwise:
        return None
    types = (found.x.buffer.dtype, found.w.buffer.dtype, found.nest.block.writes[0].buffer.dtype)
    dots = dots_of(context.target, *(each.name for each in types))
    total, inner = found.size(found.out_channels), found.size(found.in_channels)
    if not dots or total is None or inner is None or found.depth is None:
        return None
    channels = found.out_channels_per_group or total
    if inner % dots[0].group or (channels < total and channels % dots[0].lanes):
        return None
    return Problem(
        found,
        next(dot for dot in dots if inner % dot.steps == 0),
        found.size(found.batch) or 1,
        tuple(found.positions(at) for at in found.out_spatial),
        channels,
        total // channels,
        inner,
        found.depth // inner,
        narrower_of(sch, block, types[-1].size_bytes),
        padding_of(sch, found) is not None,
    )


def box_of(problem: Problem, mr: int) -> tuple[int, ...] | None:
    """The extents of a register tile of mr output positions (batch, spatial): along the last axis,
    and along others once it is full. None where mr positions make no box."""
    found = problem.found
    dims = (problem.batch, *problem.out_spatial)
    known = [found.size(at) is not None for at in (found.batch, *found.out_spatial)]
    box = [1] * len(dims)
    for axis in reversed(range(len(dims))):
        if mr <= dims[axis]:
            box[axis] = mr
            return tuple(box)
        if mr % dims[axis] or not known[axis]:
            return None
        box[axis], mr = dims[axis], mr // dims[axis]
    return None


# --------------------------------------------------------------------------- the space


def plans(problem: Problem, context: RuleContext) -> Space[ConvDotPlan]:
    """All blockings of a convolution."""
    dot = problem.dot
    boxes = [mr for mr in row_counts(context.target.machine) if box_of(problem, mr) is not None]
    vectors = -(-problem.channels // dot.lanes)
    widths = tile_sizes(min(most_vectors(context.target), vectors))
    panels = {-(-vectors // nr) for nr in widths}
    counts = (n for n in range(1, max(panels) + 1) if any(total % n == 0 for total in panels))
    candidates: dict[str, tuple[int | str, ...]] = {
        "dot": (dot.name,),
        "mr": tuple(boxes),
        "nr": widths,
        "chunk_panels": tuple(counts),
        "block_rows": tuple(range(1, problem.out_spatial[0] + 1)),
        "k_unroll": doublings(context.target.machine.fma_latency_cycles),
        "parallel": (0,) if context.threads == 1 else (0, 1),
    }
    return Space(
        ConvDotPlan,
        candidates,
        lambda columns: _legal(problem, context, columns),
        stages=(("mr", "nr", "parallel"), ("chunk_panels", "block_rows", "k_unroll")),
    )


def _first_axis(problem: Problem, mr: Column) -> Column:
    """Output positions of a register tile along the first axis."""
    sizes = [(box_of(problem, rows) or (1, 1))[1] for rows in range(1, int(mr.max(initial=1)) + 1)]
    made: Column = np.array(sizes)[mr - 1]
    return made


def _legal(problem: Problem, context: RuleContext, c: Columns) -> Column:
    dot, mr, nr = problem.dot, c["mr"], c["nr"]
    legal: Column = fits_registers(dot, mr, nr, context.target.vector_registers)
    panels = ceil_div(problem.channels, nr * dot.lanes)
    legal &= panels % c["chunk_panels"] == 0  # no lane needs a predicate for its channel
    if problem.groups > 1:
        legal &= problem.channels % (nr * dot.lanes) == 0
    room = context.target.machine.l2.kept_bytes
    weights = c["chunk_panels"] * nr * problem.panel_vector_bytes
    legal &= (c["chunk_panels"] == 1) | (weights <= room)
    tiles = ceil_div(problem.out_spatial[0], _first_axis(problem, mr))
    legal &= c["block_rows"] <= tiles
    legal &= is_unrollable(
        dot, context.target.machine, problem.inner // dot.steps, mr, nr, c["k_unroll"]
    )
    return legal


# --------------------------------------------------------------------------- the cost


def cost(problem: Problem, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last; a partial tile costs as much as a full one."""
    dot, machine, mr, nr = problem.dot, context.target.machine, c["mr"], c["nr"]
    threads = np.where(c["parallel"] == 1, context.threads, 1)
    tile_rows = _first_axis(problem, mr)
    lines = ceil_div(problem.out_spatial[0], tile_rows)
    others = problem.batch * math.prod(problem.out_spatial[1:])
    across = ceil_div(others, mr // tile_rows)
    panels = ceil_div(problem.channels, nr * dot.lanes)
    pieces = problem.groups * ceil_div(panels, c["chunk_panels"]) * ceil_div(lines, c["block_rows"])
    own = ceil_div(pieces, threads)
    tiles = own * c["block_rows"] * across * c["chunk_panels"]
    tiles = np.minimum(tiles, problem.groups * panels * lines * across)
    weights = c["chunk_panels"] * nr * problem.panel_vector_bytes
    near = weights <= machine.l1d.size_bytes // 2
    sums = tiles * tile_cycles(dot, machine, mr, nr, problem.depth, near)
    rest = as_tails(problem, mr, tile_rows)
    found = problem.found
    reach = ((found.size(found.kernel_spatial[0]) or 1) - 1) * found.dilations[0]
    rows = c["block_rows"] * tile_rows * found.strides[0] + reach
    image_bytes = rows * problem.row_bytes / found.strides[0]
    is_far = image_bytes > machine.l2.block_bytes
    read = own * image_bytes
    # Rows are padded where they are read, or all at once in a region of its own.
    is_chunked = panels > c["chunk_panels"]
    whole_bytes = problem.batch * problem.out_spatial[0] * problem.row_bytes
    before = whole_bytes / threads / machine.l2.bytes_per_cycle
    before = before + np.where(c["parallel"] == 1, machine.wake_cycles, 0.0)
    near_by = read / machine.l1d.bytes_per_cycle
    b_bytes, exposed = tiles * nr * problem.panel_vector_bytes, machine.exposed_share
    epilogue = tiles * result_cycles(mr, nr, problem.narrower, machine)
    loop = tiles * problem.depth / dot.steps / c["k_unroll"]
    return Cost.of(
        dots=sums,
        fuse_epilogue=epilogue,
        tails=2 * TIE_SHARE * sums * rest,
        weights_from_l2=np.where(near, 0.0, exposed * b_bytes / machine.l2.bytes_per_cycle),
        image=read / machine.l2.bytes_per_cycle * np.where(is_far, 2.0, 1.0),
        padding=np.where(is_chunked, before, near_by) * problem.is_padded,
        loop=loop,
        dispatch=c["parallel"] * own * chunk_cycles(machine),
        imbalance=c["parallel"] * late_cycles((sums + epilogue + loop) / own, machine),
        wake=np.where(c["parallel"] == 1, machine.wake_cycles, 0.0),
    )


def as_tails(problem: Problem, mr: Column, tile_rows: Column) -> Column:
    """Whether any axis has a tail of register tiles, which is code of its own."""
    made: Column = (problem.out_spatial[0] % tile_rows > 0) | (
        problem.out_spatial[-1] % (mr // tile_rows) > 0
    )
    return made


# --------------------------------------------------------------------------- the schedule


def apply(
    sch: Schedule, problem: Problem, plan: ConvDotPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """Pack weights in groups, split into register tiles, tensorize the reduction."""
    found, dot = problem.found, problem.dot
    box = box_of(problem, plan.mr)
    assert box is not None
    block = sch.get_block(found.nest.name)
    padding = padding_of(sch, found)
    packed = _weights(sch, block, problem, plan)
    loops = sch.get_loops(block)
    out, group = loops[found.out_channels], []
    if found.out_channels_per_group:
        far, out = sch.split(out, [None, found.out_channels_per_group])
        group = [far]
    chunk, panel, vector, lane = sch.split(out, [None, plan.chunk_panels, plan.nr, dot.lanes])
    batch, positions = loops[found.batch], []
    if box[0] > 1:
        batch, near = sch.split(batch, [None, box[0]])
        positions = [near]
    first, *rest = found.out_spatial
    rows, tile, near = sch.split(loops[first], [None, plan.block_rows, box[1]])
    tiles, positions = [tile], [*positions, near]
    for at, size in zip(rest, box[2:], strict=True):
        far, near = sch.split(loops[at], [None, size])
        tiles.append(far)
        positions.append(near)
    ko, kg = sch.split(loops[found.in_channels], [None, dot.steps])
    summed = [*[loops[at] for at in found.kernel_spatial], ko]
    shared = [batch, *group, chunk, rows]
    tile_loops = register_tile(dot, positions, vector)
    sch.reorder(*shared, *tiles, panel, *summed, *tile_loops, lane, kg)
    for loop in (*positions, vector):
        sch.unroll(loop)
    done = [block, packed, *fuse_epilogue(sch, block, panel, dot.lanes, plan.nr * dot.lanes)]
    if padding is not None:
        done.append(padding)
        _pad(sch, padding, rows, problem, plan)
    init = sch.decompose_reduction(block, summed[0])
    if plan.k_unroll > 1:
        _, near = sch.split(ko, [None, plan.k_unroll])
        sch.unroll(near)
    _pack(sch, packed, problem, plan, context)
    sch.tensorize(lane, plan.dot)
    sch.tensorize(sch.get_loops(init)[-1], plan.dot)
    if plan.parallel:
        sch.parallel(sch.fuse(*shared))
    return (*done, init)


def _weights(sch: Schedule, block: BlockRef, problem: Problem, plan: ConvDotPlan) -> BlockRef:
    """The block that copies the weights, zero-padded to whole panels of channels."""
    found, width = problem.found, plan.nr * problem.dot.lanes
    if problem.channels % width == 0:
        return sch.cache_read(block, found.read_index(found.w), "global")
    multiples = [1] * len(found.nest.block.iters)
    multiples[found.out_channels] = width
    sch.pad(block, multiples)
    inline_crop(sch, block)
    (copy,) = (
        reference
        for reference in sch.get_producers(block)
        if any(r.buffer is found.w.buffer for r in block_of(sch.function, reference.name).reads)
    )
    return copy


def _pad(
    sch: Schedule, padding: BlockRef, rows: LoopRef, problem: Problem, plan: ConvDotPlan
) -> None:
    """Pad rows where they are read; all at once if several chunks of channels read them."""
    dot = problem.dot
    is_chunked = plan.chunk_panels * plan.nr * dot.lanes < problem.channels
    if not is_chunked:
        sch.compute_at(padding, rows)
    *outer, column, channel = sch.get_loops(padding)
    lanes = dot.lanes * dot.group
    extent = block_of(sch.function, padding.name).iters[-1].extent
    if isinstance(extent, Const) and int(extent.value) < lanes:  # vectorize across positions
        channel = sch.fuse(column, channel)
    _, lane = sch.split(channel, [None, lanes])
    attempt(sch, sch.vectorize, lane)
    if is_chunked and plan.parallel:
        sch.parallel(sch.fuse(*outer[:2]) if len(outer) > 1 else outer[0])


def _pack(
    sch: Schedule, packed: BlockRef, problem: Problem, plan: ConvDotPlan, context: RuleContext
) -> None:
    """Pack weights as [panel, kernel positions, c // group, channel in panel, c % group]."""
    found = problem.found
    taps = [f"k{at}" for at in range(len(found.kernel_spatial))]
    names = ["o", "c", *taps]
    within, before = "o", []
    if found.out_channels_per_group:
        per_group = found.out_channels_per_group
        within, before = f"(o % {per_group})", [f"o // {per_group}"]
    width, group = plan.nr * problem.dot.lanes, problem.dot.group
    to = [*before, f"{within} // {width}", *taps, f"c // {group}"]
    to += [f"{within} % {width}", f"c % {group}"]
    sch.transform_layout(packed, ("write", 0), f"({', '.join(names)}) -> ({', '.join(to)})")
    if found.w.buffer.name in context.constants:
        sch.annotate(packed, CONSTANT, True)


CONV_DOT = Rule("conv_dot", ConvDotPlan, match, plans, cost, apply)
