"""Targets: the machine a program is compiled for, written as an expert would guess.

    cpu                                  this machine
    cpu -mcpu=skylake-avx512             this architecture, another processor
    aarch64-linux-gnu -mcpu=cortex-a53   another architecture, by LLVM's triple
    riscv64-linux-gnu -mattr=+v          with features switched on or off
    cuda -arch=sm_90a                    an NVIDIA GPU
    wasm32                               WebAssembly
    vta-sim                              the simulated accelerator

A target knows what schedules ask about: vector width and registers, caches, cores, features by
LLVM's names. What is not known is taken on the safe side. `str(target)` parses back to it, and
`target.key` spells everything out: it is what caches and databases are keyed by.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tilewright.base.errors import UserError, UserTypeError

CPU, CUDA, WASM, ACCEL = "cpu", "cuda", "wasm", "accel"

EXAMPLES = (
    "cpu",
    "cpu -mcpu=skylake-avx512",
    "aarch64-linux-gnu -mcpu=cortex-a53",
    "riscv64-linux-gnu -mattr=+v",
    "arm-linux-gnueabihf",
    "cuda -arch=sm_90a",
    "wasm32",
    "vta-sim",
)

KB, MB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to compile for; made by `Target.parse`."""

    text: str  # as written, in normal form
    kind: str  # cpu, cuda, wasm, accel
    triple: str  # LLVM's
    mcpu: str = ""  # LLVM's processor name; "" means this machine's own, or the baseline
    attrs: tuple[str, ...] = ()  # features asked for: "+v", "-avx512f"
    is_host: bool = False  # this very machine
    features: frozenset[str] = frozenset()  # by LLVM's names
    vector_bits: int = 64  # of one register
    vector_registers: int = 16
    fma_units: int = 1  # vector multiply-adds that start per cycle
    l1d_bytes: int = 32 * KB
    l2_bytes: int = 256 * KB
    l3_bytes: int = 0
    line_bytes: int = 64
    cores: int = 1  # for cuda: streaming multiprocessors
    shared_bytes: int = 0  # cuda: shared memory of one block
    host_key: str = field(default="", repr=False)  # what tells this machine from others

    @staticmethod
    def parse(text: str | Target) -> Target:
        """The target a text stands for; a target stands for itself."""
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            raise UserTypeError(
                "TW0306",
                f"a target is written as text, got a {type(text).__name__}",
                help="write one of: " + "; ".join(EXAMPLES),
            )
        return _parse(" ".join(text.split()))

    @staticmethod
    def host() -> Target:
        """This machine."""
        return _parse("cpu")

    @property
    def arch(self) -> str:
        """The architecture: x86_64, aarch64, riscv64, arm, wasm32, nvptx64."""
        return self.triple.split("-", 1)[0]

    @property
    def key(self) -> str:
        """Everything that code generated for this target may depend on."""
        switches = ",".join(sorted(self.features))
        machine = f"vector={self.vector_bits} l1d={self.l1d_bytes} l2={self.l2_bytes}"
        return (
            f"{self.kind} {self.triple} -mcpu={self.mcpu or 'host'} [{switches}] "
            f"{machine} l3={self.l3_bytes} cores={self.cores} {self.host_key}"
        ).strip()

    def has(self, feature: str) -> bool:
        """Whether a feature is there, by LLVM's name or by a common one (vnni, bf16, amx)."""
        names = _ALIASES.get(feature, (feature,))
        return any(name in self.features for name in names)

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector register; at least 1."""
        return max(1, self.vector_bits // bits)

    def with_cores(self, cores: int) -> Target:
        """The same machine with a number of cores to use."""
        return replace(self, cores=cores)

    def __str__(self) -> str:
        return self.text


_ALIASES = {
    "vnni": ("avx512vnni", "avxvnni"),
    "bf16": ("avx512bf16", "bf16"),
    "fp16": ("avx512fp16", "fullfp16"),
    "amx": ("amx-tile",),
    "neon": ("neon",),
    "dot": ("dotprod", "avx512vnni", "avxvnni"),
    "simd": ("simd128",),
    "tensor_cores": ("mma",),
}


# --------------------------------------------------------------------------- processors

# name: (the one it extends, features it adds); LLVM's names throughout
_X86 = {
    "x86-64": ("", "cmov sse sse2"),
    "x86-64-v2": ("x86-64", "cx16 popcnt sse3 sse4.1 sse4.2 ssse3"),
    "x86-64-v3": ("x86-64-v2", "avx avx2 bmi bmi2 f16c fma lzcnt movbe"),
    "x86-64-v4": ("x86-64-v3", "avx512bw avx512cd avx512dq avx512f avx512vl"),
    "haswell": ("x86-64-v3", ""),
    "broadwell": ("haswell", "adx"),
    "skylake": ("broadwell", "clflushopt"),
    "alderlake": ("skylake", "avxvnni gfni vaes"),
    "raptorlake": ("alderlake", ""),
    "skylake-avx512": ("x86-64-v4", "adx clflushopt"),
    "cascadelake": ("skylake-avx512", "avx512vnni"),
    "cooperlake": ("cascadelake", "avx512bf16"),
    "icelake-server": (
        "cascadelake",
        "avx512bitalg avx512ifma avx512vbmi avx512vbmi2 avx512vpopcntdq gfni vaes",
    ),
    "sapphirerapids": (
        "icelake-server",
        "amx-bf16 amx-int8 amx-tile avx512bf16 avx512fp16 avxvnni",
    ),
    "emeraldrapids": ("sapphirerapids", ""),
    "graniterapids": ("sapphirerapids", "amx-fp16"),
    "znver1": ("x86-64-v3", "adx clflushopt"),
    "znver2": ("znver1", ""),
    "znver3": ("znver2", "vaes"),
    "znver4": (
        "znver3",
        "avx512bf16 avx512bitalg avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi "
        "avx512vbmi2 avx512vl avx512vnni avx512vpopcntdq gfni",
    ),
    "znver5": ("znver4", "avxvnni"),
}
_AARCH64 = {
    "generic": ("", "fp-armv8 neon"),
    "cortex-a53": ("generic", "crc"),
    "cortex-a55": ("generic", "crc dotprod fullfp16 lse"),
    "cortex-a72": ("generic", "crc"),
    "cortex-a76": ("generic", "crc dotprod fullfp16 lse"),
    "cortex-x1": ("cortex-a76", ""),
    "neoverse-n1": ("cortex-a76", ""),
    "neoverse-n2": ("neoverse-n1", "bf16 i8mm sve sve2"),
    "neoverse-v1": ("neoverse-n1", "bf16 i8mm sve"),
    "neoverse-v2": ("neoverse-v1", "sve2"),
    "apple-m1": ("cortex-a76", ""),
    "apple-m2": ("apple-m1", "bf16 i8mm"),
    "apple-m4": ("apple-m2", "sme"),
}
_RISCV64 = {
    "generic-rv64": ("", "a c d f m"),
    "sifive-u74": ("generic-rv64", "zba zbb"),
    "sifive-x280": ("generic-rv64", "v zba zbb zfh zvfh"),
    "spacemit-x60": ("generic-rv64", "v zba zbb zfh zvfh"),
}
_ARM = {
    "generic": ("", "neon vfp3"),
    "cortex-a7": ("generic", "vfp4"),
    "cortex-a15": ("cortex-a7", ""),
    "cortex-m4": ("", "vfp4sp"),
    "cortex-m7": ("cortex-m4", ""),
    "cortex-m55": ("cortex-m4", "mve"),
}
_WASM = {"generic": ("", "bulk-memory nontrapping-fptoint sign-ext simd128")}
_PROCESSORS = {
    "x86_64": _X86,
    "aarch64": _AARCH64,
    "riscv64": _RISCV64,
    "arm": _ARM,
    "wasm32": _WASM,
}
_BASELINE = {
    "x86_64": "x86-64",
    "aarch64": "generic",
    "riscv64": "generic-rv64",
    "arm": "generic",
    "wasm32": "generic",
}

# Features that another one implies; `-x` takes these away with x.
_IMPLIES = {
    "avx512vnni": "avx512f",
    "avx512bf16": "avx512bw",
    "avx512fp16": "avx512bw",
    "avx512bw": "avx512f",
    "avx512cd": "avx512f",
    "avx512dq": "avx512f",
    "avx512vl": "avx512f",
    "avx512vbmi": "avx512bw",
    "avx512vbmi2": "avx512bw",
    "avx512bitalg": "avx512bw",
    "avx512ifma": "avx512f",
    "avx512vpopcntdq": "avx512f",
    "avx512f": "avx2",
    "avxvnni": "avx2",
    "avx2": "avx",
    "fma": "avx",
    "f16c": "avx",
    "avx": "sse4.2",
    "amx-bf16": "amx-tile",
    "amx-int8": "amx-tile",
    "amx-fp16": "amx-tile",
    "sve2": "sve",
    "sve": "neon",
    "dotprod": "neon",
    "zvfh": "v",
}


def processors(triple: str) -> tuple[str, ...]:
    """The processors of a triple's architecture whose features are known here."""
    return tuple(_PROCESSORS[_ARCHES[triple.split("-")[0]]])


