"""The gemm8x8 instruction of the TVM paper (OSDI 2018), tensorized into a 64 x 64 x 64 product.

The instruction is declared by what it does, in the tensor expression language. Its lowering gives
three statements: one that computes a tile from nothing, one that resets a tile to zero, and one
that adds a product to it. `tensorize` finds the declared computation in a tiled matrix product and
puts calls of the instruction in its place; the interpreter executes them by their declaration.
"""

import numpy as np

from tilewright import te
from tilewright.tensor import Function, interpret, parse
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.schedule import Schedule


def declare_gemm8x8() -> TensorIntrin:
    """y[i, j] = sum over k of w[i, k] * x[j, k], for tiles of 8 x 8."""
    w, x = te.placeholder((8, 8), name="w"), te.placeholder((8, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((8, 8), lambda i, j: te.sum(w[i, k] * x[j, k], axis=k), name="y")

    def gemm_intrin_lower(inputs, outputs):
        ww_ptr = inputs[0].access_ptr("r")
        xx_ptr = inputs[1].access_ptr("r")
        zz_ptr = outputs[0].access_ptr("w")
        compute = te.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
        reset = te.hardware_intrin("fill_zero", zz_ptr)
        update = te.hardware_intrin("fuse_gemm8x8_add", ww_ptr, xx_ptr, zz_ptr)
        return compute, reset, update

    return te.decl_tensor_intrin(y.op, gemm_intrin_lower)


def matmul() -> Function:
    """C = A @ B.T, all 64 x 64."""
    A, B = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((64, 64), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    return te.function([A, B, C], name="matmul")


def tensorized(gemm8x8: TensorIntrin) -> Schedule:
    """Tiles of 8 x 8 x 8, each one call of the instruction."""
    sch = Schedule(matmul())
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    io, ii = sch.split(i, [None, 8])
    jo, ji = sch.split(j, [None, 8])
    ko, ki = sch.split(k, [None, 8])
    sch.reorder(io, jo, ko, ii, ji, ki)
    sch.tensorize(ii, gemm8x8)
    return sch


def main() -> None:
    sch = tensorized(declare_gemm8x8())
    print(sch.function)
    assert parse(str(sch.function)) == sch.function

    again = Schedule(matmul())
    sch.trace.apply(again)
    assert again.function == sch.function

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    interpret(sch.function, a, b, c)
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-4, atol=1e-4)
    print("agrees with NumPy")


if __name__ == "__main__":
    main()
