"""Tile registers (AMX): buffers of scope `amx.tile`, numbered instead of addressed.

A function that uses tiles configures them on entry, all as sixteen rows of 64 bytes, and releases
them on leaving; the process must have asked the kernel for permission, which the runtime does.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.codegen.builder import FunctionText, ModuleText, Value
from tilewright.sym import Const, Expr
from tilewright.tensor import ir
from tilewright.tensor.ir import Buffer, Stmt
from tilewright.tensor.visit import walk

SCOPE = "amx.tile"
TILE_BYTES, REGISTERS = 1024, 8


def uses_tiles(stmt: Stmt) -> bool:
    """Whether a buffer in tile registers is allocated in the statement."""
    return any(isinstance(s, ir.Alloc) and s.buffer.scope == SCOPE for s in walk(stmt))


def configure(module: ModuleText, builder: FunctionText) -> None:
    """Set all tiles up now, and release them wherever the function returns."""
    name = "tile.config"
    rows, columns = [16] * REGISTERS, [64] * REGISTERS
    data = bytes([1, 0, *[0] * 14])
    data += b"".join(width.to_bytes(2, "little") for width in (*columns, *[0] * 8))
    data += bytes([*rows, *[0] * 8])
    if not any(line.startswith(f"@{name} ") for line in module.global_lines):
        shown = ", ".join(f"i8 {byte}" for byte in data)
        module.constant(name, "[64 x i8]", f"[{shown}], align 64")
    builder.call("llvm.x86.ldtilecfg", "void", Value("ptr", f"@{name}"))
    builder.before_return.append(module.declare("void", "llvm.x86.tilerelease", []))


class TileRegisters:
    """Which registers the tile buffers of one function occupy."""

    def __init__(self) -> None:
        self._first: dict[Buffer, int] = {}
        self._taken = 0

    def take(self, buffer: Buffer) -> None:
        """Give a buffer registers of its own."""
        count = 1
        for dim in buffer.shape:
            count *= int(dim.value) if isinstance(dim, Const) else 1 << 30
        size = count * buffer.dtype.size_bytes
        if size % TILE_BYTES or self._taken + size // TILE_BYTES > REGISTERS:
            raise Unsupported(
                "TW3040",
                f"%{buffer.name} takes {size} bytes of tiles after {self._taken} of {REGISTERS} "
                f"registers of {TILE_BYTES} bytes are taken",
                help="keep fewer tiles at a time",
            )
        self._first[buffer] = self._taken
        self._taken += size // TILE_BYTES

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
        return Value("i8", str(self._first[buffer] + position // TILE_BYTES))
