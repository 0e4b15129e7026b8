"""Hopper's bulk tensor copies and wide warpgroup GEMMs on swizzled tiles, declared by behaviour.

    tma_load_bf16(rows=128)    Y[128, 64] = X[128, 64], from global memory to a swizzled tile
    tma_multicast_bf16(rows=128)    the same, of a tile that all blocks of a cluster have alike
    wgmma_bf16(n=256)          C[64, 256] += A[64, 64] B[256, 64]^T, f32 sums in registers
    wgmma_kn_bf16(n=256)       C[64, 256] += A[64, 64] B[64, 256], B in boxes of 64 columns
    wgmma_km_bf16(n=256)       C[64, 256] += A[64, 64]^T B[256, 64]^T; also wgmma_km_kn
    wgmma_f8e4m3(n=256)        C[64, 256] += A[64, 128] B[256, 128]^T
    wgmma_tf32(n=256)          C[64, 256] += A[64, 32] B[256, 32]^T, of f32 rounded to tf32
    wgmma_i8(n=256)            C[64, 256] += A[64, 128] B[256, 128]^T, i32 sums; also u8
    wgmma_round_bf16(n=256)    Y[64, 256] = C[64, 256], rounded
    wgmma_rows(n=256)          Y[64, 256] = C[64, 256], in registers by runs of a row

Rows of a tile are 128 bytes. In memory of scope `shared.b128` the 16-byte piece p of row r is
stored at p xor (r % 8), so that copies and GEMMs have no bank conflicts. Only instructions aware of
the swizzle access that memory: programs see a plain tile, without loads or stores.

Accumulators for epilogues are exchanged between threads first: in memory `wgmma.rows` each thread
of a warpgroup holds runs of eight adjacent elements. `HELD` maps an element to the thread and
register that hold it; loops bound to threads in that order load and store it like memory.

    wgmma_attend_bf16(keys=128, features=64)      a step of attention over 128 keys

takes scores in registers and values in a tile. Its three results are the maximum score of each row,
the sum of exponentials of scores relative to it, and the values weighted by those: a reduction
whose steps are combined by `online_softmax`. Exponentials are rounded to the type of the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.intrin.declare import address, instruction, member
from tilewright.intrin.wgmma import SUM
from tilewright.sym import Expr
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.ir import Buffer, Call, Stmt
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

# The swizzle has a period of eight rows of 128 bytes.
TILE = declare_scope(
    MemoryScope("shared.b128", Owner.BLOCK, is_addressable=False, alignment_bytes=1024)
)
WIDE = declare_scope(
    MemoryScope("wgmma.rows", Owner.UNIT, is_addressable=False, alignment_bytes=16)
)
# A number per row of a tile, held by all four threads that share the row.
ROW = declare_scope(MemoryScope("wgmma.row", Owner.UNIT, is_addressable=False, alignment_bytes=16))
# The left operand of a GEMM, packed in pairs along a row.
LEFT = declare_scope(
    MemoryScope("wgmma.left", Owner.UNIT, is_addressable=False, alignment_bytes=16)
)
TILE_SCOPE, SUM_SCOPE = TILE.reference, SUM.reference
WIDE_SCOPE, ROW_SCOPE = WIDE.reference, ROW.reference
ROW_BYTES = 128
M = 64  # rows of a warpgroup's tile
THREADS = 128  # of a warpgroup
RUN = 8  # adjacent elements of a row per thread in `wgmma.rows`
QUAD = 4  # threads that share a row
PAIR = 2  # adjacent elements of a row per thread in `wgmma.sum`
ROW_DIGITS = (4, 2, 8)  # of a row index: warp, which of a thread's two rows, one of eight threads
BESIDE_BYTES = 4096  # maximum of shared memory besides tiles: barriers, alignment


@dataclass(frozen=True)
class Operand:
    """An operand type of the tensor cores, by its type in memory."""

    name: str
    bytes: int
    depth: int  # k of one instruction
    assembler: str
    # Supports A along m and B along n, results rounded to it, and attention.
    is_half: bool = False
    sums: str = "f32"

    @property
    def columns(self) -> int:
        """Elements per row of a tile."""
        return ROW_BYTES // self.bytes

    def read(self, element: str) -> str:
        """Convert an element as GEMM operands are."""
        return f"round_tf32({element})" if self.name == "tf32" else f"{self.sums}({element})"


OPERANDS = {
    "bf16": Operand("bf16", 2, 16, "bf16", is_half=True),
    "f16": Operand("f16", 2, 16, "f16", is_half=True),
    "f8e4m3": Operand("f8e4m3", 1, 32, "e4m3"),
    "f32": Operand("tf32", 4, 8, "tf32"),
    "i8": Operand("i8", 1, 32, "s8", sums="i32"),
    "u8": Operand("u8", 1, 32, "u8", sums="i32"),
}
HALVES = tuple(name for name, operand in OPERANDS.items() if operand.is_half)
BOXES = Parameter("n", 64, 256, multiple=64)
KEYS = Parameter("keys", 16, 256, multiple=16)
FEATURES = Parameter("features", 64, 256, multiple=64)
WHOLE = Parameter("n", 32, 256, multiple=32)  # runs of every thread; integers have few other sizes
ROWS, N = Parameter("rows", 8, 256, multiple=8), Parameter("n", 8, 256, multiple=8)
EVICT_FIRST = Parameter("evict_first", 0, 1, default=0)  # whether the data is evicted from L2 first


def load_of(dtype: str, rows: int, *, evict_first: bool = False) -> TensorIntrin:
    return intrinsic(f"tma_load_{dtype}", rows=rows, evict_first=int(evict_first))


def multicast_of(dtype: str, rows: int, *, evict_first: bool = False) -> TensorIntrin:
    """The multicast copy of a tile common to all blocks of a cluster: each copies a part for
    all."""
    return intrinsic(f"tma_multicast_{dtype}", rows=rows, evict_first=int(evict_first))


def dot_of(dtype: str, n: int, *, along_n: bool = False, along_m: bool = False) -> TensorIntrin:
    """The GEMM whose right operand is contiguous along k, or along n, and its left one along k, or
    along m."""
    return intrinsic(_dot_name(dtype, along_n=along_n, along_m=along_m), n=n)


def _dot_name(dtype: str, *, along_n: bool, along_m: bool) -> str:
    form = ("km_" if along_m else "") + ("kn_" if along_n else "")
    return f"wgmma_{form}{OPERANDS[dtype].name}"


def store_of(dtype: str, n: int) -> TensorIntrin:
    return intrinsic(f"wgmma_round_{dtype}", n=n)


def rows_of(n: int, sums: str = "f32") -> TensorIntrin:
    return intrinsic(_rows_name(sums), n=n)


def _rows_name(sums: str) -> str:
    return "wgmma_rows" if sums == "f32" else f"wgmma_rows_{sums}"


def attend_of(dtype: str, keys: int, features: int) -> TensorIntrin:
    return intrinsic(f"wgmma_attend_{dtype}", keys=keys, features=features)


def attend_registers(keys: Any, features: int) -> Any:
    """Registers per thread for a step of attention: scores, exponentials in pairs, sums, and those
    that the assembler uses for addresses and maxima; with fewer it serializes the instructions."""
    return (keys + keys // PAIR + features) * M // THREADS + 32


@dataclass(frozen=True)
class Held:
    """The distribution of a 64 x n tile: thread 32 w + 4 r + q of a warpgroup holds rows 16 w + 8 h
    + r."""

    columns: int  # adjacent elements per thread
    halves_first: bool  # whether all elements of one row precede those of the other
    shares_rows: bool = False  # the four threads of a row have copies

    def is_own(self, thread: Expr, row: Expr, column: Expr, ctx: sym.Context) -> bool:
        """Whether a thread holds an element: compares warp, thread of eight and thread of four."""
        pairs = [
            (sym.floordiv(row, 16), sym.floordiv(thread, 32)),
            (sym.floormod(row, 8), sym.floormod(sym.floordiv(thread, QUAD), 8)),
        ]
        if not self.shares_rows:
            part = sym.floormod(sym.floordiv(column, self.columns), QUAD)
            pairs.append((part, sym.floormod(thread, QUAD)))
        return all(sym.prove(sym.eq(held, own), ctx) for held, own in pairs)

    def register(self, row: Expr, column: Expr, n: int) -> Expr:
        """The index of the thread's register."""
        half = sym.floordiv(sym.floormod(row, 16), 8)
        if self.shares_rows:
            return half
        run = sym.floordiv(column, self.columns * QUAD)
        at = sym.floormod(column, self.columns)
        if self.halves_first:
            return sym.add(sym.add(sym.mul(half, n // QUAD), sym.mul(run, self.columns)), at)
        return sym.add(sym.mul(sym.add(sym.mul(run, 2), half), self.columns), at)


HELD = {SUM.name: Held(PAIR, False), WIDE.name: Held(RUN, True), ROW.name: Held(1, True, True)}


def _load(dtype: str, rows: int, evict_first: int, *, to: str = "load") -> TensorIntrin:
    k = OPERANDS[dtype].columns

    def compute(X: Buffer, Y: Buffer) -> Stmt:
        stride, policy = Call("stride", (address(X), sym.const(0)), INDEX), sym.const(evict_first)
        return instruction(f"tma.{to}", address(Y), address(X), sym.const(rows), stride, policy)

    return member(
        f"""
        func @tma_{to}_{dtype}(%X: {dtype}[{rows}, {k}], %Y: {dtype}[{rows}, {k}] in {TILE_SCOPE})
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


def _dot(dtype: str, n: int, *, along_n: bool = False, along_m: bool = False) -> TensorIntrin:
    operand = OPERANDS[dtype]
    k = operand.columns
    name = _dot_name(dtype, along_n=along_n, along_m=along_m)
    left, row = (f"[{k}, {M}]", "%A[%vk, %vi]") if along_m else (f"[{M}, {k}]", "%A[%vi, %vk]")
    shape, value = f"[{n}, {k}]", "%B[%vj, %vk]"
    zero = "0.0" if operand.sums == "f32" else "0"
    if along_n and n > k:  # boxes of columns, one after the other
        shape, value = f"[{n // k}, {k}, {k}]", f"%B[%vj // {k}, %vk, %vj % {k}]"
    elif along_n:
        shape, value = f"[{k}, {n}]", "%B[%vk, %vj]"
    form = (sym.const(n), sym.const(int(along_n)), sym.const(int(along_m)))

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return instruction("wgmma.tile", address(C), address(A), address(B), *form)

    def reset(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        return instruction("wgmma.clear", address(C), sym.const(n))

    return member(
        f"""
        func @{name}(%A: {dtype}{left} in {TILE_SCOPE}, %B: {dtype}{shape} in {TILE_SCOPE},
                     %C: {operand.sums}[{M}, {n}] in {SUM_SCOPE}) stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{ for %k in 0..{k} {{
            block @C(%vi: spatial {M} = %i, %vj: spatial {n} = %j, %vk: reduce {k} = %k) {{
              reads {row}, {value}
              writes %C[%vi, %vj]
              init {{
                %C[%vi, %vj] = {zero}
              }}
              %C[%vi, %vj] sum= {operand.read(row)} * {operand.read(value)}
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
        return instruction("wgmma.round", address(X), address(Y), stride, sym.const(n))

    value = f"{dtype}(%X[%v0, %v1])" if dtype in HALVES else "%X[%v0, %v1]"
    sums = "f32" if dtype in HALVES else dtype

    return member(
        f"""
        func @wgmma_round_{dtype}(%X: {sums}[{M}, {n}] in {SUM_SCOPE},
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


def _rows(sums: str, n: int) -> TensorIntrin:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        return instruction("wgmma.rows", address(X), address(Y), sym.const(n))

    return member(copied_sums(_rows_name(sums), sums, n, WIDE_SCOPE), compute=compute)


def copied_sums(name: str, sums: str, n: int, scope: str) -> str:
    """The behaviour of copying a tile's accumulators to another memory."""
    return f"""
        func @{name}(%X: {sums}[{M}, {n}] in {SUM_SCOPE},
                     %Y: {sums}[{M}, {n}] in {scope}) stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{
            block @Y(%v0: spatial {M} = %i, %v1: spatial {n} = %j) {{
              reads %X[%v0, %v1]
              writes %Y[%v0, %v1]
              %Y[%v0, %v1] = %X[%v0, %v1]
            }}
          }} }}
        }}
        """


ONLINE_SOFTMAX = (
    "reducer online_softmax(%x0: f32, %x1: f32, %x2: f32, %y0: f32, %y1: f32, %y2: f32) = ("
    "max(%x0, %y0), "
    "%x1 * select(%x0 == f32(-inf), 0.0, exp(%x0 - max(%x0, %y0)))"
    " + %y1 * select(%y0 == f32(-inf), 0.0, exp(%y0 - max(%x0, %y0))), "
    "%x2 * select(%x0 == f32(-inf), 0.0, exp(%x0 - max(%x0, %y0)))"
    " + %y2 * select(%y0 == f32(-inf), 0.0, exp(%y0 - max(%x0, %y0)))) "
    "identity (f32(-inf), f32(0.0), f32(0.0))"
)


def _attend(dtype: str, keys: int, features: int) -> TensorIntrin:
    sizes = (sym.const(keys), sym.const(features))
    columns = OPERANDS[dtype].columns

    def update(T: Buffer, V: Buffer, M: Buffer, L: Buffer, O: Buffer) -> Stmt:
        return instruction("wgmma.attend", *(address(each) for each in (T, V, M, L, O)), *sizes)

    def reset(T: Buffer, V: Buffer, M: Buffer, L: Buffer, O: Buffer) -> Stmt:
        return instruction("wgmma.forget", *(address(each) for each in (M, L, O)), sizes[1])

    out, shape, value = "[%vi, %vf]", f"[{keys}, {columns}]", "%V[%vj, %vf]"
    if features > columns:  # boxes of columns, one after the other
        shape = f"[{features // columns}, {keys}, {columns}]"
        value = f"%V[%vf // {columns}, %vj, %vf % {columns}]"
    return member(
        f"""
        func @wgmma_attend_{dtype}(%T: f32[{M}, {keys}] in {SUM_SCOPE},
            %V: {dtype}{shape} in {TILE_SCOPE},
            %M: f32[{M}, {features}] in {ROW_SCOPE}, %L: f32[{M}, {features}] in {ROW_SCOPE},
            %O: f32[{M}, {features}] in {SUM_SCOPE}) stage scheduled {{
          {ONLINE_SOFTMAX}
          for %i in 0..{M} {{ for %f in 0..{features} {{ for %j in 0..{keys} {{
            block @O(%vi: spatial {M} = %i, %vf: spatial {features} = %f,
                     %vj: reduce {keys} = %j) {{
              reads %T[%vi, %vj], {value}
              writes %M{out}, %L{out}, %O{out}
              init {{
                %M{out} = -inf
                %L{out} = 0.0
                %O{out} = 0.0
              }}
              (%M{out}, %L{out}, %O{out}) online_softmax=
                (%T[%vi, %vj], 1.0, f32({value}))
            }}
          }} }} }}
        }}
        """,
        reset=reset,
        update=update,
    )


for _sums in ("f32", "i32"):
    declare_family(_rows_name(_sums), (WHOLE,), partial(_rows, _sums))
    declare_family(f"wgmma_round_{_sums}", (N,), partial(_store, _sums))
for _of, _operand in OPERANDS.items():
    _copied = (ROWS, EVICT_FIRST)
    declare_family(f"tma_load_{_of}", _copied, partial(_load, _of))
    declare_family(f"tma_multicast_{_of}", _copied, partial(_load, _of, to="multicast"))
    _width = N if _operand.sums == "f32" else WHOLE
    declare_family(f"wgmma_{_operand.name}", (_width,), partial(_dot, _of))
for _of in HALVES:
    declare_family(f"wgmma_kn_{_of}", (BOXES,), partial(_dot, _of, along_n=True))
    declare_family(f"wgmma_km_{_of}", (N,), partial(_dot, _of, along_m=True))
    declare_family(f"wgmma_km_kn_{_of}", (BOXES,), partial(_dot, _of, along_n=True, along_m=True))
    declare_family(f"wgmma_attend_{_of}", (KEYS, FEATURES), partial(_attend, _of))
    declare_family(f"wgmma_round_{_of}", (N,), partial(_store, _of))
