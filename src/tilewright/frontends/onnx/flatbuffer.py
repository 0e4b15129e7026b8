"""Read flatbuffers, which may be damaged or malicious.

Every offset is checked against the buffer. Tables may share parts, so that a small buffer can
describe an enormous tree: what is read in all is bounded by a multiple of the buffer's size.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field

import numpy as np

MAX_READS_PER_BYTE = 64

Buffer = bytes | mmap.mmap


class Damaged(Exception):
    """The buffer is not what it should be."""


@dataclass
class Flatbuffer:
    """A buffer, and how many more bytes of it may be read."""

    data: Buffer
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = MAX_READS_PER_BYTE * len(self.data)

    def root(self) -> Table:
        return Table(self, self.follow(0))

    def check(self, at: int, count: int) -> None:
        if at < 0 or count < 0 or at + count > len(self.data):
            raise Damaged(f"byte {at + count} of {len(self.data)}")

    def read(self, kind: str, at: int) -> int | float:
        """A number in the notation of `struct`, little endian."""
        count = struct.calcsize(kind)
        self.check(at, count)
        self.left -= count
        if self.left < 0:
            raise Damaged("parts of it refer to others many times")
        number: int | float = struct.unpack_from(f"<{kind}", self.data, at)[0]
        return number

    def follow(self, at: int) -> int:
        """The position that an offset refers to."""
        return at + int(self.read("I", at))

    def span(self, at: int, item_bytes: int) -> tuple[int, int]:
        """The position of a vector's first item, and their number."""
        start = self.follow(at)
        count = int(self.read("I", start))
        self.check(start + 4, count * item_bytes)
        return start + 4, count

    def string(self, at: int) -> str:
        start, count = self.span(at, 1)
        self.left -= count
        return bytes(self.data[start : start + count]).decode()


@dataclass(frozen=True)
class Table:
    """A table; fields have numbers, and absent ones a default."""

    buffer: Flatbuffer
    at: int

    def place(self, number: int) -> int | None:
        """The position of a field."""
        fields = self.at - int(self.buffer.read("i", self.at))
        entry = 4 + 2 * number
        if entry + 2 > self.buffer.read("H", fields):
            return None
        offset = int(self.buffer.read("H", fields + entry))
        return self.at + offset if offset else None

    def integer(self, number: int, kind: str = "i", default: int = 0) -> int:
        at = self.place(number)
        return default if at is None else int(self.buffer.read(kind, at))

    def real(self, number: int) -> float:
        at = self.place(number)
        return 0.0 if at is None else float(self.buffer.read("f", at))

    def string(self, number: int) -> str:
        at = self.place(number)
        return "" if at is None else self.buffer.string(at)

    def table(self, number: int) -> Table | None:
        at = self.place(number)
        return None if at is None else Table(self.buffer, self.buffer.follow(at))

    def span(self, number: int, item_bytes: int = 1) -> tuple[int, int] | None:
        """The position and length of a vector; None if it is absent."""
        at = self.place(number)
        return None if at is None else self.buffer.span(at, item_bytes)

    def numbers(self, number: int, dtype: str) -> list[int] | list[float]:
        kind = np.dtype(dtype).newbyteorder("<")
        start, count = self.span(number, kind.itemsize) or (0, 0)
        self.buffer.left -= count * kind.itemsize
        found: list[int] | list[float] = np.frombuffer(
            self.buffer.data, kind, count, start
        ).tolist()
        return found

    def strings(self, number: int) -> list[str]:
        start, count = self.span(number, 4) or (0, 0)
        return [self.buffer.string(start + 4 * at) for at in range(count)]

    def tables(self, number: int) -> list[Table]:
        start, count = self.span(number, 4) or (0, 0)
        return [Table(self.buffer, self.buffer.follow(start + 4 * at)) for at in range(count)]
