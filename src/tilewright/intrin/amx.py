"""AMX: eight tile registers of sixteen rows of 64 bytes, and products of tiles.

A buffer of scope `amx.tile` lives in tile registers: every 1024 bytes of it are one register, so
its tiles must be addressed by constants once loops are unrolled. B comes in groups: bf16 rows in
pairs (k // 2, n, k % 2), bytes in fours (k // 4, n, k % 4).

    A in tiles   B in tiles   C in tiles: amx_*_dot accumulates
    memory -> tile: amx_load_*      tile -> memory: amx_store_*      zero: reset of the dot

Tiles of A and C may have fewer rows, which takes less time: `amx_bf16_dot_14` and the like, on
buffers of scope `amx.tile14`. Rows of A may overlap in memory, as windows that slide over a line
do: those of `amx_load_bf16_windows6` begin six elements apart. Both are declared when somebody asks
for them.
"""

from __future__ import annotations

import re

from tilewright.intrin.declare import address, declare, instruction, stride_bytes
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import Buffer, Stmt

SCOPE = "amx.tile"
ROWS, ROW_BYTES = 16, 64


def _load(memory: Buffer, tile: Buffer) -> Stmt:
    return instruction("llvm.x86.tileloadd64", address(tile), address(memory), stride_bytes(memory))


def _store(tile: Buffer, memory: Buffer) -> Stmt:
    return instruction(
        "llvm.x86.tilestored64", address(tile), address(memory), stride_bytes(memory)
    )


def _copy(name: str, of: str, rows: int, columns: int, source: str, target: str) -> str:
    """The behaviour of a copy between memories, row by row."""
    return _behavior(name, of, f"{rows}, {columns}", rows, columns, "%v0, %v1", source, target)


def _grouped(name: str, of: str, depth: int, group: int) -> str:
    """The behaviour of a copy into a tile whose rows hold `group` steps of k side by side."""
    shape, at = f"{depth // group}, 16, {group}", f"%v0 // {group}, %v1, %v0 % {group}"
    return _behavior(name, of, shape, depth, 16, at, "global", SCOPE)


def _behavior(
    name: str, of: str, shape: str, outer: int, inner: int, at: str, source: str, target: str
) -> str:
    return f"""
    func @{name}(%X: {of}[{shape}] in {source}, %Y: {of}[{shape}] in {target}) stage scheduled {{
      for %i in 0..{outer} {{ for %j in 0..{inner} {{
        block @Y(%v0: spatial {outer} = %i, %v1: spatial {inner} = %j) {{
          reads %X[{at}]
          writes %Y[{at}]
          %Y[{at}] = %X[{at}]
        }}
      }} }}
    }}
    """


def scope_of(rows: int) -> str:
    """The memory of tiles of so many rows."""
    return SCOPE if rows == ROWS else f"{SCOPE}{rows}"


def name_of(name: str, rows: int) -> str:
    """The intrinsic for tiles of so many rows."""
    return name if rows == ROWS else f"{name}_{rows}"


def _dot(name: str, a: str, b: str, c: str, group: int, rows: int) -> str:
    """The behaviour of a product of tiles, `group` elements of B side by side."""
    depth, short = ROW_BYTES if group == 4 else ROW_BYTES // 2, scope_of(rows)
    return f"""
    func @{name}(%A: {a}[{rows}, {depth}] in {short}, %B: {b}[16, 16, {group}] in {SCOPE},
                 %C: {c}[{rows}, 16] in {short}) stage scheduled {{
      for %i in 0..{rows} {{ for %j in 0..16 {{ for %k in 0..{depth} {{
        block @C(%vi: spatial {rows} = %i, %vj: spatial 16 = %j, %vk: reduce {depth} = %k) {{
          reads %A[%vi, %vk], %B[%vk // {group}, %vj, %vk % {group}]
          writes %C[%vi, %vj]
          init {{
            %C[%vi, %vj] = 0
          }}
          %C[%vi, %vj] sum= {c}(%A[%vi, %vk]) * {c}(%B[%vk // {group}, %vj, %vk % {group}])
        }}
      }} }} }}
    }}
    """


