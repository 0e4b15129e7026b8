"""Convolution, channels last: register tiles of output positions by vectors of output channels.

    for chunk                   output channels whose weights stay in L2
      for n, block              blocks of output rows, whose input stays in L2
        for panel, tile         (or tile, panel) one register tile each
          for kernel, c         positions x vectors multiply-adds

Weights are packed as [panel, kernel, c, channel in panel], before the first call where they are
constant. Padding is done per block, just before the block reads it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tilewright.base.machine import LOOP_CYCLES
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.conv_model import (
    guarded_times,
    is_register_tile,
    shapes,
    tile_cycles,
)
from tilewright.rules.cpu.conv_plan import ConvPlan, Sizes, tile_extents
from tilewright.rules.cpu.conv_schedule import apply, padding_of
from tilewright.rules.cpu.gemm_model import (
    as_flags,
    ceil_div,
    is_unrollable,
    load_share,
    most_vectors,
    near_unroll_candidates,
)
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import piece_terms
from tilewright.rules.space import Column, Columns, Cost, Space
from tilewright.sym import Const
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or found.is_depthwise:
        return None
    is_padded = padding_of(sch, found) is not None
    return None if found.is_of_lines and not is_padded else replace(found, is_padded=is_padded)


# --------------------------------------------------------------------------- the space


def plans(found: Convolution, context: RuleContext) -> Space[ConvPlan] | None:
    """All tilings of a convolution; None where register tiles do not pay."""
    size = Sizes.of(found, context)
    if size is None:
        return None
    plain = size.problems[1]
    most = max(problem.vectors for problem in size.problems.values())
    tiles = dict.fromkeys(shapes(plain, context.target.vector_registers))
    rows = max(1, plain.spatial[0])
    period = context.target.machine.l1d.period_bytes
    pixel = found.x.buffer.shape[-1]
    skew = 0
    if isinstance(pixel, Const):
        skew = math.gcd(int(pixel.value) * found.x.buffer.dtype.size_bytes, period)
    return Space(
        ConvPlan,
        {
            "nr": _widths(size, most_vectors(context.target)),
            "tile": tuple("x".join(map(str, tile)) for tile in tiles),
            "k_interleave": tuple(size.problems),
            "oc_panels": _sizes(most),
            "row_tiles": _sizes(rows),
            "parallel": (0, 1) if context.threads > 1 else (0,),
            "panel_outermost": (0, 1),
            "k_unroll": near_unroll_candidates(context.target.machine),
            "prefetch_weights": (0, context.target.machine.memory_lines_ahead),
            "skew_bytes": tuple(dict.fromkeys((0, skew))),
        },
        lambda columns: _legal(found, size, context, columns),
        stages=(
            ("nr", "tile", "k_interleave", "skew_bytes"),
            ("oc_panels", "row_tiles", "parallel"),
            ("panel_outermost", "k_unroll", "prefetch_weights"),
        ),
    )


def _widths(size: Sizes, most: int) -> tuple[int, ...]:
    """Candidates for nr. With a dynamic axis, tiles of every number of positions are specialized,
    but a last panel of fewer vectors is not: each of its multiply-adds would be a branch. So nr
    divides the vectors then."""
    problems = size.problems.values()
    found = range(1, min(most, max(problem.vectors for problem in problems)) + 1)
    whole = [nr for nr in found if all(problem.vectors % nr == 0 for problem in problems)]
    is_open = any(problem.is_dynamic[-1] for problem in problems) and max(whole) > 1
    return tuple(whole if is_open else found)


def _sizes(total: int) -> tuple[int, ...]:
    """Block sizes of a total, in descending order, one per distinct number of blocks."""
    parts = {ceil_div(total, each) for each in range(1, math.isqrt(total) + 1)}
    return tuple(sorted({*parts, *range(1, math.isqrt(total) + 1)}, reverse=True))


def _extents(c: Columns) -> tuple[Column, Column]:
    """The extents of the tiles (batch, spatial), row by row, and their products."""
    names, places = np.unique(c["tile"], return_inverse=True)
    table = np.array([tile_extents(name) for name in names.tolist()])
    return table[places], np.prod(table, axis=1)[places]


def _vectors(size: Sizes, c: Columns) -> Column:
    """Vectors of output channels."""
    found: Column = np.where(
        c["k_interleave"] == 2,
        size.problems.get(2, size.problems[1]).vectors,
        size.problems[1].vectors,
    )
    return found


def _legal(found: Convolution, size: Sizes, context: RuleContext, c: Columns) -> Column:
    _, positions = _extents(c)
    legal = np.zeros(len(positions), bool)
    for side, problem in size.problems.items():
        fits = is_register_tile(problem, c["nr"], positions, context.target)
        legal |= (c["k_interleave"] == side) & fits
    panels = ceil_div(_vectors(size, c), c["nr"])
    if found.out_channels_per_group:
        legal &= panels % np.minimum(c["oc_panels"], panels) == 0
    # Interleaved sums of a narrower last panel are not specialized in the loop over chunks.
    is_whole = (_vectors(size, c) % c["nr"] == 0) | (c["oc_panels"] >= panels)
    legal &= (c["k_interleave"] == 1) | is_whole
    steps = (found.size(found.in_channels) or 1) // c["k_interleave"]
    legal &= is_unrollable(steps, c["nr"] * positions, c["k_unroll"], context.target.machine)
    return legal


# --------------------------------------------------------------------------- the cost


def cost(found: Convolution, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last."""
    size, target, machine = Sizes.of(found, context), context.target, context.target.machine
    assert size is not None
    tiles, positions = _extents(c)
    fma = np.zeros(len(positions))
    for side, problem in size.problems.items():
        share = 1 if side == 1 else 1 + machine.exposed_share / 2  # horizontal adds
        each = size.groups * share * tile_cycles(problem, c["nr"], tiles, target)
        fma = np.where(c["k_interleave"] == side, each, fma)
    plain = size.problems[1]
    l2 = machine.l2
    panels = ceil_div(_vectors(size, c), c["nr"])
    in_chunk = np.minimum(c["oc_panels"], panels)
    chunks = ceil_div(panels, in_chunk)
    depth = plain.depth // c["k_interleave"]
    panel_bytes = depth * c["nr"] * size.lanes * size.item_bytes
    weights = panels * panel_bytes
    all_rows = ceil_div(plain.spatial[0], tiles[:, 1])
    in_block = np.minimum(c["row_tiles"], all_rows)
    blocks = ceil_div(all_rows, in_block)
    # Threads take whole chunks and blocks, the last of which may be smaller.
    units = plain.batch * size.groups * chunks * blocks
    workers = np.where(c["parallel"] == 1, context.threads, 1)
    whole = (in_chunk * chunks / panels) * (in_block * blocks / all_rows)
    share = whole * ceil_div(units, workers) / units
    critical = fma * share
    # Integers are multiplied and added by two instructions.
    is_integer = found.nest.block.writes[0].buffer.dtype.is_int
    # Either the image stays in L2 and weights stream, or weights stay and images stream.
    streams = weights > max(l2.passing_bytes, size.image_bytes // 2)
    streams &= size.image_bytes < l2.kept_bytes
    streamed = streams & (in_chunk > 1)
    outgrown = (in_chunk * panel_bytes > l2.kept_bytes) & (in_chunk > 1)
    # With tiles outside of panels, weights are streamed once per tile.
    by_tile = streamed & (c["panel_outermost"] == 0)
    whole_rows = np.prod(ceil_div(np.array(plain.extents), tiles)[:, 2:], axis=1)
    visits = blocks * np.where(by_tile, in_block * whole_rows, 1)
    outgrown &= ~streams | (visits > 1)
    again = (chunks - 1) * size.image_bytes * plain.batch / machine.l2.bytes_per_cycle
    # With several chunks, the image is copied before, in a parallel region of its own.
    is_copied = (c["skew_bytes"] > 0) | found.is_padded
    copied = is_copied * 2 * size.image_bytes * plain.batch / machine.l2.bytes_per_cycle
    copied_alone = 0 if found.is_padded else copied / workers  # every plan pads
    region = is_copied * machine.wake_cycles
    seen = _rows_seen(found, size, in_block * tiles[:, 1])
    block_bytes = seen * size.row_bytes
    overflow = (block_bytes > l2.block_bytes) & (in_block > 1)
    # Halo rows of neighbouring blocks are read twice, and copied twice where blocks pad.
    halo = np.maximum(seen - in_block * tiles[:, 1] * size.stride, 0) * size.row_bytes * plain.batch
    halo = halo * np.where(found.is_padded & (chunks == 1), 2 / workers, machine.exposed_share)
    return Cost.of(
        fma=critical,
        wake=np.where(c["parallel"] == 1, machine.wake_cycles, 0),
        **piece_terms(critical, c["parallel"] * ceil_div(units, workers), machine),
        chunks=fma * TIE_SHARE * streamed
        + np.where(outgrown, weights * visits / machine.scattered_bytes_per_cycle, 0)
        + np.where(streams, 0, machine.exposed_share * again)
        + np.where(chunks > 1, copied + region * c["parallel"], copied_alone),
        loads=critical * load_share(positions, c["nr"], machine),
        from_l2=share * _from_l2(found, size, c, context, (tiles, panels, panel_bytes)),
        conflicts=critical * _conflicts(found, c, context, positions),
        rows=blocks * (halo / machine.l2.bytes_per_cycle + TIE_SHARE)
        + np.where(overflow, size.image_bytes / machine.scattered_bytes_per_cycle, 0),
        details=fma
        * TIE_SHARE
        * _suboptimal_choices(size, c, context, (tiles, positions, panel_bytes)),
        unroll=fma * TIE_SHARE / c["k_unroll"],
        guards=fma * _guarded(size, c, context, (tiles, panels, in_block)),
        integers=critical * is_integer,
        groups=_grouped_access(found, size, context) / np.minimum(workers, units),
    )


def _rows_seen(found: Convolution, size: Sizes, rows: Column) -> Column:
    """Rows of the image that so many rows of the result read: those of a dilated window lie apart,
    though a padded copy has all between them."""
    seen = (rows - 1) * size.stride + size.reach
    apart = found.dilations[0] > 1 and not found.is_padded
    return np.minimum(seen, rows * _taps(found)[0]) if apart else seen


def _from_l2(
    found: Convolution,
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column],
) -> Column:
    """Cycles to load from L2 what L1 does not keep: the pixels of a tile for the next panel, or the
    weights of a panel for the next tile, depending on the loop order."""
    machine, plain = context.target.machine, size.problems[1]
    tiles, panels, panel_bytes = tile
    l1, l2 = machine.l1d, machine.l2
    in_chunk = np.minimum(c["oc_panels"], panels)
    extents = np.array(plain.extents)
    visits = size.groups * np.prod(ceil_div(extents, tiles), axis=1) * panels
    seen = (np.minimum(tiles, extents)[:, 1:] - 1) * found.strides + _reach(found)
    pixel_bytes = plain.depth * size.item_bytes // math.prod(_taps(found))
    pixels_bytes = tiles[:, 0] * np.prod(seen, axis=1) * pixel_bytes
    panel_is_next = (c["panel_outermost"] == 0) & (in_chunk > 1)
    pixels_stay = panel_is_next & (pixels_bytes <= l1.kept_bytes)
    # `tile_cycles` counts the weights of panels that exceed L1.
    weights_stay = (panel_bytes > l1.kept_bytes + l1.passing_bytes) | ~panel_is_next
    weights_stay |= in_chunk * panel_bytes <= l1.kept_bytes
    followed = np.prod(tiles, axis=1) <= machine.prefetch_streams
    rows_share = np.where(followed, machine.exposed_l2_share, machine.exposed_rows_share)
    exposed = np.where(pixels_stay, 0, rows_share * pixels_bytes)
    exposed += np.where(weights_stay, 0, machine.exposed_l2_share * panel_bytes)
    total: Column = visits * exposed / l2.bytes_per_cycle
    return total


