"""Cycle-accurate model: begin and end of every task.

    timing = cycles(stream)            # timing only
    timing = cycles(stream, inputs)    # and outputs, as in the simulator

The same machine as the RTL, to the cycle; docs/internals/accelerator-rtl.md describes its
pipelines. The model, derived from the table and the geometry:

- Fetch: instruction words are read over the same bus, two bursts ahead, and dispatched at one task
  per cycle while the queues have room.
- Units begin their tasks in order, when the tokens are available. GEMM takes one cycle per step,
  the ALU one per operand of a step in the same bank; both forward results, so that no step waits
  for another of its unit. Requantization stalls for new parameters.
- Banks: GEMM, ALU and store own the banks of `acc` that a task names until its results are visible;
  a task waits while another unit owns one of them. A write by `aux` stalls the owner of its bank
  for a cycle.
- Memory: one request per cycle, fetch before aux before load, with a limit in flight per unit;
  the first data comes after the latency, in the order of requests; reads and writes have separate
  channels. Loads write their entries and padding in order, one word per cycle, and block the bus
  during padding. Meanwhile a unit sends the requests of its next transfers.

`stalls` seeds random additional latency for every request. The model is written in Python for
readability; an equivalent one is in C.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.accel.behaviour import Machine
from tilewright.accel.bursts import Request, requests
from tilewright.accel.isa.steps import Indices, check_extents, count_entries, count_steps, steps
from tilewright.accel.isa.stream import Instruction, Stream, check_stream
from tilewright.accel.isa.table import (
    ACC_BANKS,
    AHEAD,
    ALU_FUNCTIONS,
    ALU_GAP_CYCLES,
    BURST_BEATS,
    FETCH_AHEAD,
    IN_FLIGHT,
    QUEUE_DEPTH,
    QUEUES,
    REQUANT_RELOAD_CYCLES,
    REQUANTIZING,
    bank_of,
    depth,
    dram_bytes,
    word_bytes,
)
from tilewright.accel.microcode import Microcode
from tilewright.accel.order import order
from tilewright.accel.simulate import prepare, results

Array = np.ndarray[Any, Any]
LOAD, AUX, GEMM, ALU, STORE = range(len(QUEUES))
OWNERS = (GEMM, ALU, STORE)  # units that own banks of `acc`
BY_PRIORITY = (AUX, LOAD)  # on the bus, after fetch


@dataclass(frozen=True, slots=True)
class Timing:
    """Cycles of a stream: `begin` and `end` of every task, `total` until the host is notified."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    total: int
    gemm_steps: int
    read_beats: int  # cycles with data on the bus, including instructions
    write_beats: int
    outputs: dict[str, Array] = field(default_factory=dict)

    @property
    def share_of_peak(self) -> float:
        """Utilization: steps of GEMM per cycle."""
        return self.gemm_steps / self.total


def cycles(
    stream: Stream, inputs: Mapping[str, Array] | None = None, stalls: int | None = None
) -> Timing:
    """Time a stream; a deadlock is an error (TW7011)."""
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
        read_beats=model.read_beats,
        write_beats=model.write_beats,
        outputs={} if machine is None else results(stream, machine.memory),
    )


