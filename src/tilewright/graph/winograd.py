"""Winograd convolution: names of its stages, by which schedule rules find the blocks, and exactness
conditions for integers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import I8, I32, U8, DType

ROLE = "winograd"  # annotation key; values below
PADDED = "padded"
HALF = "half"
IMAGE = "image"
WEIGHTS = "weights"
PRODUCT = "product"
COLUMNS = "columns"
RESULT = "result"


@dataclass(frozen=True)
class Form:
    """Tiles of `tile` results along an axis, for kernels of `window` positions."""

    tile: int
    window: int

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return self.tile + self.window - 1


FORMS = (Form(4, 3), Form(2, 3), Form(2, 2))


@dataclass(frozen=True)
class Integers:
    """int8 convolutions that are exact with tiles of this size."""

    tile: int
    scale: int  # scaling of the sums
    window: int  # kernel size

    def serves(self, x: DType, w: DType, tile: int, channels: int | None) -> bool:
        """Whether scaled sums over `channels` channels fit in i32."""
        if tile != self.tile or channels is None or x not in (I8, U8) or w not in (I8, U8):
            return False
        term = self.scale * self.window * _largest(x) * _largest(w)
        return channels * term <= I32.max


def _largest(dtype: DType) -> int:
    return int(max(-dtype.min, dtype.max))


INTEGERS = Integers(tile=2, scale=4, window=9)