def _product(name: str, a: str, b: str, c: str, group: int, rows: int = ROWS) -> TensorIntrin:
    mnemonic = {"bf16": "tdpbf16ps", "u8": "tdpbusd", "i8": "tdpbssd"}[a]
    return declare(
        _dot(name_of(name, rows), a, b, c, group, rows),
        reset=lambda A, B, C: instruction("llvm.x86.tilezero", address(C)),
        update=lambda A, B, C: instruction(
            f"llvm.x86.{mnemonic}", address(C), address(A), address(B)
        ),
    )


def _load_rows(of: str, rows: int = ROWS) -> TensorIntrin:
    depth = ROW_BYTES // 2 if of == "bf16" else ROW_BYTES
    name = name_of(f"amx_load_{of}_rows", rows)
    return declare(_copy(name, of, rows, depth, "global", scope_of(rows)), compute=_load)


def _load_windows(of: str, apart: int, rows: int = ROWS) -> TensorIntrin:
    """Rows that begin `apart` elements from each other in one line of memory."""
    depth = ROW_BYTES // 2 if of == "bf16" else ROW_BYTES
    name, long = name_of(f"amx_load_{of}_windows{apart}", rows), (rows - 1) * apart + depth
    behavior = f"""
    func @{name}(%X: {of}[{long}, 1] in global, %Y: {of}[{rows}, {depth}] in {scope_of(rows)})
        stage scheduled {{
      for %i in 0..{rows} {{ for %j in 0..{depth} {{
        block @Y(%v0: spatial {rows} = %i, %v1: spatial {depth} = %j) {{
          reads %X[%v0 * {apart} + %v1, 0]
          writes %Y[%v0, %v1]
          %Y[%v0, %v1] = %X[%v0 * {apart} + %v1, 0]
        }}
      }} }}
    }}
    """

    def load(memory: Buffer, tile: Buffer) -> Stmt:
        far = stride_bytes(memory) * apart
        return instruction("llvm.x86.tileloadd64", address(tile), address(memory), far)

    return declare(behavior, compute=load)


def _load_groups(of: str, group: int) -> TensorIntrin:
    depth = ROW_BYTES if group == 4 else ROW_BYTES // 2
    return declare(_grouped(f"amx_load_{of}_groups", of, depth, group), compute=_load)


def _store_rows(of: str, rows: int = ROWS) -> TensorIntrin:
    name = name_of(f"amx_store_{of}", rows)
    return declare(_copy(name, of, rows, 16, scope_of(rows), "global"), compute=_store)


BF16_DOT = _product("amx_bf16_dot", "bf16", "bf16", "f32", 2)
U8_DOT = _product("amx_u8_dot", "u8", "i8", "i32", 4)
I8_DOT = _product("amx_i8_dot", "i8", "i8", "i32", 4)
LOAD_BF16_ROWS, LOAD_BF16_GROUPS = _load_rows("bf16"), _load_groups("bf16", 2)
LOAD_U8_ROWS, LOAD_U8_GROUPS = _load_rows("u8"), _load_groups("u8", 4)
LOAD_I8_ROWS, LOAD_I8_GROUPS = _load_rows("i8"), _load_groups("i8", 4)
STORE_F32, STORE_I32 = _store_rows("f32"), _store_rows("i32")

_SHORT = re.compile(r"amx_(load|store)?_?(bf16|u8|i8|f32|i32)(_dot|_rows)?_([1-9]|1[0-5])")
_WINDOWS = re.compile(r"amx_load_(bf16|u8|i8)_windows([1-9][0-9]{0,8})(?:_([1-9]|1[0-5]))?")


def declare_named(name: str) -> bool:
    """Declare an intrinsic on short tiles or on windows, by its name; whether there is one."""
    if (windows := _WINDOWS.fullmatch(name)) is not None:
        _load_windows(windows[1], int(windows[2]), int(windows[3] or ROWS))
        return True
    found = _SHORT.fullmatch(name)
    if found is None:
        return False
    what, of, suffix, rows = found[1], found[2], found[3], int(found[4])
    if suffix == "_dot" and what is None and of in ("bf16", "u8", "i8"):
        b, c, group = ("bf16", "f32", 2) if of == "bf16" else ("i8", "i32", 4)
        _product(f"amx_{of}_dot", of, b, c, group, rows)
    elif suffix == "_rows" and what == "load" and of in ("bf16", "u8", "i8"):
        _load_rows(of, rows)
    elif suffix is None and what == "store" and of in ("f32", "i32"):
        _store_rows(of, rows)
    else:
        return False
    return True
