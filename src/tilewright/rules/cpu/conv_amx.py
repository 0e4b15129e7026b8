"""Convolution of bf16 and int8 on AMX tiles, as an implicit GEMM without im2col.

    for jb                   blocks of output channels whose weights stay in L2
      for n, yb              blocks of rows, whose padded copy is made here, or before all blocks
        for y, x             pairs of tiles: neighbours along a row, or in two rows
          for js             strips of output channels
            for kernel, c      2 x 2 tiles of the result
            tiles are stored, then the epilogue

The rows of an A tile are neighbouring pixels, so one instruction loads what a kernel position reads
straight from the image; the number of tile rows divides the output width. With a stride, the padded
copy is reordered by the remainder of the pixel's position, which makes the pixels of one kernel
position contiguous again.

With a single channel, the windows along a line are the (overlapping) rows of a tile, and kernel
positions are k in place of channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.tiles import BLOCK_TILES, ROW_BYTES, register_blocks
from tilewright.intrin.amx import scope_of
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.amx_schedule import (
    KINDS,
    TILE_ROWS,
    Kind,
    epilogue_of,
    fuse_epilogue,
    overlap,
    tensorize,
)
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.gemm_amx import (
    tile_step_cycles,
)
from tilewright.rules.cpu.gemm_model import NONE, M, N, ceil_div
from tilewright.rules.match.nest import attempt, block_of, fused, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import piece_terms
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.sym import Const
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Buffer
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class AmxConvPlan:
    """The tiling of a convolution on AMX tiles."""

    tile_rows: int = unit("output positions", "of a tile")
    beside: int = unit("tiles", "of a register block along a row; 1: one each in two rows")
    column_tiles: int = unit("tiles", "of B in a register block")
    strips: int = unit("register blocks", "of output channels whose weights stay in L2")
    rows: int = unit("register blocks", "along rows, in a block whose input is padded at once")
    images_first: bool = unit("flag", "images outside of blocks of channels")
    prefetch_b: int = unit("steps of k", "prefetch distance; 0: the next block of channels")
    parallel: str = unit("axis", "split across threads")

    @property
    def below(self) -> int:
        """Tiles of a register block in different rows."""
        return BLOCK_TILES // self.beside


@dataclass(frozen=True)
class AmxConv:
    """A convolution of types that AMX multiplies."""

    conv: Convolution
    kind: Kind
    k_axis: int  # the iterator along k of a tile: input channels, or the kernel of a 1D convolution
    width: int  # output width, rounded up to whole tiles where possible
    has_padding: bool

    def size(self, at: int) -> int:
        return self.conv.size(at) or 1

    @property
    def height(self) -> int:
        """Rows of output positions; 1 in one dimension."""
        spatial = self.conv.out_spatial
        return self.size(spatial[-2]) if len(spatial) > 1 else 1

    @property
    def images(self) -> int:
        """Batch times outer spatial axes."""
        total = self.size(self.conv.batch)
        for at in self.conv.out_spatial[:-2]:
            total *= self.size(at)
        return total

    @property
    def all_column_tiles(self) -> int:
        """Tiles along output channels, the last one padded."""
        return -(-self.size(self.conv.out_channels) // TILE_ROWS)

    @property
    def column_tiles(self) -> int:
        return 2 if self.all_column_tiles % 2 == 0 else 1

    @property
    def total_strips(self) -> int:
        return self.all_column_tiles // self.column_tiles

    def is_blocked(self, strips: int) -> bool:
        """Whether there are several blocks of output channels."""
        return strips < self.total_strips

    @property
    def is_strided(self) -> bool:
        """Whether the pixels of one kernel position are contiguous only in a reordered copy."""
        is_near = self.k_axis != self.conv.in_channels
        return not is_near and any(stride > 1 for stride in self.conv.strides)

    @property
    def is_copied(self) -> bool:
        """Whether tiles are read from a copy of the image."""
        return self.has_padding or self.is_strided

    @property
    def strip_bytes(self) -> int:
        """Bytes of the weights of a register block."""
        item = self.conv.x.buffer.dtype.size_bytes
        return (self.conv.depth or 1) * TILE_ROWS * self.column_tiles * item

    @property
    def row_bytes(self) -> int:
        """Input bytes per output row."""
        conv = self.conv
        size = conv.x.buffer.dtype.size_bytes * conv.strides[-1]
        size *= conv.strides[-2] if len(conv.strides) > 1 else 1
        return size * self.size(conv.out_spatial[-1]) * self.size(conv.in_channels)


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> AmxConv | None:
    nest = nest_of(sch, block)
    conv = None if nest is None else convolution(nest)
    if conv is None or conv.out_channels_per_group:
        return None
    result = conv.nest.block.writes[0].buffer
    kind = KINDS.get((conv.x.buffer.dtype.name, conv.w.buffer.dtype.name, result.dtype.name))
    if kind is None or not context.target.has(kind.feature):
        return None
    sizes = [conv.size(at) for at in range(len(conv.nest.block.iters)) if at != conv.batch]
    if any(size is None for size in sizes) or conv.w.buffer.name not in context.constants:
        return None
    k_axis, has_padding = _k_axis(conv, kind), padding_of(sch, conv) is not None
    if k_axis is None or (k_axis != conv.in_channels and has_padding):
        return None
    if 2 * (conv.size(conv.out_channels) or 1) < TILE_ROWS:
        return None  # too much of a tile would be padding
    found = AmxConv(conv, kind, k_axis, _width(conv), has_padding)
    return found if register_blocks(found.width, found.height) else None


def _k_axis(conv: Convolution, kind: Kind) -> int | None:
    """The iterator along k of a tile: input channels if they fill whole tiles, or the kernel of a
    1D convolution of one channel."""
    if (conv.size(conv.in_channels) or 1) % kind.depth == 0:
        return conv.in_channels
    is_line = conv.size(conv.in_channels) == 1 and conv.dilations[-1] == 1
    is_whole = (conv.size(conv.kernel_spatial[-1]) or 1) % kind.depth == 0
    return conv.kernel_spatial[-1] if is_line and is_whole else None


def _width(conv: Convolution) -> int:
    """The output width that whole register blocks cover: in 1D it may exceed the true width, if the
    input has the pixels that the extra positions read."""
    width = conv.size(conv.out_spatial[-1]) or 0
    if len(conv.out_spatial) > 1:
        return width
    length, kernel = conv.x.buffer.shape[1], conv.size(conv.kernel_spatial[-1])
    if not isinstance(length, Const) or kernel is None or register_blocks(width, 1):
        return width
    reach = (kernel - 1) * conv.dilations[-1]
    most = (int(length.value) - reach - 1) // conv.strides[-1] + 1
    return next((each for each in range(width, most + 1) if register_blocks(each, 1)), width)


def plans(found: AmxConv, context: RuleContext) -> Space[AmxConvPlan]:
    tiles, total, height = (
        register_blocks(found.width, found.height),
        found.total_strips,
        found.height,
    )
    l2, threads = context.target.machine.l2, context.threads
    strips = [count for count in range(total, 0, -1) if total % count == 0]
    images = found.conv.size(found.conv.batch)
    # A dynamic batch only splits as the outermost loop.
    by_images = threads > 1 and (images is None or images % threads == 0)
    is_near = total * found.strip_bytes <= l2.size_bytes

    def legal(c: Columns) -> Column:
        below = BLOCK_TILES // c["beside"]
        is_tile = np.zeros(len(below), bool)
        for rows, beside in tiles:
            is_tile = is_tile | ((c["tile_rows"] == rows) & (c["beside"] == beside))
        size = c["strips"] * found.strip_bytes
        fits = (c["strips"] == 1) | (size <= l2.block_bytes)
        whole = (c["rows"] * below <= height) & (height % (c["rows"] * below) == 0)
        whole = whole | ((height == 1) & (c["rows"] == 1))
        near = (c["rows"] == 1) | (c["rows"] * below * found.row_bytes <= l2.passing_bytes)
        by_channels = (c["parallel"] != N) | (c["strips"] < total)
        first = (c["images_first"] == 0) | ((c["parallel"] == M) | is_near)
        # A dynamic batch is parallel as the outermost loop only.
        outermost = (c["parallel"] == NONE) | (c["images_first"] == 1) | (images is not None)
        shared = (c["images_first"] == 0) | (c["parallel"] != NONE)
        ok: Column = is_tile & fits & whole & near & by_channels & first & outermost & shared
        return ok

    return Space(
        AmxConvPlan,
        {
            "tile_rows": tuple(dict.fromkeys(rows for rows, _ in tiles)),
            "beside": (BLOCK_TILES, 1),
            "column_tiles": (found.column_tiles,),
            "strips": tuple(strips),
            "rows": tuple(each for each in range(height, 0, -1) if height % each == 0),
            "images_first": (1, 0) if by_images else (0,),
            "prefetch_b": (0, 2),
            "parallel": (NONE, M, N) if threads > 1 else (NONE,),
        },
        legal,
    )


def cost(found: AmxConv, c: Columns, context: RuleContext) -> Cost:
    machine, threads, conv = context.target.machine, context.threads, found.conv
    far = machine.l3.bytes_per_cycle or machine.memory_bytes_per_cycle
    below, rows, columns = BLOCK_TILES // c["beside"], c["tile_rows"], c["column_tiles"]
    lines = found.images * found.height
    blocks = lines // below * ceil_div(found.width, rows * c["beside"])
    steps = ceil_div(conv.depth or 1, found.kind.depth)
    n_blocks = found.total_strips / c["strips"]
    # Per register block, tiles of weights come from L2, those of the image from L1.
    in_l1 = c["strips"] * found.strip_bytes <= machine.l1d.size_bytes // 2
    b_rate = np.where(in_l1, machine.l1d.bytes_per_cycle, machine.tile_row_bytes_per_cycle)
    step = np.maximum(
        tile_step_cycles(BLOCK_TILES * columns, rows, machine.tile_cycles),
        columns * TILE_ROWS * ROW_BYTES / b_rate,
    )
    step = step + BLOCK_TILES * rows * ROW_BYTES / machine.l1d.bytes_per_cycle
    compute = blocks * found.total_strips * steps * step
    # The image is read once per block of channels. Halo rows are padded by each block of rows that
    # reads them, unless there are several blocks of channels: then all rows are padded before, in a
    # parallel region of its own.
    kernel = found.size(conv.kernel_spatial[-2]) if len(conv.kernel_spatial) > 1 else 1
    at_once = (c["strips"] < found.total_strips) | found.is_strided
    halo = np.where(at_once, 0, kernel - 1) / (c["rows"] * below)
    image = lines * found.row_bytes * n_blocks / far
    copied = found.is_copied * 2 * lines * found.row_bytes * (1 + halo) / machine.l2.bytes_per_cycle
    # Weights are read by each thread where rows are split, and for each image where images are
    # outermost and weights exceed L2.
    b_bytes = found.total_strips * found.strip_bytes
    again = np.where(c["images_first"] == 1, found.images, 1)
    again = np.where(b_bytes <= machine.l2.size_bytes, 1, again)
    is_exposed = (c["prefetch_b"] == 0) & (blocks <= 2)  # too few blocks to hide the latency
    weights = again * b_bytes / np.where(is_exposed, machine.scattered_bytes_per_cycle, far)
    requests = b_bytes * blocks / machine.l2.line_bytes / machine.loads_per_cycle
    requests = np.where(c["prefetch_b"] > 0, requests, 0.0)
    row_blocks = lines // (c["rows"] * below)
    if found.height == 1:  # in 1D, threads take register blocks
        row_blocks = found.images * ceil_div(found.width, rows * c["beside"])
    by_rows = ceil_div(row_blocks, threads) / np.maximum(1, row_blocks)
    by_channels = ceil_div(n_blocks, threads) / n_blocks
    m_share = np.where(c["parallel"] == M, by_rows, 1.0)
    n_share = np.where(c["parallel"] == N, by_channels, 1.0)
    share = m_share * n_share
    is_shared = c["parallel"] != NONE
    pieces = np.where(c["parallel"] == M, row_blocks * n_blocks, n_blocks)
    regions = is_shared * (1 + at_once * found.is_copied)
    return Cost.of(
        compute=compute * share,
        image=image * share,
        padding=copied * np.where(at_once & is_shared, 1 / threads, share),
        weights=weights * n_share,
        requests=requests * share,
        **piece_terms(compute * share, is_shared * ceil_div(pieces, threads), machine),
        wake=regions * machine.wake_cycles,
    )


def apply(
    sch: Schedule, found: AmxConv, plan: AmxConvPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    kind, short = found.kind, scope_of(plan.tile_rows)
    c = BlockRef(found.conv.nest.name)
    multiples = [1] * len(found.conv.nest.block.iters)
    multiples[found.conv.out_spatial[-1]] = plan.beside * plan.tile_rows
    multiples[found.conv.out_channels] = plan.column_tiles * TILE_ROWS
    sch.pad(c, multiples)
    padding = _image(sch, found, plan)
    packed = _weights(sch, c, found)
    image = found.conv.x.buffer if padding is None else _made(sch, padding)
    a = sch.reindex_read(c, _reads(sch, c, image.name), short)
    b = sch.cache_read(c, _reads(sch, c, _made(sch, packed).name), scope_of(TILE_ROWS))
    epilogue = epilogue_of(sch, c)
    store = sch.cache_write(c, 0, short)
    loops = sch.get_loops(c)
    *far, last = found.conv.out_spatial
    xo, xm, xi = sch.split(loops[last], [None, plan.beside, plan.tile_rows])
    blocks, below, inside = [loops[at] for at in far], [], [xo]
    if far:
        blocks[-1], yo, ym = sch.split(loops[far[-1]], [None, plan.rows, plan.below])
        below, inside = [ym], [yo, xo]
    elif plan.parallel == M:
        blocks, inside = [xo], []
    jb, js, jm, ji = sch.split(
        loops[found.conv.out_channels], [None, plan.strips, plan.column_tiles, TILE_ROWS]
    )
    co, ci = sch.split(loops[found.k_axis], [None, kind.depth])
    positions = [
        loops[at]
        for at in (found.conv.in_channels, *found.conv.kernel_spatial)
        if at != found.k_axis
    ]
    batch = loops[found.conv.batch]
    outer = [batch, jb, *blocks] if plan.images_first else [jb, batch, *blocks]
    sch.reorder(*outer, *inside, js, *positions, co, *below, xm, jm, xi, ji, ci)
    for loop in (*below, xm, jm):
        sch.unroll(loop)
    sch.reverse_compute_at(store, js)
    done, at = fuse_epilogue(sch, epilogue, js, plan.strips, plan.column_tiles)
    sch.compute_at(a, co)
    sch.compute_at(b, co)
    if padding is not None:
        _pad(sch, padding, found, plan, outer[-1])
        _deinterleave_strides(sch, found, padding)
    groups = _groups(found)
    sch.transform_layout(packed, ("write", 0), groups)
    sch.transform_layout(b, ("write", 0), groups)
    sch.transform_layout(a, ("write", 0), _tiles(found, plan))
    names = [f"y{at}" for at in range(len(found.conv.out_spatial) - 1)]
    shown = ", ".join(["n", *names])
    square = f"x // {plan.tile_rows}, o // {TILE_ROWS}, x % {plan.tile_rows}, o % {TILE_ROWS}"
    sch.transform_layout(store, ("read", 0), f"({shown}, x, o) -> ({shown}, {square})")
    _prefetch(sch, found, b, jb, co, plan)
    _tensorize_all(sch, found, plan, (a, b, store))
    init = sch.decompose_reduction(c, positions[0])
    sch.tensorize(sch.get_loops(c)[-3], kind.dot, rows=plan.tile_rows)
    sch.tensorize(sch.get_loops(init)[-2], kind.dot, rows=plan.tile_rows)
    sch.annotate(packed, CONSTANT, True)
    overlap(sch, at, co, done, (found.conv.depth or 0) // kind.depth)
    if plan.parallel != NONE:
        around = outer[: outer.index(jb) + 1] if plan.parallel == N else outer
        sch.parallel(fused(sch, around))
    made = (c, packed, padding, a, b, store, init, *done)
    return tuple(block for block in made if block is not None)


def _made(sch: Schedule, reference: BlockRef) -> Buffer:
    return block_of(sch.function, reference.name).writes[0].buffer


def _reads(sch: Schedule, block: BlockRef, name: str) -> int:
    reads = block_of(sch.function, block.name).reads
    return next(at for at, read in enumerate(reads) if read.buffer.name == name)


def _weights(sch: Schedule, c: BlockRef, found: AmxConv) -> BlockRef:
    """The block that copies the weights: the one that pads them to tiles, if there is one."""
    w = found.conv.w.buffer
    for reference in sch.get_producers(c):
        if any(read.buffer is w for read in block_of(sch.function, reference.name).reads):
            return reference
    return sch.cache_read(c, _reads(sch, c, w.name), "global")


def _image(sch: Schedule, found: AmxConv, plan: AmxConvPlan) -> BlockRef | None:
    """The block that copies the image: it pads, or reorders for strides. None where it is read in
    place."""
    padding = padding_of(sch, found.conv)
    if padding is not None or not found.is_strided:
        return padding
    c = BlockRef(found.conv.nest.name)
    return sch.cache_read(c, _reads(sch, c, found.conv.x.buffer.name), "global")


def _deinterleave_strides(sch: Schedule, found: AmxConv, padding: BlockRef) -> None:
    """Split each strided axis into (y % stride, y // stride): pixels of one kernel position are
    contiguous."""
    names = [f"y{at}" for at in range(len(found.conv.out_spatial))]
    to = []
    for name, stride in zip(names, found.conv.strides, strict=True):
        to += [name] if stride == 1 else [f"{name} % {stride}", f"{name} // {stride}"]
    if to != names:
        index_map = f"(n, {', '.join(names)}, c) -> (n, {', '.join(to)}, c)"
        sch.transform_layout(padding, ("write", 0), index_map)


def _pad(
    sch: Schedule, padding: BlockRef, found: AmxConv, plan: AmxConvPlan, rows: LoopRef
) -> None:
    """Pad rows where they are read; all at once if several blocks of channels read them.

    Reordered rows are copied at once too: the region that a block of rows needs has no simple form.
    """
    at_once = found.is_blocked(plan.strips) or found.is_strided
    if not at_once:
        sch.compute_at(padding, rows)
    *outer, channel = sch.get_loops(padding)
    _, lane = sch.split(channel, [None, found.kind.depth])
    sch.vectorize(lane)
    if at_once and plan.parallel != NONE:
        sch.parallel(outer[1])


def _groups(found: AmxConv) -> str:
    """The index map of packed weights, in the instruction's order."""
    names = {at: f"k{at}" for at in (found.conv.in_channels, *found.conv.kernel_spatial)}
    k, group = names[found.k_axis], found.kind.group
    rest = [name for name in names.values() if name != k]
    to = [f"o // {TILE_ROWS}", *rest, f"{k} // {group}", f"o % {TILE_ROWS}", f"{k} % {group}"]
    return f"({', '.join(['o', *names.values()])}) -> ({', '.join(to)})"


def _tiles(found: AmxConv, plan: AmxConvPlan) -> str:
    """The index map of the A tiles."""
    order = sorted(
        (
            found.conv.batch,
            *found.conv.out_spatial,
            found.conv.in_channels,
            *found.conv.kernel_spatial,
        )
    )
    names = {at: f"i{at}" for at in order}
    x, k = names[found.conv.out_spatial[-1]], names[found.k_axis]
    rest = [names[at] for at in order if at not in (found.conv.out_spatial[-1], found.k_axis)]
    tile_rows, deep = plan.tile_rows, found.kind.depth
    to = [*rest, f"{x} // {tile_rows}", f"{k} // {deep}", f"{x} % {tile_rows}", f"{k} % {deep}"]
    return f"({', '.join(names.values())}) -> ({', '.join(to)})"


def _prefetch(
    sch: Schedule, found: AmxConv, b: BlockRef, jb: LoopRef, co: LoopRef, plan: AmxConvPlan
) -> None:
    """Prefetch weights beyond L2 while earlier ones are used; within L2 it does not pay."""
    if plan.prefetch_b:
        attempt(sch, sch.prefetch, b, 0, co, plan.prefetch_b)
    elif found.is_blocked(plan.strips):
        attempt(sch, sch.prefetch, b, 0, jb, 1, co)


def _tensorize_all(
    sch: Schedule,
    found: AmxConv,
    plan: AmxConvPlan,
    blocks: tuple[BlockRef, BlockRef, BlockRef],
) -> None:
    """Tensorize the tile loads and stores."""
    a, b, store = blocks
    kind, rank = found.kind, len(found.conv.out_spatial)
    at = 1 + (found.conv.in_channels, *found.conv.kernel_spatial).index(found.k_axis)
    tensorize(sch, b, rank + 2, at, 0, (0, TILE_ROWS), f"{kind.load_b}_groups")
    # A is laid out in the order of iterators.
    order = sorted(
        (
            found.conv.batch,
            *found.conv.out_spatial,
            found.conv.in_channels,
            *found.conv.kernel_spatial,
        )
    )
    x, deep = order.index(found.conv.out_spatial[-1]), order.index(found.k_axis)
    load, parameters = f"{kind.load}_rows", {"rows": plan.tile_rows}
    if found.k_axis != found.conv.in_channels:
        load = f"{kind.load}_windows"
        parameters["stride"] = found.conv.strides[-1]
    if plan.below > 1:
        sch.unroll(sch.get_loops(a)[-len(order) :][order.index(found.conv.out_spatial[-2])])
        sch.unroll(sch.get_loops(store)[-rank - 2 :][rank - 1])
    rows = plan.tile_rows
    tensorize(sch, a, len(order), x, deep, (rows, 0), load, **parameters)
    tensorize(sch, store, rank + 2, rank, rank + 1, (rows, TILE_ROWS), kind.store, rows=rows)


CONV_AMX = Rule("conv_amx", AmxConvPlan, match, plans, cost, apply)
