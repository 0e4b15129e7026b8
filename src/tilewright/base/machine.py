"""The machine model of a processor: latencies, ports, caches, threads. One record per target.

    Target.parse("x86_64-linux-gnu -mcpu=cascadelake").machine.l2.size_bytes

All costs of schedule rules and graph passes are computed from these numbers, which appear nowhere
else. A record is known by the processor's name (`base/known_machines.py`), filled with what the
system reports of the host, or measured (`tilewright targets --calibrate`); each number can be set
in a target's text (`cpu -l2=1M -l2-bytes-per-cycle=24`).

Rates of memory levels are those of one core while all cores are busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any

KB, MB = 1024, 1024 * 1024

KNOWN, MEASURED, GUESSED = "known", "measured", "guessed"


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of the memory hierarchy, as one core sees it."""

    size_bytes: int
    ways: int
    bytes_per_cycle: float  # bandwidth to the level above
    line_bytes: int = 64

    @property
    def period_bytes(self) -> int:
        """Addresses that differ by a multiple of this map to the same set."""
        return max(self.line_bytes, self.size_bytes // self.ways)

    @property
    def same_set_lines(self) -> int:
        """Lines of one set that stay while other data streams through: two of three ways."""
        return max(2, self.ways * 2 // 3)

    def sets_apart(self, stride_bytes: int) -> int:
        """The number of sets that lines at this stride map to: few, for multiples of a large power
        of two."""
        return self.period_bytes // max(self.line_bytes, gcd(stride_bytes, self.period_bytes))

    def kept_rows(self, stride_bytes: int, row_bytes: Any) -> Any:
        """Rows at this stride that stay while other data streams through; takes numbers or
        columns."""
        import numpy as np  # a process that asks how many cores there are needs none of it

        lines = np.maximum(1, -(-row_bytes // self.line_bytes))
        all_sets = self.period_bytes // self.line_bytes
        sets = np.minimum(all_sets, self.sets_apart(stride_bytes) * lines)
        return sets * self.ways // 2 // lines

    # How much of a cache a plan may use. No operand has all of it: others stream through.

    @property
    def kept_bytes(self) -> int:
        """For data that is reused while other data streams through."""
        return self.size_bytes // 2

    @property
    def block_bytes(self) -> int:
        """For a block that is reused beside two other blocked operands."""
        return self.size_bytes // 4

    @property
    def passing_bytes(self) -> int:
        """For a block whose successor is prefetched meanwhile."""
        return self.size_bytes // 8


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine model of a processor. A size of 0 means that there is no such level."""

    name: str
    frequency_ghz: float
    fma_per_cycle: int  # throughput of vector multiply-adds
    fma_latency_cycles: int
    loads_per_cycle: int
    stores_per_cycle: int
    reorder_window: int  # the out-of-order window, in instructions
    l1d: Cache
    l2: Cache
    l3: Cache
    memory_bytes_per_cycle: float  # sequential reads, with hardware prefetching
    scattered_bytes_per_cycle: float  # from beyond L2, line by line with software prefetch
    thread_wake_ns: float  # to wake a thread of the pool, and to join it
    kernel_call_ns: float  # from the end of one kernel to the start of the next
    cores: int
    tile_cycles: float = 16.0  # per tile multiply-add, with AMX
    tile_row_bytes_per_cycle: float = 32.0  # loading rows of a tile from L2
    issue_per_cycle: float = 8.0  # sustained instructions of all kinds per cycle
    chunk_ns: float = 100.0  # to take a chunk of a parallel loop
    address_registers: int = 14  # rows that can be traversed concurrently
    loop_body_instructions: int = 128  # largest loop body served from the decoded-op cache
    branch_miss_cycles: float = 20.0  # of a mispredicted branch, as at the end of a loop
    gather_lane_cycles: float = 2.0  # per lane of a gather; of x86 with the slow gather mitigation
    int_multiply_add_instructions: float = 1.0  # for i32 vectors: multiplications may take two
    lines_ahead: int = 8  # prefetch distance from L2, in lines
    memory_lines_ahead: int = 32  # prefetch distance from beyond L2, in lines
    prefetch_streams: int = 16  # concurrent streams that the hardware prefetches
    exposed_share: float = 0.1  # share of a transfer that prefetching does not hide
    exposed_rows_share: float = 1 / 3  # the same for non-consecutive rows
    exposed_l2_share: float = 0.25  # share of a stream from L2 that arithmetic does not hide
    source: str = GUESSED  # known, measured or guessed

    @property
    def cycle_ns(self) -> float:
        return 1.0 / self.frequency_ghz

    @property
    def loads_lanes(self) -> bool:
        """Whether a lane of a gather takes longer than loading its index and its element alone and
        putting that in its place."""
        return self.gather_lane_cycles * self.loads_per_cycle > 2

    def cycles(self, ns: float) -> float:
        """A time in cycles."""
        return ns * self.frequency_ghz

    @property
    def wake_cycles(self) -> float:
        """The work that another thread must save to pay for waking it."""
        return self.cycles(self.thread_wake_ns)

    @property
    def key(self) -> str:
        """Everything that schedules may depend on, as text."""
        shown = [f"{name}={value}" for name, value in self.numbers().items()]
        return " ".join(shown)

    def numbers(self) -> dict[str, float]:
        """Every number by its name in a target's text."""
        found: dict[str, float] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Cache):
                found[each.name] = value.size_bytes
                found[f"{each.name}-ways"] = value.ways
                found[f"{each.name}-bytes-per-cycle"] = value.bytes_per_cycle
                found[f"{each.name}-line"] = value.line_bytes
            elif each.name not in ("name", "source"):
                found[each.name.replace("_", "-")] = value
        return found

    def with_numbers(self, given: Mapping[str, float]) -> Machine:
        """The record with some numbers replaced, by the names of `numbers`."""
        changes: dict[str, Any] = {}
        for name, value in given.items():
            level, _, rest = name.partition("-")
            if level in LEVELS:
                cache = changes.get(level, getattr(self, level))
                assert isinstance(cache, Cache)
                changed: dict[str, Any] = {_CACHE_FIELDS[rest]: value}
                changes[level] = replace(cache, **changed)
            else:
                changes[name.replace("-", "_")] = value
        return replace(self, **changes)


LEVELS = ("l1d", "l2", "l3")
_CACHE_FIELDS = {
    "": "size_bytes",
    "ways": "ways",
    "bytes-per-cycle": "bytes_per_cycle",
    "line": "line_bytes",
}


def unit_of(name: str) -> str:
    """The unit of a number, by the name it has in `Machine.numbers`; "" for a count."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


_UNITS = {
    "-bytes-per-cycle": "bytes/cycle",
    "-per-cycle": "1/cycle",
    "-cycles": "cycles",
    "-ghz": "GHz",
    "-ns": "ns",
    "-line": "bytes",
    **dict.fromkeys(LEVELS, "bytes"),
}


# --------------------------------------------------------------------------- functions

# Cycles per vector of 32-bit lanes; functions not listed take one or two instructions.
FUNCTION_CYCLES: Mapping[str, float] = {
    **dict.fromkeys(("exp", "log", "exp2", "log2", "expm1", "log1p", "sigmoid", "tanh"), 20.0),
    **dict.fromkeys(("erf", "sin", "cos", "tan", "sinh", "cosh", "asinh", "acosh", "atanh"), 30.0),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "pow", "fmod"), 60.0),
    **dict.fromkeys(("sqrt", "rsqrt"), 18.0),
    "exp_nonpositive": 16.0,
    "div": 12.0,
}
OTHER_FUNCTION_CYCLES, CONVERT_CYCLES, OPERATION_CYCLES = 2.0, 1.0, 0.5
# Per vector of sums: to convert and store it; to narrow it to bytes first.
CONVERT_STORE_CYCLES, NARROW_CYCLES = 4.0, 6.0
WIDENED_LANES = 16  # bytes that one instruction widens
WIDEN_OPERATIONS = 8  # to dequantize a vector of weights: unpack, convert, scale, store
LOOP_CYCLES = 2.0  # overhead per loop iteration: counter, addresses, branch
