"""Winograd convolution: the transformed data of a block of tiles stays in L2.

    for groups, blocks of rows of tiles
      pad the rows; transform them                    V: channels of the group
      for panels of output channels
        for each of the a x a GEMMs                   register tiles of image tiles x channels
        inverse transform of tiles, and the epilogue

Weights U are transformed and packed as [panel, i, j, c, channel in panel] before the first call, or
at the start of each where they are not constant, as in training. Where there are too few blocks for
the threads, V is computed first and panels are split across threads.

int8 convolutions have V and U in i16, and dot products of pairs of channels in place of
multiply-adds; U is packed as [panel, i, j, c // 2, channel in panel, c % 2] then.

Where registers hold all tiles of an image and the weights exceed L2, weights are streamed once, in
the order [i, j, panel, c, channel in panel]. Each of the GEMMs then reads its part of V from L1,
and the inverse transform follows all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.dots import Dot, dots_of
from tilewright.base.dtype import F64, I16
from tilewright.base.machine import LOOP_CYCLES, Machine
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu import dot_model
from tilewright.rules.cpu.conv_model import Problem, tile_cycles
from tilewright.rules.cpu.gemm_model import (
    MAX_TAILS,
    NONE,
    ceil_div,
    fits_registers,
    is_unrollable,
    load_share,
    most_vectors,
    near_unroll_candidates,
    shortest_part,
)
from tilewright.rules.cpu.gemm_schedule import unrolled_sum
from tilewright.rules.match.nest import attempt, block_of
from tilewright.rules.match.winograd import Parts, followed, number, parts_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.sym import ONE
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.passes.cut_sums import PART_TERMS
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

BLOCKS, PANELS = "blocks", "panels"  # the axis split across threads


@dataclass(frozen=True)
class WinogradPlan:
    """The tiling of a Winograd convolution."""

    nr: int = unit("vectors", "of output channels in a panel")
    rows: int = unit("rows of tiles", "in a block")
    tile_rows: int = unit("tiles", "of a register tile, along the first axis")
    tile_columns: int = unit("tiles", "of a register tile, along the second axis")
    parallel: str = unit("axis", "split across threads: blocks of rows, panels, or none")
    once: bool = unit("flag", "registers hold all tiles of the image, weights are streamed once")
    k_unroll: int = unit("steps of the sum", "per iteration of the unrolled loop")

    @property
    def positions(self) -> int:
        return self.tile_rows * self.tile_columns


@dataclass(frozen=True)
class Sizes:
    """The sizes of the GEMMs; dynamic extents are guessed."""

    side: int  # inputs of a tile along an axis
    batch: int  # images times groups
    tiles_h: int
    tiles_w: int
    vectors: int  # of output channels
    groups: int
    depth: int
    lanes: int
    image_lanes: int  # lanes of a vector of V
    item_bytes: int  # of V and U
    sum_bytes: int
    dot: Dot | None  # the dot-product instruction for integers
    is_dynamic: bool  # the image's height and width are dynamic

    @staticmethod
    def of(parts: Parts, context: RuleContext) -> Sizes:
        product, target = parts.product, context.target
        dtype = product.block.writes[0].buffer.dtype
        dot = dot_of(parts, target)
        item = dtype if dot is None else I16
        lanes = target.lanes(dtype.bits)
        *_, tiles_h, tiles_w, out = product.spatial
        vectors = ceil_div(product.guess(out), lanes) // parts.groups
        return Sizes(
            side=parts.size,
            batch=product.assumed(2, 1) * parts.groups,
            tiles_h=product.positions(tiles_h),
            tiles_w=product.positions(tiles_w),
            vectors=vectors,
            groups=parts.groups,
            depth=product.guess(product.reduce[0]),
            lanes=lanes,
            image_lanes=target.lanes(item.bits),
            item_bytes=item.size_bytes,
            sum_bytes=dtype.size_bytes,
            dot=dot,
            is_dynamic=product.is_dynamic((tiles_h, tiles_w)),
        )

    @property
    def instructions_per_term(self) -> float:
        """Instructions per term of a vector of sums."""
        return 1.0 if self.dot is None else (1 if self.dot.adds else 2) / self.dot.steps

    @property
    def weights_bytes(self) -> int:
        return self.side**2 * self.vectors * self.lanes * self.depth * self.item_bytes

    def row_bytes(self) -> int:
        """Bytes of V and of results, for one row of tiles."""
        item_bytes = self.depth * self.item_bytes + 2 * self.lanes * self.sum_bytes
        return self.side**2 * self.tiles_w * item_bytes

    def block_bytes(self, rows: Column) -> Column:
        """Bytes that L2 should hold for a block of rows of tiles; a dynamic image counts twice the
        width."""
        return rows * self.row_bytes() * (1 + self.is_dynamic)


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Parts | None:
    """All stages of a channels-last Winograd convolution, from its GEMM; groups have whole
    vectors."""
    found = parts_of(sch, block, context)
    if found is None or not found.is_last:
        return None
    if found.product.block.writes[0].buffer.dtype.is_int:
        dot = dot_of(found, context.target)
        depth = number(found.product.extent(found.product.reduce[0]), unknown=1)
        if dot is None or depth % dot.steps or found.groups > 1 or not found.is_constant:
            return None
    lanes = context.target.lanes(found.product.block.writes[0].buffer.dtype.bits)
    channels = number(found.product.extent(found.product.spatial[-1]))
    return found if found.groups == 1 or channels % (found.groups * lanes) == 0 else None


def dot_of(parts: Parts, target: Target) -> Dot | None:
    """The dot-product instruction for integers; None for floats."""
    if not parts.product.block.writes[0].buffer.dtype.is_int:
        return None
    return next(iter(dots_of(target, "i16", "i16", "i32")), None)


# --------------------------------------------------------------------------- the space


def plans(parts: Parts, context: RuleContext) -> Space[WinogradPlan]:
    size, target = Sizes.of(parts, context), context.target
    is_single = parts.product.extent(2) is ONE and size.groups == 1
    known = number(parts.product.extent(parts.product.reduce[0]), unknown=1)
    registers = target.vector_registers
    most = MAX_TAILS if size.is_dynamic else registers - 2

    def legal(c: Columns) -> Column:
        positions = c["tile_rows"] * c["tile_columns"]
        legal: Column = fits_registers(positions, c["nr"], target)
        if size.dot is not None:
            legal &= dot_model.fits_registers(size.dot, positions, c["nr"], registers)
            legal &= size.vectors % c["nr"] == 0  # no lane needs a predicate for its channel
        legal &= c["tile_rows"] <= c["rows"]
        # With a dynamic width, every tile tail is specialized, but not in a smaller last panel as
        # well.
        legal &= (size.vectors % c["nr"] == 0) | (not size.is_dynamic)
        legal &= (size.vectors % c["nr"] == 0) | (size.groups == 1)
        # Register tiles divide a block's rows: a tail tile would reach into the next block.
        whole = (c["rows"] == size.tiles_h) & (not size.is_dynamic)
        legal &= (c["rows"] % c["tile_rows"] == 0) | whole
        is_row = (c["tile_columns"] == size.tiles_w) & (not size.is_dynamic)
        legal &= (c["tile_rows"] == 1) | is_row
        whole &= (positions == size.tiles_h * size.tiles_w) & is_single
        legal &= (c["once"] == 0) | (whole & exceeds(size, target) & parts.is_constant)
        panels = ceil_div(size.vectors, c["nr"])
        legal &= (c["parallel"] != PANELS) | (c["once"] == 1) | (panels >= context.threads)
        legal &= (c["parallel"] != BLOCKS) | (c["once"] == 0)
        if size.dot is None:
            legal &= is_unrollable(known, c["nr"] * positions, c["k_unroll"], target.machine)
        else:
            calls, tile = known // size.dot.steps, (positions, c["nr"])
            legal &= dot_model.is_unrollable(size.dot, target.machine, calls, *tile, c["k_unroll"])
        return legal

    return Space(
        WinogradPlan,
        {
            "nr": tuple(range(1, min(size.vectors, most_vectors(target)) + 1)),
            "rows": tuple(range(size.tiles_h, 0, -1)),
            "tile_rows": tuple(range(1, max(1, min(size.tiles_h, registers // size.tiles_w)) + 1)),
            "tile_columns": tuple(range(1, min(size.tiles_w, most) + 1)),
            "parallel": (NONE,) if context.threads == 1 else (NONE, BLOCKS, PANELS),
            "once": (0, 1),
            "k_unroll": near_unroll_candidates(target.machine),
        },
        legal,
        stages=(
            ("nr", "tile_rows", "tile_columns", "once"),
            ("rows", "parallel"),
            ("k_unroll",),
        ),
    )


def exceeds(size: Sizes, target: Target) -> bool:
    """Whether the weights do not stay in L2 from one block to the next."""
    return size.weights_bytes > target.machine.l2.kept_bytes


# --------------------------------------------------------------------------- the cost


def cost(parts: Parts, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last: GEMMs, transforms, and what blocks reread."""
    size, machine, threads = Sizes.of(parts, context), context.target.machine, context.threads
    rows = c["rows"]
    blocks = ceil_div(size.tiles_h, rows)
    dynamic = (False, size.is_dynamic)
    one = Problem(1, (1, size.tiles_w), size.vectors, size.depth, 1, dynamic, is_grouped=False)
    tiles = np.stack([np.ones_like(rows), c["tile_rows"], c["tile_columns"]], axis=1)
    extents = np.stack([np.ones_like(rows), rows, np.full_like(rows, size.tiles_w)], axis=1)
    products = tile_cycles(one, c["nr"], tiles, context.target, extents)
    products = size.side**2 * size.batch * blocks * products * size.instructions_per_term
    is_far = exceeds(size, context.target)
    room = machine.l2.passing_bytes + (machine.l2.kept_bytes if is_far else 0)
    outgrown = (rows > 1) & (size.block_bytes(rows) > room)
    images = size.batch * size.tiles_h * size.row_bytes()
    again = np.where(c["once"] == 1, 1, size.batch * blocks) * size.weights_bytes * is_far
    rate = np.where(
        c["once"] == 1, machine.memory_bytes_per_cycle, machine.scattered_bytes_per_cycle
    )
    panels = ceil_div(size.vectors, c["nr"])
    panels = np.where(c["once"] == 1, size.side**2 * panels, size.batch * panels)
    units = np.where(c["parallel"] == BLOCKS, size.batch * blocks, panels)
    share = np.where(c["parallel"] == NONE, 1.0, ceil_div(units, threads) / units)
    on_image, on_result = _transform_cycles(parts, context.target)
    deep = ceil_div(size.depth, size.image_lanes)
    overlap = parts.window - 1
    pixels = (size.tiles_h * parts.tile + overlap) * (size.tiles_w * parts.tile + overlap)
    transforms = size.tiles_h * size.tiles_w * (on_image * deep + on_result * size.vectors)
    transforms += (LOOP_CYCLES + _pass_cycles(machine)) * pixels * deep  # padding
    # Static rows prefer tiles that divide them; with dynamic ones, loads decide.
    loads = size.is_dynamic * load_share(c["tile_rows"] * c["tile_columns"], c["nr"], machine)
    return Cost.of(
        products=(np.maximum(products, again / rate) + TIE_SHARE * products) * share,
        loads=products * loads * share,
        transforms=size.batch * transforms / np.where(c["parallel"] == NONE, 1, threads),
        weights=_weights_cycles(parts, size, context.target)
        / np.where(c["parallel"] == NONE, 1, threads),
        images=np.where(outgrown, images / machine.scattered_bytes_per_cycle, 0) * share,
        moved=np.where(c["parallel"] == PANELS, images / machine.l2.bytes_per_cycle, 0),
        blocks=blocks * machine.fma_latency_cycles * size.depth,
        wake=np.where(c["parallel"] == NONE, 0, machine.wake_cycles),
        unroll=size.side**2 * size.depth / c["k_unroll"],
    )


def _transform_cycles(parts: Parts, target: Target) -> tuple[float, float]:
    """Cycles per tile and vector of channels to transform the image, and the result."""
    machine, side, tile = target.machine, parts.size, parts.tile
    image = 2 * side * parts.image_operations / machine.fma_per_cycle
    image += side**2 * _pass_cycles(machine) + _spilled_cycles(side * side, target)
    result = (side + tile) * parts.result_operations / machine.fma_per_cycle
    result += side**2 / machine.loads_per_cycle + tile**2 / machine.stores_per_cycle
    return image, result + _spilled_cycles(side * tile, target)


def _weights_cycles(parts: Parts, size: Sizes, target: Target) -> float:
    """Cycles to transform the weights in a call: gathered by channel, computed in f64, packed."""
    if parts.is_constant:
        return 0.0
    machine, side, window = target.machine, parts.size, parts.window
    halves = F64.size_bytes // size.item_bytes  # registers per vector
    vector = window**2 * size.lanes / machine.loads_per_cycle
    vector += (window + side) * halves * parts.weights_operations / machine.fma_per_cycle
    vector += side**2 / machine.stores_per_cycle + _spilled_cycles(side * window * halves, target)
    written = size.weights_bytes / machine.scattered_bytes_per_cycle
    made = vector * size.depth * size.vectors
    return size.groups * (made + (written if exceeds(size, target) else 0.0))


