"""The handlers of each architecture of processors: one table per choice."""

from __future__ import annotations

from tilewright.codegen import amx, hardware
from tilewright.codegen.builder import Value
from tilewright.codegen.handlers import Emitting, Handlers
from tilewright.codegen.machine import Machine
from tilewright.intrin.amx import TILE
from tilewright.tensor.ir import Call


def _no_barrier(e: Emitting, node: Call, is_statement: bool) -> Value:
    """One thread has nothing to wait for."""
    return Value("void", "")


_CPU = {**hardware.CALLS, "barrier.": _no_barrier}
CPU = Handlers(_CPU)
X86 = Handlers(
    {**_CPU, "llvm.x86.": amx.instruction},
    {TILE.name: amx.allocate},
    arrange=amx.arrange,
    begin=amx.begin,
)
BY_ARCHITECTURE = {"x86_64": X86}  # others have the core alone


def handlers_of(machine: Machine) -> Handlers:
    """What the processor adds to the core emitter."""
    return BY_ARCHITECTURE.get(machine.triple.partition("-")[0], CPU)