def _guarded(
    size: Sizes, c: Columns, context: RuleContext, tile: tuple[Column, Column, Column]
) -> Column:
    """Extra cycles per cycle of multiply-adds for tails that share the code of whole tiles, under
    predicates: rows of one of several blocks, vectors of one of several panels in a chunk, and both
    where one parallel loop covers them."""
    plain = size.problems[1]
    tiles, panels, in_block = tile
    all_rows = ceil_div(plain.spatial[0], tiles[:, 1])
    rows_left = (plain.spatial[0] % tiles[:, 1] > 0) & (not plain.is_dynamic[0])
    in_chunk = np.minimum(c["oc_panels"], panels)
    vectors_left = (_vectors(size, c) % c["nr"] > 0) & (in_chunk < panels)
    shared = (c["parallel"] == 1) & (in_block == 1) & rows_left
    rows = rows_left & (in_block > 1) & (in_block < all_rows)
    vectors = vectors_left & ((in_chunk > 1) | shared)
    share: Column = rows / all_rows + vectors * c["nr"] / _vectors(size, c)
    return guarded_times(context.target.machine) * share


def _taps(found: Convolution) -> list[int]:
    """The kernel's extents."""
    return [found.size(at) or 1 for at in found.kernel_spatial]


def _reach(found: Convolution) -> Column:
    """The receptive field of an output position, along each spatial axis."""
    return (np.array(_taps(found)) - 1) * found.dilations + 1


