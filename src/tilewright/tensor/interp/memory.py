"""The storage behind one buffer while a program runs, and who has touched it."""

from __future__ import annotations

import itertools
import math
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tensor.ir import Buffer

# A store gives the element it writes a number of its own; a reduction step remembers the number it
# added to, so that adding twice to the same value is noticed.
next_stamp = itertools.count(1).__next__


class Memory:
    """Elements in row-major order and what is known about them.

    `copies` of the buffer lie one after another: each of the lanes, grouped as `owner` levels of
    concurrency tell (see `lanes.py`), has its own. `written` marks the elements that hold a value;
    None where every element does (parameters).
    """

    __slots__ = (
        "buffer",
        "copies",
        "data",
        "is_written",
        "owner",
        "shadows",
        "shape",
        "size",
        "stamps",
        "written",
    )

    def __init__(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        data: NDArray[Any] | None = None,
        *,
        copies: int = 1,
        owner: int = 0,
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.size = math.prod(shape)
        self.copies = copies
        self.owner = owner
        self.written: bytearray | None = None
        self.is_written: NDArray[Any] | None = None  # the same flags, as NumPy sees them
        self.stamps: array[int] | None = None
        self.shadows: dict[int, Shadow] = {}
        if data is None:
            data = np.full(copies * self.size, _garbage(buffer))
            self.written = bytearray(copies * self.size)
            self.is_written = np.frombuffer(self.written, np.bool_)
        self.data = data

    def with_stamps(self) -> Memory:
        """Number the elements, for a buffer that reductions accumulate into."""
        self.stamps = array("q", [next_stamp()]) * len(self.data)
        return self

    def copy_of(self, slot: int) -> Memory:
        """One of the copies as a memory of its own."""
        inside = slice(slot * self.size, (slot + 1) * self.size)
        view = Memory(self.buffer, self.shape, self.data[inside])
        view.is_written = None if self.is_written is None else self.is_written[inside]
        return view

    def index(self, element: int) -> tuple[int, ...]:
        """The index of an element, whichever copy it belongs to."""
        found = np.unravel_index(element % max(1, self.size), self.shape)
        return tuple(int(i) for i in found)

    def forget(self) -> None:
        """The buffer comes into being again in the same place: its elements hold no value."""
        assert self.is_written is not None
        self.is_written[:] = False
        if self.stamps is not None:
            self.with_stamps()

    def shadow(self, level: int) -> Shadow:
        """Who touched each element last, at one level of concurrency."""
        if level not in self.shadows:
            self.shadows[level] = Shadow(len(self.data))
        return self.shadows[level]


class Shadow:
    """The last writer and the readers of each element, and the phase in which they touched it."""

    __slots__ = ("read_phase", "reader", "reader_too", "write_phase", "writer")

    def __init__(self, size: int) -> None:
        self.write_phase = np.full(size, -1)
        self.writer = np.full(size, -1)
        self.read_phase = np.full(size, -1)
        self.reader = np.full(size, -1)
        self.reader_too = np.full(size, -1)  # another reader of the same phase, -1 if none


def _garbage(buffer: Buffer) -> Any:
    """What uninitialised memory holds, should a check ever let it through."""
    of = buffer.dtype
    value = float("nan") if of.is_float else of.max
    return np.asarray(value).astype(of.numpy)[()]
