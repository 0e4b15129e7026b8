"""The instruction set as one table, used by encoder, text, C header, manual and simulators.

There are two levels. A *task* (an instruction) moves a box of entries or executes steps, and is
ordered relative to other queues' tasks by tokens only. *Microcode* (`MICRO_OP`) contains the
addresses of one step; a GEMM or ALU task executes a range of it under `LOOPS` affine loops:

    for i0, i1, i2, i3 in the extents n0, n1, n2, n3:
        for u in microcode[ubegin : uend]:
            step(dst0 + sum(i * dst) + u.dst, src0 + sum(i * src) + u.src, aux0 + ... + u.aux)

Each queue begins its tasks in order. A task takes a token from every queue in `pop` before it
begins and gives one to every queue in `push` when its results are visible; there is a counter for
every ordered pair of queues. Widths are names that `widths` resolves for a geometry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright.base.errors import UserError
from tilewright.base.geometry import ACC_BYTES, Geometry

# --------------------------------------------------------------------------- queues, memories

QUEUES = ("load", "aux", "gemm", "alu", "store")
QUEUE_DEPTH = 32  # pending tasks per unit
TOKEN_BITS = 8  # per counter
TOKEN_MAX = (1 << TOKEN_BITS) - 1
LOOPS = 4
BASES = 16  # base registers: addressable buffers of a stream
ACC_BANKS = 4  # quarters of `acc`; GEMM and ALU run concurrently on different ones


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a memory's entries in DRAM."""

    name: str
    memory: str
    queue: str  # of the unit that transfers it
    element: str  # dtype in DRAM
    doc: str
    has_neighbours: bool = False  # an entry includes preceding ones of its row


LOAD_FORMATS = (
    Format("inp", "inp", "load", "i8", "activations, batch x in"),
    Format("wgt", "wgt", "load", "i8", "weights, out x in"),
    Format("wgt4", "wgt", "load", "i4", "weights of 4 bits, low half first, sign extended"),
)
AUX_FORMATS = (
    Format("acc", "acc", "aux", "i32", "biases and parameters of requantization, batch x out"),
    Format("acc8", "acc", "aux", "i8", "8-bit operands of the ALU, sign extended, batch x out"),
    Format("uop", "uop", "aux", "u64", "microcode"),
    Format(
        "row8",
        "acc",
        "aux",
        "i8",
        "8-bit operands of `mac`: an entry holds `taps` neighbours of a row, a byte each, itself "
        "last, 0 where the row has not begun",
        has_neighbours=True,
    ),
)
STORE_FORMATS = (
    Format("out", "out", "store", "i8", "results of requantization, batch x out"),
    Format("acc", "acc", "store", "i32", "accumulators, batch x out"),
)
MEMORIES = ("inp", "wgt", "acc", "uop", "out")


@cache
def depth(memory: str, geometry: Geometry) -> int:
    """Number of entries of a memory. `out` has one 8-bit vector for every vector of `acc`."""
    return geometry.depths()["acc" if memory == "out" else memory]


def entry_shape(memory: str, geometry: Geometry) -> tuple[int, ...]:
    """Elements per entry in the scratchpad."""
    g = geometry
    shapes = {"inp": (g.batch, g.block_in), "wgt": (g.block_out, g.block_in), "uop": ()}
    return shapes.get(memory, (g.batch, g.block_out))


def bank_of(entry: int, geometry: Geometry) -> int:
    """The bank of an entry of `acc`."""
    return entry * ACC_BANKS // depth("acc", geometry)


def dram_bytes(kind: Format, geometry: Geometry) -> int:
    """Bytes per entry in DRAM."""
    count = 1
    for extent in entry_shape(kind.memory, geometry):
        count *= extent
    bits = {"i4": 4, "i8": 8, "i32": 8 * ACC_BYTES, "u64": 64}[kind.element]
    return count * bits // 8


# --------------------------------------------------------------------------- fields


@dataclass(frozen=True, slots=True)
class Field:
    """A bit field of an instruction; with `names` it is a choice, or with `is_set` a set of
    names."""

    name: str
    width: str  # a key of `widths`
    doc: str
    is_signed: bool = False
    names: tuple[str, ...] = ()
    is_set: bool = False
    default: int = 0


