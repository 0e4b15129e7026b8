"""The tuner: rounds of proposing, checking, racing and learning, until the time is up.

    outcome = Tuner(tasks, lab, records, Budget(minutes=5)).run()

In a round every task gets candidates by its room (`tasks.allot`). They are built and checked;
correct ones race in waves, one candidate per task at once, in place and interleaved with the
incumbents. The most promising one per task races again, and replaces the incumbent if it wins by
2% at 95% confidence. Tasks that are one kernel at several sizes agree on a few variants. At the end
the whole model is compared with the untuned one, first through the table of kernels, then as it
will be compiled; choices that do not help there are dropped before anything is stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.tune.budget import Budget
from tilewright.tune.cost.choose import choose, with_transfer
from tilewright.tune.database import Records
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.lab import Candidate, Lab, Task
from tilewright.tune.outcome import INTERRUPTED, Outcome, Snapshot
from tilewright.tune.record import Trial, Winner
from tilewright.tune.search import View, strategy
from tilewright.tune.space import Points
from tilewright.tune.stats import Paired, geometric_mean, is_no_slower
from tilewright.tune.tasks import Progress, allot, hope_after, is_enough, left
from tilewright.tune.variants import partition

FINAL_SHARE = 0.14  # of the budget, for final comparisons of the whole model,
COMPARED_BUILDS, MAX_FINAL_SHARE = 3, 0.5  # or the time of so many builds, up to a share
TABLE_SHARE = 0.3  # of that, through the table of kernels; the rest with compiled models
ROUND_SHARE, ROUND_S = 0.08, 8.0  # limits on building a round's candidates
LEAST_WIDTH, MAX_WIDTH = 8, 64  # candidates per round
BATCH = 6  # candidates per task and round, at most
LEAST_WAVES = 2  # of candidates of one task per round
FIRST_RATE = 3.0  # candidates checked per second, assumed for the first round
WAVE_S, LEAST_PAIRS, MAX_PAIRS = 0.25, 5, 15  # of a screening wave
CONFIRM = 2.5  # times as many pairs to confirm
PROMISING = 1.01  # gain worth a confirming race
FINAL_ROUNDS = 3
TABLE_PAIRS, COMPILED_PAIRS = 41, 301  # at most: phases of a machine last for seconds
OTHER_TRIALS = 3000  # of other tasks used for transfer
TINY = 1e-9


class _Open:
    """One space of a task: its measurements, and what to try next."""

    def __init__(self, task: Task, at: int, view: View, search: str) -> None:
        self.task, self.space, self.view = task, task.spaces[at], view
        self.search = strategy(search)
        default = self.space.default()
        self.default = self.space.choice(default, 0)
        self.default_ns = float(self.space.estimate(default)[0])  # of its block only; 0: unknown
        self.points: dict[str, tuple[Points, float]] = {}  # choice: point, ns of the kernel
        self.hope = 1.0
        self.exhausted = self.stale = False
        view.mark(default)

    def estimate_ns(self, choice: str) -> float:
        point = self.space.point(choice)
        return 0.0 if point is None else float(self.space.estimate(point)[0])

    def is_whole(self, chosen: Mapping[str, str]) -> bool:
        """Whether the choice here schedules the whole kernel."""
        choice = chosen.get(self.space.name, "")
        return isinstance(self.space, JoinedSpace) and self.space.is_whole(choice)

    def learn(self, choice: str, ns: float) -> None:
        point = self.space.point(choice)
        if point is not None and ns > 0:
            self.points[choice] = (point, ns)
            self.stale = True

    def is_new(self, choice: str) -> bool:
        """Whether a choice of another task is valid here, and untried."""
        point = self.space.point(choice)
        return point is not None and len(self.view.fresh(point)) > 0

    def mark(self, choice: str) -> None:
        """Mark a choice as tried."""
        point = self.space.point(choice)
        if point is not None:
            self.view.mark(point)

    def saved_elsewhere(self, ns: float) -> None:
        """Another block of the kernel got faster by so much: adjust the times of these choices."""
        self.points = {
            choice: (point, max(known - ns, TINY * known))
            for choice, (point, known) in self.points.items()
        }
        self.stale = bool(self.points)

    def refit(self) -> None:
        """Fit the model to the measurements so far."""
        if self.stale:
            self.stale = False
            rows = np.concatenate([point for point, _ in self.points.values()])
            self.view.fit(rows, np.log([ns for _, ns in self.points.values()]))

    def propose(self, count: int) -> list[str]:
        points = self.search.propose(self.view, count)
        self.view.mark(points)
        self.exhausted = len(points) < count
        return [self.space.choice(points, row) for row in range(len(points))]


@dataclass
class _State:
    """A task's state in the tuner."""

    task: Task
    progress: Progress
    spaces: list[_Open] | None = None  # None: not opened yet
    chosen: dict[str, str] = field(default_factory=dict)  # the incumbent's non-default choices
    # Hints of the task, winners elsewhere.
    hints: list[tuple[str, str]] = field(default_factory=list)

    def candidates(self, count: int) -> list[tuple[_Open, str]]:
        """Choices to try: the default rule's, winners at other sizes or of similar kernels, else of
        the space with the most to hope for."""
        spaces = self.spaces or []
        hints, self.hints = self.hints[:count], self.hints[count:]
        hinted = [
            (space, choice)
            for name, choice in hints
            for space in spaces
            if space.space.name == name and space.is_new(choice)
        ]
        for space, choice in hinted:
            space.mark(choice)
        if hinted:
            return hinted
        for space in self._by_room(spaces):
            found = space.propose(count)
            if found:
                return [(space, each) for each in found]
        self.progress.exhausted = True
        return []

    def _by_room(self, spaces: Sequence[_Open]) -> list[_Open]:
        """Spaces that are not exhausted, by their block's share of the time and remaining hope.

        A block without an estimate counts as average. Where the incumbent is a choice for the whole
        kernel, choices of other blocks have no effect.
        """
        spaces = [space for space in spaces if space.is_whole(self.chosen)] or spaces
        known = [space.default_ns for space in spaces if space.default_ns > 0]
        middle = sum(known) / len(known) if known else 1.0
        is_open = [space for space in spaces if not space.exhausted]
        return sorted(is_open, key=lambda each: -each.hope * (each.default_ns or middle))

    def candidate(self, space: _Open, choice: str) -> Candidate:
        """The incumbent with one choice replaced."""
        choices = {**self.chosen, space.space.name: choice}
        if choice == space.default:
            del choices[space.space.name]
        return Candidate.of(self.task.name, choices)


