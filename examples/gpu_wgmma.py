"""A bf16 matrix multiplication by Hopper's warpgroup instructions, for any size.

The product is padded to whole tiles; padded operands exist only in shared memory, where all threads
of a block put them in the order the instruction wants. Two warpgroups accumulate 64 by 64 tiles in
registers, pass them through shared memory and write what is inside the result.

    python examples/gpu_wgmma.py      shows the program, runs a small one in the interpreter, and
                                      assembles it where ptxas is installed
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.codegen.cuda import build_cuda
from tilewright.tensor.ir import Function

ROWS, COLUMNS, DEPTH = 128, 64, 32  # of a block of threads, per fetch
GROUPS, THREADS = ROWS // 64, 128  # warpgroups in a block, threads in a warpgroup


def matmul(n: int) -> Function:
    A = te.placeholder((n, n), "bf16", name="A")
    B = te.placeholder((n, n), "bf16", name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute(
        (n, n),
        lambda i, j: te.sum(te.cast(A[i, k], "f32") * te.cast(B[k, j], "f32"), axis=k),
        name="C",
    )
    return te.function([A, B, C], name="matmul")


def scheduled(fn: Function) -> tw.Schedule:
    sch = tw.Schedule(fn)
    c = sch.get_block("C")
    a, b, crop = staged(sch, c)
    store = sch.cache_write(c, 0, "wgmma.sum")

    i, j, k = sch.get_loops(c)
    by, group, ii = sch.split(i, [None, GROUPS, 64])
    bx, jj = sch.split(j, [None, COLUMNS])
    ko, km, ki = sch.split(k, [None, DEPTH // 16, 16])
    sch.reorder(by, bx, group, ko, km, ii, jj, ki)
    sch.bind(by, "blockIdx.y")
    sch.bind(bx, "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    sch.unroll(km)

    sch.reverse_compute_at(store, group)
    sch.reverse_compute_at(crop, bx)
    sch.compute_at(a, ko)
    sch.compute_at(b, ko)
    sch.transform_layout(a, ("write", 0), "(i, k) -> (i // 8, k // 8, i % 8, k % 8)")
    sch.transform_layout(b, ("write", 0), "(k, j) -> (j // 8, k // 8, j % 8, k % 8)")
    init = sch.decompose_reduction(c, ko)
    sch.tensorize(sch.get_loops(c)[-3], "wgmma_bf16_dot")
    sch.tensorize(sch.get_loops(init)[-2], "wgmma_bf16_dot")
    sch.tensorize(sch.get_loops(store)[-2], "wgmma_store_f32")
    for block in (a, b, crop):
        *_, y, x = sch.get_loops(block)
        _, ty, tx = sch.split(sch.fuse(y, x), [None, GROUPS, THREADS])
        sch.bind(ty, "threadIdx.y")
        sch.bind(tx, "threadIdx.x")
    return sch


def staged(sch: tw.Schedule, c: tw.tensor.BlockRef) -> list[tw.tensor.BlockRef]:
    """Blocks that bring A and B into shared memory, and C out of it."""
    n = int(str(sch.function.buffers[0].shape[0]))
    if all(n % tile == 0 for tile in (ROWS, COLUMNS, DEPTH)):
        return [
            sch.cache_read(c, 0, "shared"),
            sch.cache_read(c, 1, "shared"),
            sch.cache_write(c, 0, "shared"),
        ]
    sch.pad(c, [ROWS, COLUMNS, DEPTH])
    a, b, crop = (sch.get_block(name) for name in ("A_pad", "B_pad", "C_crop"))
    for block in (a, b, c):
        sch.set_scope(block, 0, "shared")
    return [a, b, crop]


def assemble(ptx: str) -> str:
    """What NVIDIA's assembler says of registers, shared memory and spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        done = subprocess.run(
            ["ptxas", "-arch=sm_90a", "-v", source, "-o", Path(folder) / "kernel.cubin"],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stderr


def check(n: int) -> None:
    """The interpreter, which knows what the instructions do, agrees with NumPy."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((n, n)).astype(ml_dtypes.bfloat16) for _ in "ab")
    c = np.empty((n, n), np.float32)
    tw.interpret(scheduled(matmul(n)).function, a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)
    print(f"{n} x {n} x {n}: the scheduled program agrees with NumPy")


def main(n: int = 1000) -> None:
    check(72)
    kernel = build_cuda(scheduled(matmul(n)).function, "cuda -arch=sm_90a")
    print(kernel.function)
    assert "wgmma.mma_async" in kernel.ptx
    if shutil.which("ptxas"):
        said = assemble(kernel.ptx)
        assert " 0 bytes spill stores, 0 bytes spill loads" in said, said
        print(said)


if __name__ == "__main__":
    main()
