"""Search strategies: which points to try next.

    strategy.propose(view, count)     untried points, the most promising first

A view is a space with a cost model and the trials so far: it scores points and excludes known ones.
`Ranked` scores whole spaces where they are small enough, else the population of an evolution; its
batches mix the best predictions, the best of kinds never tried, the most uncertain, and the most
diverse points. The other strategies are for spaces without a model, and for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Protocol

import numpy as np

from tilewright.base.errors import UserError
from tilewright.tune.cost.model import Array, CostModel
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.space import Points, Random, TuneSpace, unique_rows

MAX_WHOLE = 2_000_000  # legal points that are ranked exhaustively
MAX_COMBINATIONS = 1 << 21  # enumerated for them: about a second
DRAFT = 1 << 14  # points scored by the cost model; the estimate preselects them
POPULATION, GENERATIONS = 384, 5
UNKNOWN = float(np.log(1.5))  # score without an estimate: somewhat slower than the default
BEST, UNSURE = 0.6, 0.2  # shares of a batch; the rest is for diversity
DOUBT = 1.5  # standard deviations of optimism (lower confidence bound)


class View:
    """A space as search sees it: with model and trials."""

    def __init__(self, space: TuneSpace, model: CostModel, random: Random) -> None:
        self.space, self.model, self.random = space, model, random
        self._tried: set[bytes] = set()
        self._kinds: set[int] = set()
        first = space.estimate(space.default())[0]
        self._unknown = (float(np.log(first)) if first > 0 else 0.0) + UNKNOWN

    def within(self, part: TuneSpace) -> View:
        """The same view restricted to a part of the space; model and trials are shared."""
        found = copy(self)
        found.space = part
        return found

    def log_estimate(self, points: Points) -> Array:
        """The logarithm of each point's prior estimate."""
        ns = self.space.estimate(points)
        known = ns > 0
        logs: Array = np.where(known, np.log(np.where(known, ns, 1.0)), self._unknown)
        return logs

    def score(self, points: Points) -> tuple[Array, Array]:
        """The logarithm of nanoseconds as the model predicts them, and its uncertainty."""
        guess = self.model.predict(self.space.features(points))
        mean: Array = self.log_estimate(points) + guess.mean
        return mean, guess.deviation

    def fit(self, points: Points, log_ns: Array) -> None:
        """Learn from measured points."""
        if len(points):
            self.model.fit(self.space.features(points), log_ns - self.log_estimate(points))

    def mark(self, points: Points) -> None:
        """Mark points as tried."""
        self._tried.update(row.tobytes() for row in np.ascontiguousarray(points))
        self._kinds.update(self.space.kinds(points).tolist())

    @property
    def tried(self) -> int:
        return len(self._tried)

    def new_kinds(self, points: Points, order: Array) -> list[int]:
        """The first point of each untried kind, in the given order."""
        kinds, first = np.unique(self.space.kinds(points[order]), return_index=True)
        new = [
            at for kind, at in zip(kinds.tolist(), first, strict=True) if kind not in self._kinds
        ]
        return [int(order[at]) for at in sorted(new)]

    def fresh(self, points: Points) -> Points:
        """The distinct untried points."""
        points = np.ascontiguousarray(unique_rows(points))
        return points[[row.tobytes() not in self._tried for row in points]]


class Strategy(Protocol):
    """Proposes points of one space, again and again."""

    def propose(self, view: View, count: int) -> Points:
        """Untried points; fewer than requested where there are no more."""


class RandomSearch:
    """Points at random."""

    def propose(self, view: View, count: int) -> Points:
        return view.fresh(view.space.sample(count + view.tried, view.random))[:count]


