"""Arm, 32 bits: A profile with NEON, M profile (Thumb) without."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen.machine import UNMASKED, Machine


def machine(target: Target, cpu: str, features: str) -> Machine:
    base = "+neon" if target.has("neon") else ""
    return Machine(
        triple=target.triple.replace("arm-", "armv7-", 1),
        cpu=cpu or "generic",
        features=",".join(part for part in (base, features) if part),
        narrows_indices=True,
        masked_bits=UNMASKED,
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )
