"""x86-64: SSE2 up to AVX-512."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen.machine import UNMASKED, VPERMI2B, VPSHUFB, Machine


def machine(target: Target, cpu: str, features: str) -> Machine:
    wide = target.has("avx512f")
    # Explicit 512-bit vectors stay whole, whatever width LLVM's tuning of the processor prefers.
    attributes = ('"prefer-vector-width"="512"', '"min-legal-vector-width"="512"') if wide else ()
    whole = wide and target.has("avx512bw")  # vectors of 64 bytes
    looks = VPERMI2B if whole and target.has("avx512vbmi") else VPSHUFB
    return Machine(
        triple=target.triple,
        cpu=cpu or "x86-64",
        features=features,
        converts_f16=target.has("f16c") or wide,
        converts_bf16=target.has("avx512bf16") and target.has("avx512vl"),
        computes_f16=target.has("avx512fp16"),
        masked_bits=8 if whole else 32 if target.has("avx") else UNMASKED,
        has_gather=target.has("avx2"),
        loads_lanes=target.machine.loads_lanes,
        scales=wide,
        looks_up=wide,
        byte_tables=looks if target.has("avx2") else "",
        byte_lanes=64 if whole else 32,
        fuses=target.has("fma") or wide,
        rounds=True,
        packs=wide and target.has("avx512bw"),
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
        function_attributes=attributes,
    )
