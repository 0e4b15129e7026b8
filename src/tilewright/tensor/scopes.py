"""Memory scopes: the memories that a buffer can be in, declared.

A scope says who owns a copy of what is in it, how much there is, how buffers in it are aligned, and
whether plain loads and stores reach it. A buffer names its scope by text, `%c: f32[14, 16] in
amx.tile(rows=14)`; `memory_of` finds the declaration. The memories that every target knows are
declared here; units with registers or buffers of their own declare theirs beside their intrinsics:

    declare_scope(
        MemoryScope("vta.acc", Owner.UNIT, is_addressable=False, capacity_bytes=128 << 10)
    )
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tilewright.base.errors import UserError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.tensor.parameters import (
    Arguments,
    Parameter,
    canonical,
    parse_reference,
    reference,
    resolve,
)


class Owner(Enum):
    """Who has a copy of its own of a buffer that is used inside a kernel."""

    DEVICE = "device"  # one copy, which all threads see
    CLUSTER = "cluster"  # blocks of threads along blockIdx.y, which run side by side
    BLOCK = "block"  # a block of threads
    THREAD = "thread"
    UNIT = "unit"  # the threads that drive a special unit together; on a CPU the thread


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """A declared memory; one with parameters is a family, of which `arguments` pick a member."""

    name: str
    owner: Owner
    is_addressable: bool = True  # by loads and stores; else by the instructions of its unit alone
    capacity_bytes: int | None = None  # of one owner; None: what the target has, or no limit
    alignment_bytes: int = 1  # of each buffer
    parameters: tuple[Parameter, ...] = ()
    arguments: Arguments = ()

    @property
    def reference(self) -> str:
        """How text names it: `amx.tile(rows=14)`."""
        return reference(self.name, self.arguments)

    def __getitem__(self, parameter: str) -> int:
        """The number that a parameter has in this member."""
        return resolve(self.name, self.parameters, self.arguments)[parameter]

    @property
    def seen(self) -> MemoryScope:
        """The memory as instructions see it: however buffers are laid out in it."""
        layout = {parameter.name for parameter in self.parameters if parameter.is_layout}
        if not layout:
            return self
        kept = tuple([(key, value) for key, value in self.arguments if key not in layout])
        return replace(self, arguments=kept)

    def member(self, **arguments: int) -> MemoryScope:
        """The member with these parameters."""
        values = resolve(self.name, self.parameters, arguments.items())
        return replace(self, arguments=canonical(self.parameters, values))


_declared: dict[str, MemoryScope] = {}
_members: dict[str, MemoryScope] = {}  # by every text met


def declare_scope(scope: MemoryScope) -> MemoryScope:
    """Make a memory known by name; declaring it twice is the same as once."""
    if _declared.setdefault(scope.name, scope) != scope:
        raise UserError(
            "TW2012",
            f"the memory {scope.name} is declared twice, and differently",
            help="give one of the two another name",
        )
    return scope


def known_scopes() -> tuple[str, ...]:
    """The names declared, in the order of declaration."""
    return tuple(_declared)


def memory_of(text: str, loc: Loc = UNKNOWN) -> MemoryScope:
    """The memory that a scope's text names."""
    found = _members.get(text)
    if found is not None:
        return found
    name, arguments = parse_reference(text)
    family = _declared.get(name)
    if family is None:
        raise UserError(
            "TW2012",
            f"no memory named {name}",
            loc,
            help=f"declared: {', '.join(known_scopes())}; "
            "import tilewright.intrin for those of real hardware",
        )
    values = resolve(name, family.parameters, arguments, loc)
    found = replace(family, arguments=canonical(family.parameters, values))
    return _members.setdefault(text, found)


GLOBAL = declare_scope(MemoryScope("global", Owner.DEVICE, alignment_bytes=64))
# What bulk copies and matrix instructions of GPUs ask for.
SHARED = declare_scope(MemoryScope("shared", Owner.BLOCK, alignment_bytes=128))
LOCAL = declare_scope(MemoryScope("local", Owner.THREAD, alignment_bytes=64))
WARP = declare_scope(MemoryScope("warp", Owner.THREAD, alignment_bytes=64))
# Of a kernel whose blocks meet: how often they arrived, from zero before a program's first run on.
ARRIVALS = declare_scope(MemoryScope("arrivals", Owner.DEVICE, alignment_bytes=64))
