"""Cost model of a convolution's register tile: output positions by vectors of output channels.

The reduction over kernel positions and input channels takes p * nr multiply-adds per step on a tile
of p positions; the weights of a step come from L1, from L2, or from beyond. The tail of an extent
is a smaller tile of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.machine import Machine
from tilewright.base.target import Target
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.gemm_model import MAX_TAILS, fits_registers, step_cycles
from tilewright.rules.space import Column


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes of a convolution; dynamic extents are guessed."""

    batch: int
    spatial: tuple[int, ...]  # of the result
    vectors: int  # of output channels, of one group
    depth: int  # steps of the reduction
    k_interleave: int  # terms per step, in neighbouring lanes
    is_dynamic: tuple[bool, ...]  # per spatial axis
    is_grouped: bool  # tiles must divide the channels of a group

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the axes that a tile has."""
        return (self.batch, *self.spatial)

    def weights_bytes(self, target: Target) -> int:
        return self.depth * self.vectors * target.vector_bytes


def tile_cycles(
    problem: Problem, nr: Column, tiles: Column, target: Target, extents: Column | None = None
) -> Column:
    """Cycles of all tiles, for a column of nr and rows of tile extents (batch, spatial).

    `extents` overrides the problem's extents row by row, where a plan decides those too.
    """
    machine = target.machine
    vector_bytes = target.vector_bytes
    is_streamed = (
        problem.depth * nr * vector_bytes > machine.l1d.kept_bytes + machine.l1d.passing_bytes
    )
    if extents is None:
        extents = np.array(problem.extents)
    cycles = np.zeros(len(nr))
    # A step ends in a branch; leaving the reduction loop is a branch miss.
    turn, around = 1 / machine.fma_latency_cycles, machine.branch_miss_cycles
    dynamic = (False, *problem.is_dynamic)
    axes = [_tiles_along(extents.T[at], tiles[:, at], each) for at, each in enumerate(dynamic)]
    for pieces in itertools.product(*axes):
        count = math.prod(piece[0] for piece in pieces)
        positions = math.prod(piece[1] for piece in pieces)
        for vectors, repeated in (
            (nr, problem.vectors // nr),
            (problem.vectors % nr, problem.vectors % nr > 0),
        ):
            step = step_cycles(positions, vectors, machine)
            from_l2 = vectors * vector_bytes / machine.l2.bytes_per_cycle
            streamed = np.maximum(step, from_l2) + machine.exposed_l2_share * from_l2
            step = np.where(is_streamed, streamed, step) + turn
            stores = 2 * problem.k_interleave * positions * vectors
            cycles += count * repeated * (problem.depth * step + stores + around)
    weights = problem.weights_bytes(target)
    if weights > target.l2_bytes:
        is_whole = np.all(tiles == extents, axis=1) & (not any(problem.is_dynamic))
        rate = np.where(is_whole, machine.memory_bytes_per_cycle, machine.scattered_bytes_per_cycle)
        cycles = np.maximum(cycles, weights / rate)
    tails = np.sum(np.where(dynamic, tiles > 1, extents % tiles > 0), axis=1)
    found: Column = cycles * (1 + TIE_SHARE * (tails + (problem.vectors % nr > 0)))
    return found


def _tiles_along(extent: Any, tile: Column, is_dynamic: bool) -> list[tuple[Column, Column]]:
    """The tiles along an axis as (count, extent): whole ones and the tail.

    The tail of a dynamic axis may have any extent, each with specialized code; all are weighed
    alike, so that no plan is fitted to the assumed extent.
    """
    if not is_dynamic:
        pieces = [(extent // tile, tile), (extent % tile > 0, extent % tile)]
    else:
        pieces = [(np.maximum(0, extent - (tile - 1) / 2) / tile, tile)]
        for left in range(1, int(tile.max())):
            pieces.append((np.where(left < tile, 1 / tile, 0), np.full_like(tile, left)))
    return [piece for piece in pieces if np.any(piece[0] * piece[1])]


def guarded_times(machine: Machine) -> float:
    """Slowdown of predicated positions: each operation is behind a branch and waits for the one
    before."""
    return machine.fma_latency_cycles


def is_register_tile(problem: Problem, nr: Any, positions: Any, target: Target) -> Any:
    """Whether a tile fits the registers and leaves no tail of a group's channels."""
    fits = fits_registers(positions, nr, target, problem.k_interleave)
    return fits & ((problem.vectors % nr == 0) | (not problem.is_grouped))


def shapes(problem: Problem, most: int) -> Iterator[tuple[int, ...]]:
    """Boxes of up to `most` positions: along the last axis, and along others once it is full.

    A dynamic axis has tails of every number of positions, each specialized.
    """
    dims = problem.extents
    if problem.is_dynamic[-1]:
        for size in range(1, min(most, MAX_TAILS) + 1):
            yield ((1,) * (len(dims) - 1)) + (size,)
        return
    full: tuple[int, ...] = ()
    for axis in reversed(range(len(dims))):
        room = most // math.prod(full)
        for size in range(1, min(room, dims[axis]) + 1):
            yield ((1,) * axis) + (size, *full)
        if dims[axis] > room or (axis > 0 and problem.is_dynamic[axis - 1]):
            return
        full = (dims[axis], *full)