def _processor_features(arch: str, name: str) -> frozenset[str]:
    """The features of a processor; of the baseline for one that only LLVM knows."""
    table = _PROCESSORS[arch]
    if name not in table:
        name = _BASELINE[arch]
    found: set[str] = set()
    while name:
        name, added = table[name]
        found.update(added.split())
    return frozenset(found)


def _switch(features: frozenset[str], attrs: tuple[str, ...]) -> frozenset[str]:
    """The features after `+a` and `-b`, with what they imply."""
    found = set(features)
    for attr in attrs:
        name = attr[1:]
        if attr[0] == "+":
            while name:
                found.add(name)
                name = _IMPLIES.get(name, "")
        else:
            gone = {name}
            while gone:
                found -= gone
                gone = {f for f in found if _IMPLIES.get(f) and _IMPLIES[f] not in found}
    return frozenset(found)


# --------------------------------------------------------------------------- parsing

_OPTIONS = {
    CPU: ("-mcpu", "-mattr", "-cores", "-l1d", "-l2", "-l3"),
    WASM: ("-mcpu", "-mattr"),
    CUDA: ("-arch",),
    ACCEL: (),
}
_ARCHES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
    "arm": "arm",
    "armv7": "arm",
    "armv7a": "arm",
    "thumb": "arm",
    "wasm32": "wasm32",
}


