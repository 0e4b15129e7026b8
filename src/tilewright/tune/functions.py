"""Tune one tensor function: sketches or a template, measured by workers.

    found = tune_function(te.function([A, B, C]), "cpu", threads=2, budget=Budget(minutes=3))
    run = tw.build(found.schedule.function)
    found.gain, found.choice

Rounds of proposing, measuring and learning, as `Tuner` does for models: the rules' schedule is the
first incumbent, every candidate is checked against the unscheduled program and timed interleaved
with the incumbent, and a winner is confirmed by another race. Failures cost one trial.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.base.errors import UserError, summary_of
from tilewright.base.target import CPU, Target
from tilewright.codegen.build import can_run
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule
from tilewright.tune.budget import Budget
from tilewright.tune.cost.choose import with_transfer
from tilewright.tune.database import Records
from tilewright.tune.fleet.pool import Fleet, Pipe, Result
from tilewright.tune.record import TaskKey, Trial
from tilewright.tune.search import View, strategy
from tilewright.tune.sketch.space import SketchSpace
from tilewright.tune.space import TuneSpace
from tilewright.tune.stats import Paired

BATCH = 8  # candidates per worker and round
PAIRS, CONFIRM_PAIRS = 4, 12
MEASURE_S = 0.6  # timing of a candidate, at most
PROMISING = 1.01
LEASE_S = 90.0
OTHER_TRIALS = 3000
FIRST_S = 1.5  # assumed cost of a candidate, before the first round


class FunctionSpace(TuneSpace, Protocol):
    """A space whose points are schedules of a function."""

    @property
    def function(self) -> Function: ...

    def schedule(self, choice: str) -> Schedule: ...


@dataclass(frozen=True)
class Measured:
    """One point, with its time relative to the incumbent of that moment."""

    choice: str
    ns: float  # corrected for drift of the machine's speed
    seconds: float  # since tuning began
    error: str = ""


@dataclass(frozen=True)
class TunedFunction:
    """What was found.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> x = te.placeholder((8,), name="x")
        >>> y = te.compute((8,), lambda i: x[i] * 2.0, name="y")
        >>> schedule = tw.Schedule(te.function([x, y], name="f"))
        >>> found = tw.tune.TunedFunction("rules", schedule, 1.0, 90.0, (), 2.5, "gaussian")
        >>> run = tw.build(found.schedule.function)
    """

    choice: str
    schedule: Schedule
    gain: float  # over the default, measured interleaved
    ns: float
    trials: Sequence[Measured]
    seconds: float
    model: str

    @property
    def curve(self) -> list[tuple[int, float]]:
        """After so many measurements, the best time."""
        best, found = math.inf, []
        for count, trial in enumerate(self.trials, 1):
            if not trial.error and trial.ns < best:
                best = trial.ns
                found.append((count, best))
        return found


def local_fleet(workers: int = 1, *, lease_s: float = LEASE_S) -> Fleet:
    """Workers on this machine."""
    source = str(Path(__file__).parents[2])
    paths = [source, os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, "-m", "tilewright.tune.fleet.worker"]
    pipes = [Pipe(command, name="local", environment=environment) for _ in range(workers)]
    return Fleet(pipes, lease_s=lease_s)


def tune_function(
    what: Function | FunctionSpace,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    budget: Budget | None = None,
    trials: int = 0,
    fleet: Fleet | None = None,
    records: Records | None = None,
    model: str = "",
    search: str = "ranked",
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    report: Callable[[Measured], None] = lambda measured: None,
) -> TunedFunction:
    """The best schedule found within a budget, or so many trials.

    `what` is a function, of which sketches are tuned, or a space such as a template's. Without a
    fleet there is one worker on this machine.

    Examples:
        >>> from tilewright import te
        >>> from tilewright.tune import tune_function
        >>> x = te.placeholder((64, 48), name="x")
        >>> k = te.reduce_axis((0, 48), name="k")
        >>> y = te.compute((64,), lambda i: te.max(x[i, k] * x[i, k], axis=k), name="y")
        >>> found = tune_function(te.function([x, y], name="largest"), trials=2)
        >>> found.gain >= 1.0
        True
    """
    chosen = Target.parse(target)
    check_measurable(chosen, is_here=fleet is None)
    space: FunctionSpace = (
        SketchSpace(what, chosen, threads=threads) if isinstance(what, Function) else what
    )
    own = fleet is None
    pool = local_fleet() if fleet is None else fleet
    limit = Budget(minutes=3) if budget is None and not trials else budget
    try:
        return _Tuning(
            space, chosen, threads, pool, records, model, search, seed, dict(sizes or {}), report
        ).run(limit.seconds if limit is not None else math.inf, trials)
    finally:
        if own:
            pool.close()


def check_measurable(target: Target, *, is_here: bool) -> None:
    """Check that workers can time the target: on this machine, only what runs here."""
    if target.kind != CPU or (is_here and not can_run(target)):
        raise UserError(
            "TW5010",
            f"a function for {target} cannot be tuned here: its schedules cannot be timed",
            help="tune it for a CPU, with a fleet where that is another one",
        )


class _Tuning:
    """One function being tuned."""

    def __init__(
        self,
        space: FunctionSpace,
        target: Target,
        threads: int,
        fleet: Fleet,
        records: Records | None,
        model: str,
        search: str,
        seed: int,
        sizes: dict[str, int],
        report: Callable[[Measured], None],
    ) -> None:
        self._space, self._target, self._threads, self._fleet = space, target, threads, fleet
        self._records, self._sizes, self._report = records, sizes, report
        self._text = str(space.function)
        self._key = TaskKey(self._text, target.key, threads)
        others = [] if records is None else records.query(target.key)
        known = [line for line in others if line.key != self._key][-OTHER_TRIALS:]
        chosen = with_transfer(model, space.feature_names, known)
        self._view = View(space, chosen, np.random.default_rng(seed))
        self._search = strategy(search)
        self._begin = time.monotonic()
        default = space.default()
        self._default = space.choice(default, 0)
        self._view.mark(default)
        self._best, self._best_ns = self._default, 0.0
        self._first_ns = 0.0
        self._traces: dict[str, str] = {}
        self._trials: list[Measured] = []
        self._each_s = FIRST_S

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def run(self, seconds: float, trials: int) -> TunedFunction:
        """Rounds, until the time or the trials are spent."""
        self._measure_default()
        while True:
            count = self._affordable(seconds, trials)
            points = self._search.propose(self._view, count) if count > 0 else None
            if points is None or not len(points):
                break
            begin = self._seconds
            self._view.mark(points)
            choices = [self._space.choice(points, row) for row in range(len(points))]
            promising = self._round(choices, min(LEASE_S, max(5.0, seconds - self._seconds)))
            if promising is not None:
                self._confirm(promising)
            self._learn()
            self._each_s = (self._seconds - begin) / len(points)
        gain = self._first_ns / self._best_ns if self._best_ns else 1.0
        return TunedFunction(
            self._best,
            self._space.schedule(self._best),
            gain,
            self._best_ns,
            tuple(self._trials),
            self._seconds,
            self._view.model.name,
        )

    def _affordable(self, seconds: float, trials: int) -> int:
        """The number of candidates there is time for, by the cost of those of the last round.

        The first round has one per worker: the default may be slow, and everything is timed
        interleaved with it.
        """
        left = trials - len(self._trials) if trials else sys.maxsize
        spare = seconds - self._seconds
        if math.isfinite(spare):
            left = min(left, int(spare / self._each_s))
        batch = BATCH if len(self._trials) > 1 else 1
        return min(batch * len(self._fleet.workers), left)

    def _measure_default(self) -> None:
        (result,) = self._fleet.submit([self._message(self._default, "", PAIRS)])
        ns = [] if result.error else result.value["ns"]
        self._first_ns = self._best_ns = float(np.median(ns)) if ns else 0.0
        self._keep(Measured(self._default, self._best_ns, self._seconds, result.error))
        if not ns:
            self._best_ns = math.inf  # anything that runs is better

    def _round(self, choices: Sequence[str], lease_s: float) -> str | None:
        """Measure candidates beside the incumbent; the one that looks best, if it looks better."""
        against = self._best if math.isfinite(self._best_ns) else ""
        messages, asked = [], []
        for choice in choices:
            try:
                messages.append({**self._message(choice, against, PAIRS), "lease_s": lease_s})
                asked.append(choice)
            except ValueError as error:  # a schedule error: an invalid point
                self._keep(Measured(choice, 0.0, self._seconds, summary_of(error)))
        best: tuple[float, str | None] = (PROMISING, None)
        for result in self._fleet.submit(messages):
            choice, gain = asked[result.task], self._told(asked[result.task], result)
            if gain > best[0]:
                best = (gain, choice)
        return best[1]

    def _told(self, choice: str, result: Result) -> float:
        """Record a worker's result; returns the gain over the incumbent."""
        if result.error:
            self._keep(Measured(choice, 0.0, self._seconds, result.error))
            return 0.0
        first, second = result.value["ns"], result.value["against"]
        if not second:
            ns = float(np.median(first))
            if ns < self._best_ns:
                self._best, self._best_ns = choice, ns
                self._first_ns = self._first_ns or ns
            self._keep(Measured(choice, ns, self._seconds))
            return 0.0
        gain = Paired(tuple(second), tuple(first)).gain
        self._keep(Measured(choice, self._best_ns / gain, self._seconds))
        return gain

    def _confirm(self, choice: str) -> None:
        """Race a promising candidate again; a winner becomes the incumbent."""
        (result,) = self._fleet.submit([self._message(choice, self._best, CONFIRM_PAIRS)])
        if result.error:
            return
        pair = Paired(tuple(result.value["against"]), tuple(result.value["ns"]))
        if pair.is_win:
            self._best_ns /= pair.gain
            self._best = choice

    def _message(self, choice: str, against: str, pairs: int) -> dict[str, object]:
        return {
            "kind": "measure",
            "function": self._text,
            "target": str(self._target),
            "threads": self._threads,
            "sizes": self._sizes,
            "trace": self._trace(choice),
            "against": self._trace(against) if against else "",
            "pairs": pairs,
            "seconds": MEASURE_S * pairs / PAIRS,
            "lease_s": LEASE_S,
        }

    def _trace(self, choice: str) -> str:
        if choice not in self._traces:
            if len(self._traces) > 4 * BATCH * len(self._fleet.workers):
                self._traces.clear()
            self._traces[choice] = str(self._space.schedule(choice).trace)
        return self._traces[choice]

    def _keep(self, measured: Measured) -> None:
        self._trials.append(measured)
        self._report(measured)
        if self._records is None:
            return
        point = self._space.point(measured.choice)
        assert point is not None
        features = () if measured.error else tuple(self._space.features(point)[0].tolist())
        trial = Trial(
            self._space.name,
            measured.choice,
            measured.ns,
            self._best_ns if math.isfinite(self._best_ns) else 0.0,
            float(self._space.estimate(point)[0]),
            measured.error,
            features,
            self._space.feature_names if features else (),
        )
        self._records.add(self._key, trial)

    def _learn(self) -> None:
        good = [each for each in self._trials if not each.error and each.ns > 0]
        rows = [self._space.point(each.choice) for each in good]
        points = [row for row in rows if row is not None]
        if points:
            logs = np.log([each.ns for each in good])
            self._view.fit(np.concatenate(points), logs)
