"""Dot products of short groups, accumulated in the lanes of one vector register.

    vnni_u8_dot    AVX-512 VNNI: 16 lanes of i32, each the sum of 4 products u8 x i8
    bf16_dot       AVX512-BF16: 16 lanes of f32, each the sum of 2 products of bf16
    neon_sdot      AArch64: 4 lanes of i32, each the sum of 4 products i8 x i8; neon_udot for u8

A is one group that every lane uses; B holds a group per lane, side by side in memory.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import DType, dtype
from tilewright.intrin.declare import declare
from tilewright.sym import ONE, ZERO, Expr
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import Broadcast, Buffer, Call, Load, Ramp, Stmt, Store


def _behavior(name: str, a: str, b: str, c: str, lanes: int, group: int) -> str:
    return f"""
    func @{name}(%A: {a}[{group}], %B: {b}[{lanes}, {group}], %C: {c}[{lanes}]) stage scheduled {{
      for %j in 0..{lanes} {{ for %k in 0..{group} {{
        block @C(%vj: spatial {lanes} = %j, %vk: reduce {group} = %k) {{
          reads %A[%vk], %B[%vj, %vk]
          writes %C[%vj]
          init {{
            %C[%vj] = 0
          }}
          %C[%vj] sum= {c}(%A[%vk]) * {c}(%B[%vj, %vk])
        }}
      }} }}
    }}
    """


def reinterpret(value: Expr, to: DType) -> Expr:
    """The same bits as another type of the same size."""
    return Call("reinterpret", (value,), to)


def _vector(buffer: Buffer, lanes: int) -> Expr:
    """`lanes` elements from the first one on."""
    leading = (ZERO,) * (buffer.rank - 1)
    return Load(buffer, (*leading, Ramp(ZERO, ONE, lanes)))


def _dot(name: str, a: str, b: str, c: str, lanes: int, group: int, llvm: str) -> TensorIntrin:
    whole = dtype("i32").with_lanes(lanes)  # one 32-bit group of A in every lane

    def operands(A: Buffer, B: Buffer) -> tuple[Expr, Expr]:
        shared = Broadcast(reinterpret(_vector(A, group), dtype("i32")), lanes)
        own = reinterpret(_vector(B, lanes * group), whole)
        width = dtype(a).with_lanes(lanes * group), dtype(b).with_lanes(lanes * group)
        return reinterpret(shared, width[0]), reinterpret(own, width[1])

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        before = _vector(C, lanes)
        after = Call(llvm, (before, *operands(A, B)), before.dtype)
        return Store(C, (Ramp(ZERO, ONE, lanes),), after)

    def reset(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        zero = Broadcast(sym.const(0, C.dtype), lanes)
        return Store(C, (Ramp(ZERO, ONE, lanes),), zero)

    return declare(_behavior(name, a, b, c, lanes, group), reset=reset, update=update)


VNNI_U8 = _dot("vnni_u8_dot", "u8", "i8", "i32", 16, 4, "llvm.x86.avx512.vpdpbusd.512")
BF16 = _dot("bf16_dot", "bf16", "bf16", "f32", 16, 2, "llvm.x86.avx512bf16.dpbf16ps.512")
NEON_SDOT = _dot("neon_sdot", "i8", "i8", "i32", 4, 4, "llvm.aarch64.neon.sdot.v4i32.v16i8")
NEON_UDOT = _dot("neon_udot", "u8", "u8", "i32", 4, 4, "llvm.aarch64.neon.udot.v4i32.v16i8")
