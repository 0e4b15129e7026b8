"""Convolutions of bf16 and of bytes on the tiles of AMX, without unfolding their windows.

for jb                   blocks of output channels whose weights stay in the second cache
  for n, yb              blocks of rows; their padded copy is made here, or before all blocks
    for y, x             pairs of tiles: neighbours along a row, or in two rows
      for js             strips of output channels
        for taps, c      two by two tiles of the result
        the tiles go to memory, and through what follows

The rows of a tile of A are pixels beside each other, so that one instruction loads what a tap sees
of them straight from the image: a tile has as many rows as divide the width. Where windows move by
more than one, the padded copy keeps pixels apart by the remainder of their place, so that those
which one tap sees are neighbours again.

Of one channel, windows over a line are the rows of a tile, and overlap: its taps are what is summed
over in a tile, in place of channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.target import CPU
from tilewright.intrin.amx import ROWS as SIDE
from tilewright.intrin.amx import scope_of
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import even
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.gemm_amx import (
    AHEAD,
    FEW_BLOCKS,
    KINDS,
    LOWEST,
    PARALLEL_WORK,
    Kind,
    follow,
    followers_of,
    overlap,
    tensorize,
)
from tilewright.rules.match.nest import attempt, block_of, fused, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.sym import Const
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Buffer
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class AmxConvPlan:
    """Everything that is decided about a convolution."""

    kind: Kind
    tall: int  # pixels of a tile
    beside: int  # tiles of a block along a row: 1 or 2
    below: int  # tiles of a block in different rows: 2 or 1
    column_tiles: int
    strips: int  # of channels, in a block
    rows: int  # blocks of registers one below the other, in a block of rows
    deep: int  # the iterator that is summed over in a tile: channels, or the taps of a line
    images_first: bool  # blocks of channels in each image, or images in each block
    ahead: int  # steps of the sum that weights are asked for; 0: the next block of them is
    blocked: bool  # several blocks of channels
    share: str  # what threads share out: "columns", "rows", ""


def conv_amx(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a convolution of small types, what pads its input and what follows it."""
    nest = nest_of(sch, reference)
    found = None if nest is None else convolution(nest)
    if found is None or context.target.kind != CPU:
        return ()
    plan = plan_of(found, context)
    if plan is None or (plan.deep != found.in_channels and padding_of(sch, found) is not None):
        return ()
    return _tiled(sch, found, plan, context)


def tile_of(width: int, height: int) -> tuple[int, int, int] | None:
    """Pixels of a tile, tiles beside each other and tiles below; None where no pairs fit."""
    for tall in range(min(SIDE, width), LOWEST - 1, -1):
        if width % tall == 0 and width // tall % 2 == 0:
            return tall, 2, 1
        if width % tall == 0 and height % 2 == 0:
            return tall, 1, 2
    return None


def _wide(found: Convolution) -> int | None:
    """Places along a line that pairs of tiles cover.

    They may be a few more than there are, if all that those see is there too, and is one line.
    """
    width = found.size(found.out_spatial[-1])
    if width is None or len(found.out_spatial) > 1:
        return width
    length = found.x.buffer.shape[1]
    taps = found.size(found.kernel_spatial[-1])
    if not isinstance(length, Const) or taps is None or tile_of(width, 1) is not None:
        return width
    reach = (taps - 1) * found.dilations[-1]
    most = (int(length.value) - reach - 1) // found.strides[-1] + 1
    return next((each for each in range(width, most + 1) if tile_of(each, 1) is not None), width)


