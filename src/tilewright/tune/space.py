"""Spaces of choices: what a tuner searches, whatever the choices are about.

    points = space.sample(100, random)     one row of whole numbers per point
    space.estimate(points)                 nanoseconds, by the analytical model
    space.choice(points, 3)                "gemm mr=6 nr=3 ..."

A point is a row of indices, so that a million of them are one array: nothing is built to weigh one.
Rows of one space have one width; what the numbers mean is the space's own business. The text of a
choice is plain data: it enters the key of the kernel, the database, and messages between machines.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tilewright.rules.space import Column, Columns
from tilewright.tune.rows import Points, Random

__all__ = ["Column", "Columns", "Points", "Random", "TuneSpace", "log_ns", "unique_rows"]


class TuneSpace(Protocol):
    """What search, cost models and the database know of a space."""

    @property
    def name(self) -> str:
        """What is decided about; unique within a kernel."""

    @property
    def size(self) -> int:
        """Combinations, legal or not: an upper bound of the points."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the columns of `features` are; equal names mean the same in every space."""

    def sample(self, count: int, random: Random) -> Points:
        """Legal points drawn at random, each once; fewer where there are fewer."""

    def enumerate(self, limit: int) -> Points | None:
        """All legal points; None where there are more than `limit`, or too many to look through."""

    def estimate(self, points: Points) -> Column:
        """Predicted nanoseconds of each point; 0 where nothing is known."""

    def features(self, points: Points) -> Column:
        """What cost models learn from: one row of float32 per point, the log estimate first."""

    def kinds(self, points: Points) -> Column:
        """A number for each point: equal ones are of one kind, of which measuring one tells how far
        off the estimate is for all."""

    def mutate(self, points: Points, random: Random) -> Points:
        """A legal neighbour of each point; the point itself where none was found."""

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        """A legal mixture of each pair; the first of a pair where none was found."""

    def choice(self, points: Points, row: int) -> str:
        """The text of a point."""

    def point(self, choice: str) -> Points | None:
        """The point of a text, as one row; None where it is none of this space's."""

    def default(self) -> Points:
        """The incumbent, as one row: what is chosen without tuning."""


def log_ns(estimate: Column) -> Column:
    """The logarithm of an estimate, 0 where nothing is known."""
    known = estimate > 0
    return np.where(known, np.log(np.where(known, estimate, 1.0)), 0.0)


def unique_rows(points: Points) -> Points:
    """Each row once, in the order of first appearance."""
    if not points.size:
        return points[:1]
    rows = np.ascontiguousarray(points)
    # As bytes, which are compared at once: a fifth of the time of `np.unique(axis=0)`.
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first = np.unique(whole, return_index=True)
    return points[np.sort(first)]
