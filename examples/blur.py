"""Halide's first example: a 3x3 blur, written once, scheduled four ways.

The blur is separable: `across` sums three neighbours of a row, `blur` three rows of those. When
`across` is computed is a choice between memory, locality and work done twice; none of the choices
changes the answer.

- inline   nowhere: every pixel sums nine inputs, nothing is stored
- root     all of it first: least work, but the whole image goes through memory
- rows     three rows of it for each row of the result: all three are near when they are used
- tiles    what a tile needs, two rows more than the tile has, tiles in parallel, rows as vectors
"""

import numpy as np

from tilewright import te
from tilewright.tensor import Function, interpret
from tilewright.tensor.schedule import Schedule


def blur() -> Function:
    """out[y, x] = mean of in[y : y + 3, x : x + 3], for images of any size."""
    h, w = te.var("h"), te.var("w")
    image = te.placeholder((h + 2, w + 2), name="image")
    across = te.compute(
        (h + 2, w),
        lambda y, x: (image[y, x] + image[y, x + 1] + image[y, x + 2]) / 3.0,
        name="across",
    )
    out = te.compute(
        (h, w),
        lambda y, x: (across[y, x] + across[y + 1, x] + across[y + 2, x]) / 3.0,
        name="blur",
    )
    return te.function([h, w, image, out], name="blur")


def inline() -> Schedule:
    schedule = Schedule(blur())
    schedule.compute_inline(schedule.get_block("across"))
    return schedule


def root() -> Schedule:
    return Schedule(blur())


def rows() -> Schedule:
    schedule = Schedule(blur())
    y, _ = schedule.get_loops(schedule.get_block("blur"))
    schedule.compute_at(schedule.get_block("across"), y)
    return schedule


def tiles(height: int = 4, width: int = 16, lanes: int = 8) -> Schedule:
    schedule = Schedule(blur())
    across, out = schedule.get_block("across"), schedule.get_block("blur")
    y, x = schedule.get_loops(out)
    tile_y, tile_x, _, x = schedule.tile(y, x, height, width)
    schedule.compute_at(across, tile_x)
    schedule.vectorize(schedule.split(x, [None, lanes])[1])
    schedule.vectorize(schedule.split(schedule.get_loops(across)[-1], [None, lanes])[1])
    schedule.parallel(tile_y)
    return schedule


SCHEDULES = (inline, root, rows, tiles)


def main() -> None:
    rng = np.random.default_rng(0)
    for h, w in ((9, 20), (8, 16), (1, 1)):  # tiles divide the second size only
        image = rng.standard_normal((h + 2, w + 2)).astype(np.float32)
        wanted = np.lib.stride_tricks.sliding_window_view(image, (3, 3)).mean((2, 3))
        for make in SCHEDULES:
            out = np.zeros((h, w), np.float32)
            interpret(make().function, h, w, image, out)
            np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
        print(f"{h} x {w}: {', '.join(make.__name__ for make in SCHEDULES)} agree with NumPy")
    print(tiles().function)


if __name__ == "__main__":
    main()
