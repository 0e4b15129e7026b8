"""AArch64: NEON, with half-precision arithmetic where the processor has it."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen.machine import TBL, UNMASKED, Machine

# LLVM's scheduling models of some processors are incomplete, and end the process ("incomplete
# machine model"): an older relative that has no other instructions stands for them.
_SCHEDULED_AS = {"ampere1b": "ampere1a", "oryon-1": "ampere1"}


def machine(target: Target, cpu: str, features: str) -> Machine:
    return Machine(
        triple=target.triple,
        cpu=_SCHEDULED_AS.get(cpu, cpu) or "generic",
        features=features,
        converts_f16=True,
        converts_bf16=target.has("bf16"),
        computes_f16=target.has("fullfp16"),
        masked_bits=0 if target.has("sve") else UNMASKED,
        byte_tables=TBL,
        byte_lanes=16,
        fuses=True,
        saturates=True,
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )
