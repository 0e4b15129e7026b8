"""The decisions of a structure: tile sizes at every level, unroll factors, chunks, and their
legality.

A spatial axis of a tiled stage is split into four:

    for i.outer        split across threads; the inferred factor
      for i.block      tiles of a block, whose operands stay in L2
        for i.middle   register tiles that share operands in L1
          for i.inner  a register tile; in vectors along the vectorized axis

Tiles need not divide: tails are allowed. Candidates are small numbers and, for long axes, divisors
and powers of two, so that odd extents find an even tile too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.tensor.schedule.sample import divisors
from tilewright.tune.grids import Value
from tilewright.tune.sketch.stage import Axis, Stage
from tilewright.tune.sketch.structure import (
    BLOCKS,
    DOT,
    FOLLOW,
    PARTS,
    PLAIN,
    ROWS,
    TILE,
    UNDER,
    Structure,
    Way,
)
from tilewright.tune.space import Column, Columns

TILE_LEVELS = ("inner", "middle", "block")
INNER = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  # of a register tile along unvectorized axes
VECTORS = (1, 2, 3, 4, 6, 8)  # of a register tile along the vectorized axis
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # tiles of the level below
UNROLLED = (1, 2, 3, 4, 5, 7, 8)  # unroll factors of a reduction
SUM_BLOCKS = (8, 16, 32, 64, 128, 256, 512)  # steps per block of a reduction
MAX_DIVISORS = 24  # larger divisors are no tiles of registers or L1
MAX_UNROLLED = 192  # vector operations of a loop body and its tails, for compile time
DOT_OPERANDS = 4  # registers for an instruction's operands beside the accumulators
ACCUMULATORS = (4, 2, 1, 8)  # vectors of partial results
CHUNKS = (8, 4, 2, 1, 16)  # per thread
PART_COUNTS = (1, 2, 4, 8)  # per thread, of a reduction split across threads


@dataclass(frozen=True)
class Registers:
    """Vector registers and threads of a target."""

    vectors: int
    threads: int


def fields_of(structure: Structure, registers: Registers) -> dict[str, tuple[Value, ...]]:
    """Every decision of a structure, with its candidates, the plainest first."""
    found: dict[str, tuple[Value, ...]] = {}
    for name, way in structure.ways.items():
        stage = structure.stages[name]
        for key, values in _stage_fields(stage, way, registers).items():
            found[f"{name}.{key}"] = values
    return found


def groups_of(structure: Structure) -> tuple[tuple[str, ...], ...]:
    """The decisions grouped by axis."""
    return tuple(
        tuple(f"{stage.name}.{stage.axes[at].name}.{level}" for level in TILE_LEVELS)
        for stage, _ in structure.tiled
        for at in stage.spatial
    )


def _stage_fields(stage: Stage, way: Way, registers: Registers) -> Mapping[str, tuple[Value, ...]]:
    if way.kind in (TILE, BLOCKS, DOT):
        return _tile_fields(stage, way)
    if way.kind == PLAIN:
        return (
            {"unroll": (1, 2, 4), "chunks": CHUNKS}
            if registers.threads > 1
            else {"unroll": (1, 2, 4)}
        )
    if way.kind == ROWS:
        return {"accumulators": ACCUMULATORS}
    if way.kind == PARTS:
        counts = tuple(count * registers.threads for count in PART_COUNTS)
        return {"parts": counts, "accumulators": ACCUMULATORS}
    if way.kind == UNDER:
        return {"level": ("block", "outer"), "accumulators": (1, 2, 4)}
    assert way.kind == FOLLOW
    return {}


def _tile_fields(stage: Stage, way: Way) -> dict[str, tuple[Value, ...]]:
    found: dict[str, tuple[Value, ...]] = {}
    for at in stage.spatial:
        axis = stage.axes[at]
        if at == way.lanes:
            vectors = -(-axis.extent // stage.lanes)
            found[f"{axis.name}.inner"] = _up_to(VECTORS, vectors)
            found[f"{axis.name}.middle"] = _levels(vectors)
            found[f"{axis.name}.block"] = _levels(vectors)
        else:
            found[f"{axis.name}.inner"] = _up_to(INNER, axis.extent)
            found[f"{axis.name}.middle"] = _levels(axis.extent)
            found[f"{axis.name}.block"] = _levels(axis.extent)
    longest = long_sum(stage)
    for at in stage.reduced:
        axis = stage.axes[at]
        if way.kind == BLOCKS and at == longest:
            found[f"{axis.name}.block"] = _up_to(SUM_BLOCKS, max(8, axis.extent))
        if way.kind != DOT:
            found[f"{axis.name}.unroll"] = _unrolled(axis)
    found["order"] = ("program", "lanes")
    return found


def long_sum(stage: Stage) -> int:
    """The reduction axis that is blocked: the longest."""
    return max(stage.reduced, key=lambda at: stage.axes[at].extent, default=-1)


def _up_to(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(value for value in values if value <= most) or (1,)


def _levels(extent: int) -> tuple[int, ...]:
    small = [value for value in divisors(extent) if value <= MAX_DIVISORS]
    return tuple(sorted({*_up_to(LEVELS, extent), *small}))


def _unrolled(axis: Axis) -> tuple[int, ...]:
    return tuple(value for value in UNROLLED if axis.extent % value == 0) or (1,)


# --------------------------------------------------------------------------- legality


def legal_of(structure: Structure, registers: Registers, c: Columns) -> Column:
    """Which rows are worth building: tiles within their axes, accumulators within registers."""
    rows = len(next(iter(c.values()))) if c else 1
    fits: Column = np.ones(rows, bool)
    for stage, way in structure.tiled:
        fits &= _tile_legal(stage, way, registers, c)
    return fits


def _tile_legal(stage: Stage, way: Way, registers: Registers, c: Columns) -> Column:
    tile: Column = np.ones(len(c[f"{stage.name}.order"]), np.int64)
    # Versions of a tile's code: whole ones, and tails.
    copies: Column = np.ones(len(tile), np.int64)
    fits: Column = np.ones(len(tile), bool)
    for at in stage.spatial:
        axis = stage.axes[at]
        inner, middle, block = (
            c[f"{stage.name}.{axis.name}.{level}"] for level in ("inner", "middle", "block")
        )
        units = -(-axis.extent // stage.lanes) if at == way.lanes else axis.extent
        tile = tile * inner
        # no level exceeds the rest of the axis, rounded up to whole tiles of the next
        fits &= inner * (middle - 1) < units
        fits &= inner * middle * (block - 1) < units
        fits &= -(-units // inner) * inner * 2 <= units * 3
        size = inner * (stage.lanes if at == way.lanes else 1)
        shared = size * middle * block  # threads take whole units of a merged axis
        fits &= (shared % axis.unit == 0) | (shared >= axis.extent)
        copies = copies * np.where((axis.extent % size != 0) | axis.is_dynamic, 2, 1)
    fits &= tile <= registers.vectors - (DOT_OPERANDS if way.kind == DOT else 0)
    steps: Column = np.ones(len(tile), np.int64)
    for at in stage.reduced:
        axis = stage.axes[at]
        if way.kind != DOT:
            steps = steps * c[f"{stage.name}.{axis.name}.unroll"]
        if way.kind == BLOCKS and at == long_sum(stage):
            fits &= c[f"{stage.name}.{axis.name}.block"] < 2 * axis.extent
            unroll = c[f"{stage.name}.{axis.name}.unroll"]
            fits &= c[f"{stage.name}.{axis.name}.block"] % unroll == 0
    fits &= tile * steps * copies <= MAX_UNROLLED
    return fits
