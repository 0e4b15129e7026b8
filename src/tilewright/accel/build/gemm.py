"""A tiled GEMM: Y[m, n] = requantize(X[m, k] * transpose(W[n, k]) + bias[n]), all i8.

X is packed (m / batch, k / in, batch, in), W (n / out, k / in, out, in), Y like X with n and out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.accel.build.builder import Builder
from tilewright.accel.build.pipeline import Fields, emit
from tilewright.accel.isa.stream import MicroOp, Stream
from tilewright.accel.isa.table import REQUANT_ENTRIES
from tilewright.base.geometry import Geometry


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """Blocks of m, n and k, and blocks of each per tile; tails are smaller tiles."""

    geometry: Geometry
    blocks: tuple[int, int, int]
    tile: tuple[int, int, int]

    def tiles(self) -> list[tuple[int, ...]]:
        (m, n, _), (tm, tn, _) = self.blocks, self.tile
        return [
            (at_m, min(tm, m - at_m), at_n, min(tn, n - at_n))
            for at_n in range(0, n, tn)
            for at_m in range(0, m, tm)
        ]

    def reductions(self) -> int:
        return -(-self.blocks[2] // self.tile[2])

    def entries(self) -> dict[str, int]:
        tm, tn, tk = self.tile
        return {"inp": tm * tk, "wgt": tn * tk, "acc": tm * tn, "params": tn * REQUANT_ENTRIES}

    def output_blocks(self, tile: tuple[int, ...]) -> tuple[int, int]:
        return tile[2], tile[3]

    def microcode(self) -> list[MicroOp]:
        return [MicroOp()]

    def _part(self, part: int) -> tuple[int, int]:
        begin = part * self.tile[2]
        return begin, min(self.tile[2], self.blocks[2] - begin)

    def loads(self, tile: tuple[int, ...], part: int) -> list[Fields]:
        at_m, count_m, at_n, count_n = tile
        begin, count = self._part(part)
        k = self.blocks[2]
        sizes = self.geometry.entry_bytes()
        return [
            {
                "fmt": name,
                "base": base,
                "offset": (row * k + begin) * sizes[name],
                "x": count,
                "y": rows,
                "ystride": k,
            }
            for base, name, row, rows in ((0, "inp", at_m, count_m), (1, "wgt", at_n, count_n))
        ]

    def gemm(self, tile: tuple[int, ...], part: int) -> Fields:
        _, count_m, _, count_n = tile
        _, count = self._part(part)
        return {
            "n0": count_m, "dst_0": count_n, "src_0": count,
            "n1": count_n, "dst_1": 1, "aux_1": count,
            "n2": count, "src_2": 1, "aux_2": 1,
            "over": ("i2",),
        }  # fmt: skip

    def requant(self, tile: tuple[int, ...]) -> Fields:
        _, count_m, _, count_n = tile
        return {  # channels outermost: fewest changes of parameters
            "n0": count_n, "dst_0": 1, "src_0": 1, "aux_0": REQUANT_ENTRIES,
            "n1": count_m, "dst_1": count_n, "src_1": count_n,
        }  # fmt: skip

    def stores(self, tile: tuple[int, ...]) -> list[Fields]:
        at_m, count_m, at_n, count_n = tile
        size = self.geometry.batch * self.geometry.block_out
        offset = (at_m * self.blocks[1] + at_n) * size
        box = {"x": count_n, "y": count_m, "ystride": self.blocks[1]}
        return [{"base": 3, "offset": offset, "sram": 0, **box}]


def build_gemm(
    geometry: Geometry, blocks: tuple[int, int, int], tile: tuple[int, int, int], slots: int = 2
) -> Stream:
    """Build a stream with the buffers `x`, `w`, `params` and `y`."""
    kernel = GemmKernel(geometry, blocks, tile)
    m, n, k = blocks
    sizes = geometry.entry_bytes()
    builder = Builder(geometry)
    builder.buffer("x", "in", m * k * sizes["inp"])
    builder.buffer("w", "in", n * k * sizes["wgt"])
    params = builder.buffer("params", "in", n * REQUANT_ENTRIES * sizes["acc"])
    builder.buffer("y", "out", m * n * geometry.batch * geometry.block_out)
    emit(builder, kernel, params, slots)
    return builder.finish()
