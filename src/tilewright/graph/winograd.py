"""Winograd's method: its stages, as lowering marks their blocks and the schedule finds them, and
what it takes to be exact for integers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import I8, I32, U8, DType

ROLE = "winograd"  # the annotation, with one of these values
PADDED = "padded"
HALF = "half"
IMAGE = "image"
WEIGHTS = "weights"
PRODUCT = "product"
COLUMNS = "columns"
RESULT = "result"


@dataclass(frozen=True)
class Form:
    """Tiles of so many results along an axis, for windows of so many positions."""

    tile: int
    window: int

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return self.tile + self.window - 1


FORMS = (Form(4, 3), Form(2, 3), Form(2, 2))


@dataclass(frozen=True)
class Integers:
    """Convolutions of bytes that are exact in tiles of so many results along an axis."""

    tile: int
    scale: int  # of the sums, over the results
    window: int  # kernel positions

    def serves(self, x: DType, w: DType, tile: int, channels: int | None) -> bool:
        """Whether sums over so many channels, scaled, stay in i32."""
        if tile != self.tile or channels is None or x not in (I8, U8) or w not in (I8, U8):
            return False
        term = self.scale * self.window * _largest(x) * _largest(w)
        return channels * term <= I32.max


def _largest(dtype: DType) -> int:
    return int(max(-dtype.min, dtype.max))


INTEGERS = Integers(tile=2, scale=4, window=9)
