"""Expand fields to the steps of a GEMM or ALU task, or the rows of a transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.accel.isa.stream import Instruction, MicroOp, Stream, members
from tilewright.accel.isa.table import LOOPS, depth, dram_bytes
from tilewright.base.errors import ExecutionError

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Addresses of all steps in order; `first` marks overwriting steps of a GEMM."""

    dst: Indices
    src: Indices
    aux: Indices
    first: np.ndarray[Any, np.dtype[np.bool_]]


def micro_array(microcode: tuple[MicroOp, ...]) -> Indices:
    """Microcode as rows of dst, src, aux."""
    rows = [(step.dst, step.src, step.aux) for step in microcode]
    return np.array(rows, np.int64).reshape(-1, 3)


MAX_STEPS = 1 << 24  # limit of one task by the watchdog


def check_extents(stream: Stream) -> None:
    """Reject tasks with more steps than the watchdog permits, with more entries than a memory has,
    or misaligned."""
    for number, task in enumerate(stream.instructions):
        if task.op in ("gemm", "alu") and count_steps(task) > MAX_STEPS:
            raise ExecutionError(
                "TW7017",
                f"{number}: {task.op} takes {count_steps(task)} steps, and {MAX_STEPS} are allowed",
                help="split the task",
            )
        if not task.opcode.formats:
            continue
        width = min(dram_bytes(task.format, stream.geometry), stream.geometry.bus_bytes)
        if task["offset"] % width:
            raise ExecutionError(
                "TW7014",
                f"{number}: {task.op} begins at byte {task['offset']}, not a multiple of {width}",
                help="align transfers to their entries, or to the bus where entries are wider",
            )
        room, entries = depth(task.format.memory, stream.geometry), count_entries(task)
        if entries > room:
            raise ExecutionError(
                "TW7014",
                f"{number}: {task.op} moves {entries} entries, and {task.format.memory} has {room}",
                help="check extents and padding",
            )


def count_entries(task: Instruction) -> int:
    """Entries of the scratchpad that a transfer accesses."""
    x, y = task["x"], task["y"]
    if task.op != "store":
        x, y = x + task["x0"] + task["x1"], y + task["y0"] + task["y1"]
    return x * y * task["z"]


def count_steps(task: Instruction) -> int:
    count = max(0, task["uend"] - task["ubegin"])
    for loop in range(LOOPS):
        count *= task[f"n{loop}"]
    return count


def steps(task: Instruction, microcode: Indices) -> Steps:
    """The steps of a task, given the micro-operations from `ubegin` to `uend`."""
    extents = [task[f"n{loop}"] for loop in range(LOOPS)]
    grid = np.indices((*extents, len(microcode)), dtype=np.int64).reshape(LOOPS + 1, -1)

    def addresses(column: int, name: str) -> Indices:
        found: Indices = task[f"{name}0"] + microcode[grid[LOOPS], column]
        for loop in range(LOOPS):
            found = found + grid[loop] * task[f"{name}_{loop}"]
        return found

    dst, src, aux = (addresses(at, name) for at, name in enumerate(("dst", "src", "aux")))
    first = np.zeros(grid.shape[1], np.bool_)
    if task.op == "gemm" and task["init"]:
        first[:] = True
        for loop in members(task["over"]):
            first &= grid[loop] == 0
    return Steps(dst, src, aux, first)


@dataclass(frozen=True, slots=True)
class Box:
    """A transfer: entries of DRAM, in units of one entry from `offset`, and the corresponding
    entries of the scratchpad."""

    dram: Indices  # entry in DRAM
    sram: Indices  # the corresponding entry in the scratchpad
    pads: Indices  # padded entries of the scratchpad


def box(task: Instruction) -> Box:
    x, y, z = task["x"], task["y"], task["z"]
    padded = task.op != "store"
    x0, x1, y0, y1 = (task[name] if padded else 0 for name in ("x0", "x1", "y0", "y1"))
    places = task["sram"] + np.arange(z * (y0 + y + y1) * (x0 + x + x1), dtype=np.int64)
    grid = places.reshape(z, y0 + y + y1, x0 + x + x1)
    inner = grid[:, y0 : y0 + y, x0 : x0 + x]
    at_z, at_y, at_x = np.indices((z, y, x), dtype=np.int64)
    dram = at_z * task["zstride"] + at_y * task["ystride"] + at_x * task["xstride"]
    edge = np.ones(grid.shape, np.bool_)
    edge[:, y0 : y0 + y, x0 : x0 + x] = False
    return Box(dram.ravel(), inner.ravel(), grid[edge])
