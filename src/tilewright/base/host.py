"""Description of the host as the system reports it: architecture, processor, features, caches,
cores.

`TILEWRIGHT_HOST` contains options that `cpu` then implies (`-mcpu=haswell`): code for another
processor that this one can run, so that tests can emulate missing features.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from tilewright.base import cpuinfo
from tilewright.base.known_machines import machine_of
from tilewright.base.machine import KB, LEVELS, MB, MEASURED, Cache, Machine
from tilewright.base.processors import BASELINE, features_known, processor_features

ARCHES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
    "arm": "arm",
    "armv7": "arm",
    "armv7l": "arm",
    "armv7a": "arm",
    "thumb": "arm",
    "wasm32": "wasm32",
}


def host_options() -> tuple[str, ...]:
    """The options that `cpu` implies, from the environment; empty by default."""
    return tuple(os.environ.get("TILEWRIGHT_HOST", "").split())


def host_triple() -> str:
    """LLVM's triple of the host."""
    machine = platform.machine().lower()
    arch = ARCHES.get(machine, machine)
    system = platform.system()
    if system == "Darwin":
        return f"{'arm64' if arch == 'aarch64' else arch}-apple-darwin"
    if system == "Windows":
        return f"{arch}-pc-windows-msvc"
    return f"{arch}-unknown-linux-gnu"


def host_arch() -> str:
    return ARCHES[host_triple().split("-")[0]]


def host_cores() -> int:
    """The number of cores that this process may use. Several logical processors of one core count
    once; a container's quota of processor time limits it. `runtime/native/cores.c` counts likewise.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return _usable_cores(frozenset(os.sched_getaffinity(0)))


@cache
def _usable_cores(usable: frozenset[int], root: Path = Path("/")) -> int:
    cores = len({min(_siblings(root, processor) & usable) for processor in usable})
    return min([cores, *(max(1, int(quota + 0.5)) for quota in _quotas(root))])


def _siblings(root: Path, processor: int) -> frozenset[int]:
    """The logical processors of the same core, which the kernel lists as ranges: 0-1 or 3,67."""
    path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    try:
        parts = [part.split("-") for part in path.read_text().strip().split(",")]
        listed = [range(int(part[0]), int(part[-1]) + 1) for part in parts]
    except (OSError, ValueError):
        listed = []
    return frozenset({processor}.union(*listed))


def _quotas(root: Path) -> Iterator[float]:
    """The processors that the quotas of this process's control groups amount to."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # number:controllers:path
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # Inside of a container the path may be that of the host, where only its end exists.
        group = PurePosixPath(path)
        for folder in (base / str(each).lstrip("/") for each in (group, *group.parents)):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            try:
                words = [word for name in names for word in (folder / name).read_text().split()]
                quota, period = (float(word) for word in words)  # "max" is no limit
            except (OSError, ValueError):
                continue
            if quota > 0 and period > 0:
                yield quota / period


# --------------------------------------------------------------------------- the processor


@cache
def host_features() -> frozenset[str]:
    """The host's features by LLVM's names; the baseline where the system does not report them."""
    arch = host_arch()
    found = cpuinfo.features(arch) & features_known(arch)
    return found | processor_features(arch, BASELINE[arch])


def host_processor() -> str:
    """LLVM's name of the host's processor or of its closest relative; "" if unknown."""
    return cpuinfo.processor(host_arch(), host_features())


def host_model() -> str:
    """The processor's marketing name."""
    described = cpuinfo.first()
    for key in ("model name", "CPU part", "uarch"):
        if key in described:
            return described[key]
    return platform.processor() or platform.machine()


# --------------------------------------------------------------------------- the machine model


@cache
def host_machine() -> Machine:
    """The machine model of the host: known by its name, reported by the system, or measured."""
    found, measured = described_machine(), try_measured()
    return found if measured is None else replace(found.with_numbers(measured), source=MEASURED)


def described_machine() -> Machine:
    """The machine model of the host, without measurements."""
    found = machine_of(host_arch(), host_processor())
    caches: dict[str, Any] = {
        name: _as_described(getattr(found, name), level)
        for level, name in enumerate(LEVELS, start=1)
    }
    return replace(found, cores=host_cores(), **caches)


def _as_described(known: Cache, level: int) -> Cache:
    """A cache with the size and associativity that the system reports."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((folder / "level").read_text()) != level:
                continue
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = _size_bytes((folder / "size").read_text().strip())
            ways = int((folder / "ways_of_associativity").read_text()) or known.ways
            line = int((folder / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
        return replace(known, size_bytes=size, ways=ways, line_bytes=line)
    return known


def _size_bytes(text: str) -> int:
    scale = {"K": KB, "M": MB}.get(text[-1:], 1)
    return int(text if scale == 1 else text[:-1]) * scale


def cache_root() -> Path | None:
    """The folder of persistent caches; None if caching is off.

    `TILEWRIGHT_CACHE_DIR` names the folder; an empty value turns caching off.
    """
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tilewright"


def measured_file() -> Path | None:
    """The file with measurements of this machine."""
    root = cache_root()
    name = "".join(char if char.isalnum() else "-" for char in host_model())
    return None if root is None else root / "machines" / f"{name}-{host_cores()}.json"


def try_measured() -> dict[str, float] | None:
    """The results of `tilewright targets --calibrate` on this machine, by the names of
    `Machine.numbers`."""
    path = measured_file()
    try:
        found = None if path is None else json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    known = machine_of(host_arch(), "").numbers()
    if not isinstance(found, dict) or not all(name in known for name in found):
        return None  # written by another version
    if not all(isinstance(value, (int, float)) and value > 0 for value in found.values()):
        return None
    return {name: type(known[name])(value) for name, value in found.items()}
