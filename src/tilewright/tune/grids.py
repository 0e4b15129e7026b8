"""Spaces made of grids: named fields with candidates, and a filter of legal combinations.

    grid = Grid("tile", {"i": (1, 2, 4), "j": (8, 16)}, lambda c: c["i"] * c["j"] <= 32)
    space = GridSpace("C", (grid,))
    space.choice(space.default(), 0)        "tile i=1 j=8"

Plans of rules, sketches and templates are such spaces: one grid per rule, or per structure of a
program, each with its own fields. A row holds the index of its grid, then the index of each field's
candidate, zero-padded. Points are enumerated lazily. The first legal point of the first grid is the
default, unless a subclass knows better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.base.errors import UserError
from tilewright.tune.rows import Points, Random, Rows, chunks
from tilewright.tune.space import Column, Columns, log_ns, unique_rows

Value = int | str

CHUNK_ROWS = 1 << 14  # rows evaluated together, so that columns stay in L2
LISTED_ROWS = 1 << 17  # combinations filtered together
MAX_COMBINATIONS = 1 << 24  # of one grid that are enumerated for legal ones
LEAST_DRAWN = 1 << 12  # random combinations per draw
DRAWS = 64  # draws before a grid counts as nearly empty


@dataclass(frozen=True)
class Grid:
    """Fields, the candidates of each, and a filter over columns."""

    name: str
    fields: Mapping[str, tuple[Value, ...]]
    legal: Callable[[Columns], Column] | None = None
    groups: tuple[tuple[str, ...], ...] = ()  # fields that are drawn together

    def __post_init__(self) -> None:
        assert " " not in self.name
        empty = [name for name, values in self.fields.items() if not values]
        if empty:
            raise UserError(
                "TW5101",
                f"{self.name}: decision {empty[0]!r} has no candidates",
                help="give it at least one, or leave the decision out",
            )

    @property
    def size(self) -> int:
        """Combinations, legal or not."""
        return math.prod(len(values) for values in self.fields.values())

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.fields.values())

    @cached_property
    def values(self) -> tuple[Column, ...]:
        return tuple(np.array(list(values)) for values in self.fields.values())

    def columns(self, indices: Points) -> Columns:
        """The value of every field, row by row."""
        return {
            name: values[indices[:, at]]
            for at, (name, values) in enumerate(zip(self.fields, self.values, strict=True))
        }

    def is_legal(self, indices: Points) -> Column:
        if self.legal is None or not len(indices):
            return np.ones(len(indices), bool)
        return np.asarray(self.legal(self.columns(indices)), bool)

    def listed(self, limit: int) -> Points | None:
        """All legal combinations; None if there are too many."""
        if self.size > MAX_COMBINATIONS:
            return None
        found, total = [], 0
        for start in range(0, self.size, LISTED_ROWS):
            flat = np.arange(start, min(start + LISTED_ROWS, self.size))
            rows = np.stack(np.unravel_index(flat, self.shape or (1,)), axis=1).astype(np.int32)
            rows = rows[:, : len(self.shape)]
            found.append(rows[self.is_legal(rows)])
            total += len(found[-1])
            if total > limit:
                return None
        return np.concatenate(found)

    def drawn(self, count: int, random: Random) -> Points:
        """Distinct legal combinations at random."""
        if self.size <= LISTED_ROWS:
            whole = self.listed(LISTED_ROWS)
            assert whole is not None
            return whole[random.choice(len(whole), min(count, len(whole)), replace=False)]
        found = np.zeros((0, len(self.shape)), np.int32)
        size = min(LISTED_ROWS, max(LEAST_DRAWN, 4 * count))
        for _ in range(DRAWS):
            rows = random.integers(0, self.shape, (size, len(self.shape)), dtype=np.int32)
            for places, combinations in self._combinations:
                rows[:, places] = combinations[random.integers(0, len(combinations), size)]
            found = unique_rows(np.concatenate([found, rows[self.is_legal(rows)]]))
            if len(found) >= count:
                return found[random.permutation(len(found))[:count]]
        return found

    @cached_property
    def _combinations(self) -> list[tuple[list[int], Points]]:
        """Per group, the combinations that are legal with all other fields at their first
        candidates.

        Candidates are in ascending order: what exceeds a limit with the first ones always does.
        """
        names, found = list(self.fields), []
        for group in self.groups:
            places = [names.index(name) for name in group]
            shape = tuple(self.shape[at] for at in places)
            flat = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1)
            rows = np.zeros((len(flat), len(names)), np.int32)
            rows[:, places] = flat
            kept = flat[self.is_legal(rows)].astype(np.int32)
            if len(kept):
                found.append((places, kept))
        return found

    def text(self, indices: Sequence[int]) -> str:
        """`name field=value ...`"""
        pairs = zip(self.fields.items(), indices, strict=True)
        return " ".join([self.name, *(f"{name}={values[at]}" for (name, values), at in pairs)])

    def indices(self, words: Sequence[str]) -> list[int] | None:
        """The combination of a text; None where it has other fields or values."""
        given = dict(word.partition("=")[::2] for word in words)
        if list(given) != list(self.fields) or len(words) != len(given):
            return None
        found = []
        for name, values in self.fields.items():
            shown = [str(value) for value in values]
            if given[name] not in shown:
                return None
            found.append(shown.index(given[name]))
        return found


class GridSpace:
    """Several grids as one space, with the interface of search and cost models."""

    def __init__(self, name: str, grids: Sequence[Grid]) -> None:
        if not grids:
            raise UserError("TW5102", f"there is nothing to decide about {name}")
        self._name = name
        self.grids = tuple(grids)
        self._rows = Rows(self.grids)

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return sum(grid.size for grid in self.grids)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return ("log_ns", *(name for names in self._names for name in names))

    # ------------------------------------------------------------------ overridden by subclasses

    def predict(self, at: int, columns: Columns) -> Column:
        """Predicted nanoseconds of rows of a grid; 0: unknown."""
        return self.describe(at, columns)[0]

    def describe(self, at: int, columns: Columns) -> tuple[Column, Column]:
        """The predictions and features of rows of a grid."""
        own = self.field_features(at, columns)
        return np.zeros(len(own)), self.placed(at, own)

    def own_names(self, at: int) -> tuple[str, ...]:
        """The names of a grid's features."""
        grid, names = self.grids[at], []
        for name, values in zip(grid.fields, grid.values, strict=True):
            if values.dtype.kind in "US":
                names += [f"{grid.name}.{name}={value}" for value in values]
            else:
                names.append(f"{grid.name}.{name}")
        return tuple(names)

    def field_features(self, at: int, columns: Columns) -> Column:
        """Numbers as logarithms, strings one-hot."""
        rows = len(next(iter(columns.values()), np.zeros(1)))
        made: list[Column] = []
        for name, values in zip(self.grids[at].fields, self.grids[at].values, strict=True):
            if values.dtype.kind in "US":
                made += [columns[name] == value for value in values]
            else:
                made.append(np.log2(1.0 + np.abs(columns[name].astype(np.float64))))
        return np.stack(made, axis=1) if made else np.zeros((rows, 0))

    def placed(self, at: int, own: Column) -> Column:
        """Features of a grid in the columns of all grids, with zeros elsewhere."""
        starts = np.cumsum([0, *map(len, self._names)])
        whole = np.zeros((len(own), int(starts[-1])), np.float32)
        whole[:, starts[at] : starts[at + 1]] = own
        return whole

    @cached_property
    def _names(self) -> list[tuple[str, ...]]:
        return [self.own_names(at) for at in range(len(self.grids))]

    # ------------------------------------------------------------------ points

    def sample(self, count: int, random: Random) -> Points:
        taken, left = [], count
        order = sorted(range(len(self.grids)), key=lambda at: self.grids[at].size)
        for number, at in enumerate(order):  # what a small grid lacks, others have more of
            share = -(-left // (len(order) - number))
            taken.append(self._rows.of(at, self.grids[at].drawn(share, random)))
            left -= len(taken[-1])
        mixed = np.concatenate(taken)
        return mixed[random.permutation(len(mixed))[:count]]

    def enumerate(self, limit: int) -> Points | None:
        return self._rows.listed(limit)

    def estimate(self, points: Points) -> Column:
        found = np.zeros(len(points))
        for at, _, rows in self._rows.by_member(points):
            for some in chunks(rows, CHUNK_ROWS):
                found[some] = self.predict(at, self.columns(points[some], at))
        return found

    def features(self, points: Points) -> Column:
        found = np.zeros((len(points), len(self.feature_names)), np.float32)
        for at, _, rows in self._rows.by_member(points):
            for some in chunks(rows, CHUNK_ROWS):
                ns, made = self.describe(at, self.columns(points[some], at))
                found[some, 0] = log_ns(ns)
                found[some, 1:] = made
        return found

    def kinds(self, points: Points) -> Column:
        return points[:, 0]

    def mutate(self, points: Points, random: Random) -> Points:
        return self._rows.mutate(points, random)

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        return self._rows.crossover(first, second, random)

    def choice(self, points: Points, row: int) -> str:
        at = int(points[row, 0])
        return self.grids[at].text(self.indices(points[row : row + 1], at)[0].tolist())

    def point(self, choice: str) -> Points | None:
        name, *words = choice.split()
        for at, grid in enumerate(self.grids):
            indices = grid.indices(words) if grid.name == name else None
            if indices is None:
                continue
            rows = np.array([indices], np.int32).reshape(1, len(indices))
            return self._rows.of(at, rows) if grid.is_legal(rows)[0] else None
        return None

    def default(self) -> Points:
        for at, grid in enumerate(self.grids):
            first = np.zeros((1, len(grid.shape)), np.int32)
            found = first if grid.is_legal(first)[0] else grid.drawn(1, np.random.default_rng(0))
            if len(found):
                return self._rows.of(at, found)
        raise UserError("TW5102", f"no combination of {self.name}'s decisions is legal")

    # ------------------------------------------------------------------ rows

    def columns(self, points: Points, at: int) -> Columns:
        return self.grids[at].columns(self.indices(points, at))

    def indices(self, points: Points, at: int) -> Points:
        return self._rows.indices(points, at)

    def values(self, points: Points, row: int) -> tuple[Grid, dict[str, Value]]:
        """The grid of a row, and what it decides."""
        grid = self.grids[int(points[row, 0])]
        pairs = zip(grid.fields.items(), points[row, 1:].tolist(), strict=False)
        return grid, {name: values[at] for (name, values), at in pairs}
