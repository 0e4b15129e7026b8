"""The cycle model: when every task begins and ends.

    timing = cycles(stream)            # timing alone
    timing = cycles(stream, inputs)    # and the outputs, by the same behaviour as the simulator

What it knows, all of it from the table and the geometry:

- Fetch: instruction words come over the same bus, two bursts ahead, one task a cycle to its queue
  while there is room.
- Units begin their tasks in order, when the tokens are there. GEMM and ALU take a step a cycle, and
  forward results, so that no step waits for another of its unit; the next task begins behind the
  last step, results are visible some cycles later. Requantization waits for new parameters.
- Banks: GEMM and ALU own the banks of `acc` that a task touches until its results are visible; a
  task waits while the other unit owns one of them.
- Memory: a request a cycle and unit, a number of them in flight, the first data after the latency,
  data in the order of requests; reads and writes have channels of their own. Scratchpads take one
  entry a cycle.

`stalls` seeds random additional latency for every request. Written in Python to be read; a fast
one in C has to agree with it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.accel.accesses import accesses
from tilewright.accel.behaviour import Machine
from tilewright.accel.bursts import bursts
from tilewright.accel.isa.steps import Indices, box, check_extents, count_steps, steps
from tilewright.accel.isa.stream import Instruction, Stream, check_stream
from tilewright.accel.isa.table import (
    ACC_BANKS,
    ALU_FUNCTIONS,
    BURST_BEATS,
    IN_FLIGHT,
    QUEUE_DEPTH,
    QUEUES,
    REQUANT_RELOAD_CYCLES,
    depth,
    word_bytes,
)
from tilewright.accel.microcode import Microcode
from tilewright.accel.order import order
from tilewright.accel.simulate import prepare, results

Array = np.ndarray[Any, Any]
GEMM, ALU = QUEUES.index("gemm"), QUEUES.index("alu")
FETCH_AHEAD = 2  # bursts of instructions


@dataclass(frozen=True, slots=True)
class Timing:
    """Cycles of a stream: `begin` and `end` of every task, `total` until the host is told."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    total: int
    gemm_steps: int
    read_beats: int  # cycles in which the bus brings data, instructions included
    write_beats: int
    outputs: dict[str, Array] = field(default_factory=dict)

    @property
    def share_of_peak(self) -> float:
        """Steps of GEMM by cycles."""
        return self.gemm_steps / self.total


def cycles(
    stream: Stream, inputs: Mapping[str, Array] | None = None, stalls: int | None = None
) -> Timing:
    """Time a stream; one that does not end is refused (TW7011)."""
    check_stream(stream)
    check_extents(stream)
    order(stream)
    machine = None if inputs is None else Machine(stream, prepare(stream, inputs))
    model = _Model(stream, machine, stalls)
    model.run()
    return Timing(
        begin=tuple(model.begin),
        end=tuple(model.end),
        total=model.end[-1],
        gemm_steps=sum(count_steps(one) for one in stream.instructions if one.op == "gemm"),
        read_beats=model.reads.beats,
        write_beats=model.writes.beats,
        outputs={} if machine is None else results(stream, machine.memory),
    )


class _Channel:
    """One direction of the bus: data in the order of requests."""

    def __init__(self, latency_cycles: int, seed: int | None) -> None:
        self._latency = latency_cycles
        self._random = None if seed is None else np.random.default_rng(seed)
        self._free = 0
        self.beats = 0

    def _delay(self) -> int:
        if self._random is None:
            return self._latency
        return self._latency + int(self._random.integers(0, self._latency + 1))

    def read(self, now: int, beats: int) -> int:
        """When the last data of a request have come."""
        self._free = max(now + self._delay(), self._free) + beats
        self.beats += beats
        return self._free

    def write(self, now: int, beats: int) -> int:
        """When a write is acknowledged."""
        self._free = max(now, self._free) + beats
        self.beats += beats
        return self._free + self._delay()


@dataclass(slots=True)
class _Unit:
    waiting: deque[int] = field(default_factory=deque)
    free_at: int = 0  # when the next task may begin; meaningless while requests are left
    requests: deque[int] = field(default_factory=deque)  # beats, of the task that runs
    running: int = -1  # the task whose requests these are
    last_data: int = 0
    flying: deque[int] = field(default_factory=deque)  # when requests are answered
    last_end: int = 0


