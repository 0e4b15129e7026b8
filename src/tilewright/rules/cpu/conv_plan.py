"""The plan of a convolution, its sizes, and the tiling that follows from both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import Problem
from tilewright.rules.cpu.gemm_model import ceil_div
from tilewright.rules.match.windows import Convolution
from tilewright.rules.space import unit


@dataclass(frozen=True)
class ConvPlan:
    """The tiling of a convolution."""

    nr: int = unit("vectors", "of output channels in the register tile")
    tile: str = unit("output positions", "of the register tile: batch x spatial")
    k_interleave: int = unit("terms of the sum", "in neighbouring lanes, added up in the end")
    oc_panels: int = unit("panels", "of output channels in a chunk")
    row_tiles: int = unit("tiles", "along the first spatial axis in a block")
    parallel: bool = unit("flag", "images, chunks and blocks of rows are split across threads")
    panel_outermost: bool = unit("flag", "panels outside of tiles: their weights stay in L1")
    k_unroll: int = unit("steps of the sum", "per iteration of the unrolled loop")
    prefetch_weights: int = unit(
        "steps of the sum", "prefetch distance; 0: those of the next chunk"
    )
    skew_bytes: int = unit("bytes", "that the pixel pitch is no multiple of, against set conflicts")

    @property
    def positions(self) -> tuple[int, ...]:
        return tile_extents(self.tile)


def tile_extents(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a convolution, for each way to interleave its reduction."""

    problems: dict[int, Problem]  # by k_interleave
    lanes: int
    groups: int
    image_bytes: int  # of one input image
    row_bytes: int  # of one row of the input
    reach: int  # input rows that one output row reads
    stride: int  # along rows
    item_bytes: int

    @staticmethod
    def of(found: Convolution, context: RuleContext) -> Sizes | None:
        dtype = found.nest.block.writes[0].buffer.dtype
        lanes = context.target.lanes(dtype.bits)
        channels = found.out_channels_per_group or found.size(found.out_channels)
        if lanes < 2 or channels is None or found.depth is None:
            return None
        if found.out_channels_per_group:
            lanes = _divisor(channels, lanes)
        spatial = tuple(found.positions(at) for at in found.out_spatial)
        dynamic = tuple(found.size(at) is None for at in found.out_spatial)
        problems = {
            side: Problem(
                found.size(found.batch) or 1,
                spatial,
                ceil_div(channels * side, lanes),
                found.depth // side,
                side,
                dynamic,
                found.out_channels_per_group > 0,
            )
            for side in _interleaves(found, channels, lanes)
        }
        pixel = (found.size(found.in_channels) or 1) * found.x.buffer.dtype.size_bytes
        read = [size * stride for size, stride in zip(spatial, found.strides, strict=True)]
        kernel = found.size(found.kernel_spatial[0]) or 1
        return Sizes(
            problems,
            lanes,
            (found.size(found.out_channels) or channels) // channels,
            pixel * math.prod(read),
            pixel * math.prod(read[1:]),
            (kernel - 1) * found.dilations[0] + 1,
            found.strides[0],
            dtype.size_bytes,
        )


@dataclass(frozen=True)
class Tiling:
    """What follows from a plan and the sizes."""

    lanes: int
    k_interleave: int
    channels: int  # per vector
    width: int  # channels per panel
    in_chunk: int  # panels per chunk
    is_chunked: bool
    row_tiles: int

    @staticmethod
    def of(plan: ConvPlan, size: Sizes) -> Tiling:
        channels = size.lanes // plan.k_interleave
        panels = ceil_div(size.problems[plan.k_interleave].vectors, plan.nr)
        in_chunk = min(plan.oc_panels, panels)
        rows = ceil_div(size.problems[1].spatial[0], plan.positions[1])
        return Tiling(
            size.lanes,
            plan.k_interleave,
            channels,
            plan.nr * channels,
            in_chunk,
            in_chunk < panels,
            min(plan.row_tiles, rows),
        )


def _interleaves(found: Convolution, channels: int, lanes: int) -> tuple[int, ...]:
    """Candidates for `k_interleave`: 2 where output channels leave half of the last vector
    empty."""
    kinds = {load.buffer.dtype for load in (found.x, found.w)}
    is_plain = kinds == {found.nest.block.writes[0].buffer.dtype}
    is_plain &= not found.out_channels_per_group
    is_even = (found.size(found.in_channels) or 1) % 2 == 0
    return (1, 2) if is_plain and is_even and 0 < channels % lanes <= lanes // 2 else (1,)


def _divisor(total: int, most: int) -> int:
    """The largest divisor up to a limit."""
    return next(n for n in range(min(total, most), 0, -1) if total % n == 0)
