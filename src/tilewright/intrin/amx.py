"""AMX: eight tile registers of sixteen rows of 64 bytes, and products of tiles.

A buffer of scope `amx.tile` lives in tile registers: every 1024 bytes of it are one register, so
its tiles must be addressed by constants once loops are unrolled. B comes in groups: bf16 rows in
pairs (k // 2, n, k % 2), bytes in fours (k // 4, n, k % 4).

    A in tiles   B in tiles   C in tiles: amx_*_dot accumulates
    memory -> tile: amx_load_*      tile -> memory: amx_store_*      zero: reset of the dot
"""

from __future__ import annotations

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


def _dot(name: str, a: str, b: str, c: str, group: int) -> str:
    """The behaviour of a product of tiles, `group` elements of B side by side."""
    depth = ROW_BYTES if group == 4 else ROW_BYTES // 2
    return f"""
    func @{name}(%A: {a}[16, {depth}] in {SCOPE}, %B: {b}[16, 16, {group}] in {SCOPE},
                 %C: {c}[16, 16] in {SCOPE}) stage scheduled {{
      for %i in 0..16 {{ for %j in 0..16 {{ for %k in 0..{depth} {{
        block @C(%vi: spatial 16 = %i, %vj: spatial 16 = %j, %vk: reduce {depth} = %k) {{
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


def _product(name: str, a: str, b: str, c: str, group: int) -> TensorIntrin:
    mnemonic = {"bf16": "tdpbf16ps", "u8": "tdpbusd", "i8": "tdpbssd"}[a]
    return declare(
        _dot(name, a, b, c, group),
        reset=lambda A, B, C: instruction("llvm.x86.tilezero", address(C)),
        update=lambda A, B, C: instruction(
            f"llvm.x86.{mnemonic}", address(C), address(A), address(B)
        ),
    )


def _loads(prefix: str, of: str, group: int) -> tuple[TensorIntrin, TensorIntrin]:
    depth = ROW_BYTES if group == 4 else ROW_BYTES // 2
    rows = _copy(f"{prefix}_rows", of, 16, depth, "global", SCOPE)
    groups = _grouped(f"{prefix}_groups", of, depth, group)
    return declare(rows, compute=_load), declare(groups, compute=_load)


BF16_DOT = _product("amx_bf16_dot", "bf16", "bf16", "f32", 2)
U8_DOT = _product("amx_u8_dot", "u8", "i8", "i32", 4)
I8_DOT = _product("amx_i8_dot", "i8", "i8", "i32", 4)
LOAD_BF16_ROWS, LOAD_BF16_GROUPS = _loads("amx_load_bf16", "bf16", 2)
LOAD_U8_ROWS, LOAD_U8_GROUPS = _loads("amx_load_u8", "u8", 4)
LOAD_I8_ROWS, LOAD_I8_GROUPS = _loads("amx_load_i8", "i8", 4)
STORE_F32 = declare(_copy("amx_store_f32", "f32", 16, 16, SCOPE, "global"), compute=_store)
STORE_I32 = declare(_copy("amx_store_i32", "i32", 16, 16, SCOPE, "global"), compute=_store)
