"""Assembly text: `parse(print_stream(s)) == s`.

    target "vta-sim -geometry=1x16x16 -inp=32K -wgt=256K -acc=128K -uop=32K -bus=64 -latency=64"
    buffer x: in 4096
    uop dst=0 src=1 aux=0
    load fmt=inp base=x x=16 push=gemm
    finish

Fields with default values are omitted; sets are written `pop=load,alu`.
"""

from __future__ import annotations

from tilewright.accel.isa.stream import ROLES, Buffer, Instruction, MicroOp, Stream, members
from tilewright.accel.isa.table import BY_NAME, MICRO_OP, Field
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.base.text import Tokens


def print_stream(stream: Stream) -> str:
    names = [buffer.name for buffer in stream.buffers]
    lines = [f'target "vta-sim {stream.geometry.options}"']
    lines += [f"buffer {one.name}: {one.role} {one.size_bytes}" for one in stream.buffers]
    for step in stream.microcode:
        values = ((field.name, getattr(step, field.name)) for field in MICRO_OP)
        lines.append(" ".join(("uop", *(f"{name}={value}" for name, value in values if value))))
    lines += [print_instruction(one, names) for one in stream.instructions]
    return "\n".join(lines) + "\n"


def print_instruction(instruction: Instruction, buffers: list[str] | None = None) -> str:
    """Format an instruction; base registers by buffer names, if given."""
    parts = [instruction.op]
    fields = instruction.opcode.fields
    for field, value in zip(fields, instruction.values, strict=True):
        if value != field.default or field.name == "fmt":
            parts.append(f"{field.name}={_print_value(field, value, buffers or [])}")
        elif field.name == "base" and buffers:
            parts.append(f"base={buffers[value]}")
    return " ".join(parts)


def _print_value(field: Field, value: int, buffers: list[str]) -> str:
    if field.name == "base" and value < len(buffers):
        return buffers[value]
    if field.is_set and value >> len(field.names) == 0:
        return ",".join(field.names[at] for at in members(value))
    if field.names and not field.is_set and value < len(field.names):
        return field.names[value]
    return str(value)


def parse(text: str, path: str = "<text>") -> Stream:
    """Parse a stream; errors have positions."""
    tokens = Tokens(text, path)
    geometry = _parse_target(tokens)
    buffers: list[Buffer] = []
    microcode: list[MicroOp] = []
    instructions: list[Instruction] = []
    while tokens.current.kind != "end":
        word = tokens.expect_kind("name", "an instruction")
        if word.text == "buffer":
            buffers.append(_parse_buffer(tokens))
        elif word.text == "uop":
            given = _parse_fields(tokens, MICRO_OP, [])
            microcode.append(MicroOp(**given))
        elif word.text in BY_NAME:
            names = [buffer.name for buffer in buffers]
            given = _parse_fields(tokens, BY_NAME[word.text].fields, names)
            try:
                instructions.append(Instruction.make(word.text, **given))
            except UserError as error:
                tokens.fail(error.message, word)
        else:
            tokens.fail(f"there is no instruction {word.text!r}", word)
    return Stream(geometry, tuple(buffers), tuple(microcode), tuple(instructions))


def _parse_target(tokens: Tokens) -> Geometry:
    tokens.expect("target")
    text = tokens.expect_kind("string", "a target in quotes")
    geometry = Target.parse(text.text[1:-1]).geometry
    if geometry is None:
        tokens.fail("not an accelerator", text)
    return geometry


def _parse_buffer(tokens: Tokens) -> Buffer:
    name = tokens.expect_kind("name", "the name of a buffer").text
    tokens.expect(":")
    role = tokens.expect_kind("name", "the role of a buffer")
    if role.text not in ROLES:
        tokens.fail(f"a buffer is one of {', '.join(ROLES)}", role)
    return Buffer(name, role.text, int(tokens.expect_kind("int", "a size in bytes").text))


def _parse_fields(tokens: Tokens, fields: tuple[Field, ...], buffers: list[str]) -> dict[str, int]:
    known = {field.name: field for field in fields}
    given: dict[str, int] = {}
    while tokens.current.kind == "name" and tokens.peek().text == "=":
        name = tokens.next()
        tokens.expect("=")
        if name.text not in known:
            tokens.fail(f"there is no field {name.text!r}; there are: {', '.join(known)}", name)
        if name.text in given:
            tokens.fail(f"{name.text} is given twice", name)
        given[name.text] = _parse_value(tokens, known[name.text], buffers)
    return given


def _parse_value(tokens: Tokens, field: Field, buffers: list[str]) -> int:
    if tokens.current.kind == "name":
        names = tuple(buffers) if field.name == "base" else field.names
        found = [_parse_name(tokens, names)]
        while field.is_set and tokens.accept(","):
            found.append(_parse_name(tokens, names))
        return sum(1 << at for at in set(found)) if field.is_set else found[0]
    sign = -1 if tokens.accept("-") else 1
    return sign * int(tokens.expect_kind("int", "a number").text)


def _parse_name(tokens: Tokens, names: tuple[str, ...]) -> int:
    token = tokens.expect_kind("name", "a name")
    if token.text not in names:
        tokens.fail(f"{token.text!r} is not one of: {', '.join(names) or 'no names'}", token)
    return names.index(token.text)