@cache
def _parse(text: str) -> Target:
    words = text.split()
    if not words:
        raise _unknown("the target is empty")
    name, options = words[0], words[1:]
    if name == "cpu":
        kind, triple = CPU, host_triple()
    elif name == "cuda":
        kind, triple = CUDA, "nvptx64-nvidia-cuda"
    elif name == "vta-sim":
        kind, triple = ACCEL, host_triple()
    elif name == "wasm32" or name.startswith("wasm32-"):
        kind, triple = WASM, "wasm32-unknown-unknown" if name == "wasm32" else name
    elif name.split("-")[0] in _ARCHES and "-" in name:
        kind, triple = CPU, _normal_triple(name)
    else:
        raise _unknown(f"unknown target {name!r}")
    given = _read_options(text, kind, options)
    normal = " ".join((name, *(f"{k}={given[k]}" for k in _OPTIONS[kind] if k in given)))
    if kind == CUDA:
        return _cuda(normal, triple, given.get("-arch", "sm_90a"))
    if kind == ACCEL:
        return replace(_machine(normal, CPU, triple, {}, is_host=True), kind=ACCEL)
    return _machine(normal, kind, triple, given, is_host=name == "cpu")


def _unknown(message: str) -> UserError:
    return UserError("TW0301", message, help="write one of: " + "; ".join(EXAMPLES))


def _normal_triple(name: str) -> str:
    """LLVM's triple with its vendor: aarch64-linux-gnu means aarch64-unknown-linux-gnu."""
    parts = name.split("-")
    if len(parts) == 3 and parts[1] in ("linux", "none"):
        parts.insert(1, "unknown")
    if len(parts) == 2 and parts[1] == "linux":
        parts = [parts[0], "unknown", "linux", "gnu"]
    return "-".join(parts)