@dataclass(frozen=True, slots=True)
class Opcode:
    """A kind of task."""

    name: str
    number: int
    queue: str
    fields: tuple[Field, ...]
    latency_cycles: int  # from the last step or data until results are visible
    doc: str
    formats: tuple[Format, ...] = ()

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


_TOKENS = (
    Field("pop", "queues", "queues that a token is taken from first", names=QUEUES, is_set=True),
    Field("push", "queues", "queues that get a token afterwards", names=QUEUES, is_set=True),
)


def _transfer(formats: tuple[Format, ...]) -> tuple[Field, ...]:
    return (
        Field("fmt", "format", "what is moved", names=tuple(kind.name for kind in formats)),
        Field("sram", "entry", "first entry in the scratchpad"),
        Field("base", "base", "base register in DRAM"),
        Field("offset", "offset", "bytes from there"),
        Field("x", "extent", "entries of a row", default=1),
        Field("y", "extent", "rows of a plane", default=1),
        Field("z", "extent", "planes", default=1),
        Field("xstride", "stride", "from entry to entry in DRAM, in entries", default=1),
        Field("ystride", "stride", "from row to row"),
        Field("zstride", "stride", "from plane to plane"),
    )


_PADS = (
    Field("x0", "pad", "padding entries in front of every row"),
    Field("x1", "pad", "and behind it"),
    Field("y0", "pad", "padding rows in front of every plane"),
    Field("y1", "pad", "and behind it"),
    Field("value", "value", "of every padding element", is_signed=True),
)
_BANKS = Field(
    "banks", "banks", "banks of acc that the task may touch", default=(1 << ACC_BANKS) - 1
)
_OPERANDS = ("dst", "src", "aux")
_STEPS = (
    Field("ubegin", "uop", "first micro-operation"),
    Field("uend", "uop", "behind the last one"),
    *(Field(f"{name}0", "entry", f"added to every {name}") for name in _OPERANDS),
    *(
        field
        for loop in range(LOOPS)
        for field in (
            Field(f"n{loop}", "extent", f"extent of loop {loop}", default=1),
            *(
                Field(f"{name}_{loop}", "entry", f"added to {name} per iteration of loop {loop}")
                for name in _OPERANDS
            ),
        )
    ),
)

ALU_FUNCTIONS = ("add", "max", "min", "shift", "mac", "requant", "mul", "rescale")
REQUANTIZING = ("requant", "rescale")  # to `out`, and back to `acc`
_OVER = (*(f"i{loop}" for loop in range(LOOPS)), "u")