def _spilled_cycles(vectors: int, target: Target) -> float:
    """Cycles to spill vectors between the row and the column transform, where they exceed the
    registers."""
    return vectors * _pass_cycles(target.machine) if vectors > target.vector_registers else 0.0


def _pass_cycles(machine: Machine) -> float:
    """Cycles to load and store a vector."""
    return 1 / machine.loads_per_cycle + 1 / machine.stores_per_cycle


# ------------------------------------------------------------------------------------ the schedule


def apply(
    sch: Schedule, parts: Parts, plan: WinogradPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    parts = followed(sch, parts)
    m, size = parts.tile, Sizes.of(parts, context)
    lanes, far = size.lanes, exceeds(size, context.target)
    n, y, x, o = sch.get_loops(parts.result)
    block, row, y_in = sch.split(y, [None, plan.rows, m])
    column, x_in = sch.split(x, [None, m])
    around = [n]
    if size.groups > 1:
        group, o = sch.split(o, [size.groups, None])
        around.append(group)
    panel, vector, lane = sch.split(o, [None, plan.nr, lanes])
    sch.reorder(*around, block, panel, row, column, vector, y_in, x_in, lane)
    sch.vectorize(lane)
    for loop in (y_in, x_in):
        sch.unroll(loop)
    _columns(sch, parts, vector, lanes)
    store, each, depth, near, sums = _schedule_gemms(sch, parts, plan, panel, size)
    shared = plan.parallel == PANELS
    _image(sch, parts, plan, None if shared or plan.once else block, size.image_lanes)
    _weights(sch, parts, plan, size)
    if size.dot is not None:  # its operand is packed as the instruction reads it
        for lane in sums:
            sch.tensorize(lane, size.dot.name)
    if far:
        product = BlockRef(parts.product.name)
        made = block_of(sch.function, parts.weights[-1].name).writes[0].buffer
        reads = block_of(sch.function, product.name).reads
        index = next(i for i, read in enumerate(reads) if read.buffer is made)
        if plan.once:
            ahead = ceil_div(context.target.machine.memory_lines_ahead, plan.k_unroll)
            attempt(sch, sch.prefetch, product, index, depth, ahead, near, True)
        else:  # prefetch the weights of the next GEMM meanwhile
            attempt(sch, sch.prefetch, product, index, each, 1, depth)
    if plan.parallel == BLOCKS:
        sch.parallel(sch.fuse(*around, block))
    if shared:
        sch.parallel(sch.fuse(*around, block, panel))
    if plan.once:  # neighbouring tiles must not compete for the same sets of L1
        channels = number(parts.product.extent(parts.product.reduce[0]))
        sch.storage_align(parts.image, 0, parts.product.spatial[-2], channels, lanes % channels)
        if plan.parallel != NONE:
            sch.parallel(each)
    stages = (parts.image, parts.half, parts.padded, *parts.weights, parts.columns, parts.result)
    return (BlockRef(parts.product.name), store, *stages)


def _columns(sch: Schedule, parts: Parts, vector: LoopRef, lanes: int) -> None:
    sch.set_scope(parts.columns, 0, "local")
    sch.compute_at(parts.columns, vector)
    *_, i, j, o = sch.get_loops(parts.columns)
    _, lane = sch.split(o, [None, lanes])
    _vectorize_tile(sch, i, j, lane)


def _schedule_gemms(
    sch: Schedule, parts: Parts, plan: WinogradPlan, panel: LoopRef, size: Sizes
) -> tuple[BlockRef, LoopRef, LoopRef, LoopRef | None, tuple[LoopRef, LoopRef]]:
    """Schedule the a x a GEMMs: register tiles of image tiles by vectors of channels.

    Returns the block that stores them, the loop over GEMMs, the one over channels and its unrolled
    part, and the lanes of a vector of sums and of its initialization.
    """
    block, lanes = BlockRef(parts.product.name), size.lanes
    if not plan.once:
        sch.compute_at(block, panel)
    *_, i, j, n, y, x, o, c = sch.get_loops(block)
    far_y, near_y = sch.split(y, [None, plan.tile_rows])
    far_x, near_x = sch.split(x, [None, plan.tile_columns])
    panels, vector, lane = sch.split(o, [None, plan.nr, lanes])
    pair: list[LoopRef] = []
    if size.dot is not None:
        c, *pair = sch.split(c, [None, size.dot.steps])
    sch.reorder(i, j, panels, n, far_y, far_x, c, near_y, near_x, vector, lane, *pair)
    each = sch.fuse(i, j, panels)
    for loop in (near_y, near_x, vector):
        sch.unroll(loop)
    if size.dot is None:
        sch.vectorize(lane)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, far_x)
    *_, y, x, o = sch.get_loops(store)
    vector, stored = sch.split(o, [None, lanes])
    sch.vectorize(stored)
    for loop in (y, x, vector):
        sch.unroll(loop)
    init = sch.decompose_reduction(block, c)
    if parts.product.is_dynamic(parts.product.spatial[-2:-1]):
        sch.annotate(far_x, TAILS, True)
    near: LoopRef | None = None
    if plan.k_unroll > 1:
        c, near = unrolled_sum(sch, c, plan.k_unroll)
    depth = number(parts.product.extent(parts.product.reduce[0]))
    if parts.tile > 2 and depth >= 2 * shortest_part():
        # The transforms of large tiles amplify rounding errors of these sums.
        sch.annotate(c, PART_TERMS, shortest_part())
    sums = (lane, sch.get_loops(init)[-1])
    return store, each, c, near, sums


