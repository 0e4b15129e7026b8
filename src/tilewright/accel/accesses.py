"""What a task reads and writes, entry by entry: for the verifier, and for banks in the cycle model.

A read is one of what was there before the task; what a task reads after it wrote it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.accel.isa.steps import Indices, Steps, box, steps
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import ALU_FUNCTIONS, REQUANT_ENTRIES, depth, dram_bytes
from tilewright.base.errors import ExecutionError

DRAM = "dram"


@dataclass(frozen=True, slots=True)
class Access:
    memory: str  # of MEMORIES, or DRAM
    entries: Indices  # of DRAM: first bytes
    is_write: bool
    base: int = -1  # of DRAM: the base register
    width: int = 1  # of DRAM: bytes from each of `entries`

    def cells(self) -> Indices:
        """Every entry or byte, once."""
        wide = self.entries[:, None] + np.arange(self.width, dtype=np.int64)
        return np.unique(wide)


def accesses(task: Instruction, stream: Stream, microcode: Indices) -> list[Access]:
    """Of a task, `microcode` being what its `ubegin` to `uend` hold."""
    if task.op == "finish":
        return []
    if task.opcode.formats:
        return _transfer(task, stream)
    uops = Access("uop", np.arange(task["ubegin"], task["uend"], dtype=np.int64), False)
    found = steps(task, microcode)
    return [uops, *(_gemm(found) if task.op == "gemm" else _alu(task, found))]


def _transfer(task: Instruction, stream: Stream) -> list[Access]:
    area = box(task)
    width = dram_bytes(task.format, stream.geometry)
    starts = task["offset"] + area.dram * width
    is_store = task.op == "store"
    places = area.sram if is_store else np.concatenate((area.sram, area.pads))
    return [
        Access(DRAM, starts, is_store, task["base"], width),
        Access(task.format.memory, np.unique(places), not is_store),
    ]


def _gemm(found: Steps) -> list[Access]:
    written, place = np.unique(found.dst, return_index=True)
    return [
        Access("inp", np.unique(found.src), False),
        Access("wgt", np.unique(found.aux), False),
        Access("acc", written[~found.first[place]], False),
        Access("acc", written, True),
    ]


def _alu(task: Instruction, found: Steps) -> list[Access]:
    function = ALU_FUNCTIONS[task["fn"]]
    reads = [found.src]
    if function == "requant":
        reads += [found.aux + extra for extra in range(REQUANT_ENTRIES)]
    elif not task["imm"]:
        reads.append(found.aux)
    if function == "mac":
        reads.append(found.dst)
    written, first_write = np.unique(found.dst, return_index=True)
    if function == "requant":
        return [
            Access("acc", np.unique(np.concatenate(reads)), False),
            Access("out", written, True),
        ]
    # Entries that a step writes before any other reads them hold nothing older.
    seen = np.concatenate(reads)
    when = np.tile(np.arange(len(found.dst), dtype=np.int64), len(reads))
    order = np.argsort(when, kind="stable")
    entries, place = np.unique(seen[order], return_index=True)
    first_read = when[order][place]
    at = np.searchsorted(written, entries).clip(max=max(0, len(written) - 1))
    own = (written[at] == entries) & (first_write[at] < first_read) if len(written) else at > 0
    return [Access("acc", entries[~own], False), Access("acc", written, True)]


def check_range(number: int, task: Instruction, stream: Stream, microcode: Indices) -> None:
    """Refuse addresses outside of a memory or a buffer."""
    for access in accesses(task, stream, microcode):
        if not len(access.entries):
            continue
        least, most = int(access.entries.min()), int(access.entries.max()) + access.width - 1
        if access.memory == DRAM:
            buffer = stream.buffers[access.base]
            name, size, unit = buffer.name, buffer.size_bytes, "byte"
        else:
            name, size, unit = access.memory, depth(access.memory, stream.geometry), "entry"
        if least < 0 or most >= size:
            verb = "writes" if access.is_write else "reads"
            raise ExecutionError(
                "TW7014",
                f"{number}: {task.op} {verb} {unit} {most} of {name}, which has {size}",
                help="check offsets, extents and strides",
            )
