"""Profiler: time, operations and memory traffic of each kernel's runs.

    with profile() as record:
        model(x)
    print(record)
    record.write_trace("trace.json")    # for Perfetto or chrome://tracing

Compiled code appends every kernel's run to a ring buffer in the C runtime. Disabled, that costs one
load per kernel.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from tilewright.base.errors import UserError
from tilewright.base.html import bar, table
from tilewright.runtime import _native

CAPACITY = 1 << 16
TERA = 1000.0  # giga-units per tera-unit
_running = Lock()


@dataclass(frozen=True, slots=True)
class Event:
    """One run of a kernel."""

    kernel: str
    begin_ns: int
    end_ns: int
    flops: int
    size_bytes: int
    thread: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class KernelTotals:
    """Totals over all runs of a kernel."""

    kernel: str
    calls: int
    total_ns: int
    min_ns: int
    max_ns: int
    flops: int
    size_bytes: int

    @property
    def gflops(self) -> float:
        """Throughput in billions of operations per second."""
        return self.flops / self.total_ns if self.total_ns else 0.0

    @property
    def gbytes(self) -> float:
        """Bandwidth in billions of bytes per second."""
        return self.size_bytes / self.total_ns if self.total_ns else 0.0


@dataclass(slots=True)
class Record:
    """The events of a profile; empty until the `with` block ends."""

    events: tuple[Event, ...] = ()
    shares: tuple[Event, ...] = ()  # worker threads' shares of the events, not in addition to them
    lost: int = field(default=0)  # events dropped because the ring was full

    def kernels(self) -> tuple[KernelTotals, ...]:
        """Totals per kernel, in order of decreasing time."""
        runs: dict[str, list[Event]] = {}
        for event in self.events:
            runs.setdefault(event.kernel, []).append(event)
        totals = (_total(kernel, events) for kernel, events in runs.items())
        return tuple(sorted(totals, key=lambda total: -total.total_ns))

    def trace(self) -> dict[str, object]:
        """The events in the Trace Event format."""
        return {
            "displayTimeUnit": "ns",
            "traceEvents": [
                {
                    "name": event.kernel,
                    "ph": "X",
                    "ts": event.begin_ns / 1000,
                    "dur": event.duration_ns / 1000,
                    "pid": 0,
                    "tid": event.thread,
                    "args": {"flops": event.flops, "bytes": event.size_bytes},
                }
                for event in (*self.events, *self.shares)
            ],
        }

    def write_trace(self, path: str | Path) -> None:
        """Write the events for Perfetto or chrome://tracing."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")

    def _repr_html_(self) -> str:
        """The table of kernels, for notebooks."""
        whole = sum(event.duration_ns for event in self.events) or 1
        found = self.kernels()
        rate = _Rate.of(found)
        heads = ("kernel", "calls", "µs", "share", "", rate.flops, rate.bytes)
        return table(
            heads,
            (
                (
                    total.kernel,
                    total.calls,
                    f"{total.total_ns / 1e3:.1f}",
                    f"{total.total_ns / whole:.1%}",
                    bar(total.total_ns / whole),
                    f"{total.gflops / rate.of_giga:{rate.form}}",
                    f"{total.gbytes / rate.of_giga:{rate.form}}",
                )
                for total in found
            ),
        )

    def __str__(self) -> str:
        found = self.kernels()
        rate = _Rate.of(found)
        heads = f"{'kernel':<40} {'calls':>7} {'total ms':>10} {'mean us':>10}"
        lines = [f"{heads} {rate.flops:>9} {rate.bytes:>9}"]
        lines += [
            f"{total.kernel:<40} {total.calls:>7} {total.total_ns / 1e6:>10.3f}"
            f" {total.total_ns / total.calls / 1e3:>10.2f}"
            f" {total.gflops / rate.of_giga:>9{rate.form}}"
            f" {total.gbytes / rate.of_giga:>9{rate.form}}"
            for total in found
        ]
        if self.lost:
            lines.append(f"({self.lost} runs were not recorded: the ring was full)")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Rate:
    """The unit of rates: a GPU's kernels are shown in trillions."""

    flops: str
    bytes: str
    of_giga: float
    form: str

    @classmethod
    def of(cls, totals: tuple[KernelTotals, ...]) -> _Rate:
        if any(max(total.gflops, total.gbytes) >= TERA for total in totals):
            return cls("TFLOP/s", "TB/s", TERA, ".2f")
        return cls("GFLOP/s", "GB/s", 1.0, ".1f")


@contextmanager
def profile(
    capacity: int = CAPACITY, *, shares: bool = False, runtime: int = 0
) -> Iterator[Record]:
    """Record the kernels that run in the block, on all threads; at most the newest `capacity`
    events.

    With `shares`, record also each worker thread's share of a kernel, as further events. A loaded
    library has its own C runtime, which records no shares: `runtime` is its address.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse("graph @main(%x: f32[4]) { %y = relu(%x) return %y }")
        >>> model = tw.compile(program, threads=1)
        >>> with tw.profile() as record:
        ...     _ = model(np.ones(4, np.float32))
        ...
        >>> len(record.kernels())
        1
    """
    if not _running.acquire(blocking=False):
        raise UserError(
            "TW4017",
            "the profiler is already running",
            help="there is one profiler per process: end the other `with profile()` block first",
        )
    record = Record()
    try:
        if shares:
            _native.profile_shares(True)
        _native.profile_start(capacity, runtime)
        try:
            yield record
        finally:
            _native.profile_stop(runtime)
            raw, record.lost = _native.profile_read(capacity, runtime)
            found = [Event(*fields) for fields in raw]
            record.events = tuple(event for event in found if event.kernel)
            record.shares = _with_kernel_names(
                [each for each in found if not each.kernel], record.events
            )
    finally:
        if shares:
            _native.profile_shares(False)
        _running.release()


def _with_kernel_names(shares: list[Event], events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Name shares after their kernels: the last one that had begun."""
    kernels = sorted(events, key=lambda event: event.begin_ns)
    begins = [event.begin_ns for event in kernels]
    places = [bisect_right(begins, share.begin_ns) - 1 for share in shares]
    return tuple(
        replace(share, kernel=kernels[at].kernel)
        for share, at in zip(shares, places, strict=True)
        if at >= 0
    )


def _total(kernel: str, events: list[Event]) -> KernelTotals:
    durations = [event.duration_ns for event in events]
    return KernelTotals(
        kernel,
        len(events),
        sum(durations),
        min(durations),
        max(durations),
        sum(event.flops for event in events),
        sum(event.size_bytes for event in events),
    )
