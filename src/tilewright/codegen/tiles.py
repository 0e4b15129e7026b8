"""Tile registers (AMX): buffers of scope `amx.tile`, numbered instead of addressed.

A tile has sixteen rows of 64 bytes; of scope `amx.tile(rows=14)` it has fourteen. A function that
uses tiles configures them on entry and releases them on leaving; the process must have asked the
kernel for permission, which the runtime does.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.tiles import REGISTERS, ROW_BYTES, ROWS
from tilewright.codegen.builder import FunctionText, ModuleText, Value
from tilewright.intrin.amx import TILE
from tilewright.sym import Const, Expr
from tilewright.tensor import ir
from tilewright.tensor.ir import Buffer, Stmt
from tilewright.tensor.visit import walk


def is_tile(buffer: Buffer) -> bool:
    """Whether a buffer lives in tile registers."""
    return buffer.memory.name == TILE.name


def _rows(buffer: Buffer) -> int:
    """Of each tile."""
    return buffer.memory["rows"]


def uses_tiles(stmt: Stmt) -> bool:
    """Whether a buffer in tile registers is allocated in the statement."""
    return any(isinstance(s, ir.Alloc) and is_tile(s.buffer) for s in walk(stmt))


def configure(module: ModuleText, builder: FunctionText, body: Stmt) -> None:
    """Set the tiles of a body up now, and release them wherever the function returns."""
    rows = [0] * REGISTERS
    _plan(body, TileRegisters(), rows)
    rows = [each or ROWS for each in rows]
    name = "tile.config" + ("" if rows == [ROWS] * REGISTERS else "." + ".".join(map(str, rows)))
    columns = [ROW_BYTES] * REGISTERS
    data = bytes([1, 0, *[0] * 14])
    data += b"".join(width.to_bytes(2, "little") for width in (*columns, *[0] * 8))
    data += bytes([*rows, *[0] * 8])
    if not any(line.startswith(f"@{name} ") for line in module.global_lines):
        shown = ", ".join(f"i8 {byte}" for byte in data)
        module.constant(name, "[64 x i8]", f"[{shown}], align 64")
    builder.call("llvm.x86.ldtilecfg", "void", Value("ptr", f"@{name}"))
    builder.before_return.append(module.declare("void", "llvm.x86.tilerelease", []))


def _plan(stmt: Stmt, registers: TileRegisters, rows: list[int]) -> None:
    """How many rows each register has: tiles are taken as they will be when code is emitted."""
    if not isinstance(stmt, ir.Alloc) or not is_tile(stmt.buffer):
        for child in stmt.children():
            _plan(child, registers, rows)
        return
    tall = _rows(stmt.buffer)
    for register in registers.take(stmt.buffer):
        if rows[register] not in (0, tall):
            raise Unsupported(
                "TW3042",
                f"a register is to hold tiles of {rows[register]} rows and then "
                f"%{stmt.buffer.name}, of {tall}",
                help="use one height of tiles in a function",
            )
        rows[register] = tall
    _plan(stmt.body, registers, rows)
    registers.free(stmt.buffer)


class TileRegisters:
    """Which registers the tile buffers of one function occupy."""

    def __init__(self) -> None:
        self._first: dict[Buffer, int] = {}
        self._taken = 0

    def take(self, buffer: Buffer) -> range:
        """Give a buffer registers of its own."""
        tile_bytes = _rows(buffer) * ROW_BYTES
        count = 1
        for dim in buffer.shape:
            count *= int(dim.value) if isinstance(dim, Const) else 1 << 30
        size = count * buffer.dtype.size_bytes
        if size % tile_bytes or self._taken + size // tile_bytes > REGISTERS:
            raise Unsupported(
                "TW3040",
                f"%{buffer.name} takes {size} bytes of tiles after {self._taken} of {REGISTERS} "
                f"registers of {tile_bytes} bytes are taken",
                help="keep fewer tiles at a time",
            )
        self._first[buffer] = self._taken
        self._taken += size // tile_bytes
        return range(self._first[buffer], self._taken)

    def free(self, buffer: Buffer) -> None:
        """The buffer's scope ends; buffers are freed in the reverse order of taking."""
        self._taken = self._first.pop(buffer)

    def number(self, buffer: Buffer, index: tuple[Expr, ...]) -> Value:
        """The register that holds an element, as the instruction wants it."""
        (at,) = index
        offset = sym.simplify(at)
        if not isinstance(offset, Const) or buffer not in self._first:
            raise Unsupported(
                "TW3041",
                f"tile %{buffer.name}[{offset}] is not a constant register",
                help="unroll the loops that choose between tiles",
            )
        position = int(offset.value) * buffer.dtype.size_bytes
        return Value("i8", str(self._first[buffer] + position // (_rows(buffer) * ROW_BYTES)))
