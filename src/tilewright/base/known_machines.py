"""Machine models of the processors that LLVM has names for.

    machine_of("x86_64", "cascadelake").l2.size_bytes

Sources: vendors' optimization guides and public instruction tables; rates beyond L2 are those of
servers with all cores busy, as far as published, else those of the nearest relative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.base.machine import GUESSED, KB, KNOWN, MB, Cache, Machine


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


# --------------------------------------------------------------------------- relatives


def _with_caches(base: Machine, l2_kb: int, l3_mb: int, **changes: Any) -> Machine:
    """A processor like another but for the sizes of its caches, and what else is given."""
    return replace(
        base,
        l2=replace(base.l2, size_bytes=l2_kb * KB),
        l3=replace(base.l3, size_bytes=l3_mb * MB),
        **changes,
    )


# Laptops and desktops with AVX-512: one 512-bit multiply-add per cycle, where servers have two.
_ICE_LAKE_CLIENT = _with_caches(_ICE_LAKE, 512, 8, fma_per_cycle=1, frequency_ghz=3.4)
_LION_COVE = _with_caches(
    _ALDER_LAKE, 3072, 36, loads_per_cycle=3, reorder_window=576, issue_per_cycle=8
)
# Efficient cores: each 256-bit instruction is two of 128 bits.
_GRACEMONT = replace(
    _ALDER_LAKE,
    fma_per_cycle=1,
    fma_latency_cycles=6,
    loads_per_cycle=1,
    reorder_window=256,
    issue_per_cycle=5,
    l1d=Cache(32 * KB, 8, 32.0),
    l2=Cache(2 * MB, 16, 32.0),
)
# AVX without FMA: a multiplication and an addition per cycle, one after the other.
_SANDY_BRIDGE = replace(
    _HASWELL,
    fma_per_cycle=1,
    fma_latency_cycles=8,
    loads_per_cycle=1,
    reorder_window=168,
    l1d=Cache(32 * KB, 8, 32.0),
)
_NEHALEM = replace(_SANDY_BRIDGE, fma_latency_cycles=7, reorder_window=128)
_ZEN5 = replace(
    _ZEN4,
    fma_per_cycle=2,
    reorder_window=448,
    issue_per_cycle=8,
    l1d=Cache(48 * KB, 12, 128.0),
)
# Cores of phones and boards, two generations apart.
_CORTEX_A72 = replace(
    _SMALL_ARM,
    l2=Cache(1 * MB, 16, 16.0),
    l1d=Cache(32 * KB, 2, 16.0),
    reorder_window=128,
    frequency_ghz=1.8,
)
_CORTEX_A710 = _with_caches(_CORTEX_A76, 512, 8, reorder_window=160, frequency_ghz=2.6)
_CORTEX_X1 = replace(_CORTEX_A76, fma_per_cycle=4, l2=Cache(1 * MB, 8, 32.0))
_CORTEX_X2 = replace(
    _CORTEX_X1, loads_per_cycle=3, stores_per_cycle=2, reorder_window=288, frequency_ghz=3.0
)
_NEOVERSE_V2 = replace(_NEOVERSE_V1, l2=Cache(2 * MB, 8, 32.0))

_AMPERE = _with_caches(_NEOVERSE_N1, 2048, 64, reorder_window=208, frequency_ghz=3.0)

_KNOWN: Mapping[str, Machine] = {
    "nehalem": _NEHALEM,
    "westmere": _NEHALEM,
    "sandybridge": _SANDY_BRIDGE,
    "ivybridge": _SANDY_BRIDGE,
    "haswell": _HASWELL,
    "x86-64-v3": _HASWELL,
    "broadwell": _HASWELL,
    "skylake": _SKYLAKE,
    "alderlake": _ALDER_LAKE,
    "raptorlake": replace(_ALDER_LAKE, l2=Cache(2 * MB, 16, 48.0)),
    "meteorlake": replace(_ALDER_LAKE, l2=Cache(2 * MB, 16, 48.0)),
    "arrowlake": _LION_COVE,
    "arrowlake-s": _LION_COVE,
    "lunarlake": _with_caches(_LION_COVE, 2560, 12),
    "pantherlake": _LION_COVE,
    "wildcatlake": _LION_COVE,
    "novalake": _LION_COVE,
    "gracemont": _GRACEMONT,
    "sierraforest": _with_caches(_GRACEMONT, 4096, 96, frequency_ghz=2.6),
    "grandridge": _with_caches(_GRACEMONT, 4096, 24, frequency_ghz=2.6),
    "clearwaterforest": _with_caches(
        _GRACEMONT, 4096, 96, fma_per_cycle=2, loads_per_cycle=2, reorder_window=416
    ),
    "skylake-avx512": _SKYLAKE_SERVER,
    "x86-64-v4": _SKYLAKE_SERVER,
    "cascadelake": _SKYLAKE_SERVER,
    "cooperlake": _SKYLAKE_SERVER,
    "cannonlake": _with_caches(_SKYLAKE_SERVER, 256, 4, fma_per_cycle=1),
    "icelake-client": _ICE_LAKE_CLIENT,
    "tigerlake": _with_caches(_ICE_LAKE_CLIENT, 1280, 12),
    "rocketlake": _with_caches(_ICE_LAKE_CLIENT, 512, 16, frequency_ghz=4.0),
    "icelake-server": _ICE_LAKE,
    "sapphirerapids": _SAPPHIRE_RAPIDS,
    "emeraldrapids": replace(_SAPPHIRE_RAPIDS, l3=Cache(256 * MB, 16, 9.0)),
    "graniterapids": replace(_SAPPHIRE_RAPIDS, l3=Cache(256 * MB, 16, 9.0)),
    "diamondrapids": replace(_SAPPHIRE_RAPIDS, l3=Cache(256 * MB, 16, 9.0)),
    "graniterapids-d": replace(_SAPPHIRE_RAPIDS, l3=Cache(128 * MB, 16, 9.0)),
    "znver1": replace(
        _ZEN, fma_per_cycle=1, loads_per_cycle=1, l3=Cache(8 * MB, 16, 16.0)
    ),  # 256-bit instructions are two of 128 bits
    "znver2": _ZEN,
    "znver3": replace(_ZEN, fma_latency_cycles=4, issue_per_cycle=6, l3=Cache(32 * MB, 16, 16.0)),
    "znver4": _ZEN4,
    "znver5": _ZEN5,
    "cortex-a35": _SMALL_ARM,
    "cortex-a53": _SMALL_ARM,
    "cortex-a55": _SMALL_ARM,
    "cortex-a65": _SMALL_ARM,
    "cortex-a320": _SMALL_ARM,
    "cortex-a510": _SMALL_ARM,
    "cortex-a520": _SMALL_ARM,
    "c1-nano": _SMALL_ARM,
    "cortex-a57": _CORTEX_A72,
    "cortex-a72": _CORTEX_A72,
    "cortex-a73": _CORTEX_A72,
    "cortex-a75": _CORTEX_A76,
    "cortex-a76": _CORTEX_A76,
    "cortex-a77": _CORTEX_A76,
    "cortex-a78": _CORTEX_A710,
    "cortex-a78c": _CORTEX_A710,
    "cortex-a710": _CORTEX_A710,
    "cortex-a715": _CORTEX_A710,
    "cortex-a720": _CORTEX_A710,
    "cortex-a725": _CORTEX_A710,
    "c1-pro": _CORTEX_A710,
    "cortex-x1": _CORTEX_X1,
    "cortex-x1c": _CORTEX_X1,
    "cortex-x2": _CORTEX_X2,
    "cortex-x3": replace(_CORTEX_X2, reorder_window=320),
    "cortex-x4": _with_caches(_CORTEX_X2, 2048, 12, reorder_window=384),
    "cortex-x925": _with_caches(_CORTEX_X2, 3072, 16, fma_per_cycle=6, reorder_window=768),
    "gb10": _with_caches(_CORTEX_X2, 2048, 16, fma_per_cycle=6, reorder_window=768),
    "c1-premium": _with_caches(_CORTEX_X2, 2048, 16, fma_per_cycle=6, reorder_window=768),
    "c1-ultra": _with_caches(_CORTEX_X2, 3072, 16, fma_per_cycle=6, reorder_window=768),
    "neoverse-e1": _SMALL_ARM,
    "neoverse-n1": _NEOVERSE_N1,
    "neoverse-n2": _NEOVERSE_N1,
    "cobalt-100": _NEOVERSE_N1,
    "neoverse-n3": replace(_NEOVERSE_N1, l2=Cache(2 * MB, 8, 16.0), reorder_window=160),
    "neoverse-v1": _NEOVERSE_V1,
    "neoverse-512tvb": _NEOVERSE_V1,
    "neoverse-v2": _NEOVERSE_V2,
    "grace": _with_caches(_NEOVERSE_V2, 1024, 114),
    "neoverse-v3": replace(_NEOVERSE_V2, reorder_window=384),
    "neoverse-v3ae": replace(_NEOVERSE_V2, reorder_window=384),
    "olympus": replace(_NEOVERSE_V2, reorder_window=384),
    "fujitsu-monaka": replace(_NEOVERSE_V2, reorder_window=384),
    "a64fx": _with_caches(_NEOVERSE_N1, 8192, 0, fma_latency_cycles=9, memory_bytes_per_cycle=9.0),
    **dict.fromkeys(("ampere1", "ampere1a", "ampere1b", "ampere1c"), _AMPERE),
    "carmel": _with_caches(_CORTEX_A76, 2048, 4, frequency_ghz=2.2),
    "thunderx2t99": _with_caches(_NEOVERSE_N1, 256, 32, fma_latency_cycles=6, reorder_window=180),
    "tsv110": _with_caches(_NEOVERSE_N1, 512, 64),
    "oryon-1": replace(_APPLE, l1d=Cache(96 * KB, 6, 48.0), frequency_ghz=3.8),
    "apple-a12": replace(_APPLE, fma_per_cycle=3, l2=Cache(8 * MB, 16, 32.0, 128)),
    "apple-a13": replace(_APPLE, fma_per_cycle=3, l2=Cache(8 * MB, 16, 32.0, 128)),
    **dict.fromkeys(
        ("apple-a14", "apple-a15", "apple-a16", "apple-a17", "apple-a18", "apple-a19"), _APPLE
    ),
    **dict.fromkeys(("apple-m1", "apple-m2", "apple-m3", "apple-m4", "apple-m5"), _APPLE),
}
_BASELINE: Mapping[str, Machine] = {
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
