"""Processors and their features, by LLVM's names."""

from __future__ import annotations

import difflib

GENERIC = "generic"  # LLVM's name of an architecture's baseline

# name: (the processor it extends, added features); LLVM's names throughout
_X86 = {
    "x86-64": ("", "cmov sse sse2"),
    "x86-64-v2": ("x86-64", "cx16 popcnt sse3 sse4.1 sse4.2 ssse3"),
    "x86-64-v3": ("x86-64-v2", "avx avx2 bmi bmi2 f16c fma lzcnt movbe"),
    "x86-64-v4": ("x86-64-v3", "avx512bw avx512cd avx512dq avx512f avx512vl"),
    "nehalem": ("x86-64-v2", ""),
    "westmere": ("nehalem", ""),
    "sandybridge": ("westmere", "avx"),
    "ivybridge": ("sandybridge", "f16c"),
    "haswell": ("x86-64-v3", ""),
    "broadwell": ("haswell", "adx"),
    "skylake": ("broadwell", "clflushopt"),
    "alderlake": ("skylake", "avxvnni gfni vaes"),
    "raptorlake": ("alderlake", ""),
    "meteorlake": ("alderlake", ""),
    "gracemont": ("alderlake", ""),
    "sierraforest": ("alderlake", "avxifma avxneconvert avxvnniint8"),
    "grandridge": ("sierraforest", ""),
    "arrowlake": ("sierraforest", ""),
    "arrowlake-s": ("arrowlake", "avxvnniint16"),
    "lunarlake": ("arrowlake-s", ""),
    "pantherlake": ("arrowlake-s", ""),
    "wildcatlake": ("pantherlake", ""),
    "clearwaterforest": ("arrowlake-s", ""),
    "novalake": (
        "pantherlake",
        "avx10.2 avx512bf16 avx512bitalg avx512bw avx512cd avx512dq avx512f avx512fp16 avx512ifma "
        "avx512vbmi avx512vbmi2 avx512vl avx512vnni avx512vpopcntdq egpr",
    ),
    "skylake-avx512": ("x86-64-v4", "adx clflushopt"),
    "cascadelake": ("skylake-avx512", "avx512vnni"),
    "cooperlake": ("cascadelake", "avx512bf16"),
    "cannonlake": ("skylake-avx512", "avx512ifma avx512vbmi"),
    "icelake-client": (
        "cannonlake",
        "avx512bitalg avx512vbmi2 avx512vnni avx512vpopcntdq gfni vaes",
    ),
    "tigerlake": ("icelake-client", ""),
    "rocketlake": ("icelake-client", ""),
    "icelake-server": ("icelake-client", ""),
    "sapphirerapids": (
        "icelake-server",
        "amx-bf16 amx-int8 amx-tile avx512bf16 avx512fp16 avxvnni",
    ),
    "emeraldrapids": ("sapphirerapids", ""),
    "graniterapids": ("sapphirerapids", "amx-fp16"),
    "graniterapids-d": ("graniterapids", ""),
    "diamondrapids": (
        "graniterapids",
        "avx10.2 avxifma avxneconvert avxvnniint16 avxvnniint8 egpr",
    ),
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
    "cortex-a35": ("generic", "crc"),
    "cortex-a53": ("generic", "crc"),
    "cortex-a57": ("generic", "crc"),
    "cortex-a72": ("generic", "crc"),
    "cortex-a73": ("generic", "crc"),
    "cortex-a55": ("generic", "crc dotprod fullfp16 lse"),
    "cortex-a65": ("cortex-a55", ""),
    "cortex-a75": ("cortex-a55", ""),
    "cortex-a76": ("generic", "crc dotprod fullfp16 lse"),
    "cortex-a77": ("cortex-a76", ""),
    "cortex-a78": ("cortex-a76", ""),
    "cortex-a78c": ("cortex-a76", ""),
    "cortex-x1": ("cortex-a76", ""),
    "cortex-x1c": ("cortex-x1", ""),
    "cortex-a510": ("cortex-a55", "bf16 i8mm sve sve2"),
    "cortex-a520": ("cortex-a510", ""),
    "cortex-a320": ("cortex-a510", ""),
    "cortex-a710": ("cortex-a78", "bf16 i8mm sve sve2"),
    "cortex-a715": ("cortex-a710", ""),
    "cortex-a720": ("cortex-a715", ""),
    "cortex-a725": ("cortex-a720", ""),
    "cortex-x2": ("cortex-x1", "bf16 i8mm sve sve2"),
    "cortex-x3": ("cortex-x2", ""),
    "cortex-x4": ("cortex-x3", ""),
    "cortex-x925": ("cortex-x4", ""),
    "gb10": ("cortex-x925", ""),
    "c1-nano": ("cortex-a520", "sme"),
    "c1-pro": ("cortex-a725", "sme"),
    "c1-premium": ("cortex-x925", "sme"),
    "c1-ultra": ("cortex-x925", "sme"),
    "neoverse-e1": ("cortex-a65", ""),
    "neoverse-n1": ("cortex-a76", ""),
    "neoverse-n2": ("neoverse-n1", "bf16 i8mm sve sve2"),
    "cobalt-100": ("neoverse-n2", ""),
    "neoverse-n3": ("neoverse-n2", ""),
    "neoverse-v1": ("neoverse-n1", "bf16 i8mm sve"),
    "neoverse-512tvb": ("neoverse-v1", ""),
    "neoverse-v2": ("neoverse-v1", "sve2"),
    "grace": ("neoverse-v2", ""),
    "neoverse-v3": ("neoverse-v2", ""),
    "neoverse-v3ae": ("neoverse-v3", ""),
    "olympus": ("neoverse-v3", ""),
    "fujitsu-monaka": ("neoverse-v2", ""),
    "a64fx": ("generic", "crc fullfp16 lse sve"),
    "ampere1": ("neoverse-n1", "bf16 i8mm"),
    "ampere1a": ("ampere1", ""),
    "ampere1b": ("ampere1a", ""),
    "ampere1c": ("ampere1b", ""),
    "carmel": ("generic", "crc fullfp16 lse"),
    "oryon-1": ("neoverse-n1", "bf16 i8mm"),
    "thunderx2t99": ("generic", "crc lse"),
    "tsv110": ("neoverse-n1", ""),
    "apple-a12": ("generic", "crc fullfp16 lse"),
    "apple-a13": ("apple-a12", "dotprod"),
    "apple-a14": ("apple-a13", ""),
    "apple-m1": ("apple-a14", ""),
    "apple-a15": ("apple-a14", "bf16 i8mm"),
    "apple-m2": ("apple-a15", ""),
    "apple-a16": ("apple-a15", ""),
    "apple-a17": ("apple-a16", ""),
    "apple-m3": ("apple-a16", ""),
    "apple-a18": ("apple-a17", "sme"),
    "apple-m4": ("apple-a18", ""),
    "apple-a19": ("apple-a18", ""),
    "apple-m5": ("apple-m4", ""),
}
_RISCV64 = {
    "generic-rv64": ("", "a c d f m"),
    "sifive-u74": ("generic-rv64", ""),
    "sifive-p450": ("generic-rv64", "zba zbb"),
    "sifive-p550": ("sifive-p450", ""),
    "sifive-p470": ("sifive-p450", "v"),
    "sifive-p670": ("sifive-p450", "v"),
    "sifive-p870": ("sifive-p670", "zfh zvfh"),
    "sifive-x280": ("generic-rv64", "v zba zbb zfh zvfh"),
    "sifive-x390": ("sifive-x280", ""),
    "spacemit-x60": ("generic-rv64", "v zba zbb zfh zvfh"),
    "tt-ascalon-d8": ("generic-rv64", "v zba zbb zfh zvfh"),
    "veyron-v1": ("generic-rv64", "zba zbb"),
    "xiangshan-nanhu": ("generic-rv64", "zba zbb"),
    "xiangshan-kunminghu": ("xiangshan-nanhu", "v zfh zvfh"),
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
BASELINE = {
    "x86_64": "x86-64",
    "aarch64": "generic",
    "riscv64": "generic-rv64",
    "arm": "generic",
    "wasm32": "generic",
}

_WELL_KNOWN = {
    "x86_64": ("x86-64-v3", "haswell", "cascadelake", "sapphirerapids", "znver4"),
    "aarch64": ("cortex-a55", "cortex-a76", "neoverse-n1", "neoverse-v2", "apple-m1"),
    "riscv64": tuple(_RISCV64),
    "arm": tuple(_ARM),
    "wasm32": tuple(_WASM),
}

# Implied features; `-x` also removes the features that imply x.
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
    "avxifma": "avx2",
    "avxneconvert": "avx2",
    "avxvnniint8": "avx2",
    "avxvnniint16": "avx2",
    "avx10.2": "avx512f",
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


def processors(arch: str) -> tuple[str, ...]:
    """The known processors of an architecture."""
    return tuple(_PROCESSORS[arch])


def suggestion(arch: str, name: str) -> str:
    """Processors of the architecture with a name like this one, or well-known ones."""
    near = difflib.get_close_matches(name, processors(arch), 3)
    return f"one of: {', '.join(near or _WELL_KNOWN[arch])}"


def is_known(arch: str, processor: str) -> bool:
    """Whether the features of a processor are listed here; of others there may be more."""
    return processor in ("", GENERIC) or processor in _PROCESSORS[arch]


def architectures(processor: str) -> tuple[str, ...]:
    """The architectures with a processor of this name; empty if unknown, or generic."""
    if processor == GENERIC:
        return ()
    return tuple(arch for arch, table in _PROCESSORS.items() if processor in table)


def features_known(arch: str) -> frozenset[str]:
    """All features that a processor of the architecture may have."""
    return frozenset(name for _, added in _PROCESSORS[arch].values() for name in added.split())


def processor_features(arch: str, name: str) -> frozenset[str]:
    """The features of a processor; the baseline if it is unknown here."""
    table = _PROCESSORS[arch]
    if name not in table:
        name = BASELINE[arch]
    found: set[str] = set()
    while name:
        name, added = table[name]
        found.update(added.split())
    return frozenset(found)


def switch(features: frozenset[str], attrs: tuple[str, ...]) -> frozenset[str]:
    """Apply `+a` and `-b` to features, with their implications."""
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
