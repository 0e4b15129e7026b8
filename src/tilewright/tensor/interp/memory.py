"""The storage behind one buffer while a program runs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tensor.ir import Buffer

# A store gives the element it writes a number of its own; a reduction step remembers the number it
# added to, so that adding twice to the same value is noticed.
next_stamp = itertools.count(1).__next__


class Memory:
    """Elements in row-major order and what is known about them.

    `copies` of the buffer lie one after another: threads and thread blocks each have their own.
    `written` marks the elements that hold a value; None where every element does (parameters).
    """

    __slots__ = ("buffer", "copies", "data", "shape", "size", "stamps", "written")

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], data: NDArray[Any] | None = None
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.size = math.prod(shape)
        self.copies = 1
        self.data: NDArray[Any]
        self.written: bytearray | None = None
        self.stamps: list[int] | None = None
        if data is None:
            self.data = np.full(self.size, _garbage(buffer))
            self.written = bytearray(self.size)
        else:
            self.data = data

    def with_stamps(self) -> Memory:
        """Number the elements, for a buffer that reductions accumulate into."""
        self.stamps = [next_stamp()] * len(self.data)
        return self


def _garbage(buffer: Buffer) -> Any:
    """What uninitialised memory holds, should a check ever let it through."""
    of = buffer.dtype
    value = float("nan") if of.is_float else of.max
    return np.asarray(value).astype(of.numpy)[()]
