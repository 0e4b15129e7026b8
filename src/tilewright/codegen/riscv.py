"""RISC-V, 64 bits, with double-precision floats; vectors where asked for."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen.machine import UNMASKED, Machine


def machine(target: Target, cpu: str, features: str) -> Machine:
    base = ",".join(f"+{name}" for name in ("m", "a", "f", "d", "c"))
    return Machine(
        triple=target.triple,
        cpu=cpu or "generic-rv64",
        features=f"{base},{features}".rstrip(","),
        abi="lp64d",
        converts_f16=target.has("zfh"),
        masked_bits=0 if target.has("v") else UNMASKED,
        has_gather=target.has("v"),
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )
