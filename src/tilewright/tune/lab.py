"""What a tuner is handed to build and run candidates with.

A lab knows the model; the tuner knows tasks, spaces and texts of choices. `check` builds candidates
and compares them with the reference in processes of their own; `race` runs the whole model in turns
with one candidate of every task and with the incumbents, and times every kernel in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tilewright.tune.record import TaskKey
from tilewright.tune.space import TuneSpace
from tilewright.tune.stats import Paired


@dataclass(frozen=True)
class Task:
    """A kernel to tune: what it computes, and what can be decided about it, by block."""

    name: str  # unique in its model
    label: str  # what people call it
    key: TaskKey
    span: Callable[[], Sequence[TuneSpace]] = field(compare=False)
    baseline_ns: float  # of all its calls in one run
    floor_ns: float  # that they take at least, by the machine model
    weight: float = 1.0  # of its nanoseconds among those of all tasks
    group: str = ""  # tasks of one group are one kernel at sizes that grow; "": it is alone
    place: int = 0  # in its group
    flops: int = 0  # of all its calls
    size_bytes: int = 0
    hints: Callable[[], Sequence[tuple[str, str]]] = field(default=tuple, compare=False)
    """Spaces and choices to try first: what is likely to be better than the default."""

    @cached_property
    def spaces(self) -> tuple[TuneSpace, ...]:
        """Spanned when they are first asked for: most of a model's kernels wait for long."""
        return tuple(self.span())


@dataclass(frozen=True)
class Candidate:
    """A task with its choices; what is not chosen is as rules decide it."""

    task: str
    choices: tuple[tuple[str, str], ...]  # space and choice, by name

    @staticmethod
    def of(task: str, choices: Mapping[str, str]) -> Candidate:
        return Candidate(task, tuple(sorted(choices.items())))


class Lab(Protocol):
    """Builds, checks and times candidates of one model."""

    @property
    def build_s(self) -> float:
        """Seconds that it took to have the model ready, as far as it is known."""

    def check(
        self, candidates: Sequence[Candidate], seconds: float
    ) -> Iterator[tuple[Candidate, str]]:
        """Each candidate with what is wrong with it, "" where nothing is, as it becomes known.

        No candidate is begun after so many seconds; those that were not have no outcome.
        """

    def race(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        """Nanoseconds of each task: the incumbent's and the candidate's, in turns.

        Tasks that are missing in the answer could not be timed: their candidates are at fault.
        """

    def adopt(self, candidate: Candidate) -> None:
        """From now on this one is its task's incumbent."""

    def compare(self, pairs: int) -> tuple[Sequence[Paired], Mapping[str, Paired]]:
        """The whole model without tuning and with the incumbents, in turns, at each set of sizes;
        and by task."""

    def whole(
        self, chosen: Mapping[str, Candidate], pairs: int, seconds: float
    ) -> Sequence[Paired]:
        """The model as it is compiled without tuning and with these choices, in turns, at each set
        of sizes. Nothing where it cannot be, gives another answer, or takes longer than that."""
