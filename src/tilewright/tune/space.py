"""Spaces of choices: what a tuner searches, whatever the choices are about.

    space = RuleSpace(offers)              all rules that could schedule a block, with their plans
    points = space.sample(100, random)     one row of whole numbers per point
    space.estimate(points)                 nanoseconds, by the analytical model
    space.choice(points, 3)                "gemm mr=6 nr=3 ..."

A point is a row of indices, so that a million of them are one array: nothing is built to weigh one.
Rows of one space have one width; what the numbers mean is the space's own business. The text of a
choice is plain data: it enters the key of the kernel, the database, and messages between machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.rules.rule import Choice, Offer
from tilewright.rules.space import Column, Columns, parse_plan, plan_text, plan_values
from tilewright.tune.rows import Points, Random, Rows, chunks

CHUNK_ROWS = 1 << 17  # combinations that are looked at together
MAX_COMBINATIONS = 1 << 24  # of one rule that are looked through for legal ones
DRAWS = 64  # chunks of random combinations before a space counts as nearly empty


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
    _, first = np.unique(points, axis=0, return_index=True)
    return points[np.sort(first)]


class _Part:
    """The plans of one rule: indices of candidates, and columns of values."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.space = offer.space
        self.values = [np.array(list(each)) for each in self.space.candidates.values()]
        self.names = list(self.space.candidates)
        self.shape = tuple(len(each) for each in self.values)
        self.features = self._feature_names()

    def columns(self, indices: Points) -> Columns:
        return {
            name: values[indices[:, at]]
            for at, (name, values) in enumerate(zip(self.names, self.values, strict=True))
        }

    def legal(self, indices: Points) -> Points:
        if self.space.legal is None or not len(indices):
            return indices
        return indices[np.flatnonzero(self.space.legal(self.columns(indices)))]

    def is_legal(self, indices: Points) -> Column:
        if self.space.legal is None or not len(indices):
            return np.ones(len(indices), bool)
        return np.asarray(self.space.legal(self.columns(indices)), bool)

    def listed(self, limit: int) -> Points | None:
        """All legal combinations, unless there are too many."""
        if self.space.size > MAX_COMBINATIONS:
            return None
        found, total = [], 0
        for start in range(0, self.space.size, CHUNK_ROWS):
            flat = np.arange(start, min(start + CHUNK_ROWS, self.space.size))
            rows = np.stack(np.unravel_index(flat, self.shape), axis=1).astype(np.int32)
            found.append(self.legal(rows))
            total += len(found[-1])
            if total > limit:
                return None
        return np.concatenate(found)

    def draw(self, count: int, random: Random) -> Points:
        if self.space.size <= CHUNK_ROWS:
            whole = self.listed(CHUNK_ROWS)
            assert whole is not None
            return whole[random.choice(len(whole), min(count, len(whole)), replace=False)]
        found = np.zeros((0, len(self.shape)), np.int32)
        for _ in range(DRAWS):
            drawn = random.integers(0, self.shape, (8192, len(self.shape)), dtype=np.int32)
            found = unique_rows(np.concatenate([found, self.legal(drawn)]))
            if len(found) >= count:
                break
        return found[:count]

    def _feature_names(self) -> tuple[str, ...]:
        rule, names = self.offer.rule.name, []
        for name, values in zip(self.names, self.values, strict=True):
            if values.dtype.kind in "US":
                names += [f"{rule}.{name}={value}" for value in values]
            else:
                names.append(f"{rule}.{name}")
        first = np.zeros((1, len(self.shape)), np.int32)
        names += [f"{rule}/{term}" for term in self.offer.cost(self.columns(first)).terms]
        return tuple(names)

    def described(self, indices: Points) -> tuple[Column, Column]:
        """Nanoseconds, and a column per feature."""
        columns = self.columns(indices)
        cost = self.offer.cost(columns)
        cycle_ns = self.offer.context.target.machine.cycle_ns
        made: list[Column] = []
        for at, values in enumerate(self.values):
            if values.dtype.kind in "US":
                made += [indices[:, at] == index for index in range(len(values))]
            else:
                made.append(np.log2(1.0 + np.abs(columns[self.names[at]].astype(np.float64))))
        made += [np.log1p(np.maximum(term, 0.0)) for term in cost.terms.values()]
        return cost.cycles * cycle_ns, np.stack(made, axis=1).astype(np.float32)


class RuleSpace:
    """The plans of all rules that could schedule a block: one space, whichever rule it is.

    A row holds the rule's number, then the index of each field's candidate, then zeros.
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        assert offers
        self.offers = tuple(offers)
        self._parts = tuple(_Part(each) for each in offers)
        self._rows = Rows(self._parts)
        self._starts = np.cumsum([1, *(len(each.features) for each in self._parts)])

    @property
    def name(self) -> str:
        return self.offers[0].block

    @property
    def size(self) -> int:
        return sum(each.space.size for each in self._parts)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return ("log_ns", *(name for each in self._parts for name in each.features))

    def sample(self, count: int, random: Random) -> Points:
        whole = [self._rows.of(at, part.draw(count, random)) for at, part in enumerate(self._parts)]
        mixed = np.concatenate(whole)
        return mixed[random.permutation(len(mixed))[:count]]

    def enumerate(self, limit: int) -> Points | None:
        return self._rows.listed(limit)

    def estimate(self, points: Points) -> Column:
        found = np.zeros(len(points))
        for at, part, rows in self._rows.by_member(points):
            for some in chunks(rows, CHUNK_ROWS):
                cost = part.offer.cost(part.columns(self._rows.indices(points[some], at)))
                found[some] = cost.cycles * part.offer.context.target.machine.cycle_ns
        return found

    def features(self, points: Points) -> Column:
        found = np.zeros((len(points), int(self._starts[-1])), np.float32)
        for at, part, rows in self._rows.by_member(points):
            for some in chunks(rows, CHUNK_ROWS):
                ns, made = part.described(self._rows.indices(points[some], at))
                found[some, 0] = log_ns(ns)
                found[some, self._starts[at] : self._starts[at + 1]] = made
        return found

    def mutate(self, points: Points, random: Random) -> Points:
        return self._rows.mutate(points, random)

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        return self._rows.crossover(first, second, random)

    def choice(self, points: Points, row: int) -> str:
        part = self._parts[int(points[row, 0])]
        columns = part.columns(self._rows.indices(points[row : row + 1], int(points[row, 0])))
        return choice_text(Choice(part.offer.rule.name, plan_text(part.space.plan_at(columns, 0))))

    def point(self, choice: str) -> Points | None:
        given = parse_choice(choice)
        for at, part in enumerate(self._parts):
            if part.offer.rule.name != given.rule:
                continue
            plan = parse_plan(part.space.plan, given.plan)
            if not part.space.is_legal(plan):
                return None
            values = plan_values(plan).values()
            pairs = zip(part.space.candidates.values(), values, strict=True)
            indices = [list(candidates).index(value) for candidates, value in pairs]
            return self._rows.of(at, np.array([indices], np.int32))
        return None

    def default(self) -> Points:
        offer = self.offers[0]
        plan = offer.chosen
        if not plan:
            priced = offer.rule.default(offer.problem, offer.context)
            assert priced is not None
            plan = plan_text(priced.plan)
        found = self.point(choice_text(Choice(offer.rule.name, plan)))
        assert found is not None
        return found


def choice_text(choice: Choice) -> str:
    """`gemm mr=6 nr=3`"""
    return f"{choice.rule} {choice.plan}".strip()


def parse_choice(text: str) -> Choice:
    rule, _, plan = text.partition(" ")
    return Choice(rule, plan)
