"""WebAssembly: 32-bit addresses, 128-bit vectors, one thread."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen.machine import UNMASKED, Machine


def machine(target: Target, cpu: str, features: str) -> Machine:
    base = ",".join(f"+{name}" for name in sorted(target.features))
    return Machine(
        triple=target.triple,
        cpu="generic",
        features=f"{base},{features}".rstrip(","),
        narrows_indices=True,
        relocation="static",
        masked_bits=UNMASKED,
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )
