"""Hopper's warpgroup multiplication (`wgmma`) on tiles in shared memory, without swizzle.

Operands are stored as core matrices of 8 rows by 16 bytes, each 128 contiguous bytes: element (i,
k) of A at (i // 8, k // 8, i % 8, k % 8), element (k, j) of B at (j // 8, k // 8, j % 8, k % 8).
Accumulators are distributed over the registers of the warpgroup: scope `wgmma.sum`.

    wgmma_bf16_dot     C[64, 64] += A[64, 16] B[16, 64], bf16 in, f32 accumulators
    wgmma_store_f32    C from registers to memory
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.intrin.declare import address, declare, instruction, stride_bytes
from tilewright.sym import Expr
from tilewright.tensor.ir import Buffer, Call, Stmt
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

SUM = declare_scope(MemoryScope("wgmma.sum", Owner.UNIT, is_addressable=False, alignment_bytes=16))
SCOPE = SUM.reference
ROWS, COLUMNS, DEPTH = 64, 64, 16


def _instruction(name: str, *args: Expr) -> Stmt:
    return instruction(f"wgmma.{name}", *args)


def _update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
    steps = [stride_bytes(operand, axis) for operand in (A, B) for axis in (1, 0)]
    return _instruction("dot", address(C), address(A), address(B), *steps)


DOT = declare(
    f"""
    func @wgmma_bf16_dot(%A: bf16[8, 2, 8, 8] in shared, %B: bf16[8, 2, 8, 8] in shared,
                         %C: f32[{ROWS}, {COLUMNS}] in {SCOPE}) stage scheduled {{
      for %i in 0..{ROWS} {{ for %j in 0..{COLUMNS} {{ for %k in 0..{DEPTH} {{
        block @C(%vi: spatial {ROWS} = %i, %vj: spatial {COLUMNS} = %j, %vk: reduce {DEPTH} = %k) {{
          reads %A[%vi // 8, %vk // 8, %vi % 8, %vk % 8], %B[%vj // 8, %vk // 8, %vj % 8, %vk % 8]
          writes %C[%vi, %vj]
          init {{
            %C[%vi, %vj] = 0.0
          }}
          %C[%vi, %vj] sum= f32(%A[%vi // 8, %vk // 8, %vi % 8, %vk % 8])
            * f32(%B[%vj // 8, %vk // 8, %vj % 8, %vk % 8])
        }}
      }} }} }}
    }}
    """,
    reset=lambda A, B, C: _instruction("zero", address(C)),
    update=_update,
)

STORE = declare(
    f"""
    func @wgmma_store_f32(%X: f32[{ROWS}, {COLUMNS}] in {SCOPE},
                          %Y: f32[{ROWS}, {COLUMNS}]) stage scheduled {{
      for %i in 0..{ROWS} {{ for %j in 0..{COLUMNS} {{
        block @Y(%v0: spatial {ROWS} = %i, %v1: spatial {COLUMNS} = %j) {{
          reads %X[%v0, %v1]
          writes %Y[%v0, %v1]
          %Y[%v0, %v1] = %X[%v0, %v1]
        }}
      }} }}
    }}
    """,
    compute=lambda X, Y: _instruction(
        "store", address(X), address(Y), Call("stride", (address(Y), sym.const(0)), INDEX)
    ),
)