def _image(
    sch: Schedule, parts: Parts, plan: WinogradPlan, block: LoopRef | None, lanes: int
) -> None:
    """Transform the tiles of a block, one vector of channels at a time."""
    if block is not None:
        sch.compute_at(parts.image, block)
    *_, i, j, n, y, x, c = sch.get_loops(parts.image)
    vector, lane = sch.split(c, [None, lanes])
    sch.reorder(n, y, x, vector, i, j, lane)
    _vectorize_tile(sch, i, j, lane)
    sch.set_scope(parts.half, 0, "local")
    sch.compute_at(parts.half, vector)
    *_, i, j, c = sch.get_loops(parts.half)
    _, lane = sch.split(c, [None, lanes])
    _vectorize_tile(sch, i, j, lane)
    sch.compute_at(parts.padded, y if block is None else block)
    *_, c = sch.get_loops(parts.padded)
    _, lane = sch.split(c, [None, lanes])
    sch.vectorize(lane)
    if block is None and plan.parallel != NONE:
        sch.parallel(sch.fuse(n, y))


def _weights(sch: Schedule, parts: Parts, plan: WinogradPlan, size: Sizes) -> None:
    lanes = size.lanes
    width = plan.nr * lanes
    order = f"i, j, o // {width}" if plan.once else f"o // {width}, i, j"
    within = f"c, o % {width}"
    if size.dot is not None:
        within = f"c // {size.dot.steps}, o % {width}, c % {size.dot.steps}"
    sch.transform_layout(parts.weights[-1], ("write", 0), f"(i, j, c, o) -> ({order}, {within})")
    if parts.is_constant:
        for reference in parts.weights:
            sch.annotate(reference, CONSTANT, True)
        return
    *before, last = parts.weights
    i, j, c, o = sch.get_loops(last)
    panel, vector, lane = sch.split(o, [None, plan.nr, lanes])
    sch.reorder(panel, c, vector, i, j, lane)
    _vectorize_tile(sch, i, j, lane)
    for reference in before:
        sch.set_scope(reference, 0, "local")
        sch.compute_at(reference, vector)
        *_, i, j, _, o = sch.get_loops(reference)
        _, lane = sch.split(o, [None, lanes])
        _vectorize_tile(sch, i, j, lane)
    if plan.parallel != NONE:
        sch.parallel(panel)


def _vectorize_tile(sch: Schedule, i: LoopRef, j: LoopRef, lane: LoopRef) -> None:
    """Unroll all elements of a tile, each a vector of channels."""
    sch.vectorize(lane)
    sch.unroll(i)
    sch.unroll(j)


WINOGRAD = Rule("winograd", WinogradPlan, match, plans, cost, apply)
