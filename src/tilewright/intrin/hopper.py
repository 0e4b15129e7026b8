"""Hopper's bulk tensor copies and wide warpgroup GEMMs on swizzled tiles, declared by behaviour.

    tma_load_bf16_128x64       Y[128, 64] = X[128, 64], from global memory to a swizzled tile
    wgmma_bf16_64x256x64       C[64, 256] += A[64, 64] B[256, 64]^T, f32 sums in registers
    wgmma_store_bf16_64x256    Y[64, 256] = C[64, 256], rounded

Rows of a tile are 128 bytes. In memory of scope `shared.b128` the 16-byte piece p of row r lies at
p xor (r % 8), so that neither the copy nor the product meets a bank twice. Only instructions that
know it touch that memory: programs see a plain tile, and no load or store reaches it.
"""

from __future__ import annotations

import re

from tilewright import sym
from tilewright.base.dtype import BOOL, INDEX
from tilewright.intrin.declare import address, declare
from tilewright.sym import Expr
from tilewright.tensor.ir import Buffer, Call, Eval, Stmt

TILE_SCOPE, SUM_SCOPE = "shared.b128", "wgmma.sum"
ROW_BYTES = 128
M = 64  # rows of a warpgroup's tile
TYPES = {"bf16": 2, "f16": 2}  # bytes of operands
MOST_N, MOST_ROWS = 256, 256

_LOAD = re.compile(r"tma_load_(\w+?)_(\d+)x(\d+)")
_DOT = re.compile(r"wgmma_(\w+?)_64x(\d+)x(\d+)")
_STORE = re.compile(r"wgmma_store_(\w+?)_64x(\d+)")


def load_name(dtype: str, rows: int) -> str:
    return f"tma_load_{dtype}_{rows}x{ROW_BYTES // TYPES[dtype]}"


def dot_name(dtype: str, n: int) -> str:
    return f"wgmma_{dtype}_64x{n}x{ROW_BYTES // TYPES[dtype]}"


def store_name(dtype: str, n: int) -> str:
    return f"wgmma_store_{dtype}_64x{n}"


def declare_named(name: str) -> None:
    """Declare one of these by its name; names of others are left alone."""
    if found := _LOAD.fullmatch(name):
        dtype, rows, k = found[1], int(found[2]), int(found[3])
        if _is_row(dtype, k) and 8 <= rows <= MOST_ROWS and rows % 8 == 0:
            _declare_load(name, dtype, rows, k)
    elif found := _STORE.fullmatch(name):
        dtype, n = found[1], int(found[2])
        if dtype in (*TYPES, "f32") and _is_width(n):
            _declare_store(name, dtype, n)
    elif found := _DOT.fullmatch(name):
        dtype, n, k = found[1], int(found[2]), int(found[3])
        if _is_row(dtype, k) and _is_width(n):
            _declare_dot(name, dtype, n, k)


def _is_row(dtype: str, k: int) -> bool:
    return dtype in TYPES and k * TYPES[dtype] == ROW_BYTES


def _is_width(n: int) -> bool:
    return 8 <= n <= MOST_N and n % 8 == 0


def _instruction(name: str, *args: Expr) -> Stmt:
    return Eval(Call(name, args, BOOL))


def _declare_load(name: str, dtype: str, rows: int, k: int) -> None:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        return _instruction("tma.load", address(Y), address(X), sym.const(rows))

    declare(
        f"""
        func @{name}(%X: {dtype}[{rows}, {k}], %Y: {dtype}[{rows}, {k}] in {TILE_SCOPE})
            stage scheduled {{
          for %i in 0..{rows} {{ for %k in 0..{k} {{
            block @Y(%v0: spatial {rows} = %i, %v1: spatial {k} = %k) {{
              reads %X[%v0, %v1]
              writes %Y[%v0, %v1]
              %Y[%v0, %v1] = %X[%v0, %v1]
            }}
          }} }}
        }}
        """,
        compute=compute,
    )


def _declare_dot(name: str, dtype: str, n: int, k: int) -> None:
    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return _instruction("wgmma.tile", address(C), address(A), address(B), sym.const(n))

    def reset(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return _instruction("wgmma.clear", address(C), sym.const(n))

    declare(
        f"""
        func @{name}(%A: {dtype}[{M}, {k}] in {TILE_SCOPE}, %B: {dtype}[{n}, {k}] in {TILE_SCOPE},
                     %C: f32[{M}, {n}] in {SUM_SCOPE}) stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{ for %k in 0..{k} {{
            block @C(%vi: spatial {M} = %i, %vj: spatial {n} = %j, %vk: reduce {k} = %k) {{
              reads %A[%vi, %vk], %B[%vj, %vk]
              writes %C[%vi, %vj]
              init {{
                %C[%vi, %vj] = 0.0
              }}
              %C[%vi, %vj] sum= f32(%A[%vi, %vk]) * f32(%B[%vj, %vk])
            }}
          }} }} }}
        }}
        """,
        reset=reset,
        update=update,
    )


def _declare_store(name: str, dtype: str, n: int) -> None:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        stride = Call("stride", (address(Y), sym.const(0)), INDEX)
        return _instruction("wgmma.round", address(X), address(Y), stride, sym.const(n))

    value = "%X[%v0, %v1]" if dtype == "f32" else f"{dtype}(%X[%v0, %v1])"

    declare(
        f"""
        func @{name}(%X: f32[{M}, {n}] in {SUM_SCOPE}, %Y: {dtype}[{M}, {n}]) stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{
            block @Y(%v0: spatial {M} = %i, %v1: spatial {n} = %j) {{
              reads %X[%v0, %v1]
              writes %Y[%v0, %v1]
              %Y[%v0, %v1] = {value}
            }}
          }} }}
        }}
        """,
        compute=compute,
    )
