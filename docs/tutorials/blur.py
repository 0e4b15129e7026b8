"""Halide's blur.

The first example of the Halide paper: a 3x3 blur in two stages, one algorithm and four answers to
the question *when* the first stage is computed.
"""

import time

import numpy as np

import tilewright as tw
from tilewright import te

# ## The algorithm
#
# `across` averages three neighbours of a row, `blur` three rows of those. The image has any size:
# `h` and `w` are variables of the program, and native code takes them from its arguments.

h, w = te.var("h"), te.var("w")
image = te.placeholder((h + 2, w + 2), name="image")
across = te.compute(
    (h + 2, w),
    lambda y, x: (image[y, x] + image[y, x + 1] + image[y, x + 2]) / 3.0,
    name="across",
)
blurred = te.compute(
    (h, w),
    lambda y, x: (across[y, x] + across[y + 1, x] + across[y + 2, x]) / 3.0,
    name="blur",
)
blur = te.function([h, w, image, blurred], name="blur")
print(blur)

# ## Four schedules
#
# **root**: all of `across` first, then all of `blur`. Least work, but the whole intermediate image goes
# through memory. That is the default, so there is nothing to do.

LANES = tw.Target.parse("cpu").vector_bits // 32


def vectorize_rows(sch: tw.Schedule, *blocks: tw.tensor.BlockRef) -> None:
    for block in blocks:
        sch.vectorize(sch.split(sch.get_loops(block)[-1], [None, LANES])[1])


root = tw.Schedule(blur)
vectorize_rows(root, root.get_block("across"), root.get_block("blur"))

# **inline**: `across` is never stored; every pixel sums nine numbers. No memory, three times the
# additions.

inline = tw.Schedule(blur)
inline.compute_inline(inline.get_block("across"))
vectorize_rows(inline, inline.get_block("blur"))

# **rows**: for every row of the result, the three rows of `across` that it needs. They are in L1 when
# they are read, but each is computed three times.

rows = tw.Schedule(blur)
y, _ = rows.get_loops(rows.get_block("blur"))
rows.compute_at(rows.get_block("across"), y)
vectorize_rows(rows, rows.get_block("across"), rows.get_block("blur"))

# **tiles**: for every tile of 32 rows, the 34 rows of `across` that it needs. Little is computed
# twice, intermediates stay in L2, and tiles run in parallel.

tiles = tw.Schedule(blur)
y, x = tiles.get_loops(tiles.get_block("blur"))
tile_y, tile_x, _, _ = tiles.tile(y, x, 32, 256)
tiles.compute_at(tiles.get_block("across"), tile_x)
vectorize_rows(tiles, tiles.get_block("across"), tiles.get_block("blur"))
tiles.parallel(tile_y)
print(tiles.function)

# Look at the buffer `across` in the tiled program: it has shrunk to what one tile needs when lowered.
# `compute_at` derives the two extra rows from what `blur` reads.

# ## Same answer
#
# The interpreter is the reference: it executes a program as it is scheduled, and reports bad reads and
# races between parallel iterations. A small image whose sizes are not multiples of the tile:

rng = np.random.default_rng(0)
small = rng.standard_normal((37, 300), dtype=np.float32)
want = np.lib.stride_tricks.sliding_window_view(small, (3, 3)).mean((2, 3))
for name, sch in (("root", root), ("inline", inline), ("rows", rows), ("tiles", tiles)):
    out = np.zeros_like(want)
    tw.interpret(sch.function, 35, 298, small, out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    print(f"{name}: agrees with NumPy")

# ## Four speeds

large = rng.standard_normal((2050, 2050), dtype=np.float32)
out = np.empty((2048, 2048), np.float32)
for name, sch in (("root", root), ("inline", inline), ("rows", rows), ("tiles", tiles)):
    run = tw.build(sch.function, target="cpu")
    best = float("inf")
    for _ in range(6):
        begun = time.perf_counter()
        run(2048, 2048, large, out)
        best = min(best, time.perf_counter() - begun)
    print(f"{name:7} {best * 1e3:7.2f} ms   {out.size / best / 1e6:6.0f} Mpixel/s")
