"""What the emitter must know about the machine it writes for; one small file per family.

x86.py, aarch64.py, riscv.py, arm.py and wasm.py each turn a `Target` into a `Machine`.
"""

from __future__ import annotations

from dataclasses import dataclass

UNMASKED = 1 << 16  # bits: no element has masked loads
TBL, VPERMI2B, VPSHUFB = "tbl", "vpermi2b", "vpshufb"  # instructions that look bytes up


@dataclass(frozen=True, slots=True)
class Machine:
    """A target as LLVM is told about it."""

    triple: str
    cpu: str
    features: str  # "+avx2,-sse4a"
    narrows_indices: bool = False  # those that 32 bits hold are computed in so many
    relocation: str = "pic"
    abi: str = ""
    converts_f16: bool = False  # instructions convert between f16 and f32
    converts_bf16: bool = False
    splits_words: bool = False  # vectors are words of 32 bits, two narrow lanes in each
    computes_f16: bool = False  # arithmetic on f16 itself
    masked_bits: int = 0  # narrower elements have no masked loads: lanes are loaded one by one
    has_gather: bool = False
    loads_lanes: bool = False  # gathers take longer than loads of their lanes one by one
    scales: bool = False  # an instruction multiplies vectors of 512 bits by powers of two
    looks_up: bool = False  # an instruction takes each lane from a table in vectors of 512 bits
    raises_two: bool = False  # an instruction gives powers of two of f32, to two units in the last
    byte_tables: str = ""  # the instruction that looks bytes up in a table of them
    byte_lanes: int = 0  # how many at a time
    fuses: bool = False  # an instruction multiplies and adds floats, and rounds once
    rounds: bool = False  # an instruction converts lanes of floats to the nearest integers
    saturates: bool = False  # conversions to integers, and to fewer bits of them, saturate
    packs: bool = False  # instructions saturate vectors of 512 bits to fewer bits per lane
    assembles: bool = False  # LLVM was built to parse this architecture's assembly here
    vector_bits: int = 128
    vector_registers: int = 16  # of a GPU those of one thread
    function_attributes: tuple[str, ...] = ()  # LLVM's, beyond cpu and features
