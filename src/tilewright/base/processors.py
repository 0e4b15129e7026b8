"""Processors and their features, by LLVM's names."""

from __future__ import annotations

GENERIC = "generic"  # LLVM's name of an architecture's baseline

# name: (the processor it extends, added features); LLVM's names throughout
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
BASELINE = {
    "x86_64": "x86-64",
    "aarch64": "generic",
    "riscv64": "generic-rv64",
    "arm": "generic",
    "wasm32": "generic",
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
