"""A space and a lab whose best point is known: tuning without compiling."""

from __future__ import annotations

import numpy as np

from tilewright.tune.lab import Candidate, Task
from tilewright.tune.record import TaskKey
from tilewright.tune.space import unique_rows
from tilewright.tune.stats import Paired

SIDES = (8, 8, 6)


class GridSpace:
    """Points of a box; the estimate knows the first axis alone."""

    feature_names = ("log_ns", "grid.a", "grid.b", "grid.c")

    def __init__(self, name="y", best=(6, 2, 4), scale=1.0):
        self.name, self.best, self.scale = name, np.array(best), scale
        self.size = int(np.prod(SIDES))

    def true_ns(self, points):
        return (
            self.scale * 1000.0 * np.exp(0.12 * np.abs(np.asarray(points) - self.best).sum(axis=1))
        )

    def sample(self, count, random):
        whole = self.enumerate(self.size)
        return whole[random.choice(len(whole), min(count, len(whole)), replace=False)]

    def enumerate(self, limit):
        whole = np.stack(np.unravel_index(np.arange(self.size), SIDES), axis=1).astype(np.int32)
        return whole if len(whole) <= limit else None

    def estimate(self, points):
        off = np.abs(np.asarray(points)[:, 0] - self.best[0])
        return self.scale * 900.0 * np.exp(0.12 * off)

    def features(self, points):
        logs = np.log(np.maximum(self.estimate(points), 1.0))[:, None]
        return np.concatenate([logs, points], axis=1).astype(np.float32)

    def kinds(self, points):
        return np.zeros(len(points), int)

    def mutate(self, points, random):
        made = points.copy()
        axis = random.integers(0, 3, len(points))
        rows = np.arange(len(points))
        made[rows, axis] = (made[rows, axis] + 1) % np.array(SIDES)[axis]
        return made

    def crossover(self, first, second, random):
        return np.where(random.random(first.shape) < 0.5, first, second)

    def choice(self, points, row):
        return "grid " + " ".join(map(str, points[row].tolist()))

    def point(self, choice):
        return np.array([list(map(int, choice.split()[1:]))], np.int32)

    def default(self):
        return np.array([[self.best[0], 7, 0]], np.int32)


class FakeLab:
    """Times that are true up to noise; some choices are planted to fail."""

    build_s = 0.0

    def __init__(
        self,
        tasks,
        *,
        noise=0.01,
        seed=0,
        broken=lambda choice: "",
        in_model=1.0,
        slow_compiled=(),
    ):
        self.slow_compiled = slow_compiled  # tasks whose choices cost twenty times as much there
        self.tasks = {task.name: task for task in tasks}
        self.noise, self.random = noise, np.random.default_rng(seed)
        self.broken, self.in_model = broken, in_model
        self.incumbents = {name: Candidate(name, ()) for name in self.tasks}
        self.checked = []
        self.interrupt_after = None
        self.known = {}

    def ns(self, candidate):
        if candidate not in self.known:
            self.known[candidate] = self._true_ns(candidate)
        return self.known[candidate]

    def _true_ns(self, candidate):
        task = self.tasks[candidate.task]
        chosen = dict(candidate.choices)
        total = 0.0
        for space in task.spaces:
            point = space.point(chosen[space.name]) if space.name in chosen else space.default()
            total += float(space.true_ns(point)[0])
        return total

    def _time(self, candidate):
        return self.ns(candidate) * (1.0 + self.noise * abs(self.random.standard_normal()))

    def check(self, candidates, seconds):
        for each in candidates:
            self.checked.append(each)
            if self.interrupt_after is not None and len(self.checked) > self.interrupt_after:
                raise KeyboardInterrupt
            yield each, next((e for _, c in each.choices if (e := self.broken(c))), "")

    def race(self, wave, pairs):
        found = {}
        for task, candidate in wave.items():
            times = [
                (self._time(self.incumbents[task]), self._time(candidate)) for _ in range(pairs)
            ]
            found[task] = Paired(*map(tuple, zip(*times, strict=True)))
        return found

    def adopt(self, candidate):
        self.incumbents[candidate.task] = candidate

    def compare(self, pairs):
        by_task = {}
        for name, candidate in self.incumbents.items():
            times = [
                (self._time(Candidate(name, ())), self._time(candidate) * self.in_model)
                for _ in range(pairs)
            ]
            by_task[name] = Paired(*map(tuple, zip(*times, strict=True)))
        first = tuple(map(sum, zip(*(each.first for each in by_task.values()), strict=True)))
        second = tuple(map(sum, zip(*(each.second for each in by_task.values()), strict=True)))
        return [Paired(first, second)], by_task

    def whole(self, chosen, pairs, seconds):
        self.compared = [*getattr(self, "compared", []), sorted(chosen)]
        first, second = [], []
        for _ in range(pairs):
            first.append(sum(self._time(Candidate(name, ())) for name in self.tasks))
            times = {name: self._time(chosen.get(name, Candidate(name, ()))) for name in self.tasks}
            for name in set(self.slow_compiled) & set(chosen):
                times[name] *= 20.0
            second.append(sum(times.values()))
        return [Paired(tuple(first), tuple(second))]


def task(name="matmul", spaces=None, floor=500.0):
    spaces = spaces or (GridSpace(),)
    ns = sum(float(space.true_ns(space.default())[0]) for space in spaces)
    return Task(name, name, TaskKey(f"graph @{name}", "cpu", 2), lambda: spaces, ns, floor)


class Clock:
    """Time that passes by as it is looked at."""

    def __init__(self, step=0.05):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def rows(points):
    return {tuple(row) for row in unique_rows(points).tolist()}
