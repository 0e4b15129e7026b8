"""Tensor intrinsics: what a hardware instruction means, and what stands for it in code.

An intrinsic is declared by its behaviour: a small tensor function over tiles (outputs last). Its
implementation is one statement per phase over the same tiles, usually a call of an instruction on
their addresses. `tensorize` matches the behaviour, the interpreter executes it, lowering puts the
implementation in its place.
"""

from __future__ import annotations

from importlib import import_module

from tilewright.base.errors import UserError
from tilewright.base.intern import node
from tilewright.tensor.ir import Buffer, Function, Stmt
from tilewright.tensor.visit import written_buffers

COMPUTE, RESET, UPDATE = "compute", "reset", "update"
PHASES = (COMPUTE, RESET, UPDATE)


@node
class TensorIntrin:
    """A declared instruction. A phase without a statement of its own runs the behaviour itself.

    compute overwrites the outputs with the behaviour's result; for a reduction, reset sets them to
    the identity and update combines the result into them.
    """

    name: str
    behavior: Function
    compute: Stmt | None = None
    reset: Stmt | None = None
    update: Stmt | None = None

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        written = written_buffers(self.behavior.body)
        return tuple(buffer for buffer in self.behavior.buffers if buffer in written)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        written = written_buffers(self.behavior.body)
        return tuple(buffer for buffer in self.behavior.buffers if buffer not in written)

    def implementation(self, phase: str) -> Stmt | None:
        """The statement that carries out `phase`."""
        return {COMPUTE: self.compute, RESET: self.reset, UPDATE: self.update}[phase]


_declared: dict[str, TensorIntrin] = {}


def declare(intrin: TensorIntrin) -> TensorIntrin:
    """Make an intrinsic known by name, to the parser and the interpreter; the last one counts."""
    _declared[intrin.name] = intrin
    return intrin


def intrinsic(name: str) -> TensorIntrin:
    """The intrinsic declared under `name`."""
    if name not in _declared:
        # Declares ours; a layer above, so reached by name.
        import_module("tilewright.intrin").declare_by_name(name)
    if name not in _declared:
        known = ", ".join(sorted(_declared)) or "none"
        raise UserError("TW2010", f"no tensor intrinsic named {name}", help=f"declared: {known}")
    return _declared[name]
