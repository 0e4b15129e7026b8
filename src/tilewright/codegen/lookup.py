"""Byte lookups in tables of 256 entries, by instructions that permute bytes in registers.

    table[i64(x)]      x unsigned bytes, the table 256 entries of eight bits

NEON looks up 16 bytes in 64 entries at a time (`tbl`), AVX512-VBMI 64 in 128 (`vpermi2b`), AVX2 and
AVX-512 32 and 64 in 16 (`vpshufb`). Indices outside of a part of the table give 0, so that parts
are combined by `or`. The table stays in registers where a loop leaves room.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import U8
from tilewright.codegen.builder import FunctionText, Value, i64, splat
from tilewright.codegen.machine import TBL, VPERMI2B, VPSHUFB
from tilewright.codegen.memory import Memory
from tilewright.codegen.types import vector
from tilewright.sym import Expr, const
from tilewright.tensor.ir import Buffer

ENTRIES = 256
ROW = 16  # entries that `vpshufb` reads, replicated in every quarter of a register
PART = 64  # entries in four NEON registers
NEITHER = 0x70  # a saturating add of it sets the top bit of indices >= 16


def bytes_of(buffer: Buffer, index: tuple[Expr, ...]) -> Expr | None:
    """The index bytes of an access, if it is a lookup in a table of 256 bytes."""
    if buffer.shape != (const(ENTRIES),) or not buffer.dtype.is_int or buffer.dtype.bits != 8:
        return None
    at = index[0]
    while isinstance(at, sym.Cast) and at.value.dtype.kind in ("int", "uint"):
        at = at.value
        if at.dtype.scalar is U8:
            return at if at.dtype.lanes > 1 else None
    return None


def emit(b: FunctionText, kind: str, lanes: int, table: Memory, x: Value) -> Value:
    """The entries for bytes, by an instruction of so many lanes."""
    count = -(-x.lanes // lanes) * lanes
    wide = b.widen(x, count) if count > x.lanes else x
    firsts = range(0, count, lanes)
    parts = [wide] if count == lanes else [b.shuffle(wide, range(f, f + lanes)) for f in firsts]
    look = _LOOKS[kind]
    made = [look(b, table, part) for part in parts]
    while len(made) > 1:
        made = [
            b.concat(*(b.widen(one, max(p.lanes for p in pair)) for one in pair))
            for pair in (made[at : at + 2] for at in range(0, len(made), 2))
        ]
    return made[0] if made[0].lanes == x.lanes else b.shuffle(made[0], range(x.lanes))


def _load(b: FunctionText, table: Memory, first: int, lanes: int) -> Value:
    pointer = b.offset("i8", table.pointer, i64(first))
    return b.load(vector("i8", lanes), pointer, align=1, extra=table.alias)


def _by_tbl(b: FunctionText, table: Memory, x: Value) -> Value:
    found: Value | None = None
    for first in range(0, ENTRIES, PART):
        rows = [_load(b, table, first + at, ROW) for at in range(0, PART, ROW)]
        # Less than 64 in the part that a byte belongs to, more in all others.
        at = b.op("xor", x, splat(x.type, str(first))) if first else x
        here = b.call("llvm.aarch64.neon.tbl4.v16i8", x.type, *rows, at)
        found = here if found is None else b.op("or", found, here)
    assert found is not None
    return found


def _by_vpermi2b(b: FunctionText, table: Memory, x: Value) -> Value:
    rows = [_load(b, table, first, x.lanes) for first in range(0, ENTRIES, x.lanes)]
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (b.call(name, x.type, rows[at], x, rows[at + 1]) for at in (0, 2))
    return b.select(b.compare("icmp slt", x, splat(x.type, "0")), high, low)


def _by_vpshufb(b: FunctionText, table: Memory, x: Value) -> Value:
    name = "llvm.x86.avx512.pshuf.b.512" if x.lanes == 64 else "llvm.x86.avx2.pshuf.b"
    found: Value | None = None
    for first in range(0, ENTRIES, ROW):
        row = b.shuffle(_load(b, table, first, ROW), [at % ROW for at in range(x.lanes)])
        own = b.op("xor", x, splat(x.type, str(first))) if first else x
        at = b.call(f"llvm.uadd.sat.v{x.lanes}i8", x.type, own, splat(x.type, str(NEITHER)))
        here = b.call(name, x.type, row, at)
        found = here if found is None else b.op("or", found, here)
    assert found is not None
    return found


_LOOKS = {TBL: _by_tbl, VPERMI2B: _by_vpermi2b, VPSHUFB: _by_vpshufb}
