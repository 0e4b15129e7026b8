"""SIMT execution: every value is a NumPy array with one row per thread.

A kernel runs all threads of several blocks at once, statement by statement, under a mask of active
threads. Missing barriers are still found: for every element it is recorded who accessed it since
the last barrier.

Concurrency is nested in *levels*: the blocks of a kernel, the threads of a block, and below them
the iterations of virtual-thread and vector loops. At each level a lane has an identity, and
everything between two barriers is one *phase*. Two lanes of different identity at some level race
when they access one element in the same phase of that level, and one of them stores a value that
the other does not store too.

A lane's column dimension holds the elements of short vectors: a scalar is of shape (lanes, 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.sym import Var
from tilewright.tensor.interp.failures import Failures
from tilewright.tensor.interp.memory import (
    EVERYWHERE,
    Memory,
    Radices,
    Shadow,
    garbage,
    next_stamp,
)
from tilewright.tensor.ir import BLOCK_LEVEL, CLUSTER_AXIS, THREAD_LEVEL, Buffer, level_of
from tilewright.tensor.scopes import MemoryScope, Owner

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_] | None  # None: every lane
BLOCK, THREAD, VTHREAD, VECTOR = "block", "thread", "vthread", "vector"

_MAX_LANES = 8192  # run together, unless one block has more
_MAX_ELEMENTS = 1 << 25  # of memory private to threads


class Level:
    """One level of concurrency. `phases` holds the current phase of each group of lanes."""

    __slots__ = ("advances", "kind", "loop", "phases")
    # No two groups are ever in the same phase, and none is in phase 0; later is greater.
    _next = itertools.count(1).__next__

    def __init__(self, kind: str, groups: int, loop: Var | None = None) -> None:
        self.kind = kind
        self.loop = loop  # of iterations
        self.phases = np.empty(groups, np.int64)
        self.advances = 0
        self.advance()

    def advance(self, groups: Ints | None = None) -> None:
        """What these groups did so far is over."""
        if groups is None:
            groups = np.arange(len(self.phases))
        self.phases[groups] = (Level._next() << 32) + groups
        self.advances += 1


@dataclass(frozen=True, slots=True)
class Place:
    """The elements an access touches: positions for the lanes that take part."""

    positions: Ints
    mask: Mask  # of shape `shape`
    shape: tuple[int, int]
    lanes: Ints  # the lane of each position
    size: int  # of one copy of the buffer


Copied = tuple[Memory, Place, Any]  # what a copy under way will have stored, and where


@dataclass(frozen=True, slots=True)
class Moment:
    """Who touches the elements of a place at one level, and in which phases."""

    phase: Ints
    me: Ints
    earliest: int
    latest: int

    @classmethod
    def of(cls, phase: Ints, me: Ints) -> Moment:
        none = not len(phase)
        return cls(phase, me, 0 if none else int(phase.min()), -1 if none else int(phase.max()))


class Lanes:
    """A set of lanes: `ids[k]` their identities at level k, `slots[k]` numbered from zero."""

    def __init__(
        self,
        failures: Failures,
        count: int,
        levels: tuple[Level, ...] = (),
        ids: tuple[Ints, ...] = (),
        slots: tuple[Ints, ...] = (),
        axes: dict[str, Ints] | None = None,
        starts: tuple[int, ...] = (),
        origin: Ints | None = None,
    ) -> None:
        self.failures = failures
        self.count = count
        self.levels = levels
        self.ids = ids
        self.slots = slots
        self.axes = {} if axes is None else axes  # positions along thread axes
        self.starts = starts  # of iterations, where a level is a loop
        self.origin = origin  # the lanes of another set that these were made from
        self.all = np.arange(count)
        self.moments: dict[tuple[int, int], tuple[int, Moment]] = {}  # of all lanes, see `_moment`
        self.memories: dict[object, Memory] = {}
        self.begun: list[Copied] = []  # asynchronous copies since the last group
        self.copies: list[list[Copied]] = []  # groups of them that may not have landed
        # When each thread executed its last fence: at all, and before its last barrier.
        self.fences = self.fenced = np.zeros(0, np.int64)

    # ------------------------------------------------------------------ control

    def narrow(self, mask: Mask, cond: Any) -> NDArray[np.bool_]:
        """The lanes of `mask` where `cond` holds."""
        wide = np.broadcast_to(cond, np.broadcast_shapes(np.shape(cond), (self.count, 1)))
        return wide if mask is None else wide & mask

    def loop(self, start: Any, stop: Any, mask: Mask) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """Iterations of a serial loop whose bounds differ between lanes."""
        first = np.broadcast_to(start, (self.count, 1))
        trips = np.broadcast_to(stop, (self.count, 1)) - first
        longest = int(np.max(trips if mask is None else trips[mask], initial=0))
        for trip in range(longest):
            yield first + trip, self.narrow(mask, trips > trip)

    def expand(
        self, kind: str, loop: Var, start: int, stop: int, mask: Mask
    ) -> tuple[Lanes, Mask, Ints]:
        """A lane per iteration of a loop, all of them concurrent: lanes, mask, loop variable."""
        trips = max(0, stop - start)
        count = self.count * trips
        groups = int(self.slots[-1].max(initial=-1)) + 1 if self.slots else 1
        iteration = np.tile(np.arange(trips), self.count)
        owner = np.repeat(self.slots[-1] if self.slots else np.zeros(self.count, np.int64), trips)
        inner = Lanes(
            self.failures,
            count,
            (*self.levels, Level(kind, groups, loop)),
            (*(np.repeat(x, trips) for x in self.ids), iteration),
            (*(np.repeat(x, trips) for x in self.slots), owner * trips + iteration),
            {axis: np.repeat(x, trips, axis=0) for axis, x in self.axes.items()},
            (*self.starts, start),
            np.repeat(self.all, trips),
        )
        inner.memories, inner.fenced = self.memories, self.fenced
        wider = None if mask is None else np.repeat(mask, trips, axis=0)
        return inner, wider, (iteration + start)[:, None]

    def seen(self, value: Any) -> Any:
        """A value of the lanes that these were made from."""
        if not isinstance(value, np.ndarray) or len(value) == 1:
            return value
        return value[self.origin]

    def together(
        self,
        axes: tuple[str, ...],
        outputs: tuple[Memory, ...],
        mask: Mask,
        at: int,
        values: tuple[Any, ...],
    ) -> tuple[Lanes, Mask]:
        """One lane for each group of threads that does something together: lanes, mask.

        The threads of a group have the same positions along `axes`. Where an output belongs to a
        thread, each thread is a group.
        """
        if any(memory.owner > 1 for memory in outputs):
            made = self._picked(self.all)
            return made, mask
        group = self._copies(self._radices(axes))
        _, leaders, member = np.unique(group, return_index=True, return_inverse=True)
        if mask is None:
            return self._picked(leaders), None
        arrived = np.bincount(member, mask[:, 0], len(leaders))
        missing = (arrived > 0) & (arrived < np.bincount(member, minlength=len(leaders)))
        if missing.any():
            self._diverge("tensor call", missing[member], mask, at, values)
        return self._picked(leaders[arrived > 0]), None

    def _picked(self, rows: Ints) -> Lanes:
        """Some of the lanes."""
        made = Lanes(
            self.failures,
            len(rows),
            self.levels,
            tuple(x[rows] for x in self.ids),
            tuple(x[rows] for x in self.slots),
            {axis: x[rows] for axis, x in self.axes.items()},
            self.starts,
            rows,
        )
        made.memories, made.fenced = self.memories, self.fenced
        return made

    # ------------------------------------------------------------------ memory

    def alloc(self, buffer: Buffer, shape: tuple[int, ...], axes: tuple[str, ...]) -> Memory:
        """Memory of a buffer that comes into being here, inside loops on `axes`.

        The same storage serves whenever the statement runs again, as it does on a machine: who
        touched it since the last barrier is remembered, what it holds is not.
        """
        radices: Radices = ()
        if buffer.memory.owner is Owner.UNIT and self.levels[0].kind == BLOCK:
            owner, radices = 1, self._radices(axes)
            copies = math.prod(radix for _, radix in radices)
        elif buffer.memory.owner is Owner.CLUSTER and self.levels[0].kind == BLOCK:
            owner, radices = 1, self._clusters()
            copies = math.prod(radix for _, radix in radices)
        else:
            threaded = any(level_of(axis) == THREAD_LEVEL for axis in axes)
            owner = self._level_of_owner(buffer.memory, threaded)
            copies = int(self.slots[owner - 1].max(initial=-1)) + 1 if owner else 1
        key = (buffer, shape, self.count, copies)
        found = self.memories.get(key)
        if found is not None:
            found.forget()
            return found
        made = self.memories[key] = Memory.of_lanes(buffer, shape, owner, copies)
        made.radices = radices
        return made

    def _radices(self, axes: tuple[str, ...]) -> Radices:
        """What tells groups of threads apart: their block, their positions along `axes` and in
        the loops below, each with the number of its values.
        """
        parts: list[tuple[str | int, Ints]] = [(0, self.slots[0])]
        parts += [(axis, self.axes[axis]) for axis in axes if level_of(axis) == THREAD_LEVEL]
        parts += [(level, self.ids[level]) for level in range(2, len(self.levels))]
        return tuple((part, int(numbers.max(initial=-1)) + 1) for part, numbers in parts)

    def _clusters(self) -> Radices:
        """What tells clusters apart: positions along all axes of blocks but that of a cluster."""
        axes = [axis for axis in self.axes if level_of(axis) == BLOCK_LEVEL]
        extents = {axis: int(self.axes[axis].max(initial=-1)) + 1 for axis in axes}
        extents.pop(CLUSTER_AXIS, None)
        return ((EVERYWHERE, 1), *extents.items())

    def _copies(self, radices: Radices) -> Ints:
        """The number of each lane's group."""
        (first, _), *others = radices
        number = np.zeros(self.count, np.int64) if first == EVERYWHERE else self.slots[0]
        for part, radix in others:
            mine = self.axes[part][:, 0] if isinstance(part, str) else self.ids[part]
            number = number * radix + mine
        return number

    def _copy(self, memory: Memory) -> Ints:
        """The copy of a memory that each lane uses."""
        return self._copies(memory.radices) if memory.radices else self.slots[memory.owner - 1]

    def _level_of_owner(self, memory: MemoryScope, is_threaded: bool) -> int:
        """At how many levels each has a copy: shared memory belongs to a block, the rest to where
        it comes into being (a thread, an iteration), local memory at least to a thread.
        """
        in_kernel = self.levels[0].kind == BLOCK
        if memory.owner is Owner.BLOCK:
            return 1 if in_kernel else 0
        if not in_kernel or len(self.levels) > 2:
            return len(self.levels)
        return 1 if memory.owner is Owner.DEVICE and not is_threaded else 2

    def locate(
        self,
        memory: Memory,
        index: tuple[Any, ...],
        mask: Mask,
        what: str,
        at: int,
        values: tuple[Any, ...],
    ) -> Place:
        """The elements an access touches, checked to exist."""
        shape = memory.shape if len(memory.shape) == len(index) else (memory.size,)
        position: Any = 0
        for i, extent in zip(index, shape, strict=True):
            self._check_bounds(memory, index, i, extent, mask, what, at, values)
            position = position * extent + i
        arrays = [x for x in (*index, mask) if isinstance(x, np.ndarray) and x.ndim == 2]
        columns = max((x.shape[1] for x in arrays), default=1)
        full = (self.count, columns)
        if memory.owner:
            position = position + (self._copy(memory) * memory.size)[:, None]
        lanes = self.all if columns == 1 else np.repeat(self.all, columns)
        positions = spread(position, full)
        if mask is None:
            return Place(positions.reshape(-1), None, full, lanes, memory.size)
        active = spread(mask, full)
        return Place(positions[active], active, full, lanes[active.reshape(-1)], memory.size)

    def _check_bounds(
        self,
        memory: Memory,
        index: tuple[Any, ...],
        i: Any,
        extent: int,
        mask: Mask,
        what: str,
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        if not isinstance(i, np.ndarray):
            if 0 <= i < extent or (mask is not None and not mask.any()):
                return
            bad: Any = True
        elif not i.size or (i.min() >= 0 and i.max() < extent):
            return
        else:
            bad = (i < 0) | (i >= extent)
        wrong = self.first(bad, mask)
        if wrong is not None:
            picked = tuple(pick(x, *wrong) for x in index)
            self.failures.bounds(at, picks(values, wrong), what, memory, picked)

    def first(self, bad: Any, mask: Mask) -> tuple[int, int] | None:
        """The row and column of the first active lane where `bad` holds."""
        if not np.any(bad):
            return None
        wrong = np.argwhere(self.narrow(mask, bad))
        return (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None

    def require(
        self, ok: Any, mask: Mask, fail: Any, at: int, values: tuple[Any, ...], *args: Any
    ) -> None:
        """Call `fail` for the first active lane where `ok` is false, with what that lane sees."""
        if np.all(ok):
            return
        lane = self.first(np.logical_not(ok), mask)
        if lane is not None:
            seen = [
                picks(arg, lane)
                if isinstance(arg, tuple)
                else pick(arg, *lane)
                if isinstance(arg, np.ndarray)
                else arg
                for arg in args
            ]
            fail(at, picks(values, lane), *seen)

    def _lane_of(self, place: Place, number: int) -> tuple[int, int]:
        """The row and column of one of the positions of a place."""
        if place.mask is None:
            return int(place.lanes[number]), number % place.shape[1]
        row, column = np.argwhere(place.mask)[number]
        return int(row), int(column)

    def load(
        self, memory: Memory, place: Place, tracked: bool, at: int, values: tuple[Any, ...]
    ) -> Any:
        """What the lanes that take part read; zero for the others."""
        positions = place.positions
        if memory.is_written is not None and not memory.is_written[positions].all():
            wrong = int(np.argmin(memory.is_written[positions]))
            shown = picks(values, self._lane_of(place, wrong))
            self.failures.uninitialised(at, shown, memory, int(positions[wrong]))
        if tracked:
            for level in range(memory.owner, len(self.levels)):
                self._note_read(memory, place, level, at, values)
        found = memory.data[positions]
        if place.mask is None:
            return found.reshape(place.shape)
        result = np.zeros(place.shape, found.dtype)
        result[place.mask] = found
        return result

    def store(
        self,
        memory: Memory,
        place: Place,
        value: Any,
        tracked: bool,
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        """Store a value per lane."""
        positions = place.positions
        wide = spread(value, place.shape)
        flat = (wide.reshape(-1) if place.mask is None else wide[place.mask]).astype(
            memory.data.dtype, copy=False
        )
        if tracked:
            for level in range(memory.owner, len(self.levels)):
                self._note_write(memory, place, level, flat, at, values)
        memory.data[positions] = flat
        if tracked and memory.owner < len(self.levels):
            self._check_same_store(memory, place, flat, at, values)
        if memory.is_written is not None:
            memory.is_written[positions] = True
        if memory.log is not None:
            memory.log.thread[positions] = self.slots[1][place.lanes]
            memory.log.when[positions] = next_stamp()

    def fence(self, mask: Mask) -> None:
        """Asynchronous instructions see what these threads have stored."""
        if not len(self.fences):
            self.fences, self.fenced = (np.zeros(self.count, np.int64) for _ in range(2))
        here = self.all if mask is None else np.flatnonzero(mask[:, 0])
        self.fences[self.slots[1][here]] = next_stamp()

    def check_fenced(self, memory: Memory, place: Place, at: int, values: tuple[Any, ...]) -> None:
        """An asynchronous instruction sees what threads stored here."""
        log, e = memory.log, place.positions
        if log is None:
            return
        unseen = log.when[e] > (self.fenced[log.thread[e]] if len(self.fenced) else 0)
        if unseen.any():
            wrong = int(np.argmax(unseen))
            self.failures.unfenced(
                at, picks(values, self._lane_of(place, wrong)), memory, int(e[wrong])
            )

    def begin_copy(
        self, memory: Memory, place: Place, value: Any, at: int, values: tuple[Any, ...]
    ) -> None:
        """A store by which from now on nothing is there, until its group has been waited for."""
        self.store(memory, place, garbage(memory.buffer), True, at, values)
        assert memory.is_written is not None
        memory.is_written[place.positions] = False
        self.begun.append((memory, place, value))

    def commit_copies(self) -> None:
        self.copies.append(self.begun)
        self.begun = []

    def wait_for_copies(self, newer: int, at: int, values: tuple[Any, ...]) -> None:
        """All groups but so many of the newest land; other threads see it behind a barrier."""
        landed = max(0, len(self.copies) - newer)
        for memory, place, value in (each for group in self.copies[:landed] for each in group):
            self.store(memory, place, value, True, at, values)
        del self.copies[:landed]

    def stamp(self, memory: Memory, place: Place) -> None:
        """Number the stored values, see `Memory.stamps`."""
        stamp = next_stamp() << 32
        memory.stamps[place.positions] = stamp + np.arange(len(place.positions))

    def check_repeated(
        self,
        done: dict[str, Ints],
        domain: int,
        key: Any,
        memory: Memory,
        place: Place,
        block: str,
        point: tuple[Any, ...],
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        """No lane adds twice to the same value with the same iterators."""
        if "stamps" not in done:
            done["stamps"] = np.full(domain, -1, np.int64)
        stamps = memory.stamps[place.positions]
        keys = spread(key, (self.count, 1))[:, 0][place.lanes]
        again = done["stamps"][keys] == stamps
        if again.any():
            wrong = int(np.argmax(again))
            lane = self._lane_of(place, wrong)
            element = int(place.positions[wrong])
            self.failures.repeated(
                at, picks(values, lane), memory, element, block, picks(point, lane)
            )
        done["stamps"][keys] = stamps

    def call_each(
        self,
        function: Any,
        mask: Mask,
        args: tuple[Any, ...],
        failures: Failures,
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        """Call something outside once per lane."""
        for row in self.all if mask is None else np.flatnonzero(mask[:, 0]):
            mine = [self._of_lane(arg, int(row)) for arg in args]
            function(*mine, failures, at, picks(values, (int(row), 0)))

    def _of_lane(self, value: Any, row: int) -> Any:
        """What one lane sees of an argument, nested tuples included."""
        if isinstance(value, tuple):
            return tuple(self._of_lane(item, row) for item in value)
        if isinstance(value, Memory):
            return value.copy_of(int(self._copy(value)[row]) if value.owner else 0)
        if isinstance(value, Place):
            return int(value.positions[np.flatnonzero(value.lanes == row)[0]]) % value.size
        return value[row, 0] if isinstance(value, np.ndarray) else value

    # ------------------------------------------------------------------ races

    def _moment(self, place: Place, level: int) -> Moment:
        if place.mask is None:
            return self._moment_of_all(level, place.shape[1])
        now, lanes = self._moment_of_all(level, 1), place.lanes
        return Moment.of(now.phase[lanes], now.me[lanes])

    def _moment_of_all(self, level: int, columns: int) -> Moment:
        """That of an access by every lane; remembered until the level advances."""
        concurrent, me = self.levels[level], self.ids[level]
        known = self.moments.get((level, columns))
        if known is not None and known[0] == concurrent.advances:
            return known[1]
        group = self.slots[level - 1] if level else np.zeros(self.count, np.int64)
        phase = concurrent.phases[group]
        if columns > 1:
            phase, me = np.repeat(phase, columns), np.repeat(me, columns)
        made = Moment.of(phase, me)
        self.moments[level, columns] = (concurrent.advances, made)
        return made

    def _note_read(
        self, memory: Memory, place: Place, level: int, at: int, values: tuple[Any, ...]
    ) -> None:
        shadow, e = memory.shadow(level), place.positions
        now = self._moment(place, level)
        phase, me = now.phase, now.me
        if shadow.latest_write >= now.earliest:
            clash = (shadow.write_phase[e] == phase) & (shadow.writer[e] != me)
            if clash.any():
                wrong = int(np.argmax(clash))
                other = int(shadow.writer[e[wrong]])
                self._race(memory, place, level, wrong, "read", other, "written", at, values)
        if shadow.latest_read < now.earliest:
            self._note_first_read(shadow, e, phase, me)
        else:
            fresh = shadow.read_phase[e] != phase
            if fresh.any():
                self._note_first_read(shadow, e[fresh], phase[fresh], me[fresh])
        shadow.latest_read = max(shadow.latest_read, now.latest)
        others = shadow.reader[e] != me
        if others.any():
            shadow.reader_too[e[others]] = me[others]

    @staticmethod
    def _note_first_read(shadow: Shadow, e: Ints, phase: Ints, me: Ints) -> None:
        shadow.read_phase[e] = phase
        shadow.reader[e] = me
        shadow.reader_too[e] = -1

    def _note_write(
        self,
        memory: Memory,
        place: Place,
        level: int,
        value: NDArray[Any],
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        shadow, e = memory.shadow(level), place.positions
        now = self._moment(place, level)
        phase, me = now.phase, now.me
        if shadow.latest_write >= now.earliest:
            clash = (shadow.write_phase[e] == phase) & (shadow.writer[e] != me)
            if clash.any() and self.levels[level].kind != VECTOR:
                clash &= ~_same(memory.data[e], value)  # storing the same value again is harmless
            if clash.any():
                wrong = int(np.argmax(clash))
                other = int(shadow.writer[e[wrong]])
                self._race(memory, place, level, wrong, "written", other, "written", at, values)
        if shadow.latest_read >= now.earliest:
            clash = (shadow.read_phase[e] == phase) & (
                (shadow.reader[e] != me) | (shadow.reader_too[e] >= 0)
            )
            if clash.any():
                wrong = int(np.argmax(clash))
                other = _other_reader(shadow, int(e[wrong]), int(me[wrong]))
                self._race(memory, place, level, wrong, "written", other, "read", at, values)
        shadow.write_phase[e] = phase
        shadow.writer[e] = me
        shadow.latest_write = max(shadow.latest_write, now.latest)
        if self.levels[level].kind == VECTOR:  # several iterations in this very statement
            clash = (shadow.writer[e] != me) & (shadow.write_phase[e] == phase)
            if clash.any():
                wrong = int(np.argmax(clash))
                other = int(shadow.writer[e[wrong]])
                self._race(memory, place, level, wrong, "written", other, "written", at, values)

    def _check_same_store(
        self, memory: Memory, place: Place, value: NDArray[Any], at: int, values: tuple[Any, ...]
    ) -> None:
        """Lanes that store to one element in the same statement store the same value."""
        lost = ~_same(memory.data[place.positions], value)
        if not lost.any():
            return
        wrong = int(np.argmax(lost))
        same_place = np.flatnonzero(place.positions == place.positions[wrong])
        winner = int(place.lanes[same_place[-1]])
        loser = int(place.lanes[wrong])
        for level in range(memory.owner, len(self.levels)):
            other = int(self.ids[level][winner])
            if other != self.ids[level][loser]:
                self._race(memory, place, level, wrong, "written", other, "written", at, values)

    def _race(
        self,
        memory: Memory,
        place: Place,
        level: int,
        wrong: int,
        mine: str,
        other: int,
        others: str,
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        lane = self._lane_of(place, wrong)
        element = int(place.positions[wrong])
        shown = picks(values, lane)
        me = int(self.ids[level][lane[0]])
        kind = self.levels[level].kind
        if kind in (BLOCK, THREAD):
            self.failures.thread_race(
                at,
                shown,
                memory,
                element,
                kind,
                (mine, self.describe(level, me)),
                (others, self.describe(level, other)),
            )
        loop = self.levels[level].loop
        assert loop is not None
        start = self.starts[level - len(self.levels)]
        self.failures.race(
            at,
            shown,
            kind,
            loop,
            memory,
            element,
            (mine, me + start),
            (others, other + start),
        )

    def describe(self, level: int, identity: int) -> str:
        """A block or thread by its coordinates."""
        rows = np.flatnonzero(self.ids[level] == identity)
        among = BLOCK_LEVEL if self.levels[level].kind == BLOCK else THREAD_LEVEL
        if not len(rows):
            return f"{self.levels[level].kind} {identity}"
        shown = ", ".join(
            f"{axis} = {int(x[rows[0], 0])}"
            for axis, x in sorted(self.axes.items())
            if level_of(axis) == among
        )
        return f"{self.levels[level].kind} ({shown})"

    # ------------------------------------------------------------------ barriers

    def barrier(self, mask: Mask, scope: str, at: int, values: tuple[Any, ...]) -> None:
        """All lanes of a block (of the grid, for scope global) meet here."""
        if any(level.kind == VECTOR for level in self.levels):
            self.failures.stray_barrier(at, picks(values, (0, 0)), "inside a vector loop")
        if not self.count:
            return
        is_grid = scope == "global" or self.levels[0].kind != BLOCK
        group = np.zeros(self.count, np.int64) if is_grid else self.slots[0]
        if mask is not None:
            arrived = np.bincount(group, mask[:, 0])
            missing = (arrived > 0) & (arrived < np.bincount(group))
            if missing.any():
                self._diverge("barrier", missing[group], mask, at, values)
        here = self.all if mask is None else np.flatnonzero(mask[:, 0])
        if len(self.fences):
            threads = self.slots[1][here]
            self.fenced[threads] = self.fences[threads]
        self._advance(here, with_blocks=scope == "global")

    def _diverge(
        self,
        what: str,
        incomplete: NDArray[np.bool_],
        mask: NDArray[np.bool_],
        at: int,
        values: tuple[Any, ...],
    ) -> None:
        absent = int(np.flatnonzero(incomplete & ~mask[:, 0])[0])
        present = int(np.flatnonzero(incomplete & mask[:, 0])[0])
        self.failures.divergence(
            at,
            picks(values, (present, 0)),
            what,
            self._describe_lane(present),
            self._describe_lane(absent),
        )

    def _describe_lane(self, row: int) -> str:
        level = max(k for k, level in enumerate(self.levels) if level.kind in (THREAD, VTHREAD))
        identity = int(self.ids[level][row])
        if self.levels[level].kind == THREAD:
            return self.describe(level, identity)
        return f"virtual thread {identity + self.starts[level - len(self.levels)]}"

    def settle(self) -> None:
        """Threads meet, as they do after every statement of a scheduled program."""
        for level in self.levels:
            if level.kind in (THREAD, VTHREAD):
                level.advance()

    def _advance(self, here: Ints, with_blocks: bool) -> None:
        for k, level in enumerate(self.levels):
            if level.kind in (THREAD, VTHREAD) or (with_blocks and level.kind == BLOCK):
                groups = np.unique(self.slots[k - 1][here]) if k else np.zeros(1, np.int64)
                level.advance(groups)


def launch(
    failures: Failures,
    random: np.random.Generator,
    extents: dict[str, int],
    private: int,
    at_once: bool,
) -> Iterator[Lanes]:
    """The threads of a kernel, some blocks at a time, blocks in random order.

    `private` is how many elements of memory a thread has to itself; where blocks meet, all of them
    run `at_once`.
    """
    blocks = {axis: n for axis, n in extents.items() if level_of(axis) == BLOCK_LEVEL}
    threads = {axis: n for axis, n in extents.items() if level_of(axis) == THREAD_LEVEL}
    block_at, thread_at = _grid(blocks), _grid(threads)
    block_count, thread_count = len(block_at), len(thread_at)
    if not block_count or not thread_count:
        return
    order = random.permutation(block_count)
    most = min(_MAX_LANES, _MAX_ELEMENTS // max(1, private)) // thread_count
    together = block_count if at_once else max(1, most)
    grid = Level(BLOCK, 1)
    for begin in range(0, block_count, together):
        some = order[begin : begin + together]
        block = np.repeat(some, thread_count)
        thread = np.tile(np.arange(thread_count), len(some))
        slot = np.repeat(np.arange(len(some)), thread_count)
        axes = {axis: block_at[block, k][:, None] for k, axis in enumerate(blocks)}
        axes |= {axis: thread_at[thread, k][:, None] for k, axis in enumerate(threads)}
        yield Lanes(
            failures,
            len(block),
            (grid, Level(THREAD, len(some))),
            (block, block * thread_count + thread),
            (slot, slot * thread_count + thread),
            axes,
        )


def _grid(extents: dict[str, int]) -> Ints:
    """Every point of a box, one per row."""
    if not extents:
        return np.zeros((1, 0), np.int64)
    axes = np.meshgrid(*(np.arange(max(0, n)) for n in extents.values()), indexing="ij")
    return np.stack([axis.reshape(-1) for axis in axes], axis=-1)


def spread(value: Any, shape: tuple[int, int]) -> NDArray[Any]:
    """A value per lane and column: what most are already."""
    if isinstance(value, np.ndarray) and value.shape == shape:
        return value
    return np.broadcast_to(value, shape)


def _same(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Elementwise: the same value; NaN is the same as NaN."""
    result: NDArray[np.bool_] = (a == b) | ((a != a) & (b != b))
    return result


def _other_reader(shadow: Shadow, element: int, me: int) -> int:
    first = int(shadow.reader[element])
    return first if first != me else int(shadow.reader_too[element])


def pick(value: Any, row: int, column: int) -> int:
    """The value of one lane."""
    if not isinstance(value, np.ndarray):
        return int(value)
    return int(value[row if len(value) > 1 else 0, column if value.shape[1] > 1 else 0])


def picks(values: Sequence[Any], lane: tuple[int, int]) -> tuple[int, ...]:
    return tuple(pick(value, *lane) for value in values)
