"""The interface by which a tuner builds and runs candidates.

A lab knows the model; the tuner knows tasks, spaces and texts of choices. `check` builds candidates
and compares them with the reference in separate processes; `race` runs the whole model with one
candidate per task, interleaved with the incumbents, and times every kernel in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tilewright.tune.record import TaskKey
from tilewright.tune.space import TuneSpace
from tilewright.tune.stats import Paired


@dataclass(frozen=True)
class Task:
    """A kernel to tune: what it computes, and the spaces of its blocks."""

    name: str  # unique in its model
    label: str  # for display
    key: TaskKey
    span: Callable[[], Sequence[TuneSpace]] = field(compare=False)
    baseline_ns: float  # of all its calls in one run
    floor_ns: float  # lower bound by the machine model
    weight: float = 1.0  # of its nanoseconds relative to other tasks
    group: str = ""  # tasks of a group are one kernel at increasing sizes; "": none
    place: int = 0  # index in its group
    flops: int = 0  # of all its calls
    size_bytes: int = 0
    hints: Callable[[], Sequence[tuple[str, str]]] = field(default=tuple, compare=False)
    """Spaces and choices to try first: what is likely to be better than the default."""

    @cached_property
    def spaces(self) -> tuple[TuneSpace, ...]:
        """The spaces, created on first use: most of a model's kernels wait for long."""
        return tuple(self.span())


@dataclass(frozen=True)
class Candidate:
    """A task with its choices; other blocks are scheduled by rules."""

    task: str
    choices: tuple[tuple[str, str], ...]  # space and choice, by name

    @staticmethod
    def of(task: str, choices: Mapping[str, str]) -> Candidate:
        return Candidate(task, tuple(sorted(choices.items())))


class Lab(Protocol):
    """Builds, checks and times candidates of one model."""

    @property
    def build_s(self) -> float:
        """Seconds that it took to build the model, as far as known."""

    def check(
        self, candidates: Iterable[Candidate], seconds: float
    ) -> Iterator[tuple[Candidate, str]]:
        """Yield each candidate with what is wrong with it, or "", as it becomes known.

        Candidates are taken one by one: those known so far are built while the next are proposed.
        No candidate is started after so many seconds; those have no outcome.
        """

    def race(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        """Nanoseconds of each task, incumbent and candidate interleaved.

        Tasks missing from the answer could not be timed, because of their candidates.
        """

    def adopt(self, candidate: Candidate) -> None:
        """Make a candidate its task's incumbent."""

    def compare(self, pairs: int) -> tuple[Sequence[Paired], Mapping[str, Paired]]:
        """The whole model untuned and with the incumbents, interleaved, at each set of sizes; and
        by task."""

    def whole(
        self, chosen: Mapping[str, Candidate], pairs: int, seconds: float
    ) -> Sequence[Paired]:
        """The model compiled without tuning and with these choices, interleaved, at each set of
        sizes. Empty where it cannot be built, gives another answer, or takes too long."""
