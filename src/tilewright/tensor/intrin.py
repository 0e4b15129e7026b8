"""Tensor intrinsics: what a hardware instruction means, and what stands for it in code.

An intrinsic is declared by its behaviour: a small tensor function over tiles (outputs last). Its
implementation is one statement per phase over the same tiles, usually a call of an instruction on
their addresses. `tensorize` matches the behaviour, the interpreter executes it, lowering puts the
implementation in its place.

Instructions that come in many sizes are a family: `declare_family(name, parameters, make)`, whose
members `intrinsic("amx_bf16_dot", rows=14)` are made when somebody asks for them. Modules declare
what they know when they are imported; `tilewright.intrin` imports those of real hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tilewright.base.errors import UserError
from tilewright.base.intern import node
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.tensor.ir import Buffer, Function, Stmt
from tilewright.tensor.parameters import Arguments, Parameter, canonical, reference, resolve
from tilewright.tensor.visit import written_buffers

COMPUTE, RESET, UPDATE = "compute", "reset", "update"
PHASES = (COMPUTE, RESET, UPDATE)


@node
class TensorIntrin:
    """A declared instruction. A phase without a statement of its own runs the behaviour itself.

    compute overwrites the outputs with the behaviour's result; for a reduction, reset sets them to
    the identity and update combines the result into them. `arguments` tell a member of a family.
    """

    name: str
    behavior: Function
    compute: Stmt | None = None
    reset: Stmt | None = None
    update: Stmt | None = None
    arguments: Arguments = ()

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        written = written_buffers(self.behavior.body)
        return tuple(buffer for buffer in self.behavior.buffers if buffer in written)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        written = written_buffers(self.behavior.body)
        return tuple(buffer for buffer in self.behavior.buffers if buffer not in written)

    @property
    def reference(self) -> str:
        """How text names it: `amx_bf16_dot(rows=14)`."""
        return reference(self.name, self.arguments)

    def implementation(self, phase: str) -> Stmt | None:
        """The statement that carries out `phase`."""
        return {COMPUTE: self.compute, RESET: self.reset, UPDATE: self.update}[phase]


@dataclass(frozen=True, slots=True)
class Family:
    """Instructions that differ in integers: `make(rows=14)` gives one."""

    name: str
    parameters: tuple[Parameter, ...]
    make: Callable[..., TensorIntrin]
    made: dict[Arguments, TensorIntrin] = field(default_factory=dict, repr=False)


_declared: dict[str, Family] = {}


def declared() -> tuple[Family, ...]:
    """Everything declared so far, in order; one intrinsic is a family without parameters."""
    return tuple(_declared.values())


def declare(intrin: TensorIntrin) -> TensorIntrin:
    """Make an intrinsic known by name, to schedules and the interpreter; the last one counts."""
    _declared[intrin.name] = Family(intrin.name, (), lambda: intrin, {(): intrin})
    return intrin


def declare_family(
    name: str, parameters: Iterable[Parameter], make: Callable[..., TensorIntrin]
) -> Family:
    """Make the intrinsics known that `make` gives for the numbers its parameters allow."""
    if name in _declared:
        raise UserError(
            "TW2013",
            f"an intrinsic named {name} is declared already",
            help="a family replaces nothing: give it a name of its own",
        )
    _declared[name] = Family(name, tuple(parameters), make)
    return _declared[name]


def intrinsic(
    name: str, arguments: Iterable[tuple[str, int]] = (), loc: Loc = UNKNOWN, **parameters: int
) -> TensorIntrin:
    """The intrinsic declared under `name`, of a family the member with these parameters."""
    family = _declared.get(name)
    if family is None:
        known = ", ".join(sorted(_declared)) or "none"
        raise UserError(
            "TW2010",
            f"no tensor intrinsic named {name}",
            loc,
            help=f"declared: {known}; import tilewright.intrin for those of real hardware",
        )
    values = resolve(name, family.parameters, (*arguments, *parameters.items()), loc)
    shown = canonical(family.parameters, values)
    if shown not in family.made:
        family.made[shown] = replace(family.make(**values), name=name, arguments=shown)
    return family.made[shown]
