"""Records: tasks, trials, winners and times, as plain data and JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tilewright.base.version import VERSION

TRIAL, WINNER, TIME = "trial", "winner", "time"  # kinds of lines
INTEGERS = 1 << 63  # SQLite's are less


@dataclass(frozen=True)
class TaskKey:
    """What was tuned: two tasks are one where all of this is equal, character by character.

    Examples:
        >>> from tilewright.tune import TaskKey
        >>> one = TaskKey("the text of a kernel", "cpu", threads=1)
        >>> one.digest == TaskKey("the text of a kernel", "cpu", threads=2).digest
        False
    """

    text: str  # canonical text of the kernel, and of what is constant
    target: str  # Target.key
    threads: int
    version: str = VERSION  # of the compiler

    @property
    def digest(self) -> str:
        """A short name; equal tasks have equal ones, others nearly always another."""
        whole = f"{self.version}\n{self.target}\n{self.threads}\n{self.text}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trial:
    """One candidate: a time, or why there is none.

    Examples:
        >>> from tilewright.tune import Trial
        >>> trial = Trial("C", "gemm mr=6 nr=3", ns=1200.0, incumbent_ns=1500.0)
        >>> trial.incumbent_ns / trial.ns
        1.25
    """

    space: str  # the space of the choice
    choice: str
    ns: float = 0.0  # measured
    incumbent_ns: float = 0.0  # of the incumbent then, measured interleaved
    estimate_ns: float = 0.0
    error: str = ""
    features: tuple[float, ...] = ()
    names: tuple[str, ...] = ()  # of the features


@dataclass(frozen=True)
class Variant:
    """Choices for some sizes: where one of the task's sizes is at most `most`."""

    size: int  # index of the size
    most: int
    choices: Mapping[str, str]  # by space; none: the default


@dataclass(frozen=True)
class Winner:
    """The choices that a task is compiled with from now on; none: the default is best.

    With variants, the first whose sizes fit is taken, and `choices` where none does.

    Examples:
        >>> from tilewright.tune import Winner
        >>> Winner({"C": "gemm mr=6 nr=3"}, gain=1.2).choices["C"]
        'gemm mr=6 nr=3'
    """

    choices: Mapping[str, str]  # by space
    gain: float  # untuned time by tuned time
    label: str = ""
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True)
class Time:
    """What one call of a task takes in place, as it is compiled from now on."""

    ns: float


Record = Trial | Winner | Time
KINDS: Mapping[str, type[Trial] | type[Winner] | type[Time]] = {
    TRIAL: Trial,
    WINNER: Winner,
    TIME: Time,
}


@dataclass(frozen=True)
class Line:
    """One record as JSON: a task with a trial, a winner or a time."""

    key: TaskKey
    record: Record

    def told(self) -> dict[str, Any]:
        kind = next(name for name, each in KINDS.items() if isinstance(self.record, each))
        return {"kind": kind, **asdict(self.key), **asdict(self.record)}

    @staticmethod
    def parse(told: Mapping[str, Any]) -> tuple[Line, int] | None:
        """A record, and the number of unknown fields; None where it is no record."""
        kind = KINDS.get(str(told.get("kind")))
        if kind is None:
            return None
        of_key = {each.name for each in fields(TaskKey)}
        of_record = {each.name for each in fields(kind)}
        given = {name: value for name, value in told.items() if name in of_record}
        try:
            for name in ("features", "names"):
                if name in given:
                    given[name] = tuple(given[name])
            if "variants" in given:
                given["variants"] = tuple(Variant(**each) for each in given["variants"])
            key = TaskKey(**{name: told[name] for name in of_key})
            record = kind(**given)
        except (KeyError, TypeError):
            return None
        if not _is_sound(key, record):
            return None
        return Line(key, record), len(set(told) - of_key - of_record - {"kind"})


def _is_sound(key: TaskKey, record: Record) -> bool:
    """Whether the values have the right types: a file may hold anything."""
    texts: list[object] = [key.text, key.target, key.version]
    numbers: list[object]
    if isinstance(record, Trial):
        texts += [record.space, record.choice, record.error, *record.names]
        numbers = [record.ns, record.incumbent_ns, record.estimate_ns, *record.features]
    elif isinstance(record, Time):
        numbers = [record.ns]
    else:
        texts += [record.label]
        numbers = [record.gain]
        for given in (record.choices, *(each.choices for each in record.variants)):
            choices: object = given
            if not isinstance(choices, Mapping):
                return False
            texts += [*choices, *choices.values()]
        if not all(type(n) is int for each in record.variants for n in (each.size, each.most)):
            return False
    return (
        type(key.threads) is int
        and abs(key.threads) < INTEGERS
        and all(map(_is_text, texts))
        and all(map(_is_number, numbers))
    )


def _is_text(value: object) -> bool:
    """Whether a value is text that can be stored: JSON may escape half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_number(value: object) -> bool:
    """Whether a value is a number that can be stored: SQLite has no NaN, and bounds integers."""
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and abs(value) < INTEGERS