def _read_options(text: str, kind: str, options: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if key not in _OPTIONS[kind] or not equals or not value:
            known = ", ".join(f"{name}=..." for name in _OPTIONS[kind]) or "none"
            raise UserError(
                "TW0302", f"target {text!r}: unknown option {option!r}", help=f"it takes: {known}"
            )
        if key in given:
            raise UserError("TW0302", f"target {text!r}: {key} is given twice", help="keep one")
        given[key] = value
    return given


def _read_size(text: str, option: str, value: str) -> int:
    scale = {"K": KB, "M": MB, "G": KB * MB}.get(value[-1].upper(), 1)
    digits = value if scale == 1 else value[:-1]
    if not digits.isdigit() or int(digits) == 0:
        raise UserError(
            "TW0303",
            f"target {text!r}: {option}={value} is not a size",
            help=f"write a number of bytes, {option}=48K or {option}=2M",
        )
    return int(digits) * scale


def _read_attrs(text: str, value: str) -> tuple[str, ...]:
    attrs = tuple(part for part in value.split(",") if part)
    for attr in attrs:
        if attr[0] not in "+-" or len(attr) < 2:
            raise UserError(
                "TW0303",
                f"target {text!r}: the feature {attr!r} has no sign",
                help=f"write -mattr=+{attr.lstrip('+-')} or -mattr=-{attr.lstrip('+-')}",
            )
    return attrs


def _machine(text: str, kind: str, triple: str, given: dict[str, str], *, is_host: bool) -> Target:
    arch = _ARCHES[triple.split("-")[0]]
    mcpu = given.get("-mcpu", "")
    attrs = _read_attrs(text, given.get("-mattr", ""))
    own = is_host and not mcpu  # this processor, not only this architecture
    base = host_features() if own else _processor_features(arch, mcpu or _BASELINE[arch])
    features = _switch(base, attrs)
    bits, registers, units = _vectors(arch, features)
    l1d, l2, l3 = _host_caches() if is_host else _usual_caches(arch)
    return Target(
        text=text,
        kind=kind,
        triple=triple,
        mcpu=mcpu,
        attrs=attrs,
        is_host=own,
        features=features,
        vector_bits=bits,
        vector_registers=registers,
        fma_units=units,
        l1d_bytes=_read_size(text, "-l1d", given["-l1d"]) if "-l1d" in given else l1d,
        l2_bytes=_read_size(text, "-l2", given["-l2"]) if "-l2" in given else l2,
        l3_bytes=_read_size(text, "-l3", given["-l3"]) if "-l3" in given else l3,
        cores=_read_size(text, "-cores", given["-cores"])
        if "-cores" in given
        else (host_cores() if is_host else 4 if kind == CPU else 1),
        host_key=_host_model() if own else "",
    )


def _vectors(arch: str, features: frozenset[str]) -> tuple[int, int, int]:
    """Bits of a vector register, number of them, multiply-adds started per cycle."""
    if arch == "x86_64":
        if "avx512f" in features:
            return 512, 32, 2
        if "avx" in features:
            return 256, 16, 2 if "fma" in features else 1
        return 128, 16, 1
    if arch == "aarch64":
        return 128, 32, 2 if "dotprod" in features else 1
    if arch == "riscv64":
        return (128, 32, 1) if "v" in features else (64, 32, 1)
    if arch == "arm":
        return (128, 16, 1) if {"neon", "mve"} & features else (32, 16, 1)
    return (128, 16, 1) if "simd128" in features else (64, 16, 1)


def _usual_caches(arch: str) -> tuple[int, int, int]:
    """L1 data, L2 and L3 of a small machine of the architecture."""
    return {
        "x86_64": (32 * KB, 512 * KB, 8 * MB),
        "aarch64": (32 * KB, 512 * KB, 0),
        "riscv64": (32 * KB, 512 * KB, 0),
        "arm": (32 * KB, 256 * KB, 0),
        "wasm32": (32 * KB, 256 * KB, 0),
    }[arch]


# What an architecture of NVIDIA adds to the ones before it: (from, features, shared memory, SMs).
_CUDA = {
    70: ("mma", 96 * KB, 80),
    75: ("ldmatrix", 64 * KB, 40),
    80: ("cp.async bf16 tf32", 163 * KB, 108),
    86: ("", 99 * KB, 84),
    89: ("fp8", 99 * KB, 142),
    90: ("bulk-copy clusters", 227 * KB, 132),
    100: ("", 227 * KB, 148),
    120: ("", 99 * KB, 170),
}


def _cuda(text: str, triple: str, arch: str) -> Target:
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdigit() or int(digits) not in _CUDA:
        known = ", ".join(f"sm_{number}" for number in _CUDA)
        raise UserError(
            "TW0304",
            f"target {text!r}: unknown architecture {arch!r}",
            help=f"known: {known}; a trailing a (sm_90a) adds what only that one has",
        )
    number = int(digits)
    features: set[str] = set()
    for since, (added, _, _) in _CUDA.items():
        if since <= number:
            features.update(added.split())
    if arch == "sm_90a":
        features.add("wgmma")
    _, shared, cores = _CUDA[number]
    return Target(
        text=text,
        kind=CUDA,
        triple=triple,
        mcpu=arch,
        features=frozenset(features),
        vector_bits=128,
        vector_registers=255,
        l1d_bytes=shared,
        l2_bytes=(50 if number >= 90 else 40 if number >= 80 else 4) * MB,
        line_bytes=128,
        cores=cores,
        shared_bytes=shared,
    )


# --------------------------------------------------------------------------- this machine


def host_triple() -> str:
    """LLVM's triple of this machine."""
    machine = platform.machine().lower()
    arch = _ARCHES.get(machine, machine)
    system = platform.system()
    if system == "Darwin":
        return f"{'arm64' if arch == 'aarch64' else arch}-apple-darwin"
    if system == "Windows":
        return f"{arch}-pc-windows-msvc"
    return f"{arch}-unknown-linux-gnu"


def host_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# The kernel's names for features where they differ from LLVM's.
_KERNEL_NAMES = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_fp16": "amx-fp16",
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "fp": "fp-armv8",
    "atomics": "lse",
    "crc32": "crc",
}


