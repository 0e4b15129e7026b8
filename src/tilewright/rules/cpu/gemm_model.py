"""How a product is cut: the tile that registers hold, and what each thread does.

The model counts cycles of one step of the sum for all tiles: a tile of r rows and v vectors takes
r * v multiply-adds, r + v loads, and never less than the latency of an addition, since every
accumulator waits for its own. What a tail of rows or columns wastes is in it, and so is what
threads wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright.base.target import Target

CACHE_PERIOD = 4096  # bytes apart, addresses fall into the same set of the first cache
CROWDED = 8  # rows or pixels that such a set holds, with weights coming by
LATENCY = 4  # cycles of a multiply-add
LOADS = 2  # vectors or numbers loaded per cycle
PARALLEL_CYCLES = 12_500  # of each thread, about 5 us: less is not worth waking a thread
UNROLLED, MOST_STEPS = 128, 4  # multiply-adds in a loop over the sum, steps of it that they are of
COLUMNS, ROWS, STACK, ALONE = "columns", "rows", "stack", "alone"


@dataclass(frozen=True, slots=True)
class Shape:
    """A stack of products of `rows` x `columns`, sums of `depth`; columns in lanes."""

    stack: int
    rows: int
    columns: int  # vectors
    depth: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and vectors that accumulate in registers; what the threads share out."""

    rows: int
    vectors: int
    share: str  # COLUMNS, ROWS, STACK or ALONE


def steps(rows: int, vectors: int, units: int) -> float:
    """Cycles of one step of the sum in a tile."""
    return max(rows * vectors / units, (rows + vectors) / LOADS, LATENCY)


def unrolled_steps(total: int, body: int, most: int = MOST_STEPS) -> int:
    """Steps of a sum that are unrolled, of so many multiply-adds each: a divisor of the total."""
    sizes = (each for each in (8, 4, 2) if each <= min(most, UNROLLED // body))
    return next((each for each in sizes if total % each == 0), 1)


def _up(total: int, size: int) -> int:
    """Pieces of a size that cover a total."""
    return -(-total // size)


def _along(total: int, size: int) -> list[tuple[int, int]]:
    """The pieces of a dimension: (how many, how large)."""
    pieces = [(total // size, size)] if total >= size else []
    return pieces + ([(1, total % size)] if total % size else [])


def cycles(rows: int, columns: int, tile: tuple[int, int], units: int) -> float:
    """Cycles of one step of the sum over all tiles."""
    return sum(
        count_r * count_c * steps(r, v, units)
        for count_r, r in _along(rows, tile[0])
        for count_c, v in _along(columns, tile[1])
    )


def _candidates(registers: int, most_rows: int) -> list[tuple[int, int]]:
    """Tiles whose accumulators, a row of B and a number of A fit into the registers."""
    return [
        (rows, vectors)
        for vectors in (1, 2, 3, 4, 6, 8)
        for rows in range(1, most_rows + 1)
        if rows * vectors + vectors + (1 if vectors > 1 else 2) <= registers
    ]


@cache
def choose(shape: Shape, target: Target, threads: int, most_rows: int) -> Tile:
    """The tile and the way to share work that take the fewest cycles."""
    units = target.fma_units
    best: tuple[float, Tile] | None = None
    ways = _ways(shape, target, threads)
    for rows, vectors in _candidates(target.vector_registers, most_rows):
        rows, vectors = min(rows, shape.rows), min(vectors, shape.columns)
        for share in ways:
            parts = threads if share in (ROWS, COLUMNS) else 1
            r, c = shape.rows, shape.columns
            if share == ROWS:
                r = min(r, _up(_up(r, rows), parts) * rows)
            if share == COLUMNS:
                c = min(c, _up(_up(c, vectors), parts) * vectors)
            cost = cycles(r, c, (rows, vectors), units)
            # Vectors of B come from the second cache: few per multiply-add are better.
            cost *= 1 + 0.25 * max(vectors / steps(rows, vectors, units) - 0.125, 0)
            cost *= 1 + 0.05 * (rows + vectors) / (rows * vectors)
            # Between equals: whole tiles; threads that share what there is less of.
            cost *= 1 + 0.005 * (share == (COLUMNS if shape.rows > 32 * shape.columns else ROWS))
            cost *= 1 + 0.02 * (shape.rows % rows > 0) + 0.02 * (shape.columns % vectors > 0)
            if best is None or cost < best[0]:
                best = cost, Tile(rows, vectors, share)
    assert best is not None
    return best[1]


def _ways(shape: Shape, target: Target, threads: int) -> tuple[str, ...]:
    work = shape.stack * shape.rows * shape.columns * shape.depth / target.fma_units
    if threads == 1 or work < PARALLEL_CYCLES * 2:
        return (ALONE,)
    if shape.stack % threads == 0 or shape.stack >= 4 * threads:
        return (STACK,)
    return (COLUMNS, ROWS)
