"""Hopper's bulk tensor copies and wide warpgroup GEMMs on swizzled tiles, declared by behaviour.

    tma_load_bf16(rows=128)    Y[128, 64] = X[128, 64], from global memory to a swizzled tile
    wgmma_bf16(n=256)          C[64, 256] += A[64, 64] B[256, 64]^T, f32 sums in registers
    wgmma_round_bf16(n=256)    Y[64, 256] = C[64, 256], rounded
    wgmma_rows(n=256)          Y[64, 256] = C[64, 256], in registers by runs of a row

Rows of a tile are 128 bytes. In memory of scope `shared.b128` the 16-byte piece p of row r lies at
p xor (r % 8), so that neither the copy nor the product meets a bank twice. Only instructions that
know it touch that memory: programs see a plain tile, and no load or store reaches it.

Sums that an epilogue works on are exchanged between threads first: in memory `wgmma.rows` each
thread of a warpgroup holds runs of eight neighbours, `rows_thread` and `rows_register` say whose an
element is. Loops bound to threads in that order load it like any memory.
"""

from __future__ import annotations

from functools import partial

from tilewright import sym
from tilewright.base.dtype import BOOL, INDEX
from tilewright.intrin.declare import address, member
from tilewright.sym import Expr
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.ir import Buffer, Call, Eval, Stmt
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

# A swizzle repeats after eight rows of 128 bytes.
TILE = declare_scope(
    MemoryScope("shared.b128", Owner.BLOCK, is_addressable=False, alignment_bytes=1024)
)
WIDE = declare_scope(
    MemoryScope("wgmma.rows", Owner.UNIT, is_addressable=False, alignment_bytes=16)
)
TILE_SCOPE, SUM_SCOPE, WIDE_SCOPE = TILE.reference, "wgmma.sum", WIDE.reference
ROW_BYTES = 128
M = 64  # rows of a warpgroup's tile
RUN = 8  # neighbours in a row that a thread holds in `wgmma.rows`
QUAD = 4  # threads that share a row
TYPES = {"bf16": 2, "f16": 2}  # bytes of operands
ROWS, N = Parameter("rows", 8, 256, multiple=8), Parameter("n", 8, 256, multiple=8)


def load_of(dtype: str, rows: int) -> TensorIntrin:
    return intrinsic(f"tma_load_{dtype}", rows=rows)


def dot_of(dtype: str, n: int) -> TensorIntrin:
    return intrinsic(f"wgmma_{dtype}", n=n)


def store_of(dtype: str, n: int) -> TensorIntrin:
    return intrinsic(f"wgmma_round_{dtype}", n=n)


def rows_of(n: int) -> TensorIntrin:
    return intrinsic("wgmma_rows", n=n)


def rows_thread(row: Expr, column: Expr) -> Expr:
    """The thread of a warpgroup that holds an element of a tile in `wgmma.rows`."""
    warp, lane = sym.floordiv(row, 16), sym.floormod(row, 8)
    part = sym.floormod(sym.floordiv(column, RUN), QUAD)
    return sym.add(sym.add(sym.mul(warp, 32), sym.mul(lane, QUAD)), part)


def rows_register(row: Expr, column: Expr, n: int) -> Expr:
    """Which of the thread's registers it is in: both rows of a thread one after the other."""
    half = sym.floordiv(sym.floormod(row, 16), 8)
    run = sym.floordiv(column, RUN * QUAD)
    at = sym.add(sym.mul(run, RUN), sym.floormod(column, RUN))
    return sym.add(sym.mul(half, n // QUAD), at)


def _instruction(name: str, *args: Expr) -> Stmt:
    return Eval(Call(name, args, BOOL))


def _load(dtype: str, rows: int) -> TensorIntrin:
    k = ROW_BYTES // TYPES[dtype]

    def compute(X: Buffer, Y: Buffer) -> Stmt:
        return _instruction("tma.load", address(Y), address(X), sym.const(rows))

    return member(
        f"""
        func @tma_load_{dtype}(%X: {dtype}[{rows}, {k}], %Y: {dtype}[{rows}, {k}] in {TILE_SCOPE})
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


def _dot(dtype: str, n: int) -> TensorIntrin:
    k = ROW_BYTES // TYPES[dtype]

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return _instruction("wgmma.tile", address(C), address(A), address(B), sym.const(n))

    def reset(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return _instruction("wgmma.clear", address(C), sym.const(n))

    return member(
        f"""
        func @wgmma_{dtype}(%A: {dtype}[{M}, {k}] in {TILE_SCOPE},
                            %B: {dtype}[{n}, {k}] in {TILE_SCOPE},
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


def _store(dtype: str, n: int) -> TensorIntrin:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        stride = Call("stride", (address(Y), sym.const(0)), INDEX)
        return _instruction("wgmma.round", address(X), address(Y), stride, sym.const(n))

    value = "%X[%v0, %v1]" if dtype == "f32" else f"{dtype}(%X[%v0, %v1])"

    return member(
        f"""
        func @wgmma_round_{dtype}(%X: f32[{M}, {n}] in {SUM_SCOPE},
                                  %Y: {dtype}[{M}, {n}]) stage scheduled {{
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


def _rows(n: int) -> TensorIntrin:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        return _instruction("wgmma.rows", address(X), address(Y), sym.const(n))

    return member(
        f"""
        func @wgmma_rows(%X: f32[{M}, {n}] in {SUM_SCOPE}, %Y: f32[{M}, {n}] in {WIDE_SCOPE})
            stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{
            block @Y(%v0: spatial {M} = %i, %v1: spatial {n} = %j) {{
              reads %X[%v0, %v1]
              writes %Y[%v0, %v1]
              %Y[%v0, %v1] = %X[%v0, %v1]
            }}
          }} }}
        }}
        """,
        compute=compute,
    )


declare_family("wgmma_rows", (Parameter("n", 32, 256, multiple=32),), _rows)
for _of in TYPES:
    declare_family(f"tma_load_{_of}", (ROWS,), partial(_load, _of))
    declare_family(f"wgmma_{_of}", (N,), partial(_dot, _of))
for _of in (*TYPES, "f32"):
    declare_family(f"wgmma_round_{_of}", (N,), partial(_store, _of))
