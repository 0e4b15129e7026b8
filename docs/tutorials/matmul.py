"""Matrix multiplication, from three loops to the peak.

One algorithm, seven schedules, each a step closer to the peak of the processor. The algorithm is
written once; no schedule can change its result.
"""

import time
from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright import te

# ## What to compute
#
# `C[i, j]` is a sum over `k`. A tensor expression says just that, element by element, without
# mentioning loops, memory or threads.

N = 512
A = te.placeholder((N, N), name="A")
B = te.placeholder((N, N), name="B")
k = te.reduce_axis((0, N), name="k")
C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
matmul = te.function([A, B, C], name="matmul")
print(matmul)

# That is the loop IR: three loops around a *block*, which declares what it reads and writes and over
# what it reduces. `tw.build` compiles any such program to native code. A helper checks every step
# against NumPy and records its speed; the minimum time of several runs counts, since noise only makes
# runs slower.

rng = np.random.default_rng(0)
a, b = (rng.standard_normal((N, N), dtype=np.float32) for _ in range(2))
want = a @ b
c = np.empty_like(a)
speeds: dict[str, float] = {}


def gflops(call: Callable[[], object], times: int = 7) -> float:
    call()
    best = min(_timed(call) for _ in range(times))
    return 2 * N**3 / best / 1e9


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def step(name: str, sch: tw.Schedule, times: int = 7, threads: int = 1) -> None:
    run = tw.build(sch.function, target="cpu")
    run(a, b, c, threads=threads)
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)
    speeds[name] = gflops(lambda: run(a, b, c, threads=threads), times)
    print(f"{name}: {speeds[name]:.2f} GFLOP/s")


step("three loops", tw.Schedule(matmul), times=2)

# ## Walk memory in order
#
# The inner loop runs over `k`, so `B[k, j]` jumps a whole row every time: each step touches another
# cache line. With `j` innermost, `B` and `C` are both read in order.

sch = tw.Schedule(matmul)
block = sch.get_block("C")
i, j, k = sch.get_loops(block)
sch.reorder(i, k, j)
step("reorder", sch, times=3)

# ## Vectors
#
# A vector register holds several numbers, and one instruction multiplies and adds them all. The
# target knows how many. (LLVM vectorizes simple loops by itself, the one above among them; from here
# on we decide.)

LANES = tw.Target.parse("cpu").vector_bits // 32
print(f"{LANES} numbers of f32 per register")

sch = tw.Schedule(matmul)
block = sch.get_block("C")
i, j, k = sch.get_loops(block)
jo, lane = sch.split(j, [None, LANES])
sch.reorder(i, k, jo, lane)
sch.vectorize(lane)
step("vectorize", sch, times=3)

# ## A tile of C in registers
#
# Every step still loads `C` from memory and stores it again. A register tile of eight rows by three
# vectors of `C` needs 24 registers, which leaves some for operands. `cache_write` gives the block a
# buffer in the scope `local`, and `reverse_compute_at` writes it back once per tile. All loops inside
# the tile are unrolled, so that every accumulator is a register. `decompose_reduction` moves the
# initialization before `k`. Each number loaded is now used in many multiplications.

ROWS, VECTORS = 8, 3


def register_tile(unroll: int = 1) -> tuple[tw.Schedule, tw.tensor.BlockRef]:
    sch = tw.Schedule(matmul)
    block = sch.get_block("C")
    panel = sch.cache_read(block, 1, "global")
    store = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    io, ii = sch.split(i, [None, ROWS])
    jo, ji, lane = sch.split(j, [None, VECTORS, LANES])
    ko, ki = sch.split(k, [None, unroll])
    sch.reorder(jo, io, ko, ki, ii, ji, lane)
    for loop in (ki, ii, ji):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.reverse_compute_at(store, io)
    sch.decompose_reduction(block, ko)
    vectors, lane = sch.split(sch.get_loops(store)[-1], [None, LANES])
    sch.unroll(vectors)
    sch.vectorize(lane)
    return sch, panel


sch, panel = register_tile()
sch.compute_inline(panel)
step("register tile", sch)

# 512 is not a multiple of the tile's width: the last tile is narrower, which the compiler handles.
# The middle of the scheduled program:

text = str(sch.function).splitlines()
print("\n".join(text[14:30]))

# ## Pack panels of B
#
# The tile reads three vectors of `B` per `k`, from rows that are a whole matrix width apart. Packed
# into a panel, these vectors are contiguous and on few pages. `cache_read` makes the copy (the block
# `panel`), `compute_at` places it once per column of tiles, and `transform_layout` defines its layout.


def packed(unroll: int = 1) -> tw.Schedule:
    sch, panel = register_tile(unroll)
    jo = sch.get_loops(sch.get_block("C"))[0]
    sch.compute_at(panel, jo)
    width = VECTORS * LANES
    sch.transform_layout(panel, ("write", 0), f"(k, j) -> (j // {width}, k, j % {width})")
    vectors, lane = sch.split(sch.get_loops(panel)[-1], [None, LANES])
    sch.unroll(vectors)
    sch.vectorize(lane)
    return sch


step("pack B", packed())

# ## Unroll k
#
# Eight values of `k` per iteration: fewer branches, and the addresses of neighbouring elements of `A`
# differ by a constant.

sch = packed(unroll=8)
step("unroll k", sch)

# ## All cores
#
# Columns of tiles do not depend on one another. The number of threads is chosen when the function is
# called; 0 means all cores.

sch.parallel(sch.get_loops(sch.get_block("C"))[0])
step("parallel", sch, times=15, threads=0)

# ## Comparison
#
# NumPy calls a BLAS library whose kernels are written by hand for this processor. Both are measured
# alternately.

out = np.empty_like(a)
run = tw.build(sch.function, target="cpu")
ours = numpy = float("inf")
for _ in range(60):
    ours = min(ours, _timed(lambda: run(a, b, c, threads=0)))
    numpy = min(numpy, _timed(lambda: np.matmul(a, b, out=out)))
ours, numpy = (2 * N**3 / best / 1e9 for best in (ours, numpy))
speeds["parallel"], speeds["NumPy"] = ours, numpy
print(f"{ours:.1f} GFLOP/s, NumPy {numpy:.1f}: {ours / numpy:.2f} of its speed")

# The chart has a logarithmic scale.

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

plt.rcParams.update({"svg.fonttype": "none", "font.size": 11, "text.color": "#888888"})
figure, axes = plt.subplots(figsize=(7, 3.2))
colours = ["#7986cb"] * (len(speeds) - 1) + ["#ffb74d"]
bars = axes.barh(list(speeds), list(speeds.values()), color=colours)
axes.bar_label(bars, fmt=" %.1f", color="#888888")
axes.set_xscale("log")
axes.invert_yaxis()
axes.set_xlabel("GFLOP/s", color="#888888")
axes.tick_params(colors="#888888")
axes.set_xlim(right=max(speeds.values()) * 2.2)
for side in axes.spines.values():
    side.set_visible(False)
figure.tight_layout()
figure.savefig("matmul.svg", transparent=True)

# ## What the compiler does
#
# For a model, nobody has to write such schedules: `tw.compile` applies rules that choose tiles, panels
# and the distribution of work from the target's registers and caches. The result is a schedule like
# the one above; `tilewright inspect model.onnx --kernel NAME` prints it. A schedule is data:
# `sch.trace` can be printed, parsed and replayed.

print("\n".join(str(sch.trace).splitlines()[:8]))
