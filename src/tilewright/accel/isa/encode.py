"""Encode and decode instructions and microcode. `decode(encode(i)) == i` for all valid i.

A word begins with the opcode in its lowest bits; fields follow in the table's order. Unused bits
must be 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.accel.isa.stream import Instruction, MicroOp, check_fits
from tilewright.accel.isa.table import (
    BY_NUMBER,
    MICRO_OP,
    MICRO_OP_BITS,
    OPCODE_BITS,
    OPCODES,
    Field,
    widths,
    word_bytes,
)
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry


def encode(instruction: Instruction, geometry: Geometry) -> bytes:
    """The instruction word, little endian."""
    opcode = instruction.opcode
    body = _pack(opcode.name, opcode.fields, instruction.values, geometry)
    return (opcode.number | body << OPCODE_BITS).to_bytes(word_bytes(geometry), "little")


def encode_all(instructions: Sequence[Instruction], geometry: Geometry) -> bytes:
    """The words of a stream, equal to those of `encode`, vectorized."""
    lanes = word_bytes(geometry) // 8
    words = np.zeros((len(instructions), lanes + 1), np.uint64)  # one extra for overflow
    width = widths(geometry)
    for opcode in OPCODES:
        numbers = [at for at, one in enumerate(instructions) if one.op == opcode.name]
        values = np.array([instructions[at].values for at in numbers], np.int64)
        words[numbers, 0] |= np.uint64(opcode.number)
        at = OPCODE_BITS
        for column, field in enumerate(opcode.fields if numbers else ()):
            bits = width[field.width]
            found = values[:, column]
            for end in (int(found.min()), int(found.max())):
                check_fits(opcode.name, field, end, bits)
            packed = found.astype(np.uint64) & np.uint64((1 << bits) - 1)
            lane, shift = divmod(at, 64)
            words[numbers, lane] |= packed << np.uint64(shift)
            if shift + bits > 64:
                words[numbers, lane + 1] |= packed >> np.uint64(64 - shift)
            at += bits
    return np.ascontiguousarray(words[:, :lanes]).astype("<u8").tobytes()


def decode_all(words: bytes, geometry: Geometry) -> tuple[Instruction, ...]:
    """Decode words made by `encode_all` or the driver."""
    lanes = word_bytes(geometry) // 8
    table = np.frombuffer(words, "<u8").reshape(-1, lanes)
    numbers = table[:, 0] & np.uint64((1 << OPCODE_BITS) - 1)
    made: list[Instruction | None] = [None] * len(table)
    width = widths(geometry)
    for opcode in OPCODES:
        places = np.flatnonzero(numbers == opcode.number)
        columns, at = [], OPCODE_BITS
        for field in opcode.fields:
            bits = width[field.width]
            lane, shift = divmod(at, 64)
            found = table[places, lane] >> np.uint64(shift)
            if shift + bits > 64:
                found |= table[places, lane + 1] << np.uint64(64 - shift)
            value = (found << np.uint64(64 - bits)).view(np.int64)
            if not field.is_signed:
                value = value.view(np.uint64)  # logical shifts
            columns.append((value >> value.dtype.type(64 - bits)).astype(np.int64).tolist())
            at += bits
        for place, values in zip(places.tolist(), zip(*columns, strict=True), strict=True):
            made[place] = Instruction(opcode.name, values)
    assert None not in made, "an opcode that there is not"
    return tuple(one for one in made if one is not None)


def decode(word: bytes, geometry: Geometry) -> Instruction:
    """Decode a word."""
    if len(word) != word_bytes(geometry):
        raise _undecodable(f"a word has {word_bytes(geometry)} bytes, not {len(word)}")
    bits = int.from_bytes(word, "little")
    number = bits & ((1 << OPCODE_BITS) - 1)
    if number not in BY_NUMBER:
        raise _undecodable(f"there is no opcode {number}")
    opcode = BY_NUMBER[number]
    values = _unpack(opcode.name, opcode.fields, bits >> OPCODE_BITS, geometry)
    for field, value in zip(opcode.fields, values, strict=True):
        check_fits(opcode.name, field, value, widths(geometry)[field.width])
    found = Instruction(opcode.name, values)
    if (found["pop"] | found["push"]) >> found.queue & 1:
        raise _undecodable(f"{opcode.name} exchanges tokens with its own queue")
    return found


def encode_micro_op(step: MicroOp, geometry: Geometry) -> bytes:
    packed = _pack("micro-operation", MICRO_OP, (step.dst, step.src, step.aux), geometry)
    return packed.to_bytes(MICRO_OP_BITS // 8, "little")


def encode_microcode(steps: Sequence[MicroOp], geometry: Geometry) -> bytes:
    """The words of micro-operations, equal to those of `encode_micro_op`, vectorized."""
    values = np.array([(one.dst, one.src, one.aux) for one in steps], np.int64).reshape(-1, 3)
    words, at = np.zeros(len(steps), np.uint64), 0
    for column, field in enumerate(MICRO_OP if len(steps) else ()):
        bits, found = widths(geometry)[field.width], values[:, column]
        for end in (int(found.min()), int(found.max())):
            check_fits("micro-operation", field, end, bits)
        words |= found.astype(np.uint64) << np.uint64(at)
        at += bits
    return words.astype("<u8").tobytes()


def decode_micro_op(word: bytes, geometry: Geometry) -> MicroOp:
    bits = int.from_bytes(word, "little")
    return MicroOp(*_unpack("micro-operation", MICRO_OP, bits, geometry))


def _pack(what: str, fields: tuple[Field, ...], values: tuple[int, ...], g: Geometry) -> int:
    packed, at = 0, 0
    for field, value in zip(fields, values, strict=True):
        bits = widths(g)[field.width]
        check_fits(what, field, value, bits)
        packed |= (value & ((1 << bits) - 1)) << at
        at += bits
    return packed


def _unpack(what: str, fields: tuple[Field, ...], packed: int, g: Geometry) -> tuple[int, ...]:
    values = []
    for field in fields:
        bits = widths(g)[field.width]
        value = packed & ((1 << bits) - 1)
        if field.is_signed and value >> (bits - 1):
            value -= 1 << bits
        values.append(value)
        packed >>= bits
    if packed:
        raise _undecodable(f"{what}: bits that belong to no field are not 0")
    return tuple(values)


def _undecodable(message: str) -> UserError:
    return UserError("TW7003", message, help="was it made for another geometry?")
