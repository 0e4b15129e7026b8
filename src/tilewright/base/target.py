"""Targets: the machine a program is compiled for, and its text form.

    cpu                                  this machine
    cpu -mcpu=generic                    this architecture, another processor
    x86_64-linux-gnu -mcpu=cascadelake   a processor of any architecture, by LLVM's triple
    riscv64-linux-gnu -mattr=+v          with features switched on or off
    cuda -arch=sm_90a                    an NVIDIA GPU
    wasm32                               WebAssembly
    vta-sim -geometry=1x16x16 -acc=128K  the accelerator, simulated
    vta-cycle -bus=128                   the same, cycle by cycle
    vta-rtl                              its RTL, simulated by Verilator
    vta                                  hardware, behind a library of the driver

A target has what schedules depend on: vector width and registers, features by LLVM's names, and the
machine model (`base/machine.py`), whose numbers can be set: `cpu -l2=1M -cores=8`. A target that
names a processor never reads the host. `str(target)` parses back to the target; `target.key` spells
everything out and is the key of caches and databases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from tilewright.base import geometry
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.geometry import Geometry
from tilewright.base.host import (
    ARCHES,
    host_features,
    host_machine,
    host_model,
    host_options,
    host_triple,
)
from tilewright.base.known_machines import machine_of
from tilewright.base.machine import KB, MB, Cache, Machine
from tilewright.base.processors import (
    BASELINE,
    architectures,
    processor_features,
    suggestion,
    switch,
)

CPU, CUDA, WASM, ACCEL = "cpu", "cuda", "wasm", "accel"

EXAMPLES = (
    "cpu",
    "x86_64-linux-gnu -mcpu=skylake-avx512",
    "aarch64-linux-gnu -mcpu=cortex-a53",
    "riscv64-linux-gnu -mattr=+v",
    "arm-linux-gnueabihf",
    "cuda -arch=sm_90a",
    "wasm32",
    "vta-sim",
    "vta-cycle -geometry=1x16x16 -bus=128",
)


@dataclass(frozen=True)
class Target:
    """A machine to compile for; made by `Target.parse`.

    Examples:
        >>> import tilewright as tw
        >>> target = tw.Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
        >>> target.kind, target.lanes(32)
        ('cpu', 16)
        >>> print(tw.Target.parse("cuda -arch=sm_90a"))
        cuda -arch=sm_90a
    """

    text: str  # as written, in normal form
    kind: str  # cpu, cuda, wasm, accel
    triple: str  # LLVM's
    mcpu: str = ""  # LLVM's processor name; "" means this machine's own, or the baseline
    attrs: tuple[str, ...] = ()  # -mattr: "+v", "-avx512f"
    is_host: bool = False  # this very machine
    features: frozenset[str] = frozenset()  # by LLVM's names
    vector_bits: int = 64  # of one register
    vector_registers: int = 16
    machine: Machine = field(default_factory=lambda: machine_of("x86_64", ""))
    shared_bytes: int = 0  # cuda: shared memory of one block
    geometry: Geometry | None = None  # accel: the array and its memories
    host_key: str = field(default="", repr=False)  # identifies this machine

    @staticmethod
    def parse(text: str | Target) -> Target:
        """Parse the text form; a target is returned as it is."""
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
        first = self.triple.split("-", 1)[0]
        return ARCHES.get(first, first)

    @cached_property  # part of every kernel's cache key
    def key(self) -> str:
        """Everything that code generated for this target may depend on."""
        switches = ",".join(sorted(self.features))
        shape = f"{self.text.split()[0]} {self.geometry.options} " if self.geometry else ""
        return (
            f"{self.kind} {shape}{self.triple} -mcpu={self.mcpu or 'host'} [{switches}] "
            f"vector={self.vector_bits} {self.machine.key} {self.host_key}"
        ).strip()

    def has(self, feature: str) -> bool:
        """Whether the target has a feature, by LLVM's name or a common one (vnni, bf16, amx)."""
        names = _ALIASES.get(feature, (feature,))
        return any(name in self.features for name in names)

    @property
    def has_byte_lookup(self) -> bool:
        """Whether a byte shuffle can index tables of 256 bytes, a vector of indices at a time."""
        return self.kind == CPU and (self.arch == "aarch64" or self.has("avx2"))

    @property
    def has_fma_broadcast(self) -> bool:
        """Whether an FMA can take an operand from memory and broadcast it to all lanes."""
        return self.has("avx512f")

    @property
    def fma_overwrites_operand(self) -> bool:
        """Whether an FMA can write its result over a factor, not only over the addend."""
        return self.arch == "x86_64"

    @property
    def has_broadcast_load(self) -> bool:
        """Whether a load can broadcast a scalar; otherwise FMAs multiply by a lane of a vector."""
        return self.arch not in ("aarch64", "arm")

    @property
    def has_gather(self) -> bool:
        """Whether one instruction loads a vector from a vector of addresses at useful speed."""
        return self.has("avx512f") or (self.arch == "riscv64" and self.has("v"))

    def has_masked_load(self, bits: int) -> bool:
        """Whether a masked load of elements of `bits` bits is as fast as one of a whole vector."""
        return self.has("avx512f") or self.has("sve") or (self.has("avx2") and bits >= 32)

    @property
    def broadcasts_in_flight(self) -> int:
        """Registers for broadcast scalars that are loaded before the FMAs that use them."""
        return 4 if self.arch in ("aarch64", "arm") else 1

    @property
    def spare_registers(self) -> int:
        """Vector registers that a register tile leaves to the rest of its loop.

        With fewer, LLVM was seen to spill all accumulators around a branch.
        """
        return 0 if self.broadcasts_in_flight > 1 else self.vector_registers // 16

    @property
    def vector_bytes(self) -> int:
        """The size of a vector register."""
        return self.vector_bits // 8

    def lanes(self, bits: int) -> int:
        """The number of elements of `bits` bits in a vector register; at least 1."""
        return max(1, self.vector_bits // bits)

    @property
    def l1d_bytes(self) -> int:
        return self.machine.l1d.size_bytes

    @property
    def l2_bytes(self) -> int:
        return self.machine.l2.size_bytes

    @property
    def cores(self) -> int:
        """The number of cores; for a GPU, of streaming multiprocessors."""
        return self.machine.cores

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


# --------------------------------------------------------------------------- parsing

_NUMBERS = tuple(f"-{name}" for name in machine_of("x86_64", "").numbers())
_OPTIONS = {
    CPU: ("-mcpu", "-mattr", *_NUMBERS),
    WASM: ("-mcpu", "-mattr", *_NUMBERS),
    CUDA: ("-arch",),
    ACCEL: geometry.OPTIONS,
}
_ACCELERATORS = ("vta-sim", "vta-cycle", "vta-rtl", "vta")


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
    elif name in _ACCELERATORS:
        kind, triple = ACCEL, host_triple()
    elif name == "wasm32" or name.startswith("wasm32-"):
        kind, triple = WASM, "wasm32-unknown-unknown" if name == "wasm32" else name
    elif name.split("-")[0] in ARCHES and "-" in name:
        kind, triple = CPU, _normal_triple(name)
    else:
        raise _unknown(f"unknown target {name!r}")
    given = _read_options(text, kind, options)
    normal = " ".join((name, *(f"{k}={given[k]}" for k in _OPTIONS[kind] if k in given)))
    if name == "cpu" and "-mcpu" not in given:
        given = _over_host(given)
    if kind == CUDA:
        return _cuda(normal, triple, given.get("-arch", "sm_90a"))
    if kind == ACCEL:
        return replace(
            _machine(normal, CPU, triple, {}, is_host=True),
            kind=ACCEL,
            geometry=_geometry(text, given),
        )
    return _machine(normal, kind, triple, given, is_host=name == "cpu")


def _over_host(given: dict[str, str]) -> dict[str, str]:
    """The options of `cpu` added to those of TILEWRIGHT_HOST; of a feature, the last one wins."""
    pretended = _read_options("TILEWRIGHT_HOST", CPU, list(host_options()))
    attrs = [of["-mattr"] for of in (pretended, given) if "-mattr" in of]
    return pretended | given | ({"-mattr": ",".join(attrs)} if attrs else {})


def _unknown(message: str) -> UserError:
    return UserError("TW0301", message, help="write one of: " + "; ".join(EXAMPLES))


def _normal_triple(name: str) -> str:
    """LLVM's triple with the vendor: aarch64-linux-gnu is aarch64-unknown-linux-gnu."""
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


def _read_number(text: str, option: str, value: str, machine: Machine) -> float:
    """A number of the machine model; sizes and counts are integers, rates are not."""
    if isinstance(machine.numbers()[option[1:]], int):
        return _read_size(text, option, value)
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0.0 < found < float("inf"):
        raise UserError(
            "TW0303",
            f"target {text!r}: {option}={value} is not a positive number",
            help=f"write {option}=8 or {option}=5.5",
        )
    return found


def _read_size(text: str, option: str, value: str) -> int:
    scale = {"K": KB, "M": MB, "G": KB * MB}.get(value[-1].upper(), 1)
    digits = value if scale == 1 else value[:-1]
    if not digits.isdecimal() or int(digits) == 0:
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


def _check_processor(text: str, arch: str, mcpu: str) -> None:
    """Reject a processor of another architecture; LLVM rejects unknown names."""
    others = architectures(mcpu)
    if others and arch not in others:
        triple = others[0] if others[0] == "wasm32" else f"{others[0]}-linux-gnu"
        raise UserError(
            "TW0305",
            f"target {text!r}: {mcpu} is a processor of {' or '.join(others)}, not of {arch}",
            help=f"write {triple} -mcpu={mcpu}, or {suggestion(arch, mcpu)}; "
            "without -mcpu, cpu is this very machine",
        )


def _machine(text: str, kind: str, triple: str, given: dict[str, str], *, is_host: bool) -> Target:
    arch = ARCHES[triple.split("-")[0]]
    mcpu = given.get("-mcpu", "")
    _check_processor(text, arch, mcpu)
    attrs = _read_attrs(text, given.get("-mattr", ""))
    own = is_host and not mcpu  # this processor, not only this architecture
    base = host_features() if own else processor_features(arch, mcpu or BASELINE[arch])
    features = switch(base, attrs)
    bits, registers = _vectors(arch, features)
    machine = host_machine() if own else machine_of(arch, mcpu)
    numbers = {
        name[1:]: _read_number(text, name, given[name], machine)
        for name in _NUMBERS
        if name in given
    }
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
        machine=machine.with_numbers(numbers),
        host_key=host_model() if own else "",
    )


