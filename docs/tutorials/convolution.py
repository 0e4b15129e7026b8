"""A convolution.

Seven loops, a border of zeros, and a schedule that turns them into the register tile of the matrix
multiplication.
"""

import time

import numpy as np

import tilewright as tw
from tilewright import te

# ## The algorithm
#
# Images are channels-last (NHWC), weights (kernel rows, kernel columns, input channels, output
# channels). `te.if_then_else` pads: outside the image, zero is read.

H = W = 28
CI, CO, K = 64, 64, 3

image = te.placeholder((H, W, CI), name="image")
weight = te.placeholder((K, K, CI, CO), name="weight")


def pixel(y: te.IterVar, x: te.IterVar, c: te.IterVar) -> te.Tensor:
    inside = te.all(y >= 1, y < H + 1, x >= 1, x < W + 1)
    return te.if_then_else(inside, image[y - 1, x - 1, c], 0.0)


padded = te.compute((H + 2, W + 2, CI), pixel, name="padded")
dy, dx = te.reduce_axis((0, K), name="dy"), te.reduce_axis((0, K), name="dx")
ci = te.reduce_axis((0, CI), name="ci")
result = te.compute(
    (H, W, CO),
    lambda y, x, co: te.sum(padded[y + dy, x + dx, ci] * weight[dy, dx, ci, co], axis=[dy, dx, ci]),
    name="conv",
)
conv = te.function([image, weight, result], name="conv")
print(conv)

# ## The schedule
#
# Neighbouring output positions share weights, and output channels are neighbours in memory: a tile of
# seven positions by some vectors of channels stays in registers, while the loops over kernel positions
# and input channels run around it. `padded` is computed once for each row of the image that a thread
# works on: three rows, which stay in L1.

LANES = tw.Target.parse("cpu").vector_bits // 32
VECTORS = max(1, min(3, CO // LANES))

sch = tw.Schedule(conv)
block = sch.get_block("conv")
store = sch.cache_write(block, 0, "local")
y, x, co, dy, dx, ci = sch.get_loops(block)
xo, xi = sch.split(x, [None, 7])
coo, cov, lane = sch.split(co, [None, VECTORS, LANES])
sch.reorder(y, coo, xo, dy, dx, ci, xi, cov, lane)
for loop in (xi, cov):
    sch.unroll(loop)
sch.vectorize(lane)
sch.reverse_compute_at(store, xo)
sch.decompose_reduction(block, dy)
sch.compute_at(sch.get_block("padded"), y)
for other in (store, sch.get_block("padded")):
    sch.vectorize(sch.split(sch.get_loops(other)[-1], [None, LANES])[1])
sch.parallel(y)

# ## Right, and how fast

rng = np.random.default_rng(0)
a = rng.standard_normal((H, W, CI), dtype=np.float32)
b = rng.standard_normal((K, K, CI, CO), dtype=np.float32)
windows = np.lib.stride_tricks.sliding_window_view(
    np.pad(a, ((1, 1), (1, 1), (0, 0))), (K, K), (0, 1)
)
want = np.ascontiguousarray(np.einsum("yxcij,ijcd->yxd", windows, b, optimize=True))
out = np.empty_like(want)


def speed(function: tw.tensor.Function, times: int) -> float:
    run = tw.build(function, target="cpu")
    run(a, b, out)
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        run(a, b, out)
        best = min(best, time.perf_counter() - begun)
    return 2 * H * W * CO * CI * K * K / best / 1e9


print(f"as written: {speed(conv, 2):6.2f} GFLOP/s")
print(f"scheduled:  {speed(sch.function, 8):6.2f} GFLOP/s")

# For models the compiler does the same and more: it chooses layouts, packs weights, and uses Winograd
# where it pays. See [Convolution](../internals/convolution.md).