OPCODES = (
    Opcode(
        "load",
        1,
        "load",
        (*_TOKENS, *_transfer(LOAD_FORMATS), *_PADS),
        2,
        "activations or weights from DRAM",
        LOAD_FORMATS,
    ),
    Opcode(
        "aux",
        2,
        "aux",
        (*_TOKENS, *_transfer(AUX_FORMATS), *_PADS),
        2,
        "biases, parameters, operands of the ALU or microcode from DRAM",
        AUX_FORMATS,
    ),
    Opcode(
        "gemm",
        3,
        "gemm",
        (
            *_TOKENS,
            *_STEPS,
            Field("init", "flag", "steps at 0 in every loop of `over` overwrite, not add"),
            Field("over", "over", "the loops that reduce", names=_OVER, is_set=True),
            _BANKS,
        ),
        8,
        "acc[dst] += inp[src] * transpose(wgt[aux]), a step per cycle",
    ),
    Opcode(
        "alu",
        4,
        "alu",
        (
            *_TOKENS,
            *_STEPS,
            Field("fn", "function", "what a step does", names=ALU_FUNCTIONS),
            Field("imm", "flag", "the second operand is `value`, not acc[aux]"),
            Field("value", "value", "second operand", is_signed=True),
            Field("zero", "byte", "requant: zero point of the result", is_signed=True),
            Field("low", "byte", "requant: least result", is_signed=True, default=-128),
            Field("high", "byte", "requant: greatest result", is_signed=True, default=127),
            _BANKS,
        ),
        8,
        "acc[dst] = fn(acc[src], acc[aux]), a cycle per step and operand in the same bank",
    ),
    Opcode(
        "store",
        5,
        "store",
        (*_TOKENS, *_transfer(STORE_FORMATS), _BANKS),
        2,
        "results to DRAM",
        STORE_FORMATS,
    ),
    Opcode("finish", 6, "store", _TOKENS, 2, "the end of the stream: tells the host"),
)
BY_NAME = {opcode.name: opcode for opcode in OPCODES}
FIELD_INDEX = {  # index of each field among an instruction's values
    opcode.name: {field.name: at for at, field in enumerate(opcode.fields)} for opcode in OPCODES
}
BY_NUMBER = {opcode.number: opcode for opcode in OPCODES}
ALU_DOC = {
    "add": "acc[dst] = acc[src] + b, modulo 2**32",
    "max": "acc[dst] = max(acc[src], b)",
    "min": "acc[dst] = min(acc[src], b)",
    "shift": "acc[dst] = acc[src] >> b, arithmetic; << -b if b is negative; by 31 at most",
    "mac": "acc[dst] += i8(acc[src]) * i8(b), the low 8 bits of both; with more `taps`, the sum of "
    "the products of so many bytes",
    "mul": "acc[dst] = i8(acc[src]) * i8(b), as `mac`, but overwriting",
    "requant": "out[dst] = clamp(round((acc[src] + bias) * multiplier / 2**shift) + zero, low, "
    "high), half up; bias, multiplier, shift per channel: acc[aux], acc[aux + 1], acc[aux + 2]",
    "rescale": "acc[dst] = what `requant` gives; no step reads what an earlier one has written",
}
REQUANT_ENTRIES = 3  # bias, multiplier and shift in adjacent entries of `acc`
REQUANT_RELOAD_CYCLES = 3  # when the parameters change between steps
ALU_GAP_CYCLES = 2  # after the last step of a task; after a `rescale`, its whole latency

MICRO_OP = (
    Field("dst", "dst", "entry of acc or out"),
    Field("src", "src", "entry of inp (gemm) or acc (alu)"),
    Field("aux", "aux", "entry of wgt (gemm) or acc (alu)"),
)
MICRO_OP_BITS = 64
OPCODE_BITS = 3

# --------------------------------------------------------------------------- memory system

BURST_BEATS = 64  # per bus request
IN_FLIGHT = 8  # pending requests per unit
AHEAD = 4  # later transfers per unit that may issue requests while one waits for data
FETCH_AHEAD = 2  # bursts of instructions


@cache
def widths(geometry: Geometry) -> dict[str, int]:
    """Widths of all kinds of fields for a geometry."""
    bits = {name: (size - 1).bit_length() for name, size in geometry.depths().items()}
    entry = max(bits.values())
    found = {
        "queues": len(QUEUES),
        "format": 2,
        "base": (BASES - 1).bit_length(),
        "offset": 32,
        "entry": entry,
        "extent": entry + 1,
        "stride": 24,
        "pad": 6,
        "value": 32,
        "byte": 8,
        "flag": 1,
        "uop": bits["uop"] + 1,
        "over": len(_OVER),
        "banks": ACC_BANKS,
        "function": 3,
        "dst": bits["acc"],
        "src": max(bits["inp"], bits["acc"]),
        "aux": max(bits["wgt"], bits["acc"]),
    }
    if sum(found[field.width] for field in MICRO_OP) > MICRO_OP_BITS:
        raise UserError(
            "TW7001",
            f"the addresses of a micro-operation do not fit {MICRO_OP_BITS} bits",
            help="make the memories smaller",
        )
    return found


@cache
def word_bytes(geometry: Geometry) -> int:
    """Bytes per instruction word: a power of two, so that bursts contain whole words."""
    bits = widths(geometry)
    longest = max(sum(bits[field.width] for field in opcode.fields) for opcode in OPCODES)
    return 1 << (-(-(longest + OPCODE_BITS) // 8) - 1).bit_length()
