"""Depthwise convolution, channels last: tiles of output positions, weights as [vector, kernel,
lane].

Padding is a predicate on kernel positions; lowering peels the borders from the interior of the
image, where it is always true. Where the kernel is so long that no tile is interior, or rows of
dynamic length have few interior tiles, a padded copy is made first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import guarded_times
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.gemm_model import NONE
from tilewright.rules.cpu.windows_tile import (
    WindowsPlan,
    copied_cycles,
    guarded_tiles,
    lanes_of,
    tile_windows,
    tiles_along,
    windows_cost,
    windows_space,
)
from tilewright.rules.match.nest import block_of, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, unit
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, Schedule


@dataclass(frozen=True)
class DepthwisePlan(WindowsPlan):
    """The tiling of a depthwise convolution."""

    copy_padding: bool = unit("flag", "the image is copied with padding, instead of predicates")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or not found.is_depthwise or found.depth is None:
        return None
    if lanes_of(found, context) < 2:
        return None
    return replace(found, is_padded=padding_of(sch, found) is not None)


def plans(found: Convolution, context: RuleContext) -> Space[DepthwisePlan]:
    windows = windows_space(found, context)
    copies = {"copy_padding": (0, 1) if found.is_padded else (0,)}
    return Space(DepthwisePlan, {**windows.candidates, **copies}, windows.legal)


def cost(found: Convolution, c: Columns, context: RuleContext) -> Cost:
    """The cost of any windows, plus that of predicated tiles or of a padded copy."""
    machine, terms = context.target.machine, windows_cost(found, c, context).terms
    is_copied, stride = c["copy_padding"] == 1, found.strides[-1]
    reach = ((found.size(found.kernel_spatial[-1]) or 1) - 1) * found.dilations[-1]
    is_guarded = (reach > (c["positions"] + 1) * stride) & ~is_copied & found.is_padded
    tiles = tiles_along(found, found.out_spatial[-1], c["positions"])
    share = np.where(is_copied | (not found.is_padded), 0, guarded_tiles(found, tiles, machine))
    share = np.where(is_guarded, guarded_times(machine), share / tiles)
    moved = copied_cycles(found, found.nest.guess(found.out_channels), context)
    threads = np.where(c["parallel"] == NONE, 1, context.threads)
    return Cost.of(
        compute=terms["compute"] * (1 + share),
        memory=terms["memory"] + is_copied * moved / threads,
        wake=terms["wake"] * (1 + is_copied),
    )


def apply(
    sch: Schedule, found: Convolution, plan: DepthwisePlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block, lanes = BlockRef(found.nest.name), lanes_of(found, context)
    padding = padding_of(sch, found)
    if padding is not None and not plan.copy_padding:
        sch.compute_inline(padding)
    packed = pack_weights(sch, found, by_vectors(found, lanes), context)
    return (block, packed, *tile_windows(sch, found, plan, context))


def by_vectors(found: Convolution, lanes: int) -> list[str]:
    """The layout [vector, kernel, c, lane] of weights."""
    names = [f"k{at}" for at in range(len(found.kernel_spatial))]
    return [f"o // {lanes}", *names, "c", f"o % {lanes}"]


def pack_weights(
    sch: Schedule, found: Convolution, order: Sequence[str], context: RuleContext
) -> BlockRef:
    """Pack weights [o, c, k0, k1, ...] into another order; returns the block that copies."""
    block = BlockRef(found.nest.name)
    reads = block_of(sch.function, block.name).reads  # inlined padding has changed them
    index = next(i for i, read in enumerate(reads) if read.buffer is found.w.buffer)
    packed = sch.cache_read(block, index, "global")
    names = ", ".join(["o", "c", *[f"k{at}" for at in range(len(found.kernel_spatial))]])
    sch.transform_layout(packed, ("write", 0), f"({names}) -> ({', '.join(order)})")
    if found.w.buffer.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
    return packed


DEPTHWISE = Rule("depthwise", DepthwisePlan, match, plans, cost, apply)
