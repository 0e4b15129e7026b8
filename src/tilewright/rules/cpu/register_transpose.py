"""Squares of elements that are transposed in registers: for tiles that are read along one dimension
and written along another."""

from __future__ import annotations

from tilewright.base.machine import Machine
from tilewright.sym import Expr
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

SQUARE_ELEMENTS = 4  # side of a square that one shuffle transposes


def square_cycles(machine: Machine) -> float:
    """Cycles per element: a load and a shuffle per row of a square on either side."""
    return 2 * (1 + 1 / machine.loads_per_cycle) / SQUARE_ELEMENTS


def transpose_squares(
    sch: Schedule, copy: BlockRef, rank: int, across: int, along: int, side: int
) -> tuple[LoopRef, LoopRef]:
    """Lay a copied tile out in transposed squares, each of them one vector of the copy.

    `across` and `along` are the dimensions of the source along which the result and the source are
    contiguous. Returns the loops over squares.
    """

    def squares(*index: Expr) -> list[Expr]:
        outer = [each // side if at in (across, along) else each for at, each in enumerate(index)]
        return [*outer, index[along] % side, index[across] % side]

    loops = sch.get_loops(copy)[-rank:]
    sch.transform_layout(copy, ("write", 0), squares)
    others = [loop for at, loop in enumerate(loops) if at not in (across, along)]
    rows, row = sch.split(loops[across], [None, side])
    columns, column = sch.split(loops[along], [None, side])
    sch.reorder(*others, rows, columns, column, row)
    sch.vectorize(sch.fuse(column, row))
    return rows, columns
