"""Orders tasks by tokens, from what they touch.

Tasks come in an order in which they could run one by one. A task must wait for an earlier one of
another queue if one of them writes what the other touches: true, anti and output dependences,
whichever loop, virtual thread or kernel the two come from. Along the way a vector clock says what
each queue waits for already, so that a token is added only where no chain of tokens does the same.
Producers of the tokens between two queues thereby come in the order of their consumers: the k-th
pop meets the k-th push. All tokens point forward, hence the stream ends.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.accel.accesses import DRAM, Access, accesses
from tilewright.accel.isa.steps import Indices
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import MEMORIES, PLACES, QUEUES, depth
from tilewright.accel.microcode import Microcode

NOBODY = -1


class _Book:
    """Who touched the entries of one memory last."""

    def __init__(self, size: int) -> None:
        self.writer: Indices = np.full(size, NOBODY, np.int64)
        self.readers: Indices = np.full((len(QUEUES), size), NOBODY, np.int64)

    def conflicts(self, cells: Indices, is_write: bool) -> list[Indices]:
        """Tasks that an access must come after."""
        found = [self.writer[cells]]
        return [*found, *self.readers[:, cells]] if is_write else found

    def note(self, number: int, queue: int, cells: Indices, is_write: bool) -> None:
        if is_write:
            self.writer[cells] = number
            self.readers[:, cells] = NOBODY
        else:
            self.readers[queue, cells] = number


def insert_tokens(stream: Stream) -> Stream:
    """The same tasks, ordered where they must be; tokens that they had are dropped."""
    tasks = stream.instructions
    books = {name: _Book(depth(name, stream.geometry)) for name in MEMORIES}
    buffers = {
        at: _Book(buffer.size_bytes)
        for at, buffer in enumerate(stream.buffers)
        if buffer.role in ("out", "temp")
    }
    order = _Order(tasks)
    microcode = Microcode(stream)
    for number, task in enumerate(tasks):
        touched = accesses(task, stream, microcode.of(number, task))
        kept = [(access, book) for access in touched if (book := _book(access, books, buffers))]
        # A task that reads and writes an entry does not wait for itself.
        boxes = [(book, access.cells(), access.is_write) for access, book in kept]
        found = [one for box in boxes for one in box[0].conflicts(box[1], box[2])]
        order.begin(number, np.concatenate(found) if found else np.empty(0, np.int64))
        for book, cells, is_write in sorted(boxes, key=lambda box: box[2]):
            book.note(number, task.queue, cells, is_write)
        microcode.load(number, task)
    return replace(stream, instructions=order.ordered())


def _book(access: Access, books: dict[str, _Book], buffers: dict[int, _Book]) -> _Book | None:
    return buffers.get(access.base) if access.memory == DRAM else books[access.memory]


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

    def begin(self, number: int, before: Indices) -> None:
        """Let a task wait for others, given with repetitions."""
        own = int(self.queues[number])
        clock = self.clocks[number]
        if self.last[own] != NOBODY:
            self._follow(clock, self.last[own])
            self.places[number] = self.places[self.last[own]] + 1
        self.last[own] = number
        if self.tasks[number].op == "finish":
            latest = [one for queue, one in enumerate(self.last) if queue != own]
        else:
            before = before[before != NOBODY]
            theirs = self.queues[before]
            latest = [
                int(before[theirs == queue].max(initial=NOBODY))
                for queue in range(len(QUEUES))
                if queue != own
            ]
        for other in sorted(latest, reverse=True):
            queue = int(self.queues[other])
            if other == NOBODY or clock[queue] > self.places[other]:
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
        for task, pop, push in zip(self.tasks, self.pops, self.pushes, strict=True):
            values = list(task.values)
            values[PLACES[task.op]["pop"]], values[PLACES[task.op]["push"]] = pop, push
            made.append(Instruction(task.op, tuple(values)))
        return tuple(made)
