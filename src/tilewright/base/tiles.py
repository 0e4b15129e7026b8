"""Matrix tiles of processors (AMX), as data: sizes, operand types, required features.

`intrin/amx.py` declares the instructions' behaviour; rules and graph passes look up here which
types a target multiplies, and which images whole tiles cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.target import Target

ROWS, ROW_BYTES, REGISTERS = 16, 64, 8  # of a tile; tiles of a core
COLUMNS = ROWS  # of a result: 32-bit sums per row
MIN_ROWS = 8  # least rows where there is a choice: loading B takes as long for fewer
BLOCK_TILES = 2  # tiles of A per register block: neighbours along a row, or in two rows


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A tile multiplication."""

    feature: str  # required of the target
    a: str  # types of the operands and of the sums
    b: str
    c: str
    group: int  # steps of k interleaved in a row of B

    @property
    def depth(self) -> int:
        """Steps of k in a tile."""
        return ROWS * self.group


TILE_PRODUCTS = (
    TileProduct("amx-bf16", "bf16", "bf16", "f32", 2),
    TileProduct("amx-int8", "i8", "i8", "i32", 4),
    TileProduct("amx-int8", "u8", "i8", "i32", 4),
)


def tile_product(target: Any, a: str, b: str) -> TileProduct | None:
    """The target's tile multiplication for these types, if any."""
    if not isinstance(target, Target):
        return None
    products = (each for each in TILE_PRODUCTS if (each.a, each.b) == (a, b))
    return next((each for each in products if target.has(each.feature)), None)


def register_blocks(width: int, height: int) -> list[tuple[int, int]]:
    """(rows of a tile, tiles along a row) of register blocks that cover a whole image exactly."""
    return [
        (rows, beside)
        for rows in range(min(ROWS, width), MIN_ROWS - 1, -1)
        for beside in (BLOCK_TILES, 1)
        if width % (rows * beside) == 0 and height % (BLOCK_TILES // beside) == 0
    ]
