"""Contents of the microcode memory during a stream."""

from __future__ import annotations

import numpy as np

from tilewright.accel.isa.steps import Indices, box, micro_array
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import MICRO_OP_BITS, depth
from tilewright.base.errors import ExecutionError


class Microcode:
    """The entries, updated by tasks."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._source = micro_array(stream.microcode)
        self._entries = np.zeros((depth("uop", stream.geometry), 3), np.int64)

    def of(self, number: int, task: Instruction) -> Indices:
        """The micro-operations of a task."""
        if task.op not in ("gemm", "alu"):
            return self._entries[:0]
        begin, end = task["ubegin"], task["uend"]
        if not begin <= end <= len(self._entries):
            raise ExecutionError(
                "TW7014",
                f"{number}: {task.op} runs micro-operations {begin} to {end} of "
                f"{len(self._entries)}",
                help="ubegin is at most uend, and both are inside the memory",
            )
        return self._entries[begin:end]

    def load(self, number: int, task: Instruction) -> None:
        """Execute a load of microcode, already checked to be in bounds."""
        if task.op != "aux" or task.format.name != "uop":
            return
        area = box(task)
        size = MICRO_OP_BITS // 8
        if self._stream.buffers[task["base"]].role != "uop" or task["offset"] % size:
            raise ExecutionError(
                "TW7014",
                f"{number}: {task.op} loads microcode from where there is none",
                help="load whole micro-operations from the buffer of role uop",
            )
        self._entries[area.sram] = self._source[task["offset"] // size + area.dram]
        self._entries[area.pads] = 0
