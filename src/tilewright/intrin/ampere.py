"""Ampere's asynchronous copies and warp-level `mma`, on the tiles of Hopper, declared by behaviour.

    cp_async_f32x4             Y[4] = X[4], by one thread; also 1 and 2 elements
    cp_async_bf16(rows=128)    Y[128, 64] = X[128, 64], by all threads, 16 bytes at a time
    mma_bf16(n=128)            C[64, 128] += A[64, 64] B[128, 64]^T, f32 accumulators in registers
    mma_kn_bf16(n=128)         C[64, 128] += A[64, 64] B[64, 128], B in boxes of 64 columns

A copy is asynchronous until its threads wait for it and synchronize at a barrier: `pipeline_loops`
places the waits by a loop's plan. Multiplications use `mma.sync`, four warps with 16 rows each;
operands are loaded by `ldmatrix`, without bank conflicts thanks to the swizzle. Accumulators are
distributed as in Hopper's warpgroups (`wgmma.sum`), so epilogues are the same.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.intrin import hopper
from tilewright.intrin.declare import address, declare, instruction
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.ir import Buffer, Call, Stmt
from tilewright.tensor.parameters import Parameter

COLUMNS = Parameter("n", 16, 256, multiple=16)  # one ldmatrix loads 16
RUNS = (1, 2, 4)  # words per copy of a thread


def copy_of(dtype: str, rows: int) -> TensorIntrin:
    return intrinsic(f"cp_async_{dtype}", rows=rows)


def run_of(dtype: str, n: int) -> TensorIntrin:
    """The copy of adjacent elements by one thread, to any memory."""
    return intrinsic(f"cp_async_{dtype}x{n}")


def dot_of(dtype: str, n: int, *, along_n: bool = False) -> TensorIntrin:
    """The GEMM whose right operand is contiguous along k, or along n."""
    return intrinsic(f"mma_kn_{dtype}" if along_n else f"mma_{dtype}", n=n)


def _copy(dtype: str, rows: int) -> TensorIntrin:
    name, behavior = f"cp_async_{dtype}", hopper.load_of(dtype, rows).behavior
    X, Y = behavior.buffers
    stride = Call("stride", (address(X), sym.const(0)), INDEX)
    compute = instruction("cp.async.tile", address(Y), address(X), sym.const(rows), stride)
    return TensorIntrin(name, replace(behavior, name=name), compute)


def _run(dtype: str, n: int) -> TensorIntrin:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        return instruction("cp.async.run", address(Y), address(X), sym.const(n))

    return declare(
        f"""
        func @cp_async_{dtype}x{n}(%X: {dtype}[{n}], %Y: {dtype}[{n}] in shared) stage scheduled {{
          for %i in 0..{n} {{
            block @Y(%v: spatial {n} = %i) {{
              reads %X[%v]
              writes %Y[%v]
              %Y[%v] = %X[%v]
            }}
          }}
        }}
        """,
        compute=compute,
    )


def _dot(dtype: str, n: int, *, along_n: bool = False) -> TensorIntrin:
    like = hopper.dot_of(dtype, n, along_n=along_n)
    name = f"mma_kn_{dtype}" if along_n else f"mma_{dtype}"
    A, B, C = like.behavior.buffers
    tiles = (address(C), address(A), address(B))
    update = instruction("mma.tile", *tiles, sym.const(n), sym.const(int(along_n)))
    return TensorIntrin(name, replace(like.behavior, name=name), reset=like.reset, update=update)


for _n in RUNS:
    _run("f32", _n)
for _of in hopper.HALVES:
    declare_family(f"cp_async_{_of}", (hopper.ROWS,), partial(_copy, _of))
    declare_family(f"mma_{_of}", (COLUMNS,), partial(_dot, _of))
    declare_family(f"mma_kn_{_of}", (hopper.BOXES,), partial(_dot, _of, along_n=True))
