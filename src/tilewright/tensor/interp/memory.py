"""The storage behind one buffer while a program runs, and who has touched it."""

from __future__ import annotations

import itertools
import math
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tensor.ir import Buffer

# A store gives the element it writes a number of its own; a reduction step remembers the number it
# added to, so that adding twice to the same value is noticed.
next_stamp = itertools.count(1).__next__


Radices = tuple[tuple[str | int, int], ...]  # thread axis or level, and how many values it has
EVERYWHERE = -1  # in place of a level: what one owner has, wherever it is


class Memory:
    """Elements in row-major order and what is known about them.

    `copies` of the buffer lie one after another: each of the lanes, grouped as `owner` levels of
    concurrency tell (see `lanes.py`), has its own; in a special unit each group of threads that
    `radices` tell apart. `is_written` marks the elements that hold a value; None where every
    element does (parameters). `stamps` numbers the stored values of a buffer that reductions
    accumulate into. Both can also be indexed from plain Python at speed.
    """

    __slots__ = (
        "buffer",
        "data",
        "is_written",
        "log",
        "owner",
        "plain_stamps",
        "plain_written",
        "radices",
        "shadows",
        "shape",
        "size",
        "stamps",
    )

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], data: NDArray[Any] | None = None
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.size = math.prod(shape)
        self.owner = 0
        self.radices: Radices = ()
        self.shadows: dict[int, Shadow] = {}
        self.is_written: NDArray[np.bool_] | None = None
        self.plain_written: bytearray | None = None
        self.log: StoreLog | None = None
        if data is None:
            data = np.full(self.size, garbage(buffer))
            self.plain_written = bytearray(self.size)
            self.is_written = np.frombuffer(self.plain_written, np.bool_)
        self.data = data
        self.stamps = np.zeros(self.size, np.int64)  # pages that nobody touches cost nothing
        self.plain_stamps = self.stamps.data

    @classmethod
    def of_lanes(cls, buffer: Buffer, shape: tuple[int, ...], owner: int, copies: int) -> Memory:
        """Memory of which every group of lanes has a copy. Pages nobody touches cost nothing."""
        made = cls(buffer, shape, np.empty(0, buffer.dtype.numpy))
        made.owner = owner
        made.data = np.empty(copies * made.size, buffer.dtype.numpy)
        made.is_written = np.zeros(copies * made.size, np.bool_)
        made.stamps = np.zeros(copies * made.size, np.int64)
        return made

    def copy_of(self, slot: int) -> Memory:
        """One of the copies as a memory of its own."""
        inside = slice(slot * self.size, (slot + 1) * self.size)
        view = copy(self)
        view.owner = 0
        view.data = self.data[inside]
        view.stamps = self.stamps[inside]
        view.is_written = None if self.is_written is None else self.is_written[inside]
        return view

    def index(self, element: int) -> tuple[int, ...]:
        """The index of an element, whichever copy it belongs to."""
        found = np.unravel_index(element % max(1, self.size), self.shape)
        return tuple(int(i) for i in found)

    def forget(self) -> None:
        """The buffer comes into being again in the same place: its elements hold no value."""
        self.is_written = np.zeros(len(self.data), np.bool_)

    def log_stores(self) -> None:
        """From now on it is known which thread wrote an element, and when."""
        if self.log is None:
            self.log = StoreLog(len(self.data))

    def shadow(self, level: int) -> Shadow:
        """Who touched each element last, at one level of concurrency."""
        if level not in self.shadows:
            self.shadows[level] = Shadow(len(self.data))
        return self.shadows[level]


class StoreLog:
    """The last thread that stored to each element, and when; 0 if none did."""

    __slots__ = ("thread", "when")

    def __init__(self, size: int) -> None:
        self.thread = np.zeros(size, np.int64)
        self.when = np.zeros(size, np.int64)


class Shadow:
    """The last writer and the readers of each element, and the phase in which they touched it.

    No element was touched in a phase later than `latest_write` and `latest_read`.
    """

    __slots__ = (
        "latest_read",
        "latest_write",
        "read_phase",
        "reader",
        "reader_too",
        "write_phase",
        "writer",
    )

    def __init__(self, size: int) -> None:
        self.latest_read = self.latest_write = -1
        # No phase is 0, and pages that nobody touches cost nothing.
        self.write_phase = np.zeros(size, np.int64)
        self.writer = np.zeros(size, np.int64)
        self.read_phase = np.zeros(size, np.int64)
        self.reader = np.zeros(size, np.int64)
        self.reader_too = np.zeros(size, np.int64)  # of the same phase; -1 if there is none


def garbage(buffer: Buffer) -> Any:
    """What uninitialised memory holds, should a check ever let it through."""
    of = buffer.dtype
    value = float("nan") if of.is_float else of.max
    return np.asarray(value).astype(of.numpy)[()]