_Unit = list[_State]


class Tuner:
    """Tunes the tasks of one model."""

    def __init__(
        self,
        tasks: Sequence[Task],
        lab: Lab,
        records: Records,
        budget: Budget,
        *,
        model: str = "",
        search: str = "ranked",
        seed: int = 0,
        report: Callable[[Snapshot], None] = lambda snapshot: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lab, self.records, self.budget = lab, records, budget
        self._report, self._clock, self._begin = report, clock, clock()
        self._random = np.random.default_rng(seed)
        self._rate, self._patience_s = FIRST_RATE, 2 * ROUND_S
        self._curve: list[tuple[float, float]] = []
        self._run_s = sum(task.baseline_ns for task in tasks) / 1e9
        self._model, self._search = model, search
        self._model_name = choose(model).name
        self._others = records.query(tasks[0].key.target) if tasks else []
        self._states = [_State(task, _progress(task)) for task in tasks]
        self._doubtful: set[str] = set()  # tasks whose choices once lost in the compiled model

    def _opened(self, state: _State) -> list[_Open]:
        """The spaces of a task, created on first use, with their earlier trials."""
        if state.spaces is not None:
            return state.spaces
        task, state.spaces = state.task, []
        known = self.records.trials(task.key)
        elsewhere = [line for line in self._others if line.key != task.key][-OTHER_TRIALS:]
        for at, space in enumerate(task.spaces):
            chosen = with_transfer(self._model, space.feature_names, elsewhere)
            self._model_name = chosen.name
            made = _Open(task, at, View(space, chosen, self._random), self._search)
            for trial in (each for each in known if each.space == space.name):
                point = space.point(trial.choice)
                if point is not None:
                    made.view.mark(point)
                    made.learn(trial.choice, 0.0 if trial.error else trial.ns)
            made.learn(made.default, task.baseline_ns)
            made.refit()
            state.spaces.append(made)
        state.hints = [*task.hints(), *state.hints]
        return state.spaces

    # ------------------------------------------------------------------ main loop

    def run(self) -> Outcome:
        """Tune until the time is up, nothing is left to gain, or an interrupt."""
        stopped = "the time is up"
        try:
            self._resume()
            while self._time_left() > 0:
                if is_enough(self._progress, self._whole_ns):
                    stopped = "less than 1% is left to gain"
                    break
                if not self._round():
                    stopped = "every choice was tried"
                    break
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        notes: list[str] = []
        gain = least_gain = 1.0
        try:
            gain, least_gain = self._final()
        except KeyboardInterrupt:
            stopped = INTERRUPTED
            self._forget([unit for unit in self._units() if self._is_doubtful(unit)])
            kept = len(self._units())
            notes = [f"interrupted before all was compared: {kept} kernels are kept that won alone"]
        winners = self._keep()
        return Outcome(
            gain,
            least_gain,
            winners,
            self._progress,
            self._seconds,
            sum(each.trials for each in self._progress),
            sum(each.failed for each in self._progress),
            self._model_name,
            stopped,
            [*self.records.notes, *notes],
            self._curve,
        )

    @property
    def _seconds(self) -> float:
        return self._clock() - self._begin

    @property
    def _progress(self) -> list[Progress]:
        return [state.progress for state in self._states]

    @property
    def _whole_ns(self) -> float:
        return sum(each.weight * each.best_ns for each in self._progress)

    def _time_left(self) -> float:
        """Seconds until the final comparison must start."""
        return self.budget.seconds - self._final_s - self._seconds

    @property
    def _final_s(self) -> float:
        """Seconds reserved for the final comparisons."""
        share = COMPARED_BUILDS * self.lab.build_s / self.budget.seconds
        return self.budget.seconds * min(max(share, FINAL_SHARE), MAX_FINAL_SHARE)

    def _seconds_to_compare(self) -> float:
        """The rest of the budget; one comparison is always allowed."""
        least = 2 * (self.lab.build_s + LEAST_PAIRS * self._run_s)
        return max(self.budget.seconds - self._seconds, least)

    def _tell(self, stage: str) -> None:
        share = left(self._progress, self._whole_ns)
        before = sum(each.weight * each.baseline_ns for each in self._progress)
        self._curve.append((self._seconds, before / self._whole_ns if self._whole_ns else 1.0))
        self._report(Snapshot(self._seconds, self.budget.seconds, stage, self._progress, share))

    def _resume(self) -> None:
        """Try earlier winners first."""
        kept = self.records.winners([state.task.key for state in self._states])
        old = {}
        for state in self._states:
            winner = kept.get(state.task.key)
            if winner is None or not winner.choices:
                continue
            names = {each.space.name for each in self._opened(state)}
            if set(winner.choices) <= names:
                old[state.task.name] = Candidate.of(state.task.name, winner.choices)
        if not old:
            return
        self._tell("checking what was found before")
        good = {}
        for candidate, error in self.lab.check(list(old.values()), ROUND_S):
            if error:
                self.records.forget(self._state(candidate.task).task.key)
            else:
                good[candidate.task] = candidate
        for task, pair in self._raced(good, int(CONFIRM * self._pairs())).items() if good else ():
            if pair.gain >= 1.0:  # it has won before: now it only must not lose
                self._adopt(good[task], pair)
            else:
                self.records.forget(self._state(task).task.key)

    def _adopt(self, candidate: Candidate, pair: Paired) -> None:
        """Make a candidate its task's incumbent."""
        state = self._state(candidate.task)
        self.lab.adopt(candidate)
        before, state.chosen = state.chosen, dict(candidate.choices)
        saved = state.progress.best_ns * (1.0 - 1.0 / pair.gain)
        state.progress.best_ns -= saved
        for space in state.spaces or ():
            if before.get(space.space.name) == state.chosen.get(space.space.name):
                space.saved_elsewhere(saved)
        state.progress.wins += 1
        state.progress.history.append((self._seconds, state.progress.best_ns))
        for other in self._alike(state):
            other.hints.extend(pair for pair in candidate.choices if pair not in other.hints)

    def _alike(self, state: _State) -> list[_State]:
        """The same kernel at other sizes, and similar kernels."""
        label, group = state.task.label, state.task.group
        return [
            each
            for each in self._states
            if each is not state
            and (each.task.label == label or (group and each.task.group == group))
        ]

    # ------------------------------------------------------------------ a round

    def _round(self) -> bool:
        """One round; False if nothing is left to try."""
        proposed: dict[Candidate, tuple[_Open, str]] = {}
        self._tell("building and checking")
        good = self._checked(proposed)
        if not proposed:
            return self._time_left() <= 0  # opening spaces used up the time
        self._tell("timing in place")
        promising = self._screened(good)
        won = self._confirm(promising) if promising and self._time_left() > 0 else set()
        for name, spaces in _by_task(proposed).items():
            state = self._state(name)
            state.progress.tried(len(spaces), name in won)
            for space in dict.fromkeys(spaces):
                space.hope = hope_after(space.hope, spaces.count(space), name in won)
            for space in state.spaces or ():
                space.refit()
        self._tell("learning")
        return True

    def _state(self, name: str) -> _State:
        return next(each for each in self._states if each.task.name == name)

    def _proposals(
        self, proposed: dict[Candidate, tuple[_Open, str]], span: float
    ) -> Iterator[Candidate]:
        """The candidates of a round, by the room that tasks have, each added to `proposed` before
        the next is thought of."""
        width = int(min(MAX_WIDTH, max(LEAST_WIDTH, self._rate * span)))
        begin = self._clock()
        while not proposed:
            shares = allot(self._progress, width, most=self._most_waves(span))
            most = max(BATCH, width // max(1, len(shares)))
            for name, count in shares.items():
                if proposed and self._clock() - begin > span:
                    return  # opening spaces takes its time, too
                state = self._state(name)
                self._opened(state)
                if self._time_left() <= 0:
                    return
                for space, choice in state.candidates(min(count, most)):
                    candidate = state.candidate(space, choice)
                    proposed[candidate] = (space, choice)
                    yield candidate
            if is_enough(self._progress, self._whole_ns):
                return  # else: exhausted tasks leave their room to others

    def _most_waves(self, span: float) -> int:
        """The waves, one per candidate of a task, that take as long as building a round does:
        where a run of the model takes long, candidates are spread over more tasks."""
        wave_s = 2 * self._pairs() * self._run_s
        return max(LEAST_WAVES, int(span / max(wave_s, 1e-6)))

    def _checked(
        self, proposed: dict[Candidate, tuple[_Open, str]]
    ) -> dict[Candidate, tuple[_Open, str]]:
        """The candidates of a round that build and are correct; all of them are in `proposed`.

        Those of one task are built while the next are proposed. Failures are recorded.
        """
        begin, count = self._clock(), 0
        round_s = min(ROUND_S, ROUND_SHARE * self.budget.seconds, max(0.5, self._time_left()))
        span = max(1.0, min(self._patience_s + round_s, self._time_left()))
        good = {}
        for candidate, error in self.lab.check(self._proposals(proposed, round_s), span):
            space, choice = proposed[candidate]
            count += 1
            if not error:
                good[candidate] = (space, choice)
                continue
            self._count_failure(candidate.task)
            trial = Trial(space.space.name, choice, estimate_ns=space.estimate_ns(choice))
            self.records.add(space.task.key, replace(trial, error=error))
        spent = self._clock() - begin
        if not count:  # building references takes long, and is lost with the process
            self._patience_s *= 2
        if count and spent > 0:
            self._rate = 0.5 * self._rate + 0.5 * count / spent
        return good

    def _screened(self, good: Mapping[Candidate, tuple[_Open, str]]) -> dict[str, Candidate]:
        """Time all candidates in place, in waves; returns the most promising per task."""
        best: dict[str, tuple[float, Candidate]] = {}
        waiting: dict[str, list[Candidate]] = {}
        for candidate in good:
            waiting.setdefault(candidate.task, []).append(candidate)
        while waiting and self._time_left() > 0:
            wave = {task: some.pop(0) for task, some in waiting.items()}
            waiting = {task: some for task, some in waiting.items() if some}
            for task, pair in self._raced(wave, self._pairs()).items():
                candidate = wave[task]
                self._record(candidate, *good[candidate], pair)
                if pair.gain >= max(PROMISING, best.get(task, (0.0, candidate))[0]):
                    best[task] = (pair.gain, candidate)
        return {task: candidate for task, (_, candidate) in best.items()}

    def _pairs(self) -> int:
        """Pairs of runs per wave: more for fast models."""
        return int(min(MAX_PAIRS, max(LEAST_PAIRS, WAVE_S / max(2 * self._run_s, 1e-6))))

    def _raced(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        """Race a wave; candidates that could not be timed are recorded as failed."""
        begin = self._clock()
        found = self.lab.race(wave, pairs)
        self._run_s = (self._clock() - begin) / (2 * pairs)
        for task in wave:
            if task not in found:
                self._count_failure(task)
        return found

    def _count_failure(self, task: str) -> None:
        progress = self._state(task).progress
        progress.trials += 1
        progress.failed += 1

    def _record(self, candidate: Candidate, space: _Open, choice: str, pair: Paired) -> None:
        """Record a candidate's time, corrected for drift of the machine's speed."""
        progress = self._state(candidate.task).progress
        progress.trials += 1
        incumbent_ns = progress.best_ns
        ns = incumbent_ns / pair.gain
        space.learn(choice, ns)
        point = space.space.point(choice)
        features = () if point is None else tuple(space.space.features(point)[0].tolist())
        trial = Trial(
            space.space.name,
            choice,
            ns,
            incumbent_ns,
            space.estimate_ns(choice),
            "",
            features,
            space.space.feature_names if features else (),
        )
        self.records.add(space.task.key, trial)

    def _confirm(self, promising: Mapping[str, Candidate]) -> set[str]:
        """Race promising candidates again; winners become incumbents."""
        won: set[str] = set()
        if not promising:
            return won
        self._tell("confirming")
        for task, pair in self._raced(promising, int(CONFIRM * self._pairs())).items():
            if pair.is_win:
                self._adopt(promising[task], pair)
                won.add(task)
        return won

    # ------------------------------------------------------------------ final comparison

    def _final(self) -> tuple[float, float]:
        """Drop choices that do not help the whole model; returns the gain of the rest, and its
        lower bound."""
        self._agree()
        share = TABLE_SHARE * min(self._final_s, self._seconds_to_compare())
        for _ in range(FINAL_ROUNDS):
            units = self._units()
            if not units:
                return 1.0, 1.0
            self._tell("comparing the whole model")
            wholes, by_task = self.lab.compare(self._pairs_in(share / FINAL_ROUNDS, TABLE_PAIRS))
            idle = [each for each in units if not _helps(each, by_task)]
            if not idle and not any(whole.is_loss for whole in wholes):
                break
            self._drop(idle or units)
        self._tell("comparing the compiled model")
        deadline = self._clock() + self._seconds_to_compare()
        units = self._units()
        kept, gain = self._helping(units, deadline)
        gone = [unit for unit in units if unit not in kept]
        self._forget([unit for unit in gone if self._is_doubtful(unit)])
        self._reset(gone)
        return gain

    def _units(self) -> list[_Unit]:
        """Units to keep or drop together: a kernel's tasks that agreed on a candidate."""
        found: dict[tuple[str, str], _Unit] = {}
        for state in self._states:
            if state.chosen:
                name = (state.task.group or state.task.name, str(sorted(state.chosen.items())))
                found.setdefault(name, []).append(state)
        return list(found.values())

    def _pairs_in(self, seconds: float, most: int) -> int:
        """Pairs of runs of the whole model in so many seconds."""
        return int(min(most, max(LEAST_PAIRS, seconds / max(2 * self._run_s, 1e-6))))

    def _drop(self, units: Sequence[_Unit]) -> None:
        """Reset some tasks to the default, and remove their stored winners."""
        self._forget(units)
        self._reset(units)

    def _reset(self, units: Sequence[_Unit]) -> None:
        for state in (each for unit in units for each in unit):
            self._take_back(state)
            self.lab.adopt(Candidate(state.task.name, ()))

    def _forget(self, units: Sequence[_Unit]) -> None:
        """Remove stored winners that lost, in this run or an earlier one."""
        for state in (each for unit in units for each in unit):
            self.records.forget(state.task.key)
            self._take_back(state)

    @staticmethod
    def _take_back(state: _State) -> None:
        state.chosen = {}
        state.progress.best_ns = state.progress.baseline_ns

    def _is_doubtful(self, unit: _Unit) -> bool:
        """Whether choices have once lost in the compiled model."""
        return any(state.task.name in self._doubtful for state in unit)

    def _helping(
        self, units: list[_Unit], deadline: float
    ) -> tuple[list[_Unit], tuple[float, float]]:
        """The units that make the compiled model no slower, and their gain.

        All of them if they help together; else those of either half that do, by bisection. Without
        time to compare, nothing is kept.
        """
        if not units or self._clock() > deadline:
            return [], (1.0, 1.0)
        gains = self._compiled(units, deadline)
        if gains is not None:
            return units, gains
        middle = len(units) // 2
        if not middle:
            return [], (1.0, 1.0)
        halves = [self._helping(half, deadline) for half in (units[:middle], units[middle:])]
        if all(kept for kept, _ in halves):
            both = [unit for kept, _ in halves for unit in kept]
            gains = self._compiled(both, deadline) if len(both) < len(units) else None
            if gains is not None:
                return both, gains
        return max(halves, key=lambda half: half[1])

    def _compiled(self, units: Sequence[_Unit], deadline: float) -> tuple[float, float] | None:
        """The gain of the compiled model with some choices, and its lower bound; None where it may
        be slower."""
        left = max(0.0, deadline - self._clock())
        states = [state for unit in units for state in unit]
        chosen = {each.task.name: Candidate.of(each.task.name, each.chosen) for each in states}
        wholes = self.lab.whole(chosen, self._pairs_in(left / 3, COMPILED_PAIRS), left)
        if not is_no_slower([each.gain for each in wholes]):
            self._doubtful.update(chosen)
            return None
        self._doubtful.difference_update(chosen)
        return (
            geometric_mean([each.gain for each in wholes]),
            geometric_mean([max(each.least_gain, TINY) for each in wholes]),
        )

    # ------------------------------------------------------------------ variants

    def _agree(self) -> None:
        """Let tasks of one kernel agree on a few candidates, each timed at every size."""
        groups: dict[str, list[_State]] = {}
        for state in sorted(self._states, key=lambda each: each.task.place):
            if state.task.group:
                groups.setdefault(state.task.group, []).append(state)
        groups = {name: some for name, some in groups.items() if any(s.chosen for s in some)}
        if not groups:
            return
        self._tell("comparing variants")
        pools = {name: _pool(some) for name, some in groups.items()}
        times = {
            name: [[_known_ns(each, choices) for each in groups[name]] for choices in pool]
            for name, pool in pools.items()
        }
        for at in range(max(map(len, pools.values()))):
            wave = {
                state.task.name: Candidate.of(state.task.name, pools[name][at])
                for name, some in groups.items()
                if at < len(pools[name])
                for column, state in enumerate(some)
                if math.isinf(times[name][at][column])
            }
            found = self._raced(wave, self._pairs()) if wave else {}
            for name, some in groups.items():
                for column, state in enumerate(some):
                    pair = found.get(state.task.name)
                    if pair is not None:
                        times[name][at][column] = state.progress.best_ns / max(pair.gain, TINY)
        for name, some in groups.items():
            for column, (state, at) in enumerate(zip(some, partition(times[name]), strict=True)):
                if pools[name][at] != state.chosen:
                    self.lab.adopt(Candidate.of(state.task.name, pools[name][at]))
                    state.chosen = pools[name][at]
                    state.progress.best_ns = times[name][at][column]

    def _keep(self) -> dict[str, Winner]:
        """Store the winners."""
        kept = {}
        for state in self._states:
            if state.chosen:
                winner = Winner(state.chosen, state.progress.gain, state.task.label)
                self.records.keep(state.task.key, winner)
                kept[state.task.name] = winner
        return kept


def _progress(task: Task) -> Progress:
    return Progress(
        task.name,
        task.label,
        task.baseline_ns,
        task.floor_ns,
        weight=task.weight,
        flops=task.flops,
        size_bytes=task.size_bytes,
    )


def _pool(states: Sequence[_State]) -> list[dict[str, str]]:
    """The default and the distinct incumbents of some tasks."""
    found: list[dict[str, str]] = [{}]
    for state in states:
        if state.chosen not in found:
            found.append(state.chosen)
    return found


def _known_ns(state: _State, choices: Mapping[str, str]) -> float:
    """A task's time with its incumbent or the default; infinite if unknown."""
    if choices == state.chosen:
        return state.progress.best_ns
    return math.inf if choices else state.progress.baseline_ns


def _by_task(candidates: Mapping[Candidate, tuple[_Open, str]]) -> dict[str, list[_Open]]:
    """The space of every candidate, by task."""
    found: dict[str, list[_Open]] = {}
    for candidate, (space, _) in candidates.items():
        found.setdefault(candidate.task, []).append(space)
    return found


def _helps(unit: _Unit, by_task: Mapping[str, Paired]) -> bool:
    """Whether a unit is worth keeping: a gain over all sizes together, and no loss at any. Untimed
    units are not."""
    pairs = [by_task.get(state.task.name) for state in unit]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < len(pairs) or any(pair.is_loss for pair in found):
        return False
    return geometric_mean([max(pair.gain, TINY) for pair in found]) > 1.0
