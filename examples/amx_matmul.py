"""A bf16 matrix multiplication by AMX tiles.

C is computed in blocks of two by two tiles of 16 by 16, which stay in tile registers while k runs.
B is first packed the way the instruction wants it: two steps of k side by side. Loads, products and
stores of tiles are tensor intrinsics: the schedule asks for them by name, and they are used only
where the program does what they declare.

    python examples/amx_matmul.py
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.tensor import BlockRef
from tilewright.tensor.ir import Function

TILE, DEPTH = 16, 32  # rows and columns of a tile of C, steps of k per product


def matmul(n: int, m: int, k: int) -> Function:
    A = te.placeholder((n, k), "bf16", name="A")
    B = te.placeholder((k, m), "bf16", name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (n, m),
        lambda i, j: te.sum(te.cast(A[i, r], "f32") * te.cast(B[r, j], "f32"), axis=r),
        name="C",
    )
    return te.function([A, B, C], name="matmul")


def tiled(fn: Function, rows: int = 2, columns: int = 2) -> tw.Schedule:
    """`rows` by `columns` tiles of C at a time; sizes must be multiples of what that makes."""
    sch = tw.Schedule(fn)
    c = sch.get_block("C")
    packed = sch.cache_read(c, 1, "global")
    a_tiles = sch.cache_read(c, 0, "amx.tile")
    b_tiles = sch.cache_read(c, 1, "amx.tile")
    c_tiles = sch.cache_write(c, 0, "amx.tile")

    i, j, r = sch.get_loops(c)
    io, im, ii = sch.split(i, [None, rows, TILE])
    jo, jm, ji = sch.split(j, [None, columns, TILE])
    ro, ri = sch.split(r, [None, DEPTH])
    sch.reorder(jo, io, ro, im, jm, ii, ji, ri)
    sch.unroll(im)
    sch.unroll(jm)
    sch.reverse_compute_at(c_tiles, io)
    sch.compute_at(a_tiles, ro)
    sch.compute_at(b_tiles, ro)
    sch.compute_at(packed, jo)

    for block in (packed, b_tiles):
        sch.transform_layout(block, ("write", 0), "(k, j) -> (j // 16, k // 2, j % 16, k % 2)")
    sch.transform_layout(a_tiles, ("write", 0), "(i, k) -> (i // 16, k // 32, i % 16, k % 32)")
    sch.transform_layout(c_tiles, ("read", 0), "(i, j) -> (i // 16, j // 16, i % 16, j % 16)")
    zero = sch.decompose_reduction(c, ro)
    use_tiles(sch, c, zero, a_tiles, b_tiles, c_tiles)
    vectorize_packing(sch, packed)
    return sch


def use_tiles(
    sch: tw.Schedule,
    c: BlockRef,
    zero: BlockRef,
    a_tiles: BlockRef,
    b_tiles: BlockRef,
    c_tiles: BlockRef,
) -> None:
    """Put the instructions in place, one tile each."""
    sch.tensorize(sch.get_loops(c)[-3], "amx_bf16_dot")
    sch.tensorize(sch.get_loops(zero)[-2], "amx_bf16_dot")
    x, _ = sch.get_loops(a_tiles)[-2:]
    xo, xi = sch.split(x, [None, TILE])
    sch.unroll(xo)
    sch.tensorize(xi, "amx_load_bf16_rows")
    k, j = sch.get_loops(b_tiles)[-2:]
    jo, ji = sch.split(j, [None, TILE])
    sch.reorder(jo, k, ji)
    sch.unroll(jo)
    sch.tensorize(k, "amx_load_bf16_groups")
    x, y = sch.get_loops(c_tiles)[-2:]
    xo, xi = sch.split(x, [None, TILE])
    yo, yi = sch.split(y, [None, TILE])
    sch.reorder(xo, yo, xi, yi)
    sch.unroll(xo)
    sch.unroll(yo)
    sch.tensorize(xi, "amx_store_f32")


def vectorize_packing(sch: tw.Schedule, packed: BlockRef) -> None:
    k, j = sch.get_loops(packed)[-2:]
    ko, pair = sch.split(k, [None, 2])
    sch.reorder(ko, j, pair)
    outer, inner = sch.split(sch.fuse(j, pair), [None, DEPTH])
    sch.vectorize(inner)
    sch.unroll(outer)


def main(n: int = 64, m: int = 96, k: int = 64) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    b = random.standard_normal((k, m)).astype(ml_dtypes.bfloat16)
    c = np.empty((n, m), np.float32)
    want = a.astype(np.float32) @ b.astype(np.float32)

    schedule = tiled(matmul(n, m, k))
    tw.interpret(schedule.function, a, b, c)
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)
    print(f"{n} x {m} x {k}: the interpreter agrees with NumPy")

    run = tw.build(schedule.function, target="x86_64-linux-gnu -mcpu=sapphirerapids")
    assert "tdpbf16ps" in run.assembly
    if tw.Target.host().has("amx-bf16"):
        c[:] = np.nan
        run(a, b, c)
        np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)
        print("tile registers agree, too")


if __name__ == "__main__":
    main()