class Grid:
    """Points in the order of the space, evenly spread."""

    def __init__(self) -> None:
        self._left: Points | None = None

    def propose(self, view: View, count: int) -> Points:
        if self._left is None:
            whole = _whole(view.space)
            self._left = view.space.sample(DRAFT, view.random) if whole is None else whole
        left = view.fresh(self._left)
        step = max(1, len(left) // max(1, count))
        return left[::step][:count]


class Annealing:
    """Simulated annealing."""

    def __init__(self, walkers: int = 64, steps: int = 40, temperature: float = 0.3) -> None:
        self.walkers, self.steps, self.temperature = walkers, steps, temperature
        self._at: Points | None = None

    def propose(self, view: View, count: int) -> Points:
        at = view.space.sample(self.walkers, view.random) if self._at is None else self._at
        score, _ = view.score(at)
        seen = [at]
        for step in range(self.steps):
            near = view.space.mutate(at, view.random)
            new, _ = view.score(near)
            heat = self.temperature * (1.0 - step / self.steps) + 1e-6
            taken = view.random.random(len(at)) < np.exp(np.minimum(0.0, (score - new) / heat))
            at, score = np.where(taken[:, None], near, at), np.where(taken, new, score)
            seen.append(near)
        self._at = at
        return _best(view, np.concatenate(seen), count)


class Evolution:
    """Evolutionary search: the better half survives, crosses over and mutates."""

    def __init__(self, population: int = POPULATION, generations: int = GENERATIONS) -> None:
        self.population, self.generations = population, generations
        self._alive: Points | None = None

    def propose(self, view: View, count: int) -> Points:
        return _best(view, self.breed(view), count)

    def breed(self, view: View) -> Points:
        """All individuals of a few generations."""
        new = self.population if self._alive is None else max(1, self.population // 4)
        alive = np.concatenate([view.space.default(), view.space.sample(new, view.random)])
        if self._alive is not None:
            alive = np.concatenate([self._alive, alive])
        seen = [alive]
        for _ in range(self.generations):
            score, _ = view.score(alive)
            fit = alive[np.argsort(score, kind="stable")[: max(2, self.population // 2)]]
            other = fit[view.random.permutation(len(fit))]
            children = view.space.crossover(fit, other, view.random)
            mutants = view.space.mutate(fit, view.random)
            alive = unique_rows(np.concatenate([fit, children, mutants]))
            seen += [children, mutants]
        score, _ = view.score(alive)
        self._alive = alive[np.argsort(score, kind="stable")[: self.population // 2]]
        return np.concatenate(seen)


class Ranked:
    """The best of the whole space, or of an evolution's population; some uncertain, some diverse.

    The estimate preselects points, the model ranks them. Members of a joined space are preselected
    separately and ranked together.
    """

    def __init__(self) -> None:
        self._drafts: list[Draft] = []

    def propose(self, view: View, count: int) -> Points:
        space = view.space
        parts: Sequence[TuneSpace] = space.parts if isinstance(space, JoinedSpace) else [space]
        self._drafts = self._drafts or [Draft() for _ in parts]
        drafted = [
            draft.points(view.within(part)) for draft, part in zip(self._drafts, parts, strict=True)
        ]
        return mixed(view, view.fresh(np.concatenate(drafted)), count)


class Draft:
    """The points of one space that the model scores: all, in rotating parts, or those of an
    evolution."""

    def __init__(self) -> None:
        self._whole: Points | None = None
        self._evolution: Evolution | None = None
        self._estimate: Array = np.zeros(0)

    def points(self, view: View) -> Points:
        if self._whole is None and self._evolution is None:
            self._whole = _whole(view.space)
            if self._whole is None:
                self._evolution = Evolution()
            else:
                self._estimate = view.log_estimate(self._whole)
        if self._evolution is not None:
            return self._evolution.breed(view)
        assert self._whole is not None
        if len(self._whole) <= DRAFT:
            return self._whole
        best = np.argpartition(self._estimate, DRAFT // 2)[: DRAFT // 2]
        others = view.random.integers(0, len(self._whole), DRAFT // 2)
        drafted = self._whole[np.concatenate([best, others])]
        score, _ = view.score(drafted)
        near = drafted[np.argsort(score)[: DRAFT // 8]]
        return np.concatenate([drafted, view.space.mutate(near, view.random)])


def mixed(view: View, pool: Points, count: int) -> Points:
    """A batch from a pool: the best predictions, one of each new kind, the most uncertain, and the
    most diverse."""
    if len(pool) <= count:
        return pool
    score, doubt = view.score(pool)
    order = np.argsort(score, kind="stable")
    chosen = list(order[: max(1, round(BEST * count))])
    kinds = [at for at in view.new_kinds(pool, order) if at not in chosen]
    chosen += kinds[: (count - len(chosen)) // 2]
    hopeful = np.argsort(score - DOUBT * doubt, kind="stable")
    taken = set(chosen)
    for at in hopeful:
        if len(chosen) >= max(1, round((BEST + UNSURE) * count)):
            break
        if at not in taken:
            chosen.append(at)
            taken.add(at)
    rest = [at for at in order[: max(8 * count, 64)] if at not in taken]
    if rest:
        rows = pool[rest]
        apart = np.min([(rows != pool[at]).sum(axis=1) for at in chosen], axis=0)
        for _ in range(min(count - len(chosen), len(rest))):
            far = int(np.argmax(apart))
            chosen.append(rest[far])
            apart = np.minimum(apart, (rows != rows[far]).sum(axis=1))
            apart[far] = -1  # taken
    found: Points = pool[np.array(chosen[:count])]
    return found


def _best(view: View, points: Points, count: int) -> Points:
    fresh = view.fresh(points)
    score, _ = view.score(fresh)
    return fresh[np.argsort(score, kind="stable")[:count]]


def _whole(space: TuneSpace) -> Points | None:
    return space.enumerate(MAX_WHOLE) if space.size <= MAX_COMBINATIONS else None


STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "ranked": Ranked,
    "evolution": Evolution,
    "annealing": Annealing,
    "random": RandomSearch,
    "grid": Grid,
}


def strategy(name: str = "ranked") -> Strategy:
    """A strategy by name."""
    if name not in STRATEGIES:
        raise UserError(
            "TW5008", f"there is no search {name!r}", help=f"use {', '.join(STRATEGIES)}"
        )
    return STRATEGIES[name]()
