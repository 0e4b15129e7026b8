"""The accesses of a task, entry by entry, for the verifier and for bank assignment.

Reads are of data from before the task; reads of entries that the task wrote itself are omitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.accel.isa.steps import Indices, Steps, box, steps
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import (
    ACC_BANKS,
    ALU_FUNCTIONS,
    REQUANT_ENTRIES,
    REQUANTIZING,
    depth,
    dram_bytes,
)
from tilewright.base.errors import ExecutionError
from tilewright.base.geometry import Geometry

DRAM = "dram"


@dataclass(frozen=True, slots=True)
class Access:
    memory: str  # name in MEMORIES, or DRAM
    entries: Indices  # DRAM: addresses of first bytes
    is_write: bool
    base: int = -1  # DRAM: base register
    width: int = 1  # DRAM: bytes from each of `entries`

    def cells(self) -> Indices:
        """The distinct entries or bytes."""
        wide = self.entries[:, None] + np.arange(self.width, dtype=np.int64)
        return _distinct(wide.ravel())


def _distinct(values: Indices) -> Indices:
    """Sorted distinct values: by a table if they are few and small, as entries are."""
    if not len(values):
        return values
    least, most = int(values.min()), int(values.max())
    if most - least > 4 * len(values) + 65536:
        return np.unique(values)
    seen = np.zeros(most - least + 1, np.bool_)
    seen[values - least] = True
    found: Indices = np.flatnonzero(seen) + least
    return found


def _first_uses(values: Indices) -> tuple[Indices, Indices]:
    """Sorted distinct values, and the index of the first occurrence of each."""
    distinct = _distinct(values)
    if not len(distinct) or distinct[-1] - distinct[0] > 1 << 24:
        found, first = np.unique(values, return_index=True)
        return found, first
    places = np.empty(int(distinct[-1] - distinct[0]) + 1, np.int64)
    backwards = values[::-1] - distinct[0]
    places[backwards] = np.arange(len(values) - 1, -1, -1)  # the last assignment wins
    return distinct, places[distinct - distinct[0]]


def accesses(task: Instruction, stream: Stream, microcode: Indices) -> list[Access]:
    """The accesses of a task; `microcode` is the content of `ubegin` to `uend`."""
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
        Access(task.format.memory, _distinct(places), not is_store),
    ]


def _gemm(found: Steps) -> list[Access]:
    written, first_write = _first_uses(found.dst)
    return [
        Access("inp", _distinct(found.src), False),
        Access("wgt", _distinct(found.aux), False),
        Access("acc", written[~found.first[first_write]], False),
        Access("acc", written, True),
    ]


def _alu(task: Instruction, found: Steps) -> list[Access]:
    function = ALU_FUNCTIONS[task["fn"]]
    reads = [found.src]
    if function in REQUANTIZING:
        reads += [found.aux + extra for extra in range(REQUANT_ENTRIES)]
    elif not task["imm"]:
        reads.append(found.aux)
    if function == "mac":
        reads.append(found.dst)
    written, first_write = _first_uses(found.dst)
    if function == "requant":
        return [
            Access("acc", _distinct(np.concatenate(reads)), False),
            Access("out", written, True),
        ]
    # A read of an entry after a step of the task has written it is no read of older data.
    seen = np.concatenate(reads)
    when = np.tile(np.arange(len(found.dst), dtype=np.int64), len(reads))
    order = np.argsort(when, kind="stable")
    entries, place = _first_uses(seen[order])
    first_read = when[order][place]
    at = np.searchsorted(written, entries).clip(max=max(0, len(written) - 1))
    own = (written[at] == entries) & (first_write[at] < first_read) if len(written) else at > 0
    return [Access("acc", entries[~own], False), Access("acc", written, True)]


def check_range(number: int, task: Instruction, stream: Stream, found: list[Access]) -> None:
    """Reject accesses outside of a memory or a buffer."""
    for access in found:
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
        if access.memory == "acc" and task.opcode.field("banks") is not None:
            _check_banks(number, task, stream, access.entries)


def check_late_reads(number: int, task: Instruction, microcode: Indices) -> None:
    """Reject a `rescale` that reads results of its earlier steps, which are not visible yet."""
    if task.op != "alu" or ALU_FUNCTIONS[task["fn"]] != "rescale":
        return
    found = steps(task, microcode)
    written, first_write = _first_uses(found.dst)
    reads = [found.src, *(found.aux + extra for extra in range(REQUANT_ENTRIES))]
    for entries in reads if len(written) else []:
        at = np.searchsorted(written, entries).clip(max=len(written) - 1)
        late = (written[at] == entries) & (first_write[at] < np.arange(len(entries)))
        if late.any():
            raise ExecutionError(
                "TW7050",
                f"{number}: rescale reads acc[{int(entries[late][0])}], which an earlier step of "
                "it writes",
                help="results go back into acc after the last step: use other entries",
            )


def acc_banks(entries: Indices, geometry: Geometry) -> int:
    """The banks of entries of `acc`, as a mask."""
    found = np.unique(entries * ACC_BANKS // depth("acc", geometry)).tolist()
    return sum(1 << int(bank) for bank in found)


def _check_banks(number: int, task: Instruction, stream: Stream, entries: Indices) -> None:
    touched = acc_banks(entries, stream.geometry)
    if touched & ~task["banks"]:
        raise ExecutionError(
            "TW7014",
            f"{number}: {task.op} touches banks {touched:#x} of acc and names {task['banks']:#x}",
            help="let `assign_banks` name them",
        )
