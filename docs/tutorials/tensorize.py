"""Tensorizing with an intrinsic of your own.

Some instructions compute a whole tile. You declare the behaviour of one as a tensor expression, and
`tensorize` replaces matching loops by it, after a check.
"""

import numpy as np

import tilewright as tw
from tilewright import te

# ## Declare it
#
# Our instruction multiplies a tile of 4 x 8 with one of 8 x 4. Its *behaviour* is a tensor expression.
# Its *lowering* returns three statements: compute from scratch, reset, and accumulate; a tiled
# reduction needs the second and third.

w = te.placeholder((4, 8), name="w")
x = te.placeholder((8, 4), name="x")
k = te.reduce_axis((0, 8), name="k")
y = te.compute((4, 4), lambda i, j: te.sum(w[i, k] * x[k, j], axis=k), name="y")


def lower(inputs: list[te.BufferView], outputs: list[te.BufferView]) -> tuple[object, ...]:
    ww, xx = inputs[0].access_ptr("r"), inputs[1].access_ptr("r")
    yy = outputs[0].access_ptr("w")
    return (
        te.hardware_intrin("tile_gemm", ww, xx, yy),
        te.hardware_intrin("tile_zero", yy),
        te.hardware_intrin("tile_gemm_add", ww, xx, yy),
    )


gemm4x4 = te.decl_tensor_intrin(y.op, lower)

# ## Use it
#
# We tile a matrix multiplication to that shape and replace the loops of a tile.

A = te.placeholder((32, 64), name="A")
B = te.placeholder((64, 16), name="B")
k = te.reduce_axis((0, 64), name="k")
C = te.compute((32, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
matmul = te.function([A, B, C], name="matmul")


def tiled(size_i: int) -> tuple[tw.Schedule, tw.tensor.LoopRef]:
    sch = tw.Schedule(matmul)
    i, j, k = sch.get_loops(sch.get_block("C"))
    io, ii = sch.split(i, [None, size_i])
    jo, ji = sch.split(j, [None, 4])
    ko, ki = sch.split(k, [None, 8])
    sch.reorder(io, jo, ko, ii, ji, ki)
    return sch, ii


sch, inner = tiled(4)
sch.tensorize(inner, gemm4x4)
print(sch.function)

# ## It is checked
#
# The interpreter executes the declared behaviour, so the program runs before there is any hardware:

rng = np.random.default_rng(0)
a = rng.standard_normal((32, 64), dtype=np.float32)
b = rng.standard_normal((64, 16), dtype=np.float32)
c = np.full((32, 16), np.nan, np.float32)
tw.interpret(sch.function, a, b, c)
np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
print("agrees with NumPy")

# A tile of the wrong shape is refused, with the program and the reason:

sch, inner = tiled(8)
try:
    sch.tensorize(inner, gemm4x4)
except tw.TilewrightError as error:
    print("\n".join(str(error).splitlines()[:4]))

# Intrinsics of real processors are declared the same way, with the machine instruction as lowering:
# `tilewright.intrin` holds AMX tiles, VNNI and NEON dot products, and Hopper's warpgroup
# multiplications.
