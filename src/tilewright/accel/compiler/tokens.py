"""Orders tasks by tokens, from what they touch; names the banks of `acc` that each needs.

Tasks come in an order in which they could run one by one. A task must wait for an earlier one of
another queue if one of them writes what the other touches: true, anti and output dependences,
whichever loop, virtual thread or kernel the two come from. Along the way a vector clock says what
each queue waits for already, so that a token is added only where no chain of tokens does the same.
Producers of the tokens between two queues thereby come in the order of their consumers: the k-th
pop meets the k-th push. All tokens point forward, hence the stream ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tilewright.accel.accesses import acc_banks
from tilewright.accel.isa.steps import Indices, count_entries
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import (
    ALU_FUNCTIONS,
    LOOPS,
    MEMORIES,
    PLACES,
    QUEUES,
    REQUANT_ENTRIES,
    REQUANTIZING,
    depth,
    dram_bytes,
)
from tilewright.accel.microcode import Microcode

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Touch:
    """Entries that a task reads or writes; of DRAM, units of its buffer."""

    memory: str | int  # a base register is memory, too
    cells: Indices | slice
    is_write: bool


class _Book:
    """Who touched the entries of one memory last."""

    def __init__(self, size: int) -> None:
        self.writer: Indices = np.full(size, NOBODY, np.int64)
        self.readers: Indices = np.full((len(QUEUES), size), NOBODY, np.int64)

    def latest(self, touch: Touch, queues: Indices, found: list[int]) -> None:
        """The last tasks of every queue that an access must come after, if later than found."""
        writers = np.unique(self.writer[touch.cells])
        for number in writers.tolist():
            if number != NOBODY:
                queue = int(queues[number])
                found[queue] = max(found[queue], number)
        if touch.is_write:
            readers = self.readers[:, touch.cells].max(axis=1, initial=NOBODY)
            for queue, number in enumerate(readers.tolist()):
                found[queue] = max(found[queue], number)

    def note(self, number: int, queue: int, touch: Touch) -> None:
        if touch.is_write:
            self.writer[touch.cells] = number
            self.readers[:, touch.cells] = NOBODY
        else:
            self.readers[queue, touch.cells] = number


def insert_tokens(stream: Stream) -> Stream:
    """The same tasks, ordered where they must be; tokens and banks that they had are dropped."""
    tasks = stream.instructions
    units = _units(stream)
    books: dict[str | int, _Book] = {name: _Book(depth(name, stream.geometry)) for name in MEMORIES}
    for base, unit in units.items():
        books[base] = _Book(-(-stream.buffers[base].size_bytes // unit))
    order = _Order(tasks)
    microcode = Microcode(stream)
    for number, task in enumerate(tasks):
        touched = touches(task, stream, microcode.of(number, task), units)
        latest = [NOBODY] * len(QUEUES)
        for touch in touched:
            books[touch.memory].latest(touch, order.queues, latest)
        order.begin(number, latest)
        for touch in sorted(touched, key=lambda one: one.is_write):
            books[touch.memory].note(number, task.queue, touch)
            if touch.memory == "acc":
                order.banks[number] |= _banks(touch, stream)
        microcode.load(number, task)
    return replace(stream, instructions=order.ordered())


def _banks(touch: Touch, stream: Stream) -> int:
    cells = touch.cells
    if isinstance(cells, slice):
        cells = np.arange(cells.start, cells.stop, dtype=np.int64)
    return acc_banks(cells, stream.geometry)


def _units(stream: Stream) -> dict[int, int]:
    """Bytes in which the buffers that tasks write are booked: all accesses are multiples of it."""
    found = {
        base: buffer.size_bytes
        for base, buffer in enumerate(stream.buffers)
        if buffer.role in ("out", "temp")
    }
    for task in stream.instructions:
        if task.opcode.formats and task["base"] in found:
            width = dram_bytes(task.format, stream.geometry)
            found[task["base"]] = gcd(found[task["base"]], width, task["offset"])
    return found


def touches(task: Instruction, stream: Stream, uops: Indices, units: dict[int, int]) -> list[Touch]:
    """What a task reads and writes, each entry once or more; never less than it does."""
    if task.op == "finish":
        return []
    if task.opcode.formats:
        return _transfer(task, stream, units)
    found = [Touch("uop", slice(task["ubegin"], task["uend"]), False)]
    names = ("dst", "src", "aux")
    dst, src, aux = (_reached(task, uops, at, name) for at, name in enumerate(names))
    if task.op == "gemm":
        return [*found, Touch("inp", src, False), Touch("wgt", aux, False), Touch("acc", dst, True)]
    found.append(Touch("acc", src, False))
    function = ALU_FUNCTIONS[task["fn"]]
    if function in REQUANTIZING:
        found += [Touch("acc", aux + extra, False) for extra in range(REQUANT_ENTRIES)]
        return [*found, Touch("out" if function == "requant" else "acc", dst, True)]
    if not task["imm"]:
        found.append(Touch("acc", aux, False))
    return [*found, Touch("acc", dst, True)]


def _reached(task: Instruction, uops: Indices, column: int, name: str) -> Indices:
    """The addresses of an operand."""
    found: Indices = np.unique(uops[:, column]) + task[f"{name}0"]
    for loop in range(LOOPS):
        count, by = task[f"n{loop}"], task[f"{name}_{loop}"]
        if count > 1 and by:
            found = (np.arange(count, dtype=np.int64)[:, None] * by + found).ravel()
    return found


def _transfer(task: Instruction, stream: Stream, units: dict[int, int]) -> list[Touch]:
    is_store = task.op == "store"
    entries = slice(task["sram"], task["sram"] + count_entries(task))
    found = [Touch(task.format.memory, entries, not is_store)]
    unit = units.get(task["base"])
    if unit is None:
        return found
    width = dram_bytes(task.format, stream.geometry)
    places: Indices = np.arange(width // unit, dtype=np.int64)
    for axis in ("x", "y", "z"):
        step = task[f"{axis}stride"] * width // unit
        places = (np.arange(task[axis], dtype=np.int64)[:, None] * step + places).ravel()
    return [*found, Touch(task["base"], places + task["offset"] // unit, is_store)]


class _Order:
    """Clocks, and the tokens found to be needed."""

    def __init__(self, tasks: tuple[Instruction, ...]) -> None:
        self.tasks = tasks
        self.queues = np.array([task.queue for task in tasks], np.int64)
        self.places = np.zeros(len(tasks), np.int64)
        self.clocks = np.zeros((len(tasks), len(QUEUES)), np.int64)
        self.last = [NOBODY] * len(QUEUES)  # the last task of each queue
        self.pops = [0] * len(tasks)
        self.pushes = [0] * len(tasks)
        self.banks = [0] * len(tasks)

    def begin(self, number: int, before: list[int]) -> None:
        """Let a task wait for others, the last one of each queue."""
        own = int(self.queues[number])
        clock = self.clocks[number]
        if self.last[own] != NOBODY:
            self._follow(clock, self.last[own])
            self.places[number] = self.places[self.last[own]] + 1
        self.last[own] = number
        latest = self.last if self.tasks[number].op == "finish" else before
        for other in sorted((one for one in latest if one != NOBODY), reverse=True):
            queue = int(self.queues[other])
            if queue == own or clock[queue] > self.places[other]:
                continue
            self._follow(clock, other)
            self.pops[number] |= 1 << queue
            self.pushes[other] |= 1 << own

    def _follow(self, clock: Indices, other: int) -> None:
        np.maximum(clock, self.clocks[other], out=clock)
        queue = self.queues[other]
        clock[queue] = max(clock[queue], self.places[other] + 1)

    def ordered(self) -> tuple[Instruction, ...]:
        made = []
        for number, task in enumerate(self.tasks):
            values, places = list(task.values), PLACES[task.op]
            values[places["pop"]], values[places["push"]] = self.pops[number], self.pushes[number]
            if "banks" in places:
                values[places["banks"]] = self.banks[number]
            made.append(Instruction(task.op, tuple(values)))
        return tuple(made)