def plan_of(found: Convolution, context: RuleContext) -> AmxConvPlan | None:
    """The decisions for a convolution; None where the tiles do not serve."""
    result = found.nest.block.writes[0].buffer
    kind = KINDS.get((found.x.buffer.dtype.name, found.w.buffer.dtype.name, result.dtype.name))
    sizes = [found.size(at) for at in range(len(found.nest.block.iters))]
    if kind is None or not context.target.has(kind.feature) or found.out_channels_per_group:
        return None
    if sizes[found.batch] is None:
        sizes[found.batch] = 1  # any number of images, one after the other
    if any(size is None for size in sizes) or found.w.buffer.name not in context.constants:
        return None
    known = [size or 0 for size in sizes]
    channels, deep = known[found.out_channels], _deep(found, kind)
    height = known[found.out_spatial[-2]] if len(found.out_spatial) > 1 else 1
    tile = tile_of(_wide(found) or 0, height)
    if tile is None or deep is None or channels % SIDE:
        return None
    column_tiles = 2 if channels % (2 * SIDE) == 0 else 1
    total = channels // (SIDE * column_tiles)
    item = found.x.buffer.dtype.size_bytes
    strip_bytes = (found.depth or 1) * SIDE * column_tiles * item
    pixels = known[found.batch]
    for at in found.out_spatial:
        pixels *= known[at]
    threads = context.threads
    if threads > 1 and pixels * channels * (found.depth or 1) < PARALLEL_WORK:
        threads = 1
    room = context.target.l2_bytes // 4
    blocked = total * strip_bytes > room
    strips = total
    if blocked:
        most = even(total, max(1, room // strip_bytes // 2), threads)
        strips = next(each for each in range(most, 0, -1) if total % each == 0)
    share = "" if threads == 1 else "columns" if blocked else "rows"
    workers = threads if share == "rows" else 1
    rows = _rows(found, tile[2], room // 2, workers)
    few = FEW_BLOCKS * tile[0] * tile[1] * tile[2]
    near = total * strip_bytes <= context.target.l2_bytes
    return AmxConvPlan(
        kind,
        *tile,
        column_tiles,
        strips,
        rows,
        deep,
        _images_first(found, threads, near or share == "rows"),
        AHEAD if pixels <= few else 0,
        blocked,
        share,
    )


def _images_first(found: Convolution, threads: int, near: bool) -> bool:
    """Whether threads share out images, whose weights stay in the second cache of each.

    A number of images not known can be shared out only so: it does not divide what it is inside.
    """
    images = found.size(found.batch)
    return threads > 1 and near and (images is None or images % threads == 0)


def _deep(found: Convolution, kind: Kind) -> int | None:
    """What a tile sums over: whole tiles of channels, or of the taps of a line of one channel."""
    if (found.size(found.in_channels) or 1) % kind.depth == 0:
        return found.in_channels
    is_line = found.size(found.in_channels) == 1 and found.dilations[-1] == 1
    is_whole = (found.size(found.kernel_spatial[-1]) or 1) % kind.depth == 0
    return found.kernel_spatial[-1] if is_line and is_whole else None


def _rows(found: Convolution, below: int, room: int, workers: int) -> int:
    """Blocks of registers one below the other: what they read shall stay in the second cache.

    A divisor: registers are not to be told apart by a test whether there is a last block.
    """
    if len(found.out_spatial) < 2:
        return 1
    row_bytes = found.x.buffer.dtype.size_bytes * found.strides[-1] * found.strides[-2]
    for at in (found.out_spatial[-1], found.in_channels):
        row_bytes *= found.size(at) or 1
    outer = found.size(found.batch) or 1
    for at in found.out_spatial[:-2]:
        outer *= found.size(at) or 1
    total = (found.size(found.out_spatial[-2]) or 1) // below
    most = even(total, max(1, room // (row_bytes * below)), workers, outer)
    return next(each for each in range(most, 0, -1) if total % each == 0)


def _tiled(
    sch: Schedule, found: Convolution, plan: AmxConvPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    kind, short = plan.kind, scope_of(plan.tall)
    c = BlockRef(found.nest.name)
    multiples = [1] * len(found.nest.block.iters)
    multiples[found.out_spatial[-1]] = plan.beside * plan.tall
    sch.pad(c, multiples)
    padding = _image(sch, found, plan)
    packed = sch.cache_read(c, _reads(sch, c, found.w.buffer.name), "global")
    image = found.x.buffer if padding is None else _made(sch, padding)
    a = sch.reindex_read(c, _reads(sch, c, image.name), short)
    b = sch.cache_read(c, _reads(sch, c, _made(sch, packed).name), scope_of(SIDE))
    followers = followers_of(sch, c)
    store = sch.cache_write(c, 0, short)
    loops = sch.get_loops(c)
    *far, last = found.out_spatial
    xo, xm, xi = sch.split(loops[last], [None, plan.beside, plan.tall])
    blocks, below, inside = [loops[at] for at in far], [], [xo]
    if far:
        blocks[-1], yo, ym = sch.split(loops[far[-1]], [None, plan.rows, plan.below])
        below, inside = [ym], [yo, xo]
    elif plan.share == "rows":
        blocks, inside = [xo], []
    jb, js, jm, ji = sch.split(
        loops[found.out_channels], [None, plan.strips, plan.column_tiles, SIDE]
    )
    co, ci = sch.split(loops[plan.deep], [None, kind.depth])
    taps = [loops[at] for at in (found.in_channels, *found.kernel_spatial) if at != plan.deep]
    batch = loops[found.batch]
    outer = [batch, jb, *blocks] if plan.images_first else [jb, batch, *blocks]
    sch.reorder(*outer, *inside, js, *taps, co, *below, xm, jm, xi, ji, ci)
    for loop in (*below, xm, jm):
        sch.unroll(loop)
    sch.reverse_compute_at(store, js)
    done, at = follow(sch, followers, js, plan.strips, plan.column_tiles)
    sch.compute_at(a, co)
    sch.compute_at(b, co)
    if padding is not None:
        _pad(sch, padding, found, plan, outer[-1])
        _keep_apart(sch, found, padding)
    groups = _groups(found, plan)
    sch.transform_layout(packed, ("write", 0), groups)
    sch.transform_layout(b, ("write", 0), groups)
    sch.transform_layout(a, ("write", 0), _tiles(found, plan))
    names = [f"y{at}" for at in range(len(found.out_spatial) - 1)]
    shown = ", ".join(["n", *names])
    square = f"x // {plan.tall}, o // {SIDE}, x % {plan.tall}, o % {SIDE}"
    sch.transform_layout(store, ("read", 0), f"({shown}, x, o) -> ({shown}, {square})")
    _ask_ahead(sch, b, jb, co, plan)
    _tensorize_all(sch, found, plan, (a, b, store))
    init = sch.decompose_reduction(c, taps[0])
    sch.tensorize(sch.get_loops(c)[-3], kind.dot, rows=plan.tall)
    sch.tensorize(sch.get_loops(init)[-2], kind.dot, rows=plan.tall)
    sch.annotate(packed, CONSTANT, True)
    overlap(sch, at, co, done, (found.depth or 0) // kind.depth)
    if plan.share:
        around = outer[: outer.index(jb) + 1] if plan.share == "columns" else outer
        sch.parallel(fused(sch, around))
    made = (c, packed, padding, a, b, store, init, *done)
    return tuple(block for block in made if block is not None)


def _made(sch: Schedule, reference: BlockRef) -> Buffer:
    return block_of(sch.function, reference.name).writes[0].buffer


def _reads(sch: Schedule, block: BlockRef, name: str) -> int:
    reads = block_of(sch.function, block.name).reads
    return next(at for at, read in enumerate(reads) if read.buffer.name == name)


def _image(sch: Schedule, found: Convolution, plan: AmxConvPlan) -> BlockRef | None:
    """The block that makes what is read: it pads, or keeps pixels apart."""
    padding = padding_of(sch, found)
    is_near = plan.deep != found.in_channels or all(stride == 1 for stride in found.strides)
    if padding is not None or is_near:
        return padding
    c = BlockRef(found.nest.name)
    return sch.cache_read(c, _reads(sch, c, found.x.buffer.name), "global")


def _keep_apart(sch: Schedule, found: Convolution, padding: BlockRef) -> None:
    """Pixels that no tap sees together lie apart, so that those which one sees are neighbours."""
    names = [f"y{at}" for at in range(len(found.out_spatial))]
    to = []
    for name, stride in zip(names, found.strides, strict=True):
        to += [name] if stride == 1 else [f"{name} % {stride}", f"{name} // {stride}"]
    if to != names:
        index_map = f"(n, {', '.join(names)}, c) -> (n, {', '.join(to)}, c)"
        sch.transform_layout(padding, ("write", 0), index_map)


def _pad(
    sch: Schedule, padding: BlockRef, found: Convolution, plan: AmxConvPlan, rows: LoopRef
) -> None:
    """Make padded rows where they are read; all at once if many blocks of channels read them.

    Rows kept apart are made at once too: which of them a block of rows needs is hard to see.
    """
    at_once = plan.blocked or any(stride > 1 for stride in found.strides)
    if not at_once:
        sch.compute_at(padding, rows)
    *outer, channel = sch.get_loops(padding)
    _, lane = sch.split(channel, [None, plan.kind.depth])
    sch.vectorize(lane)
    if at_once and plan.share:
        sch.parallel(outer[1])


def _groups(found: Convolution, plan: AmxConvPlan) -> str:
    """Weights in the order they are read, as the instruction wants them."""
    names = {at: f"k{at}" for at in (found.in_channels, *found.kernel_spatial)}
    k, group = names[plan.deep], plan.kind.group
    rest = [name for name in names.values() if name != k]
    to = [f"o // {SIDE}", *rest, f"{k} // {group}", f"o % {SIDE}", f"{k} % {group}"]
    return f"({', '.join(['o', *names.values()])}) -> ({', '.join(to)})"


def _tiles(found: Convolution, plan: AmxConvPlan) -> str:
    """What windows see, as registers hold it."""
    order = sorted((found.batch, *found.out_spatial, found.in_channels, *found.kernel_spatial))
    names = {at: f"i{at}" for at in order}
    x, k = names[found.out_spatial[-1]], names[plan.deep]
    rest = [names[at] for at in order if at not in (found.out_spatial[-1], plan.deep)]
    tall, deep = plan.tall, plan.kind.depth
    to = [*rest, f"{x} // {tall}", f"{k} // {deep}", f"{x} % {tall}", f"{k} % {deep}"]
    return f"({', '.join(names.values())}) -> ({', '.join(to)})"


def _ask_ahead(sch: Schedule, b: BlockRef, jb: LoopRef, co: LoopRef, plan: AmxConvPlan) -> None:
    """Weights come from afar while the ones before are used.

    From the second cache tiles come by themselves, faster than by asking for their lines.
    """
    if plan.ahead:
        attempt(sch, sch.prefetch, b, 0, co, plan.ahead)
    elif plan.blocked:
        attempt(sch, sch.prefetch, b, 0, jb, 1, co)


def _tensorize_all(
    sch: Schedule,
    found: Convolution,
    plan: AmxConvPlan,
    blocks: tuple[BlockRef, BlockRef, BlockRef],
) -> None:
    """One instruction loads or stores a tile."""
    a, b, store = blocks
    kind, rank = plan.kind, len(found.out_spatial)
    at = 1 + (found.in_channels, *found.kernel_spatial).index(plan.deep)
    tensorize(sch, b, rank + 2, at, 0, (0, SIDE), f"{kind.load_b}_groups")
    # A is laid out by batch, places, channels summed over and taps: in the order of iterators.
    order = sorted((found.batch, *found.out_spatial, found.in_channels, *found.kernel_spatial))
    x, deep = order.index(found.out_spatial[-1]), order.index(plan.deep)
    load, parameters = f"{kind.load}_rows", {"rows": plan.tall}
    if plan.deep != found.in_channels:
        load = f"{kind.load}_windows"
        parameters["stride"] = found.strides[-1]
    if plan.below > 1:
        sch.unroll(sch.get_loops(a)[-len(order) :][order.index(found.out_spatial[-2])])
        sch.unroll(sch.get_loops(store)[-rank - 2 :][rank - 1])
    tensorize(sch, a, len(order), x, deep, (plan.tall, 0), load, **parameters)
    tall = plan.tall
    tensorize(sch, store, rank + 2, rank, rank + 1, (tall, SIDE), kind.store, rows=tall)
