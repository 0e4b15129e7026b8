"""Measure the numbers of the machine model on this machine: `tilewright targets --calibrate`.

    found = calibrate(Stopwatch())         one `Measurement` per number of the machine model
    keep(found)                            used for `cpu` from the next process on
    forget()

The programs of `driver/probes.py` run for a fraction of a second each. Every rate is computed from
the difference of two runs of different length, which cancels the overhead of a call; of many runs
the fastest counts, since interference only slows a run down. A result that is far off the known
value is reported and not kept.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.host import described_machine, host_machine, host_options, measured_file
from tilewright.base.machine import Machine, unit_of
from tilewright.base.target import Target
from tilewright.codegen.build import CompiledFunction, build
from tilewright.codegen.cache import write_atomically
from tilewright.driver import probes
from tilewright.driver.compile import compile
from tilewright.graph import ir
from tilewright.graph.parser import parse
from tilewright.runtime.array import empty
from tilewright.tensor.ir import Function

Array = np.ndarray[Any, Any]

BUDGET_S = 0.8  # per measurement, so that all together take well under a minute
MIN_RUNS = 5
RUN_NS = 200_000.0  # a short run: long against the clock's resolution, short against interruptions
LONG_RUN_RATIO = 3  # ratio of the long run to the short one
MAX_DEVIATION = 10.0  # a measurement this many times off the known value is refused
SPLIT_NS = 20_000.0  # work that two threads share
CALL_COUNTS = (16, 144)  # kernels of two models whose difference gives the cost of a call
MEMORY_BYTES = 768 << 20  # the most that is read to measure memory bandwidth


class Watch(Protocol):
    """Runs programs and returns the seconds of each run; tests have one that runs nothing."""

    def kernel(self, fn: Function, args: Sequence[Array], threads: int) -> Sequence[float]: ...

    def model(self, module: ir.Module, inputs: Sequence[Array]) -> Sequence[float]: ...


@dataclass
class Stopwatch:
    """Compiles, runs and measures."""

    budget_s: float = BUDGET_S
    _built: dict[str, CompiledFunction] = field(default_factory=dict)

    def kernel(self, fn: Function, args: Sequence[Array], threads: int) -> list[float]:
        run = self._built.get(str(fn))
        if run is None:
            made = build(fn)
            assert isinstance(made, CompiledFunction)
            run = self._built.setdefault(str(fn), made)
        return self._times(lambda: run(*args, threads=threads))

    def model(self, module: ir.Module, inputs: Sequence[Array]) -> list[float]:
        made = compile(module, threads=1, without=("fuse",))
        return self._times(lambda: made(*inputs))

    def _times(self, run: Callable[[], object]) -> list[float]:
        run()
        times: list[float] = []
        begun = time.perf_counter()
        while len(times) < MIN_RUNS or time.perf_counter() - begun < self.budget_s:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return times


@dataclass(frozen=True)
class Measurement:
    """A measured number of the machine model."""

    name: str
    value: float
    known: float

    @property
    def is_number(self) -> bool:
        """Whether the value is usable at all."""
        return math.isfinite(self.value) and self.value > 0

    @property
    def refused(self) -> str:
        """Why the value is not kept; "" if it is."""
        if not self.is_number:
            return "too noisy to tell"
        if not self.known / MAX_DEVIATION <= self.value <= self.known * MAX_DEVIATION:
            return f"over {MAX_DEVIATION:g} times off what is known"
        return ""

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass
class _Bench:
    """The context of measurements: the watch, the target, and the frequency found so far."""

    watch: Watch
    target: Target
    machine: Machine  # before calibration
    frequency_ghz: float

    @property
    def lanes(self) -> int:
        """The number of 32-bit lanes of a vector."""
        return max(1, self.target.vector_bits // 32)

    @property
    def vector_bytes(self) -> int:
        return 4 * self.lanes

    def round_ns(
        self, fn: Function, args: Sequence[Array], expected_ns: float, threads: int = 1
    ) -> float:
        """The time of one round of a program, nan if the times are too noisy.

        The last argument but one, N, has one element per round.
        """
        rounds = max(1, int(RUN_NS / expected_ns))
        least = []
        for count in (rounds, rounds * LONG_RUN_RATIO):
            given = [*args[:-1], np.zeros(count, np.uint8), args[-1]]
            least.append(min(self.watch.kernel(fn, given, threads)))
        more = least[1] - least[0]
        return more * 1e9 / (rounds * (LONG_RUN_RATIO - 1)) if more > 0 else math.nan

    def cycles(self, ns: float) -> float:
        return ns * self.frequency_ghz


# --------------------------------------------------------------------------- probes


def _frequency(bench: _Bench) -> float:
    cycles = 2 * probes.CHAIN_STEPS
    args = [np.array([12345, 987654321], np.int64), np.zeros(1, np.int64)]
    return cycles / bench.round_ns(probes.adds(), args, cycles * bench.machine.cycle_ns)


def _fma_per_cycle(bench: _Bench) -> float:
    count = min(24, bench.target.vector_registers - 4)
    args = [np.zeros(bench.lanes, np.float32), np.zeros(count * bench.lanes, np.float32)]
    fn = probes.multiply_adds(bench.lanes, count)
    expected = count / bench.machine.fma_per_cycle * bench.machine.cycle_ns
    return count / bench.cycles(bench.round_ns(fn, args, expected))


def _fma_latency(bench: _Bench) -> float:
    rows = max(1, bench.machine.l1d.size_bytes // 4 // (probes.CHAIN_STEPS * bench.vector_bytes))
    a = np.full((rows, probes.CHAIN_STEPS * bench.lanes), 0.5, np.float32)
    args = [a, np.full(bench.lanes, 0.5, np.float32), np.zeros(bench.lanes, np.float32)]
    steps = rows * probes.CHAIN_STEPS
    expected = steps * bench.machine.fma_latency_cycles * bench.machine.cycle_ns
    return bench.cycles(bench.round_ns(probes.accumulate(bench.lanes), args, expected)) / steps


def _loads_per_cycle(bench: _Bench) -> float:
    return _l1d_bytes_per_cycle(bench) / bench.vector_bytes


def _l1d_bytes_per_cycle(bench: _Bench) -> float:
    machine = bench.machine
    return _sequential_rate(bench, machine.l1d.size_bytes // 2, 1, machine.l1d.bytes_per_cycle)


def _l2_bytes_per_cycle(bench: _Bench) -> float:
    machine = bench.machine
    return _sequential_rate(bench, machine.l2.size_bytes // 2, 1, machine.l2.bytes_per_cycle)


def _l3_bytes_per_cycle(bench: _Bench) -> float:
    size, threads = _beyond_l2(bench.machine)
    return _sequential_rate(bench, size, threads, bench.machine.l3.bytes_per_cycle)


def _memory_bytes_per_cycle(bench: _Bench) -> float:
    machine, threads = bench.machine, bench.machine.cores
    size = _beyond_cache_bytes(machine) // threads
    return _sequential_rate(bench, size, threads, machine.memory_bytes_per_cycle)


def _scattered_bytes_per_cycle(bench: _Bench) -> float:
    machine = bench.machine
    size, threads = _beyond_l2(machine)
    line = machine.l2.line_bytes
    lines = 1 << int(math.log2(size // line))
    fn = probes.scattered_reads(bench.lanes, lines, line)
    width = max(line // 4, bench.lanes)
    return _read_rate(
        bench, fn, (threads, lines, line // 4), width, machine.scattered_bytes_per_cycle
    )


def _sequential_rate(bench: _Bench, size_bytes: int, threads: int, expected: float) -> float:
    """Bytes per cycle and thread of sequential reads, with so many bytes per thread."""
    width = probes.ROW_VECTORS * bench.lanes
    shape = (threads, max(1, size_bytes // (4 * width)), width)
    return _read_rate(bench, probes.reads(bench.lanes), shape, probes.SUMS * bench.lanes, expected)


def _read_rate(
    bench: _Bench, fn: Function, shape: tuple[int, int, int], sums: int, expected: float
) -> float:
    """Bytes per cycle and thread of a program that reads an array once.

    All threads read at once. Where other processes delay some of them, the share that each would
    have of a single thread's bandwidth is used, if that is more.
    """
    a = np.asarray(empty(shape, "i32"))  # on huge pages, as weights and values are
    a[...] = 1
    threads, size_bytes = shape[0], a.nbytes // shape[0]
    out = np.zeros((threads, sums), np.int32)
    expected_ns = size_bytes / expected * bench.machine.cycle_ns
    share_ns = [
        bench.round_ns(fn, [a[:count], out[:count]], expected_ns, count) * (threads / count)
        for count in dict.fromkeys((threads, 1))
    ]
    valid_ns = [ns for ns in share_ns if not math.isnan(ns)]
    return size_bytes / bench.cycles(min(valid_ns)) if valid_ns else math.nan


def _beyond_l2(machine: Machine) -> tuple[int, int]:
    """Bytes per thread that exceed L2 (and fit L3, if there is one), and the number of threads."""
    l2, l3 = machine.l2.size_bytes, machine.l3.size_bytes
    if l3 < 4 * l2:  # no L3, or one that holds little more than L2
        return _beyond_cache_bytes(machine) // machine.cores, machine.cores
    threads = max(1, min(machine.cores, l3 // (8 * l2)))
    return min(8 * l2, l3 // (2 * threads)), threads


def _beyond_cache_bytes(machine: Machine) -> int:
    """A size that exceeds all caches, within reason."""
    largest = max(machine.l2.size_bytes * machine.cores, machine.l3.size_bytes)
    return min(MEMORY_BYTES, 3 * largest)


def _thread_wake_ns(bench: _Bench) -> float:
    """The overhead of running on two threads instead of one, at the median."""
    round_ns = 2 * probes.CHAIN_STEPS * bench.machine.cycle_ns
    return _parallel_overhead_ns(bench, int(SPLIT_NS / 2 / round_ns), 2)


def _kernel_call_ns(bench: _Bench) -> float:
    """The cost of one more tiny kernel in a model, with the barrier of the threads at its end."""
    x = np.ones(4, np.float32)
    few, many = (min(bench.watch.model(chain(count), [x])) for count in CALL_COUNTS)
    call = (many - few) * 1e9 / (CALL_COUNTS[1] - CALL_COUNTS[0])
    return call + _parallel_overhead_ns(bench, 0, bench.machine.cores)


def _parallel_overhead_ns(bench: _Bench, rounds: int, threads: int) -> float:
    """How much longer the same work per thread takes on several threads than on one, median ns."""
    fn, a = probes.adds(), np.array([12345, 987654321], np.int64)
    n = np.zeros(rounds, np.uint8)
    alone, together = (
        statistics.median(bench.watch.kernel(fn, [a, n, np.zeros(count, np.int64)], count))
        for count in (1, threads)
    )
    return (together - alone) * 1e9


def chain(count: int) -> ir.Module:
    """A model of so many kernels, when compiled without fusion."""
    steps = "\n".join(f"%v{at + 1} = sqrt(%v{at})" for at in range(count))
    return parse(f"graph @main(%v0: f32[4]) -> (f32[4]) {{\n{steps}\nreturn %v{count}\n}}")


@dataclass(frozen=True)
class Probe:
    """How a number is measured, and on which machines it can be."""

    name: str
    measure: Callable[[_Bench], float]
    serves: Callable[[Machine], bool] = lambda machine: True


PROBES = (
    Probe("frequency-ghz", _frequency),  # first: the others need it to count cycles
    Probe("fma-per-cycle", _fma_per_cycle),
    Probe("fma-latency-cycles", _fma_latency),
    Probe("loads-per-cycle", _loads_per_cycle),
    Probe("l1d-bytes-per-cycle", _l1d_bytes_per_cycle),
    Probe("l2-bytes-per-cycle", _l2_bytes_per_cycle, lambda machine: machine.l2.size_bytes > 0),
    Probe(
        "l3-bytes-per-cycle",
        _l3_bytes_per_cycle,
        lambda machine: machine.l3.size_bytes >= 4 * machine.l2.size_bytes,
    ),
    Probe(
        "memory-bytes-per-cycle",
        _memory_bytes_per_cycle,
        lambda machine: 2 * machine.l3.size_bytes <= MEMORY_BYTES,
    ),
    Probe("scattered-bytes-per-cycle", _scattered_bytes_per_cycle),
    Probe("thread-wake-ns", _thread_wake_ns, lambda machine: machine.cores > 1),
    Probe("kernel-call-ns", _kernel_call_ns),
)


def calibrate(
    watch: Watch | None = None,
    *,
    target: Target | None = None,
    machine: Machine | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None,
) -> tuple[Measurement, ...]:
    """Measure every number that can be measured on this machine."""
    if host_options():
        raise UserError(
            "TW6039",
            "cannot calibrate: TILEWRIGHT_HOST makes `cpu` stand for another processor",
            help="unset TILEWRIGHT_HOST",
        )
    known = described_machine() if machine is None else machine
    bench = _Bench(watch or Stopwatch(), target or Target.host(), known, known.frequency_ghz)
    chosen = [probe for probe in PROBES if probe.serves(known)]
    found: list[Measurement] = []
    for at, probe in enumerate(chosen):
        progress(probe.name, at, len(chosen))
        made = _measure(probe, bench)
        if probe.name == "frequency-ghz" and not made.refused:
            bench.frequency_ghz = made.value
        found.append(made)
    progress("done", len(chosen), len(chosen))
    return tuple(found)


def _measure(probe: Probe, bench: _Bench) -> Measurement:
    known = bench.machine.numbers()[probe.name]
    value = probe.measure(bench)
    if not math.isfinite(value):
        return Measurement(probe.name, math.nan, known)
    if isinstance(known, int):
        return Measurement(probe.name, max(1, round(value)) if value > 0 else -1, known)
    return Measurement(probe.name, float(f"{value:.4g}"), known)


# --------------------------------------------------------------------------- stored results


def keep(found: Iterable[Measurement]) -> Path:
    """Store the usable measurements; `cpu` means these from the next process on."""
    path = _measured_path()
    numbers = {each.name: each.value for each in found if not each.refused}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(numbers, indent=1).encode())
    except OSError as error:
        raise UserError("TW6037", f"cannot keep what was measured: {error}") from error
    host_machine.cache_clear()
    return path


def forget() -> bool:
    """Remove the stored measurements; returns whether there were any."""
    path = _measured_path()
    was_there = path.exists()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError("TW6037", f"cannot remove what was measured: {error}") from error
    host_machine.cache_clear()
    return was_there


def _measured_path() -> Path:
    path = measured_file()
    if path is None:
        raise UserError(
            "TW6037",
            "what is measured has no place: TILEWRIGHT_CACHE_DIR is set to nothing",
            help="unset it, or name a folder",
        )
    return path