@cache
def host_features() -> frozenset[str]:
    """This processor's features by LLVM's names; the baseline where the system does not tell."""
    arch = _ARCHES[host_triple().split("-")[0]]
    known = {name for table in _PROCESSORS[arch].values() for name in table[1].split()}
    flags: set[str] = set()
    for line in _cpuinfo():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = {_KERNEL_NAMES.get(flag, flag) for flag in value.split()}
            break
        if key.strip() == "isa":  # RISC-V: rv64imafdcv_zba_zbb
            letters, *longer = value.strip().split("_")
            flags = set(letters.removeprefix("rv64")) | set(longer)
            flags |= {"m", "a", "f", "d"} if "g" in flags else set()
            break
    return frozenset(flags & known) | _processor_features(arch, _BASELINE[arch])


def _host_model() -> str:
    """The processor's name."""
    for line in _cpuinfo():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part", "uarch"):
            return value.strip()
    return platform.processor() or platform.machine()


@cache
def _cpuinfo() -> tuple[str, ...]:
    """The kernel's description of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ()
    return tuple(text.split("\n\n")[0].splitlines())


@cache
def _host_caches() -> tuple[int, int, int]:
    """L1 data, L2 and L3 in bytes; usual values where the system does not tell."""
    l1d, l2, l3 = _usual_caches(_ARCHES[host_triple().split("-")[0]])
    found: dict[tuple[int, str], int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level = int((folder / "level").read_text())
            kind = (folder / "type").read_text().strip()
            found[level, kind] = _read_size("cpu", "-l1d", (folder / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    if not found:
        return l1d, l2, l3
    return (
        found.get((1, "Data"), found.get((1, "Unified"), l1d)),
        found.get((2, "Unified"), l2),
        found.get((3, "Unified"), 0),
    )
