"""Assign banks of `acc` to tasks: units own them while a task runs.

The field `banks` declares them; by default a task owns all of them, so that GEMM and ALU alternate.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.accel.accesses import acc_banks, accesses, check_range
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import ACC_BANKS, FIELD_INDEX
from tilewright.accel.microcode import Microcode
from tilewright.base.errors import ExecutionError


def assign_banks(stream: Stream) -> Stream:
    """The same stream, with minimal `banks` in each task.

    Microcode is tracked in stream order. A task with invalid addresses keeps all banks: simulators
    and verifier report it.
    """
    microcode = Microcode(stream)
    tasks = []
    for number, task in enumerate(stream.instructions):
        tasks.append(task)
        if task.opcode.field("banks") is not None:
            free = _with_banks(task, (1 << ACC_BANKS) - 1)
            try:
                found = accesses(free, stream, microcode.of(number, free))
                check_range(number, free, stream, found)
            except ExecutionError:
                continue
            touched = [
                acc_banks(one.entries, stream.geometry) for one in found if one.memory == "acc"
            ]
            mask = 0
            for one in touched:
                mask |= one
            tasks[-1] = _with_banks(task, mask)
        elif task.op == "aux" and task.format.name == "uop":
            try:
                check_range(
                    number, task, stream, accesses(task, stream, microcode.of(number, task))
                )
                microcode.load(number, task)
            except ExecutionError:
                continue
    return replace(stream, instructions=tuple(tasks))


def _with_banks(task: Instruction, mask: int) -> Instruction:
    values = list(task.values)
    values[FIELD_INDEX[task.op]["banks"]] = mask
    return Instruction(task.op, tuple(values))
