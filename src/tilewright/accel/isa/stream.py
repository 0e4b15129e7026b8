"""Streams, the programs of an accelerator. Plain data, validated on construction.

Instruction.make("load", fmt="inp", sram=0, x=16, push=("gemm",))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.accel.isa.table import (
    BASES,
    BY_NAME,
    FIELD_INDEX,
    QUEUES,
    Field,
    Format,
    Opcode,
    widths,
)
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry

Value = int | str | Iterable[str]


@dataclass(frozen=True, slots=True)
class Instruction:
    """A task: values of its fields in the table's order."""

    op: str
    values: tuple[int, ...]

    @staticmethod
    def make(op: str, **given: Value) -> Instruction:
        """Make an instruction; omitted fields have their defaults."""
        if op not in BY_NAME:
            raise UserError(
                "TW7002", f"there is no instruction {op!r}", help=f"there are: {', '.join(BY_NAME)}"
            )
        opcode = BY_NAME[op]
        unknown = [name for name in given if name not in FIELD_INDEX[op]]
        if unknown:
            known = ", ".join(field.name for field in opcode.fields)
            raise UserError(
                "TW7002", f"{op} has no field {unknown[0]!r}", help=f"its fields: {known}"
            )
        made = Instruction(
            op,
            tuple(
                _number(op, field, given[field.name]) if field.name in given else field.default
                for field in opcode.fields
            ),
        )
        own = QUEUES.index(opcode.queue)
        if (made["pop"] | made["push"]) >> own & 1:
            raise UserError(
                "TW7002",
                f"{op} exchanges tokens with its own queue {opcode.queue!r}",
                help="tasks of one queue are in order anyway",
            )
        return made

    @property
    def opcode(self) -> Opcode:
        return BY_NAME[self.op]

    @property
    def queue(self) -> int:
        return QUEUES.index(self.opcode.queue)

    @property
    def format(self) -> Format:
        """The memory format of a transfer."""
        return self.opcode.formats[self["fmt"]]

    def __getitem__(self, name: str) -> int:
        return self.values[FIELD_INDEX[self.op][name]]

    def pops(self) -> list[int]:
        return members(self["pop"])

    def pushes(self) -> list[int]:
        return members(self["push"])


def members(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]


def _number(op: str, field: Field, value: Value) -> int:
    """Convert a field's value to a number; names are indices in the table."""
    if isinstance(value, int):
        return value
    names = [value] if isinstance(value, str) else list(value)
    wrong = [name for name in names if name not in field.names]
    if wrong or (len(names) != 1 and not field.is_set):
        raise UserError(
            "TW7002",
            f"{op}: {field.name} cannot be {', '.join(map(str, wrong or names))!r}",
            help=f"one of: {', '.join(field.names) or 'a number'}",
        )
    places = [field.names.index(name) for name in names]
    return sum(1 << at for at in set(places)) if field.is_set else places[0]


def check_fits(what: str, field: Field, value: int, bits: int) -> None:
    """Reject a value that its field cannot hold; it is never truncated."""
    least = -(1 << (bits - 1)) if field.is_signed else 0
    most = (1 << (bits - field.is_signed)) - 1
    if field.names and not field.is_set:
        most = len(field.names) - 1
    if not least <= value <= most:
        raise UserError(
            "TW7001",
            f"{what}: {field.name} = {value} does not fit its {bits} bits ({least} to {most})",
            help="split the task, or use an accelerator with larger memories",
        )


@dataclass(frozen=True, slots=True)
class MicroOp:
    """The addresses of one step."""

    dst: int = 0
    src: int = 0
    aux: int = 0


ROLES = ("in", "out", "temp", "uop")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer behind a base register. The host fills `in`, reads `out`; `uop` is the microcode."""

    name: str
    role: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A program of the accelerator. Base register `k` addresses buffer `k`."""

    geometry: Geometry
    buffers: tuple[Buffer, ...]
    microcode: tuple[MicroOp, ...]
    instructions: tuple[Instruction, ...]


def check_stream(stream: Stream) -> None:
    """Reject invalid fields, missing buffers, and streams without an end."""
    bits = widths(stream.geometry)
    for number, one in enumerate(stream.instructions):
        for field, value in zip(one.opcode.fields, one.values, strict=True):
            check_fits(f"{number}: {one.op}", field, value, bits[field.width])
        if one.opcode.formats and one["base"] >= len(stream.buffers):
            raise _malformed(f"{number}: {one.op} uses base register {one['base']}, of no buffer")
        if one.op == "store" and stream.buffers[one["base"]].role in ("in", "uop"):
            raise _malformed(f"{number}: store writes {stream.buffers[one['base']].name}, an input")
    ends = [at for at, one in enumerate(stream.instructions) if one.op == "finish"]
    if ends != [len(stream.instructions) - 1]:
        raise _malformed("a stream has one finish, at its end")
    if len(stream.buffers) > BASES:
        raise _malformed(f"{len(stream.buffers)} buffers, and {BASES} base registers")
    names = [buffer.name for buffer in stream.buffers]
    for buffer in stream.buffers:
        if buffer.role not in ROLES:
            raise _malformed(f"buffer {buffer.name} has no role {buffer.role!r}")
        if names.count(buffer.name) > 1:
            raise _malformed(f"two buffers are called {buffer.name}")
        if buffer.role == "uop" and buffer.size_bytes != 8 * len(stream.microcode):
            raise _malformed(
                f"buffer {buffer.name} has {buffer.size_bytes} bytes for "
                f"{len(stream.microcode)} micro-operations of 8"
            )


def _malformed(message: str) -> UserError:
    return UserError("TW7004", message, help="see docs/internals/accelerators.md")
