"""Incremental construction of streams: buffers, microcode and tasks.

builder = Builder(geometry)
x = builder.buffer("x", "in", 4096)
builder.task("load", fmt="inp", base=x, x=16, push=("gemm",))
stream = builder.finish()
"""

from __future__ import annotations

from tilewright.accel.banks import assign_banks
from tilewright.accel.isa.stream import (
    Buffer,
    Instruction,
    MicroOp,
    Stream,
    Value,
    check_stream,
)
from tilewright.accel.isa.table import MICRO_OP_BITS
from tilewright.base.geometry import Geometry


class Builder:
    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._buffers: list[Buffer] = []
        self._microcode: list[MicroOp] = []
        self._tasks: list[Instruction] = []

    def buffer(self, name: str, role: str, size_bytes: int) -> int:
        """Add a buffer; returns its base register."""
        self._buffers.append(Buffer(name, role, size_bytes))
        return len(self._buffers) - 1

    def microcode(self, code: list[MicroOp]) -> tuple[int, int]:
        """Append micro-operations; returns their range in the buffer of microcode."""
        begin = len(self._microcode)
        self._microcode += code
        return begin, len(self._microcode)

    def load_microcode(self, push: tuple[str, ...]) -> None:
        """Load all microcode so far to the same addresses of its memory."""
        size = len(self._microcode) * (MICRO_OP_BITS // 8)
        base = self.buffer("uop", "uop", size)
        self.task("aux", fmt="uop", base=base, x=len(self._microcode), push=push)

    def task(self, op: str, **fields: Value) -> int:
        """Append a task; returns its index."""
        self._tasks.append(Instruction.make(op, **fields))
        return len(self._tasks) - 1

    def finish(self, pop: tuple[str, ...] = ()) -> Stream:
        self.task("finish", pop=pop)
        stream = Stream(
            self.geometry, tuple(self._buffers), tuple(self._microcode), tuple(self._tasks)
        )
        check_stream(stream)
        return assign_banks(stream)
