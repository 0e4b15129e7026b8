"""Tiled 2-D convolution of i8, requantized: any kernel, strides and pads, one image per batch.

    X is packed (c / in, h, w, batch, in), W (o / out, c / in, kh, kw, out, in),
    Y (o / out, oh, ow, batch, out).

A tile is a number of output rows and of blocks of output channels; the reduction is split into
blocks of input channels. Loads insert the padding, with the zero point of the activations. Kernel
positions are microcode; rows, columns and output channels are loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.accel.build.builder import Builder
from tilewright.accel.build.pipeline import Fields, emit
from tilewright.accel.isa.stream import MicroOp, Stream
from tilewright.accel.isa.table import REQUANT_ENTRIES
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Conv:
    """Shape of a convolution; channels in blocks."""

    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    pad: int = 1
    zero_point: int = 0  # of the activations: the padding value

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.pad - self.kernel[0]) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.pad - self.kernel[1]) // self.stride + 1

    @property
    def steps(self) -> int:
        """GEMM steps, at one per cycle."""
        taps = self.kernel[0] * self.kernel[1]
        return self.outputs * self.out_height * self.out_width * self.channels * taps


@dataclass(frozen=True, slots=True)
class ConvKernel:
    geometry: Geometry
    conv: Conv
    rows: int  # output rows per tile
    outputs: int  # blocks of output channels per tile
    channels: int  # blocks of input channels per load, a divisor of all

    def tiles(self) -> list[tuple[int, ...]]:
        c = self.conv
        return [
            (at_y, min(self.rows, c.out_height - at_y), at_o, min(self.outputs, c.outputs - at_o))
            for at_o in range(0, c.outputs, self.outputs)
            for at_y in range(0, c.out_height, self.rows)
        ]

    def reductions(self) -> int:
        return self.conv.channels // self.channels

    @property
    def _in_rows(self) -> int:
        """Input rows of a full tile: also the row pitch of smaller ones."""
        return (self.rows - 1) * self.conv.stride + self.conv.kernel[0]

    @property
    def _in_columns(self) -> int:
        return self.conv.width + 2 * self.conv.pad

    @property
    def _positions(self) -> int:
        return self.conv.kernel[0] * self.conv.kernel[1]

    def entries(self) -> dict[str, int]:
        return {
            "inp": self.channels * self._in_rows * self._in_columns,
            "wgt": self.outputs * self.channels * self._positions,
            "acc": self.outputs * self.rows * self.conv.out_width,
            "params": self.outputs * REQUANT_ENTRIES,
        }

    def output_blocks(self, tile: tuple[int, ...]) -> tuple[int, int]:
        return tile[2], tile[3]

    def microcode(self) -> list[MicroOp]:
        plane = self._in_rows * self._in_columns
        return [
            MicroOp(0, c * plane + y * self._in_columns + x, c * self._positions + at)
            for c in range(self.channels)
            for at, (y, x) in enumerate(
                (y, x) for y in range(self.conv.kernel[0]) for x in range(self.conv.kernel[1])
            )
        ]

    def loads(self, tile: tuple[int, ...], part: int) -> list[Fields]:
        at_y, _, at_o, count_o = tile
        c = self.conv
        sizes = self.geometry.entry_bytes()
        top = at_y * c.stride - c.pad  # may be above the image
        first, last = max(0, top), min(c.height, top + self._in_rows)
        channel = part * self.channels
        weights = self.channels * self._positions
        return [
            {
                "fmt": "inp",
                "base": 0,
                "offset": ((channel * c.height + first) * c.width) * sizes["inp"],
                "x": c.width,
                "y": max(0, last - first),
                "z": self.channels,
                "ystride": c.width,
                "zstride": c.height * c.width,
                "x0": c.pad,
                "x1": c.pad,
                "y0": first - top,
                "y1": self._in_rows - (first - top) - max(0, last - first),
                "value": c.zero_point,
            },
            {
                "fmt": "wgt",
                "base": 1,
                "offset": (at_o * c.channels + channel) * self._positions * sizes["wgt"],
                "x": weights,
                "y": count_o,
                "ystride": c.channels * self._positions,
            },
        ]

    def gemm(self, tile: tuple[int, ...], part: int) -> Fields:
        _, rows, _, outputs = tile
        c = self.conv
        return {
            "n0": outputs, "dst_0": rows * c.out_width, "aux_0": self.channels * self._positions,
            "n1": rows, "dst_1": c.out_width, "src_1": c.stride * self._in_columns,
            "n2": c.out_width, "dst_2": 1, "src_2": c.stride,
            "over": ("u",),
        }  # fmt: skip

    def requant(self, tile: tuple[int, ...]) -> Fields:
        _, rows, _, outputs = tile
        size = rows * self.conv.out_width
        return {
            "n0": outputs, "dst_0": size, "src_0": size, "aux_0": REQUANT_ENTRIES,
            "n1": size, "dst_1": 1, "src_1": 1,
        }  # fmt: skip

    def stores(self, tile: tuple[int, ...]) -> list[Fields]:
        at_y, rows, at_o, outputs = tile
        c = self.conv
        plane = c.out_height * c.out_width
        size = self.geometry.batch * self.geometry.block_out
        offset = (at_o * plane + at_y * c.out_width) * size
        box = {"x": rows * c.out_width, "y": outputs, "ystride": plane}
        return [{"base": 3, "offset": offset, "sram": 0, **box}]


def build_conv(
    geometry: Geometry, conv: Conv, rows: int, outputs: int, channels: int, slots: int = 2
) -> Stream:
    """Build a stream with the buffers `x`, `w`, `params` and `y`."""
    if conv.channels % channels:
        raise UserError(
            "TW7021",
            f"{channels} blocks of channels at a time do not divide {conv.channels}",
            help="pass a divisor",
        )
    kernel = ConvKernel(geometry, conv, rows, outputs, channels)
    sizes = geometry.entry_bytes()
    positions = conv.kernel[0] * conv.kernel[1]
    builder = Builder(geometry)
    builder.buffer("x", "in", conv.channels * conv.height * conv.width * sizes["inp"])
    builder.buffer("w", "in", conv.outputs * conv.channels * positions * sizes["wgt"])
    params = builder.buffer("params", "in", conv.outputs * REQUANT_ENTRIES * sizes["acc"])
    pixels = conv.outputs * conv.out_height * conv.out_width
    builder.buffer("y", "out", pixels * geometry.batch * geometry.block_out)
    emit(builder, kernel, params, slots)
    return builder.finish()