class _Model:
    def __init__(self, stream: Stream, machine: Machine | None, stalls: int | None) -> None:
        self.stream, self.machine = stream, machine
        self.microcode = Microcode(stream) if machine is None else machine.microcode
        self.begin = [-1] * len(stream.instructions)
        self.end = [-1] * len(stream.instructions)
        latency = stream.geometry.latency_cycles
        self.reads = _Channel(latency, stalls)
        self.writes = _Channel(latency, None if stalls is None else stalls + 1)
        self._units = [_Unit() for _ in QUEUES]
        self._tokens: Counter[tuple[int, int]] = Counter()
        self._banks: dict[int, Counter[int]] = {GEMM: Counter(), ALU: Counter()}
        self._held: dict[int, list[int]] = {}  # banks of a task
        self._events: list[tuple[int, int, str, int]] = []
        self._count = 0
        self._now = 0
        chunk = BURST_BEATS * stream.geometry.bus_bytes // word_bytes(stream.geometry)
        self._chunk = max(1, chunk)
        self._asked = self._arrived = self._sent = 0  # instructions
        self._may_send_at = 0

    # ----------------------------------------------------------------------- events

    def _at(self, time: int, kind: str, what: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, kind, what))

    def run(self) -> None:
        self._at(0, "wake")
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                _, _, kind, what = heapq.heappop(self._events)
                if kind == "end":
                    self._finish(what)
                elif kind == "request":
                    self._request(what)
                elif kind == "arrive":
                    self._arrived += what
            self._fetch()
            while self._start_one():
                self._fetch()

    def _fetch(self) -> None:
        """Ask for instructions ahead; send one a cycle to its queue."""
        total = len(self.stream.instructions)
        while self._asked < total and self._asked - self._sent <= self._chunk * (FETCH_AHEAD - 1):
            count = min(self._chunk, total - self._asked)
            size, bus = word_bytes(self.stream.geometry), self.stream.geometry.bus_bytes
            self._at(self.reads.read(self._now, -(-count * size // bus)), "arrive", count)
            self._asked += count
        if self._sent < self._arrived and self._may_send_at <= self._now:
            queue = self._units[self.stream.instructions[self._sent].queue].waiting
            if len(queue) < QUEUE_DEPTH:
                queue.append(self._sent)
                self._sent += 1
                self._may_send_at = self._now + 1
                self._at(self._now + 1, "wake")

    # ----------------------------------------------------------------------- tasks

    def _start_one(self) -> bool:
        """Begin a task that can; whether there was one."""
        for own, unit in enumerate(self._units):
            if not unit.waiting or unit.requests or unit.free_at > self._now:
                continue
            number = unit.waiting[0]
            task = self.stream.instructions[number]
            if not all(self._tokens[other, own] for other in task.pops()):
                continue
            uops = self.microcode.of(number, task)
            if own in self._banks and not self._take_banks(number, own, task, uops):
                continue
            unit.waiting.popleft()
            for other in task.pops():
                self._tokens[other, own] -= 1
            self._begin(number, task, unit, uops)
            return True
        return False

    def _take_banks(self, number: int, own: int, task: Instruction, uops: Indices) -> bool:
        size = depth("acc", self.stream.geometry)
        touched = {
            int(bank)
            for access in accesses(task, self.stream, uops)
            if access.memory == "acc"
            for bank in np.unique(access.entries * ACC_BANKS // size)
        }
        other = self._banks[ALU if own == GEMM else GEMM]
        if any(other[bank] for bank in touched):
            return False
        self._held[number] = sorted(touched)
        self._banks[own].update(self._held[number])
        return True

    def _begin(self, number: int, task: Instruction, unit: _Unit, uops: Indices) -> None:
        self.begin[number] = self._now
        if task.opcode.formats:
            area = box(task)
            entries = len(area.sram) + len(area.pads)
            unit.running, unit.free_at = number, self._now + max(1, entries)
            unit.last_data = self._now + entries
            unit.requests = deque(bursts(task, self.stream.geometry))
            if unit.requests:
                self._at(self._now + 1, "request", task.queue)
            else:
                self._ends(unit, task, unit.last_data)
        else:
            count = _compute_cycles(task, uops)
            unit.running, unit.free_at = number, self._now + max(1, count)
            self._ends(unit, task, self._now + count)
        if self.machine is not None:
            self.machine.execute(number)
        else:
            self.microcode.load(number, task)

    def _request(self, own: int) -> None:
        """The next request of a unit's transfer."""
        unit = self._units[own]
        task = self.stream.instructions[unit.running]
        while unit.flying and unit.flying[0] <= self._now:
            unit.flying.popleft()
        if len(unit.flying) >= IN_FLIGHT:
            self._at(unit.flying[0], "request", own)
            return
        beats = unit.requests.popleft()
        if task.op == "store":
            answered = self.writes.write(self._now + task.opcode.latency_cycles, beats)
        else:
            answered = self.reads.read(self._now, beats)
        unit.flying.append(answered)
        unit.last_data = max(unit.last_data, answered)
        if unit.requests:
            self._at(self._now + 1, "request", own)
            return
        unit.free_at = max(unit.free_at, self._now + 1)
        self._ends(unit, task, unit.last_data)

    def _ends(self, unit: _Unit, task: Instruction, done: int) -> None:
        """A task's results are visible some cycles after its last work, in the queue's order."""
        unit.last_end = max(unit.last_end, done + task.opcode.latency_cycles)
        self._at(unit.last_end, "end", unit.running)
        self._at(unit.free_at, "wake")

    def _finish(self, number: int) -> None:
        task = self.stream.instructions[number]
        self.end[number] = self._now
        for other in task.pushes():
            self._tokens[task.queue, other] += 1
        if number in self._held:
            self._banks[task.queue].subtract(self._held.pop(number))


def _compute_cycles(task: Instruction, uops: Indices) -> int:
    """Cycles in which a task begins steps."""
    if task.op == "finish":
        return 0
    count = count_steps(task)
    if task.op == "alu" and ALU_FUNCTIONS[task["fn"]] == "requant" and count:
        changes = int(np.count_nonzero(np.diff(steps(task, uops).aux)))
        count += (changes + 1) * REQUANT_RELOAD_CYCLES
    return count