def geometry_of(target: str | Target) -> Geometry:
    """The array and memories of an accelerator target."""
    found = Target.parse(target)
    if found.geometry is None:
        raise UserError(
            "TW7022", f"target {found.text!r} is not an accelerator", help="try vta-sim"
        )
    return found.geometry


def _geometry(text: str, given: dict[str, str]) -> Geometry:
    """The accelerator described by a target's options."""
    numbers = {
        field: _read_size(text, option, given[option])
        for option, field in (geometry.SIZES | geometry.NUMBERS).items()
        if option in given
    }
    if "-geometry" in given:
        shape = geometry.read_shape(given["-geometry"])
        if shape is None:
            raise UserError(
                "TW0303",
                f"target {text!r}: -geometry={given['-geometry']} is not BATCHxINxOUT",
                help="write -geometry=1x16x16",
            )
        numbers |= shape
    return Geometry(**numbers)


def _vectors(arch: str, features: frozenset[str]) -> tuple[int, int]:
    """The width in bits and the number of vector registers."""
    if arch == "x86_64":
        if "avx512f" in features:
            return 512, 32
        return (256, 16) if "avx" in features else (128, 16)
    if arch == "aarch64":
        return 128, 32
    if arch == "riscv64":
        return (128, 32) if "v" in features else (64, 32)
    if arch == "arm":
        return (128, 16) if {"neon", "mve"} & features else (32, 16)
    return (128, 16) if "simd128" in features else (64, 16)