class Delay:
    """Cycles from a request to its first data, or from written data to the acknowledgement."""

    def __init__(self, latency_cycles: int, seed: int | None) -> None:
        self._latency = latency_cycles
        self._state = None if seed is None else (seed * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF or 1

    def next(self) -> int:
        """The latency; with a seed, up to twice as much, by Marsaglia's xorshift."""
        if self._state is None:
            return self._latency
        x = self._state
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        self._state = x
        return self._latency + x % (self._latency + 1)


@dataclass(slots=True)
class _Ending:
    """A task between its begin and end, and the banks that it owns."""

    time: int
    number: int
    banks: int = 0


@dataclass(slots=True)
class _Unit:
    waiting: deque[int] = field(default_factory=deque)
    free_at: int = 0  # when the next task may begin; invalid while requests are pending
    ends: deque[_Ending] = field(default_factory=deque)
    # For units that read DRAM:
    running: int = -1  # the task of the current requests
    requests: deque[Request] = field(default_factory=deque)
    flying: deque[int] = field(default_factory=deque)  # completion times of pending requests
    setups: deque[int] = field(default_factory=deque)  # times when the writer began its tasks
    writer: int = 0  # when the writer can take the next word
    entry: int = 0  # the entry being written
    words: int = 0  # words written of that entry


class _Model:
    def __init__(self, stream: Stream, machine: Machine | None, stalls: int | None) -> None:
        self.stream, self.machine = stream, machine
        self.microcode = Microcode(stream) if machine is None else machine.microcode
        self.begin = [-1] * len(stream.instructions)
        self.end = [-1] * len(stream.instructions)
        self.read_beats = self.write_beats = 0
        latency = stream.geometry.latency_cycles
        self._read_delay = Delay(latency, stalls)
        self._write_delay = Delay(latency, None if stalls is None else stalls + 1)
        self._bus_free = 0
        self._answers: deque[int] = deque([-1] * IN_FLIGHT)  # when the last writes were answered
        self._units = [_Unit() for _ in QUEUES]
        self._tokens: Counter[tuple[int, int]] = Counter()
        self._steals: list[tuple[int, int]] = []  # times and banks of writes by aux
        self._wakes: list[int] = []
        self._now = 0
        size, bus = word_bytes(stream.geometry), stream.geometry.bus_bytes
        self._chunk = max(1, BURST_BEATS * bus // size)
        self._asked = self._sent = 0  # instructions
        self._arrivals: deque[int] = deque()  # arrival times of undispatched instructions

    # ----------------------------------------------------------------------- cycles

    def run(self) -> None:
        self._wake(0)
        while self._wakes:
            self._now = heapq.heappop(self._wakes)
            while self._wakes and self._wakes[0] == self._now:
                heapq.heappop(self._wakes)
            self._cycle()

    def _wake(self, time: int) -> None:
        heapq.heappush(self._wakes, time)

    def _cycle(self) -> None:
        """Simulate one cycle, from the state of all registers at its beginning."""
        now, total = self._now, len(self.stream.instructions)
        for own, unit in enumerate(self._units):
            while unit.ends and unit.ends[0].time <= now:
                self._finish(own, unit.ends.popleft())
        while self._steals and self._steals[0][0] <= now:
            self._steal(heapq.heappop(self._steals)[1])
        wants = self._asked < total and self._asked - self._sent <= self._chunk * (FETCH_AHEAD - 1)
        sends = self._sends()
        for own in range(len(QUEUES)):
            self._try_begin(own)
        if sends is not None:
            sends.waiting.append(self._sent)
            self._sent += 1
            self._arrivals.popleft()
            self._wake(now + 1)
        self._grant(wants)

    def _sends(self) -> _Unit | None:
        """The unit that an instruction is dispatched to in this cycle."""
        if not self._arrivals or self._arrivals[0] > self._now:
            return None
        unit = self._units[self.stream.instructions[self._sent].queue]
        return unit if len(unit.waiting) < QUEUE_DEPTH else None

    def _grant(self, fetch_wants: bool) -> None:
        """Arbitrate one request: of fetch, aux or load."""
        if fetch_wants:
            count = min(self._chunk, len(self.stream.instructions) - self._asked)
            size, bus = word_bytes(self.stream.geometry), self.stream.geometry.bus_bytes
            beats = -(-count * size // bus)
            first = max(self._now + self._read_delay.next(), self._bus_free)
            self._bus_free = first + beats
            self.read_beats += beats
            for at in range(count):
                self._arrivals.append(first - (-(at + 1) * size // bus))
                self._wake(self._arrivals[-1])
            self._asked += count
            self._wake(self._now + 1)
            return
        for own in BY_PRIORITY:
            unit = self._units[own]
            while unit.flying and unit.flying[0] <= self._now:
                unit.flying.popleft()
            if unit.requests and self.begin[unit.running] < self._now:
                if len(unit.flying) < IN_FLIGHT:
                    self._request(unit)
                    self._wake(self._now + 1)
                    return
                self._wake(unit.flying[0])

    # ----------------------------------------------------------------------- tasks

    def _try_begin(self, own: int) -> None:
        unit, now = self._units[own], self._now
        if not unit.waiting or unit.requests or unit.free_at > now:
            return
        number = unit.waiting[0]
        task = self.stream.instructions[number]
        if not all(self._tokens[other, own] for other in task.pops()):
            return
        if own in (LOAD, AUX):
            while unit.setups and unit.setups[0] < now:
                unit.setups.popleft()
            if len(unit.setups) >= AHEAD:
                self._wake(unit.setups[0] + 1)
                return
        banks = _owned_banks(task)
        taken = [end.banks for other in OWNERS if other != own for end in self._units[other].ends]
        if any(banks & one for one in taken):
            return
        unit.waiting.popleft()
        for other in task.pops():
            self._tokens[other, own] -= 1
        self.begin[number] = now
        if own in (LOAD, AUX):
            self._begin_transfer(number, task, unit)
        elif own == STORE:
            self._begin_store(number, task, unit, banks)
        else:
            self._begin_steps(number, task, unit, banks)
        if self.machine is not None:
            self.machine.execute(number)
        else:
            self.microcode.load(number, task)
        self._wake(now + 1)

    def _begin_steps(self, number: int, task: Instruction, unit: _Unit, banks: int) -> None:
        uops = self.microcode.of(number, task)
        count = max(1, _compute_cycles(task, uops, self.stream))
        unit.free_at = self._now + count + _gap_cycles(task)
        unit.ends.append(_Ending(self._now + count + task.opcode.latency_cycles, number, banks))
        self._wake(unit.free_at)
        self._wake(unit.ends[-1].time)

    def _begin_transfer(self, number: int, task: Instruction, unit: _Unit) -> None:
        """Requests begin in the next cycle; the writer begins the task when it is free."""
        unit.running, unit.free_at = number, self._now + 1
        unit.requests = deque(requests(task, self.stream.geometry))
        setup = max(self._now + 1, unit.writer)
        unit.setups.append(setup)
        unit.writer, unit.entry, unit.words = setup + 1, task["sram"], 0
        if unit.requests:
            self._pad(unit, unit.requests[0].pads)
        else:
            self._pad(unit, count_entries(task))
            unit.writer = max(unit.writer, setup + 2)
            self._end_transfer(unit)

    def _request(self, unit: _Unit) -> None:
        """Issue the next request of a unit's transfer; computes when its data arrive and are
        written."""
        task = self.stream.instructions[unit.running]
        request = unit.requests.popleft()
        first = max(self._now + self._read_delay.next(), self._bus_free, unit.writer)
        self._bus_free = unit.writer = first + request.words
        self.read_beats += request.beats
        unit.flying.append(self._bus_free)
        per_entry = max(1, dram_bytes(task.format, self.stream.geometry) // _bus(self.stream))
        for at in range(request.words):
            unit.words += 1
            if unit.words == per_entry:
                self._write_entry(unit, first + at)
        if unit.requests:
            self._pad(unit, unit.requests[0].pads)
            return
        done = unit.entry - task["sram"]
        self._pad(unit, count_entries(task) - done)
        unit.free_at = self._now + 1
        self._end_transfer(unit)

    def _pad(self, unit: _Unit, count: int) -> None:
        for _ in range(count):
            self._write_entry(unit, unit.writer)
            unit.writer += 1

    def _write_entry(self, unit: _Unit, time: int) -> None:
        """Record an entry that the writer completes; in `acc` it is written a cycle later."""
        task = self.stream.instructions[unit.running]
        if task.format.memory == "acc":
            heapq.heappush(self._steals, (time + 1, bank_of(unit.entry, self.stream.geometry)))
            self._wake(time + 1)
        unit.entry += 1
        unit.words = 0

    def _end_transfer(self, unit: _Unit) -> None:
        unit.ends.append(_Ending(unit.writer + 1, unit.running))
        self._wake(unit.ends[-1].time)

    def _begin_store(self, number: int, task: Instruction, unit: _Unit, banks: int) -> None:
        """An address, its words, the next address. The write channel has no other users."""
        at = self._now + 1
        found = list(requests(task, self.stream.geometry)) if task.op == "store" else []
        for one in found:
            at = max(at, self._answers.popleft() + 1)
            answer = at + one.words + self._write_delay.next()
            at += one.words + 1
            self.write_beats += one.beats
            self._answers.append(max(answer, self._answers[-1] + 1))
        if not found:  # an acknowledgement that is already due
            at = max(at, self._answers.popleft() + 1) + 1
            self._answers.append(max(at, self._answers[-1] + 1))
        unit.free_at = at
        end = self._answers[-1] + task.opcode.latency_cycles
        unit.ends.append(_Ending(end, number, banks))
        self._wake(unit.free_at)
        self._wake(end)

    def _finish(self, own: int, ending: _Ending) -> None:
        self.end[ending.number] = ending.time
        for other in self.stream.instructions[ending.number].pushes():
            self._tokens[own, other] += 1

    def _steal(self, bank: int) -> None:
        """Stall the owner of a bank for this cycle."""
        for own in (GEMM, ALU):
            unit = self._units[own]
            if any(ending.banks >> bank & 1 for ending in unit.ends):
                unit.free_at = max(unit.free_at, self._now) + 1
                self._wake(unit.free_at)
                for ending in unit.ends:
                    ending.time += 1
                    self._wake(ending.time)


def _bus(stream: Stream) -> int:
    return stream.geometry.bus_bytes


def _gap_cycles(task: Instruction) -> int:
    """Cycles from the last step until the next task of the unit may begin."""
    if task.op == "gemm":
        return 0
    is_late = ALU_FUNCTIONS[task["fn"]] == "rescale"
    return task.opcode.latency_cycles if is_late else ALU_GAP_CYCLES


def _owned_banks(task: Instruction) -> int:
    """Banks of `acc` that a task owns, as a mask."""
    if task.op in ("gemm", "alu") or (task.op == "store" and task.format.memory == "acc"):
        return task["banks"]
    return 0


def _compute_cycles(task: Instruction, uops: Indices, stream: Stream) -> int:
    """Cycles in which a task issues steps."""
    count = count_steps(task)
    if task.op == "gemm" or not count:
        return count
    found = steps(task, uops)
    function = ALU_FUNCTIONS[task["fn"]]
    if function in REQUANTIZING:
        changes = int(np.count_nonzero(np.diff(found.aux)))
        return count + (changes + 1) * REQUANT_RELOAD_CYCLES
    reads = [found.src]
    if not task["imm"]:
        reads.append(found.aux)
    if function == "mac":
        reads.append(found.dst)
    banks = np.stack(reads) * ACC_BANKS // depth("acc", stream.geometry)
    most = np.max([(banks == bank).sum(0) for bank in range(ACC_BANKS)], 0)
    return int(most.sum())
