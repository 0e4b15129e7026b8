"""Generate from the table: the manual's page of instructions, and a C header."""

from __future__ import annotations

from tilewright.accel.isa.table import (
    ACC_BANKS,
    ALU_DOC,
    ALU_FUNCTIONS,
    BURST_BEATS,
    IN_FLIGHT,
    MEMORIES,
    MICRO_OP,
    OPCODE_BITS,
    OPCODES,
    QUEUE_DEPTH,
    QUEUES,
    TOKEN_BITS,
    Field,
    depth,
    widths,
    word_bytes,
)
from tilewright.base.geometry import Geometry


def manual(geometry: Geometry) -> str:
    """Markdown tables of all instructions and their fields, for one geometry."""
    bits = widths(geometry)
    lines = [f"Widths for `{geometry.options}`; a word has {8 * word_bytes(geometry)} bits."]
    for opcode in OPCODES:
        lines += [
            "",
            f"### `{opcode.name}` (opcode {opcode.number}, queue `{opcode.queue}`, results after "
            f"{opcode.latency_cycles} cycles)",
            "",
            f"{opcode.doc[0].upper()}{opcode.doc[1:]}.",
            "",
        ]
        if opcode.formats:
            lines += ["| format | memory | in DRAM | what |", "|---|---|---|---|"]
            lines += [
                f"| `{one.name}` | `{one.memory}` | {one.element} | {one.doc} |"
                for one in opcode.formats
            ]
            lines.append("")
        if opcode.name == "alu":
            lines += ["| function | a step does (b is acc[aux] or `value`) |", "|---|---|"]
            lines += [f"| `{name}` | {doc} |" for name, doc in ALU_DOC.items()]
            lines.append("")
        lines += _table(opcode.fields, bits)
    lines += ["", "### micro-operation", "", *_table(MICRO_OP, bits)]
    return "\n".join(lines) + "\n"


def _table(fields: tuple[Field, ...], bits: dict[str, int]) -> list[str]:
    rows = ["| field | bits | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        sign = ", signed" if field.is_signed else ""
        default = field.names[field.default] if field.names and not field.is_set else field.default
        rows.append(f"| `{field.name}` | {bits[field.width]}{sign} | {default} | {field.doc} |")
    return rows


def c_header(geometry: Geometry) -> str:
    """C constants of the encoding: opcodes, and offset and width of every field."""
    bits = widths(geometry)
    constants: dict[str, int] = {
        "WORD_BYTES": word_bytes(geometry),
        "OPCODE_BITS": OPCODE_BITS,
        "QUEUE_DEPTH": QUEUE_DEPTH,
        "TOKEN_BITS": TOKEN_BITS,
        "ACC_BANKS": ACC_BANKS,
        "BURST_BEATS": BURST_BEATS,
        "IN_FLIGHT": IN_FLIGHT,
        "BATCH": geometry.batch,
        "BLOCK_IN": geometry.block_in,
        "BLOCK_OUT": geometry.block_out,
        "BUS_BITS": geometry.bus_bits,
    }
    constants |= {f"QUEUE_{name.upper()}": at for at, name in enumerate(QUEUES)}
    constants |= {f"{name.upper()}_DEPTH": depth(name, geometry) for name in MEMORIES}
    for opcode in OPCODES:
        constants[f"OP_{opcode.name.upper()}"] = opcode.number
        constants[f"{opcode.name.upper()}_LATENCY"] = opcode.latency_cycles
        for at, kind in enumerate(opcode.formats):
            constants[f"{opcode.name.upper()}_FMT_{kind.name.upper()}"] = at
        constants |= _bit_fields(opcode.name.upper(), opcode.fields, OPCODE_BITS, bits)
    constants |= _bit_fields("UOP", MICRO_OP, 0, bits)
    constants |= {f"ALU_{name.upper()}": at for at, name in enumerate(ALU_FUNCTIONS)}
    lines = [
        f"/* Made from the instruction table for {geometry.options}. */",
        "#ifndef TILEWRIGHT_VTA_ISA_H",
        "#define TILEWRIGHT_VTA_ISA_H",
        *(f"#define VTA_{name} {value}" for name, value in constants.items()),
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _bit_fields(
    prefix: str, fields: tuple[Field, ...], at: int, bits: dict[str, int]
) -> dict[str, int]:
    found = {}
    for field in fields:
        found[f"{prefix}_{field.name.upper()}_AT"] = at
        found[f"{prefix}_{field.name.upper()}_BITS"] = bits[field.width]
        at += bits[field.width]
    return found
