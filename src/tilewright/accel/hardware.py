"""Generate the accelerator in SystemVerilog: the modules in `rtl/`, and a package with the
geometry.

write_rtl(geometry, Path("rtl"))
"""

from __future__ import annotations

from pathlib import Path

from tilewright.accel.isa.table import (
    ACC_BANKS,
    AHEAD,
    ALU_FUNCTIONS,
    BURST_BEATS,
    BY_NAME,
    IN_FLIGHT,
    MEMORIES,
    MICRO_OP,
    OPCODE_BITS,
    OPCODES,
    QUEUE_DEPTH,
    TOKEN_BITS,
    Field,
    depth,
    widths,
    word_bytes,
)
from tilewright.base.errors import UserError
from tilewright.base.geometry import ACC_BYTES, Geometry

FOLDER = Path(__file__).parent / "rtl"
PACKAGE = "vta_pkg.sv"
TOP = "vta_top"


def modules() -> tuple[Path, ...]:
    """The files of the modules; `vta_pkg.sv` must come first."""
    return tuple(sorted(FOLDER.glob("*.sv")))


def write_rtl(geometry: Geometry, folder: Path) -> list[Path]:
    """Write package and modules to a folder; returns the files in compilation order."""
    text = package(geometry)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / PACKAGE]
    written[0].write_text(text)
    for module in modules():
        target = folder / module.name
        target.write_text(module.read_text())
        written.append(target)
    return written


def package(geometry: Geometry) -> str:
    """The SystemVerilog package of a geometry, from the instruction table."""
    check(geometry)
    lines = [
        f"// Made from the instruction table for {geometry.options}.",
        "/* verilator lint_off UNUSEDPARAM */",  # some designs do not use all parameters
        "package vta_pkg;",
        *(f"  localparam int {name} = {value};" for name, value in _constants(geometry).items()),
        "endpackage",
        "/* verilator lint_on UNUSEDPARAM */",
    ]
    return "\n".join(lines) + "\n"


def check(g: Geometry) -> None:
    """Reject (TW7034) geometries without RTL.

    The modules require powers of two, and a bus at least as wide as a micro-operation.
    """
    for memory in MEMORIES:
        if depth(memory, g) & (depth(memory, g) - 1):
            raise _refused(f"{memory} has {depth(memory, g)} entries, not a power of two")
    if not 64 <= g.bus_bits <= 4 * word_bytes(g):
        raise _refused(f"a bus of {g.bus_bits} bits is not between 64 and {4 * word_bytes(g)}")
    if g.block_in < 4 or g.block_out < 4:
        raise _refused("blocks have less than 4 elements")


def _refused(why: str) -> UserError:
    return UserError("TW7034", f"there is no RTL of this geometry: {why}", help="try 1x16x16")


def _log(value: int) -> int:
    return value.bit_length() - 1


def _constants(g: Geometry) -> dict[str, int]:
    bits = widths(g)
    lanes, bus = g.batch * g.block_out, g.bus_bytes
    inp, wgt = g.batch * g.block_in, g.block_out * g.block_in
    found = {
        "BATCH": g.batch,
        "BLOCK_IN": g.block_in,
        "BLOCK_OUT": g.block_out,
        "TAPS": g.taps,
        "BUS_BITS": g.bus_bits,
        "BUS_BYTES": bus,
        "LOG_BUS_BYTES": _log(bus),
        "LOG_BURST_BEATS": _log(BURST_BEATS),
        "WORD_BITS": 8 * word_bytes(g),
        "LOG_WORD_BYTES": _log(word_bytes(g)),
        "LOG_QUEUE_DEPTH": _log(QUEUE_DEPTH),
        "LOG_AHEAD": _log(AHEAD),
        "LOG_IN_FLIGHT": _log(IN_FLIGHT),
        "TOKEN_BITS": TOKEN_BITS,
        "ENTRY_BITS": bits["entry"],
        "EXTENT_BITS": bits["extent"],
        "UOP_BITS": bits["uop"],
        "STEP_BITS": bits["entry"] + bits["extent"] + 3,
        "INP_BITS": 8 * inp,
        "WGT_BITS": 8 * wgt,
        "ACC_BITS": 8 * ACC_BYTES * lanes,
        "OUT_BITS": 8 * lanes,
        "OUT_BYTES": lanes,
        "INP_LANES": max(1, inp // bus),
        "INP_LANE_BITS": 8 * min(inp, bus),
        "WGT_LANES": max(1, wgt // bus),
        "WGT_LANE_BITS": 8 * min(wgt, bus),
        "ENTRY_WORD_BITS": max(1, _log(max(inp, wgt, ACC_BYTES * lanes) // bus)),
        # words of a burst: beats, or entries, each of at least 4 bytes
        "BURST_WORD_BITS": _log(bus * BURST_BEATS) - 2,
        "LOG_INP_BYTES": _log(inp),
        "LOG_WGT_BYTES": _log(wgt),
        "LOG_ACC_BYTES": _log(ACC_BYTES * lanes),
        "LOG_OUT_BYTES": _log(lanes),
        "BANK_AW": _log(depth("acc", g) // ACC_BANKS),
        # bytes of a row, or of a burst
        "RUN_BITS": max(
            bits["extent"] + max(_log(wgt), _log(ACC_BYTES * lanes)), _log(bus * BURST_BEATS) + 1
        ),
    }
    for memory in MEMORIES:
        found[f"{memory.upper()}_DEPTH"] = depth(memory, g)
        found[f"{memory.upper()}_AW"] = _log(depth(memory, g))
    found |= {f"ALU_{name.upper()}": at for at, name in enumerate(ALU_FUNCTIONS)}
    for opcode in OPCODES:
        name = opcode.name.upper()
        found[f"OP_{name}"] = opcode.number
        found |= _offsets(name, opcode.fields, OPCODE_BITS, bits)
        found[f"{name}_BITS"] = OPCODE_BITS + sum(bits[one.width] for one in opcode.fields)
        if opcode.formats:
            found[f"{name}_FORMATS"] = len(opcode.formats)
    found["TASK_BITS"] = max(found[f"{one.name.upper()}_BITS"] for one in OPCODES)
    gemm = BY_NAME["gemm"].fields
    steps = [one for one in gemm if one.name not in ("pop", "push", "init", "over", "banks")]
    found["STEPS_BITS"] = sum(bits[one.width] for one in steps)
    for field, (at, width) in _bits(MICRO_OP, 0, bits).items():
        found[f"UOP_{field.upper()}_AT"] = at
        found[f"UOP_{field.upper()}_BITS"] = width
    return found


def _bits(fields: tuple[Field, ...], at: int, bits: dict[str, int]) -> dict[str, tuple[int, int]]:
    found = {}
    for field in fields:
        found[field.name] = (at, bits[field.width])
        at += bits[field.width]
    return found


def _offsets(name: str, fields: tuple[Field, ...], at: int, bits: dict[str, int]) -> dict[str, int]:
    found = _bits(fields, at, bits)
    return {f"{name}_{field.upper()}_AT": at for field, (at, _) in found.items()}
