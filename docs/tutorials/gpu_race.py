"""A GPU kernel in the interpreter, with a race found.

A cooperative matrix multiplication for a GPU runs without one: the interpreter executes thread blocks,
barriers and shared memory. Then we remove a barrier, and it reports which threads race for what.
"""

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.tensor import lower, parse

# ## The kernel
#
# Each block of 8 x 8 threads computes a tile of 16 x 16. The threads fetch what they need of `A` and
# `B` into shared memory together, each keeps 2 x 2 elements of `C` in registers.

N, TILE, THREADS, STEP = 32, 16, 8, 8
A, B = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
k = te.reduce_axis((0, N), name="k")
C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")

sch = tw.Schedule(te.function([A, B, C], name="matmul"))
block = sch.get_block("C")
shared = [sch.cache_read(block, at, "shared") for at in (0, 1)]
local = sch.cache_write(block, 0, "local")
i, j, k = sch.get_loops(block)
by, ty, yi = sch.split(i, [None, THREADS, TILE // THREADS])
bx, tx, xi = sch.split(j, [None, THREADS, TILE // THREADS])
ko, ki = sch.split(k, [None, STEP])
sch.reorder(by, bx, ty, tx, ko, ki, yi, xi)
for loop, thread in (
    (by, "blockIdx.y"),
    (bx, "blockIdx.x"),
    (ty, "threadIdx.y"),
    (tx, "threadIdx.x"),
):
    sch.bind(loop, thread)
sch.reverse_compute_at(local, tx)
for copy in shared:
    sch.compute_at(copy, ko)
    *_, row, column = sch.get_loops(copy)
    _, ty, tx = sch.split(sch.fuse(row, column), [None, THREADS, THREADS])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
sch.decompose_reduction(block, ko)

# The schedule does not mention barriers. Lowering inserts them, by analysing which threads write and
# read which elements of shared memory:

device = lower(sch.function, "gpu")
print(device)

# ## Run it

rng = np.random.default_rng(0)
a, b = (rng.standard_normal((N, N), dtype=np.float32) for _ in range(2))
c = np.empty_like(a)
tw.interpret(device, a, b, c)
np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
print("agrees with NumPy")

# ## Plant a race
#
# Programs are text that can be parsed. We delete the first barrier, as if the author of a
# hand-written kernel had forgotten it:

lines = str(device).splitlines()
at = next(n for n, line in enumerate(lines) if "barrier" in line)
print("deleted:", lines[at].strip())
broken = parse("\n".join(lines[:at] + lines[at + 1 :]))

# On a GPU this sometimes gives wrong results. Here it is always an error, with the two threads, the
# element and the statement:

try:
    tw.interpret(broken, a, b, c)
    raise AssertionError("the race was not found")
except tw.TilewrightError as error:
    print(error)

# The same program becomes PTX with `tw.build(sch.function, target="cuda")` on a machine with a GPU.
