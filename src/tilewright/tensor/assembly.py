"""Inline assembly, as part of the program that uses it.

A function says what `asm.NAME` stands for in an attribute of that name, LLVM's template and
constraints, and whether the instructions do more than give a result:

    attr asm.add_one = ("leal 1($1), $0", "=r,r", false)

An intrinsic says it in its behaviour; lowering a call of it takes the attribute along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.errors import UserError
from tilewright.tensor.ir import Annotations, Function, annotated

PREFIX = "asm."


@dataclass(frozen=True, slots=True)
class Assembly:
    """An instruction sequence: LLVM's template and constraints."""

    name: str
    template: str
    constraints: str
    has_effects: bool = True


def with_assembly(fn: Function, *assemblies: Assembly) -> Function:
    """The function, in which `asm.NAME` stands for these instructions."""
    attrs = fn.attrs
    for each in assemblies:
        value = (each.template, each.constraints, each.has_effects)
        attrs = annotated(attrs, PREFIX + each.name, value)
    return replace(fn, attrs=attrs)


def assembly_of(fn: Function) -> dict[str, Assembly]:
    """What the inline assembly of a function says, by `asm.NAME`."""
    found: dict[str, Assembly] = {}
    for key, value in assembly_attributes(fn):
        match value:
            case (str(template), str(constraints), bool(has_effects)):
                name = key.removeprefix(PREFIX)
                found[key] = Assembly(name, template, constraints, has_effects)
            case _:
                raise UserError(
                    "TW3012",
                    f"{key} of @{fn.name} is {value!r}, which is no inline assembly",
                    fn.loc,
                    help="it reads (template, constraints, whether it has effects)",
                )
    return found


def assembly_attributes(fn: Function) -> Annotations:
    """The attributes of a function that describe inline assembly."""
    return tuple([(key, value) for key, value in fn.attrs if key.startswith(PREFIX)])
