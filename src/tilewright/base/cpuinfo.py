"""What the kernel says of the processors of this machine, in /proc/cpuinfo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tilewright.base.known_machines import machine_of

# The kernel's names of features where they differ from LLVM's.
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
    "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16",
    "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert",
    "avx10_2": "avx10.2",
    "apx": "egpr",
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
# LLVM's names, by the implementer and the part of a core.
_ARM_PARTS = {
    "0x41": {  # Arm
        "0xd03": "cortex-a53",
        "0xd04": "cortex-a35",
        "0xd05": "cortex-a55",
        "0xd06": "cortex-a65",
        "0xd07": "cortex-a57",
        "0xd08": "cortex-a72",
        "0xd09": "cortex-a73",
        "0xd0a": "cortex-a75",
        "0xd0b": "cortex-a76",
        "0xd0c": "neoverse-n1",
        "0xd0d": "cortex-a77",
        "0xd0e": "cortex-a76",
        "0xd40": "neoverse-v1",
        "0xd41": "cortex-a78",
        "0xd42": "cortex-a78",
        "0xd44": "cortex-x1",
        "0xd46": "cortex-a510",
        "0xd47": "cortex-a710",
        "0xd48": "cortex-x2",
        "0xd49": "neoverse-n2",
        "0xd4a": "neoverse-e1",
        "0xd4b": "cortex-a78c",
        "0xd4c": "cortex-x1c",
        "0xd4d": "cortex-a715",
        "0xd4e": "cortex-x3",
        "0xd4f": "neoverse-v2",
        "0xd80": "cortex-a520",
        "0xd81": "cortex-a720",
        "0xd82": "cortex-x4",
        "0xd83": "neoverse-v3ae",
        "0xd84": "neoverse-v3",
        "0xd85": "cortex-x925",
        "0xd87": "cortex-a725",
        "0xd8e": "neoverse-n3",
    },
    "0x43": {"0x0af": "thunderx2t99"},  # Cavium
    "0x46": {"0x001": "a64fx", "0x003": "fujitsu-monaka"},
    "0x48": {"0xd01": "tsv110"},  # HiSilicon
    "0x4e": {"0x004": "carmel", "0x010": "olympus"},  # NVIDIA
    "0x51": {"0x001": "oryon-1"},  # Qualcomm
    "0x61": {  # Apple
        **dict.fromkeys(("0x022", "0x023", "0x024", "0x025", "0x028", "0x029"), "apple-m1"),
        **dict.fromkeys(("0x032", "0x033", "0x034", "0x035", "0x038", "0x039"), "apple-m2"),
    },
    "0x6d": {"0xd49": "cobalt-100"},  # Microsoft
    "0xc0": {"0xac3": "ampere1", "0xac4": "ampere1a", "0xac5": "ampere1b"},
}
# Of family 6.
_INTEL_MODELS = {
    **dict.fromkeys((26, 30, 31, 46), "nehalem"),
    **dict.fromkeys((37, 44, 47), "westmere"),
    **dict.fromkeys((42, 45), "sandybridge"),
    **dict.fromkeys((58, 62), "ivybridge"),
    **dict.fromkeys((60, 63, 69, 70), "haswell"),
    **dict.fromkeys((61, 71, 79, 86), "broadwell"),
    **dict.fromkeys((78, 94, 142, 158, 165, 166), "skylake"),
    102: "cannonlake",
    **dict.fromkeys((125, 126), "icelake-client"),
    **dict.fromkeys((140, 141), "tigerlake"),
    167: "rocketlake",
    **dict.fromkeys((151, 154), "alderlake"),
    **dict.fromkeys((183, 186, 191), "raptorlake"),
    **dict.fromkeys((170, 172), "meteorlake"),
    **dict.fromkeys((181, 197), "arrowlake"),
    198: "arrowlake-s",
    189: "lunarlake",
    204: "pantherlake",
    190: "gracemont",
    175: "sierraforest",
    182: "grandridge",
    221: "clearwaterforest",
    **dict.fromkeys((106, 108), "icelake-server"),
    143: "sapphirerapids",
    207: "emeraldrapids",
    173: "graniterapids",
    174: "graniterapids-d",
}
_AMD_FAMILIES = {
    23: ("znver1", "znver2"),
    24: ("znver1", "znver1"),  # Hygon
    25: ("znver3", "znver4"),
    26: ("znver5", "znver5"),
}
# The oldest processor with a feature, for unknown names; newest first.
_BY_FEATURE = (
    ("amx-tile", "sapphirerapids"),
    ("avx512vbmi2", "icelake-server"),
    ("avx512bf16", "cooperlake"),
    ("avx512vnni", "cascadelake"),
    ("avx512f", "skylake-avx512"),
    ("avx2", "haswell"),
    ("avx", "sandybridge"),
    ("sve2", "neoverse-n2"),
    ("sve", "neoverse-v1"),
    ("dotprod", "cortex-a76"),
)


@cache
def processors() -> tuple[Mapping[str, str], ...]:
    """What the kernel says of each processor; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ()
    return tuple(_pairs(paragraph) for paragraph in text.strip().split("\n\n"))


def first() -> Mapping[str, str]:
    return next(iter(processors()), {})


def _pairs(paragraph: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in paragraph.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def features(arch: str) -> frozenset[str]:
    """The features that the kernel lists, by LLVM's names where these are known."""
    described = first()
    if arch == "riscv64":  # rv64imafdcv_zba_zbb
        letters, *longer = described.get("isa", "").split("_")
        flags = set(letters.removeprefix("rv64")) | set(longer)
        return frozenset(flags | ({"m", "a", "f", "d"} if "g" in flags else set()))
    listed = described.get("flags", described.get("Features", "")).split()
    return frozenset(_KERNEL_NAMES.get(flag, flag) for flag in listed)


def processor(arch: str, having: frozenset[str]) -> str:
    """LLVM's name of the processor, or of its closest relative by features; "" if unknown."""
    cores = _arm_cores() if arch == "aarch64" else set()
    if cores:
        return max(sorted(cores), key=lambda name: _strength(arch, name))
    described = first()
    vendor = described.get("vendor_id")
    try:
        family, model = int(described.get("cpu family", "")), int(described.get("model", ""))
    except ValueError:
        family = model = 0
    if vendor == "GenuineIntel" and family == 6 and model in _INTEL_MODELS:
        return _INTEL_MODELS[model]
    if vendor in ("AuthenticAMD", "HygonGenuine") and family in _AMD_FAMILIES:
        older, newer = _AMD_FAMILIES[family]
        is_newer = "avx512f" in having if family == 25 else model >= 48
        return newer if is_newer else older
    return next((name for feature, name in _BY_FEATURE if feature in having), "")


def _arm_cores() -> set[str]:
    """The known kinds of cores: phones and boards have fast ones beside frugal ones."""
    found = set()
    for described in processors():
        parts = _ARM_PARTS.get(described.get("CPU implementer", ""), {})
        found.add(parts.get(described.get("CPU part", ""), ""))
    return found - {""}


def _strength(arch: str, processor: str) -> tuple[int, int]:
    machine = machine_of(arch, processor)
    return machine.fma_per_cycle, machine.reorder_window
