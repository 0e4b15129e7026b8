"""Points of a union of grids as rows: the grid's index, the index of each candidate, zero-padded.

rows = Rows(grids)
rows.of(1, indices)                rows of the second grid
rows.mutate(points, random)        legal neighbours, each in the grid of its point
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tilewright.rules.space import Column

Points = np.ndarray[Any, np.dtype[np.int32]]  # one row per point
Random = np.random.Generator

MUTATIONS = 8  # tries to find a legal neighbour


class Member(Protocol):
    """A grid: how many candidates each field has, and which combinations are legal."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def is_legal(self, indices: Points) -> Column: ...

    def listed(self, limit: int) -> Points | None:
        """All legal combinations; None where there are more."""


M = TypeVar("M", bound=Member)


class Rows(Generic[M]):
    """Points of several grids in one array."""

    def __init__(self, members: Sequence[M]) -> None:
        self.members = tuple(members)
        self.width = 1 + max(len(each.shape) for each in self.members)

    def of(self, at: int, indices: Points) -> Points:
        """Rows of one grid."""
        rows = np.zeros((len(indices), self.width), np.int32)
        rows[:, 0] = at
        rows[:, 1 : 1 + indices.shape[1]] = indices
        return rows

    def indices(self, points: Points, at: int) -> Points:
        return points[:, 1 : 1 + len(self.members[at].shape)]

    def by_member(self, points: Points) -> Iterator[tuple[int, M, Column]]:
        """Each grid that has points, with the mask of its rows."""
        for at, member in enumerate(self.members):
            rows = np.flatnonzero(points[:, 0] == at)
            if len(rows):
                yield at, member, rows

    def listed(self, limit: int) -> Points | None:
        """All legal points; None where there are more."""
        found, left = [], limit
        for at, member in enumerate(self.members):
            indices = member.listed(left)
            if indices is None:
                return None
            found.append(self.of(at, indices))
            left -= len(indices)
        return np.concatenate(found)

    def mutate(self, points: Points, random: Random) -> Points:
        """Change one field of each point, where a legal change is found."""
        made = points.copy()
        for at, member, waiting in self.by_member(points):
            if not member.shape:
                continue
            for _ in range(MUTATIONS):
                if not len(waiting):
                    break
                tried = self.indices(points[waiting], at).copy()
                field = random.integers(0, len(member.shape), len(waiting))
                most = np.array(member.shape)[field]
                step = random.integers(1, np.maximum(most, 2))
                place = np.arange(len(waiting))
                tried[place, field] = (tried[place, field] + step) % most
                good = member.is_legal(tried)
                made[waiting[good]] = self.of(at, tried[good])
                waiting = waiting[~good]
        return made

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        """Mix the fields of two points of one grid; the first where that is not legal."""
        made = first.copy()
        alike = first[:, 0] == second[:, 0]
        mixed = np.where(random.random(first.shape) < 0.5, first, second)
        for at, member, rows in self.by_member(first):
            some = rows[alike[rows]]
            tried = self.indices(mixed[some], at)
            good = member.is_legal(tried)
            made[some[good]] = self.of(at, tried[good])
        return made


def chunks(rows: Column, size: int) -> list[Column]:
    """Split rows into chunks."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]
