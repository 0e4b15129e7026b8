"""Search spaces: the interface between a tuner and any kind of choices.

    points = space.sample(100, random)     one row of integers per point
    space.estimate(points)                 nanoseconds, by the analytical model
    space.choice(points, 3)                "gemm mr=6 nr=3 ..."

A point is a row of indices, so that a million of them are one array, scored without building
anything. Rows of one space have one width; their meaning is internal to the space. The text of a
choice is plain data: it enters the kernel's key, the database, and messages between machines.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tilewright.rules.space import Column, Columns
from tilewright.tune.rows import Points, Random

__all__ = ["Column", "Columns", "Points", "Random", "TuneSpace", "log_ns", "unique_rows"]


class TuneSpace(Protocol):
    """A space as search, cost models and the database know it."""

    @property
    def name(self) -> str:
        """What is decided on; unique within a kernel."""

    @property
    def size(self) -> int:
        """Combinations, legal or not: an upper bound of the points."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of `features`; equal names mean the same in every space."""

    def sample(self, count: int, random: Random) -> Points:
        """Distinct legal points drawn at random; fewer where there are fewer."""

    def enumerate(self, limit: int) -> Points | None:
        """All legal points; None where there are more than `limit`, or enumeration takes too
        long."""

    def estimate(self, points: Points) -> Column:
        """Predicted nanoseconds of each point; 0 where unknown."""

    def features(self, points: Points) -> Column:
        """The features of each point: one row of float32, the log estimate first."""

    def kinds(self, points: Points) -> Column:
        """A kind for each point: points of a kind share the estimate's error, so measuring one
        informs on all."""

    def mutate(self, points: Points, random: Random) -> Points:
        """A legal neighbour of each point; the point itself where none was found."""

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        """A legal mix of each pair; the first of a pair where none was found."""

    def choice(self, points: Points, row: int) -> str:
        """The text of a point."""

    def point(self, choice: str) -> Points | None:
        """The point of a text, as one row; None where it is not of this space."""

    def default(self) -> Points:
        """The default, as one row: the choice without tuning."""


def log_ns(estimate: Column) -> Column:
    """The logarithm of an estimate; 0 where unknown."""
    known = estimate > 0
    return np.where(known, np.log(np.where(known, estimate, 1.0)), 0.0)


def unique_rows(points: Points) -> Points:
    """The distinct rows, in order of first appearance."""
    if not points.size:
        return points[:1]
    rows = np.ascontiguousarray(points)
    # Compared as byte strings: a fifth of the time of `np.unique(axis=0)`.
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first = np.unique(whole, return_index=True)
    return points[np.sort(first)]
