"""AMX: eight tile registers of sixteen rows of 64 bytes, and tile multiplications.

A buffer of scope `amx.tile` lives in tile registers: every 1024 bytes of it are one register, so
its tiles must have constant indices once loops are unrolled. B is packed in groups of k: bf16 in
pairs (k // 2, n, k % 2), bytes in fours (k // 4, n, k % 4).

    A in tiles   B in tiles   C in tiles: amx_*_dot accumulates
    memory -> tile: amx_load_*      tile -> memory: amx_store_*      zero: reset of the dot

Tiles of A and C may have fewer rows, which is faster: `amx_bf16_dot(rows=14)` and the like, on
buffers of scope `amx.tile(rows=14)`. Rows of A may overlap in memory, as windows sliding along a
line do: those of `amx_load_bf16_windows(stride=6)` start six elements apart.
"""

from __future__ import annotations

from functools import partial

from tilewright.base.tiles import REGISTERS, ROW_BYTES, ROWS
from tilewright.intrin.declare import address, instruction, member, stride_bytes
from tilewright.tensor.intrin import TensorIntrin, declare_family
from tilewright.tensor.ir import Buffer, Stmt
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

TALL = Parameter("rows", 1, ROWS, default=ROWS)  # of tiles of A and C
TILE = declare_scope(
    MemoryScope(
        "amx.tile",
        Owner.UNIT,
        is_addressable=False,
        capacity_bytes=REGISTERS * ROWS * ROW_BYTES,
        alignment_bytes=ROW_BYTES,
        parameters=(TALL,),
    )
)
SCOPE = TILE.reference


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
    """The behaviour of a copy to a tile whose rows contain `group` steps of k interleaved."""
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
    """The scope of tiles with `rows` rows."""
    return TILE.member(rows=rows).reference


def _dot(name: str, a: str, b: str, c: str, group: int, rows: int) -> str:
    """The behaviour of a tile multiplication, with `group` elements of B interleaved."""
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


def _product(a: str, b: str, c: str, group: int, rows: int) -> TensorIntrin:
    mnemonic = {"bf16": "tdpbf16ps", "u8": "tdpbusd", "i8": "tdpbssd"}[a]
    return member(
        _dot(f"amx_{a}_dot", a, b, c, group, rows),
        reset=lambda A, B, C: instruction("llvm.x86.tilezero", address(C)),
        update=lambda A, B, C: instruction(
            f"llvm.x86.{mnemonic}", address(C), address(A), address(B)
        ),
    )


def _load_rows(of: str, rows: int) -> TensorIntrin:
    depth = ROW_BYTES // 2 if of == "bf16" else ROW_BYTES
    name = f"amx_load_{of}_rows"
    return member(_copy(name, of, rows, depth, "global", scope_of(rows)), compute=_load)


def _load_windows(of: str, stride: int, rows: int) -> TensorIntrin:
    """Rows that start `stride` elements apart in one line of memory."""
    depth = ROW_BYTES // 2 if of == "bf16" else ROW_BYTES
    long = (rows - 1) * stride + depth
    behavior = f"""
    func @amx_load_{of}_windows(%X: {of}[{long}, 1] in global,
                                %Y: {of}[{rows}, {depth}] in {scope_of(rows)}) stage scheduled {{
      for %i in 0..{rows} {{ for %j in 0..{depth} {{
        block @Y(%v0: spatial {rows} = %i, %v1: spatial {depth} = %j) {{
          reads %X[%v0 * {stride} + %v1, 0]
          writes %Y[%v0, %v1]
          %Y[%v0, %v1] = %X[%v0 * {stride} + %v1, 0]
        }}
      }} }}
    }}
    """

    def load(memory: Buffer, tile: Buffer) -> Stmt:
        far = stride_bytes(memory) * stride
        return instruction("llvm.x86.tileloadd64", address(tile), address(memory), far)

    return member(behavior, compute=load)


def _load_groups(of: str, group: int) -> TensorIntrin:
    depth = ROW_BYTES if group == 4 else ROW_BYTES // 2
    return member(_grouped(f"amx_load_{of}_groups", of, depth, group), compute=_load)


def _store_rows(of: str, rows: int) -> TensorIntrin:
    return member(_copy(f"amx_store_{of}", of, rows, 16, scope_of(rows), "global"), compute=_store)


# Element stride of windows: 9 digits, so that offsets fit.
STRIDE = Parameter("stride", 1, 999_999_999)

PRODUCTS = (("bf16", "bf16", "f32", 2), ("u8", "i8", "i32", 4), ("i8", "i8", "i32", 4))

for _a, _b, _c, _group in PRODUCTS:  # types of A, B and C, interleaved elements of B
    declare_family(f"amx_{_a}_dot", (TALL,), partial(_product, _a, _b, _c, _group))
    declare_family(f"amx_load_{_a}_rows", (TALL,), partial(_load_rows, _a))
    declare_family(f"amx_load_{_a}_windows", (STRIDE, TALL), partial(_load_windows, _a))
    declare_family(f"amx_load_{_a}_groups", (), partial(_load_groups, _a, _group))
for _of in ("f32", "i32"):
    declare_family(f"amx_store_{_of}", (TALL,), partial(_store_rows, _of))