# By compute capability: features added, shared memory, multiprocessors, GHz under load.
_CUDA = {
    70: ("mma", 96 * KB, 80, 1.38),
    75: ("ldmatrix", 64 * KB, 40, 1.59),
    80: ("cp.async bf16 tf32", 163 * KB, 108, 1.41),
    86: ("", 99 * KB, 84, 1.70),
    89: ("fp8", 99 * KB, 142, 2.52),
    90: ("bulk-copy clusters dependent-launch", 227 * KB, 132, 1.755),
    100: ("", 227 * KB, 148, 1.92),
    120: ("", 99 * KB, 170, 2.41),
}


def _cuda(text: str, triple: str, arch: str) -> Target:
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdecimal() or int(digits) not in _CUDA:
        known = ", ".join(f"sm_{number}" for number in _CUDA)
        raise UserError(
            "TW0304",
            f"target {text!r}: unknown architecture {arch!r}",
            help=f"known: {known}; a trailing a (sm_90a) adds what only that one has",
        )
    number = int(digits)
    features: set[str] = set()
    for since, (added, *_) in _CUDA.items():
        if since <= number:
            features.update(added.split())
    if arch == "sm_90a":
        features.add("wgmma")
    _, shared, cores, ghz = _CUDA[number]
    l2_mb = 50 if number >= 90 else 40 if number >= 80 else 4
    return Target(
        text=text,
        kind=CUDA,
        triple=triple,
        mcpu=arch,
        features=frozenset(features),
        vector_bits=128,
        vector_registers=255,
        machine=_multiprocessors(arch, shared, l2_mb * MB, cores, ghz),
        shared_bytes=shared,
    )


def _multiprocessors(
    arch: str, shared_bytes: int, l2_bytes: int, cores: int, ghz: float
) -> Machine:
    """The machine model of a GPU; a core is a multiprocessor."""
    line = 128
    return replace(
        machine_of("x86_64", ""),
        name=arch,
        frequency_ghz=ghz,
        l1d=Cache(shared_bytes, 4, 128.0, line),
        l2=Cache(l2_bytes, 16, 64.0, line),
        l3=Cache(0, 1, 0.0, line),
        cores=cores,
    )