def _grouped_access(found: Convolution, size: Sizes, context: RuleContext) -> float:
    """Cycles to read and write the channels of one group at a time: a few lines per pixel, which no
    prefetcher follows."""
    if size.groups == 1:
        return 0.0
    machine, plain = context.target.machine, size.problems[1]
    inner = found.size(found.in_channels) or 1
    line = machine.l1d.line_bytes
    result = math.prod(plain.extents)
    image = result * math.prod(found.strides)
    lines: int = image * ceil_div(inner * size.item_bytes, line)
    lines += result * ceil_div(found.out_channels_per_group * size.item_bytes, line)
    padded: float = image * ceil_div(inner, size.lanes) * LOOP_CYCLES * found.is_padded
    return size.groups * (lines * line / machine.scattered_bytes_per_cycle + padded)


def _suboptimal_choices(
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column],
) -> Column:
    """How many of the minor decisions (loop order, prefetch, skew) are not what the caches call
    for."""
    machine, plain = context.target.machine, size.problems[1]
    tiles, positions, panel_bytes = tile
    is_whole = np.all(tiles == np.array(plain.extents), axis=1) & (not any(plain.is_dynamic))
    once = is_whole & (plain.weights_bytes(context.target) > machine.l2.size_bytes)
    # With few positions per tile, weights are used faster than L2 delivers them.
    hungry = positions * machine.l2.bytes_per_cycle < 2 * size.lanes * size.item_bytes * (
        machine.fma_per_cycle
    )
    in_l1 = (panel_bytes <= machine.l1d.kept_bytes + machine.l1d.passing_bytes) & hungry
    return as_flags(
        (c["panel_outermost"] == 1) != in_l1,
        (c["prefetch_weights"] > 0) != once,
        c["skew_bytes"] > 0,
    )


def _conflicts(found: Convolution, c: Columns, context: RuleContext, positions: Column) -> Column:
    """Extra cycles per cycle of multiply-adds where pixels of a tile map to the same sets of L1, so
    that every step reloads their lines from L2."""
    machine, pixel = context.target.machine, found.x.buffer.shape[-1]
    if not isinstance(pixel, Const):
        return np.zeros(len(positions))
    period = machine.l1d.period_bytes
    apart = int(pixel.value) * found.x.buffer.dtype.size_bytes * found.strides[-1]
    is_crowded = positions * math.gcd(apart, period) > machine.l1d.same_set_lines * period
    line_cycles = machine.l1d.line_bytes / machine.l2.bytes_per_cycle
    longer = np.maximum(line_cycles * machine.fma_per_cycle / c["nr"] - 1, 0)
    conflicts: Column = np.where(is_crowded & (c["skew_bytes"] == 0), longer, 0)
    return conflicts


CONV = Rule("conv", ConvPlan, match, plans, cost, apply)
