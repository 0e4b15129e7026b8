"""Accumulators of which blocks of a cluster have partial sums, exchanged in distributed shared
memory.

    cluster_keep_f32(n=128)         Y[64, 128] = C[64, 128], where other blocks can read it
    cluster_sum_f32(parts=4, n=32)  C[64, 32] += Y[0, 64, 32] + .. + Y[3, 64, 32]

A cluster consists of the blocks along `blockIdx.y`, which are co-scheduled. Scope `shared.cluster`
is their common memory: the first index of a buffer selects the block in whose shared memory an
element is, and a block writes only its own. Tiles are stored as warpgroups hold them, in 16-byte
pieces of each thread: only these instructions access them.
"""

from __future__ import annotations

from functools import partial

from tilewright import sym
from tilewright.intrin.declare import address, instruction, member, stride
from tilewright.intrin.hopper import SUM_SCOPE, WHOLE, M, N, copied_sums
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.ir import Buffer, Stmt
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

CLUSTER = declare_scope(
    MemoryScope("shared.cluster", Owner.CLUSTER, is_addressable=False, alignment_bytes=128)
)
CLUSTER_SCOPE = CLUSTER.reference
MAX_BLOCKS = 8  # blocks per cluster, portable to all GPUs with clusters
PARTS = Parameter("parts", 2, MAX_BLOCKS)
SUMS = ("f32", "i32")
SUM_BYTES = 4


def keep_of(sums: str, n: int) -> TensorIntrin:
    return intrinsic(f"cluster_keep_{sums}", n=n)


def sum_of(sums: str, parts: int, n: int) -> TensorIntrin:
    return intrinsic(f"cluster_sum_{sums}", parts=parts, n=n)


def _keep(sums: str, n: int) -> TensorIntrin:
    def compute(X: Buffer, Y: Buffer) -> Stmt:
        place = (address(Y), stride(Y, 0))
        return instruction("cluster.keep", address(X), *place, sym.const(n))

    return member(copied_sums(f"cluster_keep_{sums}", sums, n, CLUSTER_SCOPE), compute=compute)


def _sum(sums: str, parts: int, n: int) -> TensorIntrin:
    def update(X: Buffer, C: Buffer) -> Stmt:
        place = (address(X), stride(X, 0), stride(X, 1))
        return instruction("cluster.sum", address(C), *place, sym.const(parts), sym.const(n))

    def reset(X: Buffer, C: Buffer) -> Stmt:
        return instruction("wgmma.clear", address(C), sym.const(n))

    zero = "0.0" if sums == "f32" else "0"
    return member(
        f"""
        func @cluster_sum_{sums}(%X: {sums}[{parts}, {M}, {n}] in {CLUSTER_SCOPE},
                                 %C: {sums}[{M}, {n}] in {SUM_SCOPE}) stage scheduled {{
          for %i in 0..{M} {{ for %j in 0..{n} {{ for %p in 0..{parts} {{
            block @C(%vi: spatial {M} = %i, %vj: spatial {n} = %j, %vp: reduce {parts} = %p) {{
              reads %X[%vp, %vi, %vj]
              writes %C[%vi, %vj]
              init {{
                %C[%vi, %vj] = {zero}
              }}
              %C[%vi, %vj] sum= %X[%vp, %vi, %vj]
            }}
          }} }} }}
        }}
        """,
        reset=reset,
        update=update,
    )


for _sums in SUMS:
    declare_family(f"cluster_keep_{_sums}", (WHOLE,), partial(_keep, _sums))
    declare_family(f"cluster_sum_{_sums}", (PARTS, N), partial(_sum, _sums))
