"""Happens-before order: queues run their tasks in order, tokens order tasks across queues.

Which token a task takes does not depend on timing: the k-th pop from a queue matches its k-th push.
So a stream has a unique happens-before relation, and either always or never deadlocks. `order`
computes both with vector clocks: task `b` begins after task `a` has ended if and only if
`clocks[b][queue of a] > position of a in its queue`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import QUEUE_DEPTH, QUEUES
from tilewright.accel.isa.text import print_instruction
from tilewright.base.errors import ExecutionError

Numbers = np.ndarray[Any, np.dtype[np.int64]]
NUMBER_OF_QUEUES = len(QUEUES)


@dataclass(frozen=True, slots=True)
class Order:
    sequence: tuple[int, ...]  # a topological order
    queues: Numbers  # the queue of every task
    positions: Numbers  # the position of every task in its queue
    clocks: Numbers  # number of tasks of each queue that have ended when a task begins
    left: dict[tuple[int, int], tuple[int, ...]]  # unmatched pushes, by (from, to)

    def before(self, first: int, second: int) -> bool:
        """Whether one task always ends before the other begins."""
        return bool(self.clocks[second, self.queues[first]] > self.positions[first])


def order(stream: Stream, seed: int | None = None) -> Order:
    """The order of a stream's tasks; with a seed, another topological order."""
    tasks = stream.instructions
    random = None if seed is None else np.random.default_rng(seed)
    queues = np.array([task.queue for task in tasks], np.int64)
    positions = np.zeros(len(tasks), np.int64)
    clocks = np.zeros((len(tasks), NUMBER_OF_QUEUES), np.int64)
    waiting: list[deque[int]] = [deque() for _ in QUEUES]
    tokens: dict[tuple[int, int], deque[int]] = {}
    ended: list[int | None] = [None] * NUMBER_OF_QUEUES  # the last task of each queue
    counts = [0] * NUMBER_OF_QUEUES
    sequence: list[int] = []
    fetched = 0
    while len(sequence) < len(tasks):
        while fetched < len(tasks) and len(waiting[queues[fetched]]) < QUEUE_DEPTH:
            waiting[queues[fetched]].append(fetched)
            fetched += 1
        ready = [
            queue[0]
            for own, queue in enumerate(waiting)
            if queue and all(tokens.get((other, own)) for other in tasks[queue[0]].pops())
        ]
        if not ready:
            raise _deadlock(stream, waiting, tokens, fetched)
        task = min(ready) if random is None else int(random.choice(ready))
        own = int(queues[task])
        waiting[own].popleft()
        positions[task], counts[own] = counts[own], counts[own] + 1
        for earlier in (ended[own], *(tokens[q, own].popleft() for q in tasks[task].pops())):
            if earlier is not None:
                np.maximum(clocks[task], clocks[earlier], out=clocks[task])
                clocks[task, queues[earlier]] = max(
                    clocks[task, queues[earlier]], positions[earlier] + 1
                )
        for other in tasks[task].pushes():
            tokens.setdefault((own, other), deque()).append(task)
        ended[own] = task
        sequence.append(task)
    left = {pair: tuple(pushed) for pair, pushed in tokens.items() if pushed}
    return Order(tuple(sequence), queues, positions, clocks, left)


def _deadlock(
    stream: Stream,
    waiting: list[deque[int]],
    tokens: dict[tuple[int, int], deque[int]],
    fetched: int,
) -> ExecutionError:
    names = [buffer.name for buffer in stream.buffers]
    told = []
    for own, queue in enumerate(waiting):
        if not queue:
            continue
        task = stream.instructions[queue[0]]
        missing = [QUEUES[other] for other in task.pops() if not tokens.get((other, own))]
        text = print_instruction(task, names)
        told.append(f"{queue[0]}: {text} waits for a token from {', '.join(missing)}")
    if fetched < len(stream.instructions):
        queue_name = QUEUES[stream.instructions[fetched].queue]
        told.append(f"the {queue_name} queue is full, so that {fetched} is not fetched")
    return ExecutionError(
        "TW7011",
        "the stream does not end: " + "; ".join(told),
        help="push a token for every pop, before it in the order of the stream",
    )
