"""The machine model of a processor: latencies, ports, caches, threads. One record per target.

    Target.parse("x86_64-linux-gnu -mcpu=cascadelake").machine.l2.size_bytes

All costs of schedule rules and graph passes are computed from these numbers, which appear nowhere
else. A record is known by the processor's name (`machine_of`), filled with what the system reports
of the host, or measured (`tilewright targets --calibrate`); each number can be set in a target's
text (`cpu -l2=1M -l2-bytes-per-cycle=24`).

Rates of memory levels are those of one core while all cores are busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any

import numpy as np

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


# --------------------------------------------------------------------------- known processors

# Sources: vendors' optimization guides and public instruction tables; rates beyond L2 are those of
# servers with all cores busy, as far as published, else those of the nearest relative.


def _server(name: str, l1d: Cache, l2: Cache, l3: Cache, **changes: Any) -> Machine:
    """The common numbers of large out-of-order server cores."""
    base = Machine(
        name=name,
        frequency_ghz=2.9,
        fma_per_cycle=2,
        fma_latency_cycles=4,
        loads_per_cycle=2,
        stores_per_cycle=1,
        reorder_window=224,
        l1d=l1d,
        l2=l2,
        l3=l3,
        memory_bytes_per_cycle=9.0,
        scattered_bytes_per_cycle=5.5,
        thread_wake_ns=5000.0,
        kernel_call_ns=500.0,
        cores=4,
        source=KNOWN,
    )
    return replace(base, **changes)


_SAPPHIRE_RAPIDS = _server(
    "sapphirerapids",
    Cache(48 * KB, 12, 128.0),
    Cache(2 * MB, 16, 32.0),
    Cache(64 * MB, 16, 9.0),
    reorder_window=512,
    int_multiply_add_instructions=3,
    gather_lane_cycles=0.75,  # only its predecessors have the slow gather mitigation
)
_ICE_LAKE = _server(
    "icelake-server",
    Cache(48 * KB, 12, 128.0),
    Cache(1280 * KB, 20, 32.0),
    Cache(32 * MB, 12, 9.0),
    reorder_window=352,
    int_multiply_add_instructions=3,
)
_SKYLAKE_SERVER = _server(
    "skylake-avx512",
    Cache(32 * KB, 8, 128.0),
    Cache(1 * MB, 16, 32.0),
    Cache(24 * MB, 11, 8.0),
    frequency_ghz=2.6,
    issue_per_cycle=3.1,  # four at best, but 512-bit instructions are long to fetch
    memory_bytes_per_cycle=7.0,
    scattered_bytes_per_cycle=4.5,
    int_multiply_add_instructions=3,
)
_HASWELL = _server(
    "haswell",
    Cache(32 * KB, 8, 64.0),
    Cache(256 * KB, 8, 32.0),
    Cache(8 * MB, 16, 12.0),
    frequency_ghz=3.2,
    fma_latency_cycles=5,
    reorder_window=192,
    issue_per_cycle=4,
    int_multiply_add_instructions=3,
)
_SKYLAKE = replace(
    _HASWELL, name="skylake", fma_latency_cycles=4, reorder_window=224, frequency_ghz=3.6
)
_ALDER_LAKE = replace(
    _SKYLAKE,
    name="alderlake",
    l1d=Cache(48 * KB, 12, 64.0),
    l2=Cache(1280 * KB, 10, 48.0),
    reorder_window=512,
    issue_per_cycle=6,
)
_ZEN = _server(
    "znver2",
    Cache(32 * KB, 8, 64.0),
    Cache(512 * KB, 8, 32.0),
    Cache(16 * MB, 16, 16.0),
    frequency_ghz=3.2,
    fma_latency_cycles=5,
    issue_per_cycle=5,
    int_multiply_add_instructions=3,
)
_ZEN4 = replace(
    _ZEN,
    name="znver4",
    fma_latency_cycles=4,
    fma_per_cycle=1,  # 512-bit multiply-adds take two 256-bit pipes
    issue_per_cycle=6,
    int_multiply_add_instructions=2,
    reorder_window=320,
    l2=Cache(1 * MB, 8, 32.0),
    l3=Cache(32 * MB, 16, 16.0),
    frequency_ghz=3.7,
)
_NEOVERSE_N1 = _server(
    "neoverse-n1",
    Cache(64 * KB, 4, 32.0),
    Cache(1 * MB, 8, 16.0),
    Cache(32 * MB, 16, 8.0),
    reorder_window=128,
    frequency_ghz=2.6,
    memory_bytes_per_cycle=6.0,
    scattered_bytes_per_cycle=4.0,
    memory_lines_ahead=16,  # more would crowd out hardware prefetches
)
_SMALL_ARM = _server(
    "cortex-a53",
    Cache(32 * KB, 4, 8.0),
    Cache(512 * KB, 16, 8.0),
    Cache(0, 1, 0.0),
    frequency_ghz=1.4,
    fma_per_cycle=1,
    fma_latency_cycles=4,
    loads_per_cycle=1,
    reorder_window=8,  # in-order core
    memory_bytes_per_cycle=2.0,
    scattered_bytes_per_cycle=1.5,
    thread_wake_ns=8000.0,
)
_CORTEX_A76 = replace(
    _NEOVERSE_N1,
    name="cortex-a76",
    l2=Cache(256 * KB, 8, 16.0),
    l3=Cache(2 * MB, 16, 8.0),
    frequency_ghz=2.4,
)
_APPLE = replace(
    _NEOVERSE_N1,
    name="apple-m1",
    fma_per_cycle=4,
    loads_per_cycle=3,
    stores_per_cycle=2,
    reorder_window=600,
    l1d=Cache(128 * KB, 8, 48.0, 128),
    l2=Cache(12 * MB, 12, 32.0, 128),
    l3=Cache(0, 1, 0.0, 128),
    memory_bytes_per_cycle=18.0,
    scattered_bytes_per_cycle=8.0,
    frequency_ghz=3.2,
)
_NEOVERSE_V1 = replace(
    _NEOVERSE_N1,
    name="neoverse-v1",
    fma_per_cycle=4,
    loads_per_cycle=3,
    stores_per_cycle=2,
    reorder_window=256,
)
_SMALL_X86 = replace(
    _HASWELL,
    name="x86-64",
    fma_per_cycle=1,  # no FMA: a multiplication and an addition
    l2=Cache(512 * KB, 8, 32.0),
    frequency_ghz=3.0,
    source=GUESSED,
)
_SMALL_RISCV = replace(_SMALL_ARM, name="generic-rv64", source=GUESSED)
_WASM = replace(_SMALL_X86, name="wasm32", l2=Cache(256 * KB, 8, 32.0), l3=Cache(0, 1, 0.0),
                int_multiply_add_instructions=2)  # fmt: skip

_KNOWN: dict[str, Machine] = {
    "sapphirerapids": _SAPPHIRE_RAPIDS,
    "emeraldrapids": replace(_SAPPHIRE_RAPIDS, l3=Cache(256 * MB, 16, 9.0)),
    "graniterapids": replace(_SAPPHIRE_RAPIDS, l3=Cache(256 * MB, 16, 9.0)),
    "icelake-server": _ICE_LAKE,
    "x86-64-v4": _SKYLAKE_SERVER,
    "skylake-avx512": _SKYLAKE_SERVER,
    "cascadelake": _SKYLAKE_SERVER,
    "cooperlake": _SKYLAKE_SERVER,
    "haswell": _HASWELL,
    "x86-64-v3": _HASWELL,
    "broadwell": _HASWELL,
    "skylake": _SKYLAKE,
    "alderlake": _ALDER_LAKE,
    "raptorlake": replace(_ALDER_LAKE, l2=Cache(2 * MB, 16, 48.0)),
    "znver1": replace(_ZEN, l3=Cache(8 * MB, 16, 16.0)),
    "znver2": _ZEN,
    "znver3": replace(_ZEN, fma_latency_cycles=4, issue_per_cycle=6, l3=Cache(32 * MB, 16, 16.0)),
    "znver4": _ZEN4,
    "znver5": replace(_ZEN4, fma_per_cycle=2, l1d=Cache(48 * KB, 12, 128.0)),
    "cortex-a53": _SMALL_ARM,
    "cortex-a55": _SMALL_ARM,
    "cortex-a72": replace(
        _SMALL_ARM,
        l2=Cache(1 * MB, 16, 16.0),
        l1d=Cache(32 * KB, 2, 16.0),
        reorder_window=128,
        frequency_ghz=1.8,
    ),
    "cortex-a76": _CORTEX_A76,
    "cortex-x1": replace(_CORTEX_A76, fma_per_cycle=4, l2=Cache(1 * MB, 8, 32.0)),
    "neoverse-n1": _NEOVERSE_N1,
    "neoverse-n2": replace(_NEOVERSE_N1, name="neoverse-n2"),
    "neoverse-v1": _NEOVERSE_V1,
    "neoverse-v2": replace(_NEOVERSE_V1, name="neoverse-v2", l2=Cache(2 * MB, 8, 32.0)),
    "apple-m1": _APPLE,
    "apple-m2": _APPLE,
    "apple-m4": _APPLE,
}
_BASELINE: dict[str, Machine] = {
    "x86_64": _SMALL_X86,
    "aarch64": replace(_SMALL_ARM, name="generic", source=GUESSED),
    "riscv64": _SMALL_RISCV,
    "arm": replace(_SMALL_ARM, name="generic", l2=Cache(256 * KB, 16, 8.0), source=GUESSED),
    "wasm32": _WASM,
}


def machine_of(arch: str, processor: str) -> Machine:
    """The record of a processor; of a small one of its architecture if unknown."""
    found = _KNOWN.get(processor)
    return _BASELINE[arch] if found is None else replace(found, name=processor)
