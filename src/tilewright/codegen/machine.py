"""What the emitter needs to know about a target; one small file per architecture.

x86.py, aarch64.py, riscv.py, arm.py and wasm.py each turn a `Target` into a `Machine`.
"""

from __future__ import annotations

from dataclasses import dataclass

UNMASKED = 1 << 16  # bits: no element has masked loads
TBL, VPERMI2B, VPSHUFB = "tbl", "vpermi2b", "vpshufb"  # byte lookup instructions


@dataclass(frozen=True, slots=True)
class Machine:
    """A target as described to LLVM."""

    triple: str
    cpu: str
    features: str  # "+avx2,-sse4a"
    narrows_indices: bool = False  # indices that fit are computed in 32 bits
    relocation: str = "pic"
    abi: str = ""
    converts_f16: bool = False  # instructions convert between f16 and f32
    converts_bf16: bool = False
    splits_words: bool = False  # vectors consist of 32-bit words, with two narrow lanes each
    computes_f16: bool = False  # native f16 arithmetic
    masked_bits: int = 0  # the narrowest elements with masked loads; others are loaded by lane
    has_gather: bool = False
    loads_lanes: bool = False  # gathers are slower than loads of single lanes
    scales: bool = False  # has 512-bit scaling by powers of two (vscalef)
    looks_up: bool = False  # has 512-bit table permutes (vpermt2)
    raises_two: bool = False  # has an approximate exp2 of f32, accurate to two ulps
    byte_tables: str = ""  # the byte lookup instruction
    byte_lanes: int = 0  # its lanes
    fuses: bool = False  # has fused multiply-add
    rounds: bool = False  # has vector conversions to the nearest integer
    saturates: bool = False  # conversions to integers, and narrowing ones, saturate
    packs: bool = False  # has 512-bit saturating packs
    assembles: bool = False  # LLVM was built to parse this architecture's assembly here
    vector_bits: int = 128
    vector_registers: int = 16  # on a GPU, those of one thread
    function_attributes: tuple[str, ...] = ()  # LLVM's, beyond cpu and features
