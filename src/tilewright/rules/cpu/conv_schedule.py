"""Schedule steps that tile a convolution for registers and caches, from a plan."""

from __future__ import annotations

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_plan import ConvPlan, Sizes, Tiling
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import longest_chain, shortest_part
from tilewright.rules.cpu.gemm_schedule import inline_crop, read_index, unrolled_sum
from tilewright.rules.match.nest import attempt, block_of, nest_of
from tilewright.rules.match.windows import Convolution
from tilewright.sym import Const
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import SPATIAL
from tilewright.tensor.passes.cut_sums import PART_TERMS
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


def apply(
    sch: Schedule, found: Convolution, plan: ConvPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    size = Sizes.of(found, context)
    assert size is not None
    made = Tiling.of(plan, size)
    block = BlockRef(found.nest.name)
    padding = padding_of(sch, found)
    if plan.skew_bytes:
        padding = _skewed(sch, padding, found, plan, size.lanes)
    packed = _weights(sch, block, found, made)
    sums = _interleave(sch, block, found, plan) if plan.k_interleave > 1 else block
    loops = sch.get_loops(block)
    out, group = loops[found.out_channels], []
    if found.out_channels_per_group:
        far, out = sch.split(out, [None, found.out_channels_per_group])
        group = [far]
    chunk, panel, vector, lane = sch.split(out, [None, made.in_chunk, plan.nr, made.channels])
    batch, inner_batch = _split_by(sch, loops[found.batch], plan.positions[0])
    first, *rest = found.out_spatial
    rows, tile, pixel = sch.split(loops[first], [None, made.row_tiles, plan.positions[1]])
    tiles, pixels = [tile], [*inner_batch, pixel]
    for at, extent in zip(rest, plan.positions[2:], strict=True):
        far, near = sch.split(loops[at], [None, extent])
        tiles.append(far)
        pixels.append(near)
    summed = (
        [loops[at] for at in (*found.kernel_spatial, found.in_channels)]
        if sums == block
        else loops[-1:]
    )
    middle = [panel, *tiles] if plan.panel_outermost else [*tiles, panel]
    shared = [batch, *group, chunk, rows]  # an image stays in L2 while weights stream
    sch.reorder(*shared, *middle, *summed, *pixels, vector, lane)
    for loop in (*pixels, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    width = plan.nr * made.channels
    done = [block, sums, packed, *fuse_epilogue(sch, block, middle[-1], made.channels, width)]
    if sums != block:
        sch.unroll(summed[0])
        summed = _order_sums(sch, sums, middle[-1], found, size.lanes)
    if padding is not None:
        done.append(padding)
        _pad(sch, padding, rows, plan, made)
    sch.decompose_reduction(sums, summed[0])
    inner = summed[-1]
    step: LoopRef | None = None
    if plan.k_unroll > 1:
        inner, step = unrolled_sum(sch, inner, plan.k_unroll)
    if found.depth is not None and found.depth > longest_chain(
        found.nest.block.writes[0].buffer.dtype
    ):
        for loop in (*summed[:-1], inner):
            sch.annotate(loop, PART_TERMS, _part_terms(found))
    _pack(sch, packed, found, made, context)
    weights = read_index(sch, sums, block_of(sch.function, packed.name).writes[0].buffer)
    if plan.prefetch_weights:  # all weights are streamed once, in order
        ahead = -(-plan.prefetch_weights // plan.k_unroll)
        attempt(sch, sch.prefetch, sums, weights, inner, ahead, step, True)
    elif made.is_chunked and _exceeds_l2(size, context):  # prefetch those of the next chunk
        attempt(sch, sch.prefetch, sums, weights, chunk, 1, inner)
    elif (
        found.is_pointwise and padding is None
    ):  # the image is read in place: prefetch its next pixels
        image = read_index(sch, sums, found.x.buffer)
        attempt(sch, sch.prefetch, sums, image, tiles[-1], 1, inner, True)
    if plan.parallel:
        sch.parallel(sch.fuse(*shared))
    if found.size(found.out_spatial[-1]) is None:
        sch.annotate(tiles[-1], TAILS, True)
    return tuple(done)


def _exceeds_l2(size: Sizes, context: RuleContext) -> bool:
    """Whether weights exceed L2 between uses. Otherwise a prefetch only takes registers, which
    makes a full tile spill."""
    return size.problems[1].weights_bytes(context.target) > context.target.machine.l2.kept_bytes


def _part_terms(found: Convolution) -> int:
    """Terms per partial sum of a reduction that is too long for one chain: those of one kernel
    position, or a fixed number for a 1 x 1 kernel."""
    channels = found.size(found.in_channels) or 1
    return shortest_part() if channels == found.depth else max(shortest_part(), channels)


def _split_by(sch: Schedule, loop: LoopRef, size: int) -> tuple[LoopRef, list[LoopRef]]:
    """Split a loop; a factor of 1 leaves it as it is."""
    if size == 1:
        return loop, []
    far, near = sch.split(loop, [None, size])
    return far, [near]


# --------------------------------------------------------------------------- interleaved sums


def _interleave(sch: Schedule, block: BlockRef, found: Convolution, plan: ConvPlan) -> BlockRef:
    """Sum neighbouring channels in separate lanes: the new block has the partial sums, the old one
    adds them."""
    _, near = sch.split(sch.get_loops(block)[found.in_channels], [None, plan.k_interleave])
    return sch.rfactor(near, len(found.x.index))


def _order_sums(
    sch: Schedule, sums: BlockRef, tile: LoopRef, found: Convolution, lanes: int
) -> list[LoopRef]:
    """Place the partial sums of a tile in registers; returns the loops over kernel positions and
    channels.

    A vector holds `side` partial sums of each channel in neighbouring lanes.
    """
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, tile)
    loops = sch.get_loops(sums)
    apart, *own = loops[loops.index(tile) + 1 :]
    summed = [own[at] for at in (*found.kernel_spatial, found.in_channels)]
    pixels = [own[at] for at in (found.batch, *found.out_spatial)]
    sch.reorder(*summed, *pixels, own[found.out_channels], apart)
    vector, lane = sch.split(sch.fuse(own[found.out_channels], apart), [None, lanes])
    for loop in (*pixels, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    return summed


# ------------------------------------------------------------------------------------ operands


def padding_of(sch: Schedule, found: Convolution) -> BlockRef | None:
    """The block that pads the convolution's input, if nothing else reads it."""
    for reference in sch.get_producers(BlockRef(found.nest.name)):
        made = block_of(sch.function, reference.name)
        if made.writes[0].buffer is not found.x.buffer:
            continue
        if len(sch.get_consumers(reference)) > 1 or len(made.writes) > 1:
            return None
        plain = nest_of(sch, reference) is not None
        return reference if plain and all(it.kind == SPATIAL for it in made.iters) else None
    return None


def _skewed(
    sch: Schedule, padding: BlockRef | None, found: Convolution, plan: ConvPlan, lanes: int
) -> BlockRef:
    """The padded input, or a copy of it, with pixels at a skewed pitch."""
    if padding is None:
        padding = sch.cache_read(BlockRef(found.nest.name), found.read_index(found.x), "global")
    period = plan.skew_bytes // found.x.buffer.dtype.size_bytes
    sch.storage_align(padding, 0, len(found.x.index) - 2, period, lanes % period)
    return padding


def _weights(sch: Schedule, block: BlockRef, found: Convolution, made: Tiling) -> BlockRef:
    """The block that copies the weights, zero-padded to whole vectors of channels."""
    channels = found.size(found.out_channels)
    if found.out_channels_per_group or channels is None or channels % made.channels == 0:
        return sch.cache_read(block, found.read_index(found.w), "global")
    multiples = [1] * len(found.nest.block.iters)
    multiples[found.out_channels] = made.channels
    sch.pad(block, multiples)
    inline_crop(sch, block)
    (copy,) = (
        reference
        for reference in sch.get_producers(block)
        if any(r.buffer is found.w.buffer for r in block_of(sch.function, reference.name).reads)
    )
    return copy


def _pad(sch: Schedule, padding: BlockRef, rows: LoopRef, plan: ConvPlan, made: Tiling) -> None:
    """Pad rows where they are read; all at once if several chunks of channels read them."""
    if not made.is_chunked:
        sch.compute_at(padding, rows)
    *outer, column, channel = sch.get_loops(padding)
    extent = block_of(sch.function, padding.name).iters[-1].extent
    if isinstance(extent, Const) and int(extent.value) < made.lanes:  # vectorize across pixels
        channel = sch.fuse(column, channel)
    _, lane = sch.split(channel, [None, made.lanes])
    sch.vectorize(lane)
    if made.is_chunked and plan.parallel:
        sch.parallel(sch.fuse(*outer[:2]) if len(outer) > 1 else outer[0])


def _pack(
    sch: Schedule, packed: BlockRef, found: Convolution, made: Tiling, context: RuleContext
) -> None:
    taps = [f"k{at}" for at in range(len(found.kernel_spatial))]
    names = ["o", "c", *taps]
    within, before = "o", []
    if found.out_channels_per_group:
        within, before = (
            f"(o % {found.out_channels_per_group})",
            [f"o // {found.out_channels_per_group}"],
        )
    to = [*before, f"{within} // {made.width}", *taps, "c", f"{within} % {made.width}"]
    if made.k_interleave > 1:
        to[-2:] = [
            f"c // {made.k_interleave}",
            f"(o % {made.width}) * {made.k_interleave} + c % {made.k_interleave}",
        ]
    sch.transform_layout(packed, ("write", 0), f"({', '.join(names)}) -> ({', '.join(to)})")
    if found.w.buffer.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
