"""The task scheduler: spends trials on kernels with a large share of time, far from their roofline.

    room = share of the time x (1 - share of the roofline) x hope left by recent trials

The roofline comes from the machine model, which may be wrong: no kernel counts as perfect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEAST_ROOM = 0.1  # of a kernel's time, however close to the roofline
PATIENCE = 0.9  # decay of hope per trial without a win, at first
ENOUGH = 0.01  # room, as a share of the model's time, below which tuning stops


@dataclass
class Progress:
    """The state of one task."""

    name: str  # of the task
    label: str
    baseline_ns: float  # of all its calls in one run of the model, untuned
    floor_ns: float  # lower bound by the machine model
    best_ns: float = 0.0
    weight: float = 1.0  # of its nanoseconds relative to other tasks
    flops: int = 0
    size_bytes: int = 0
    trials: int = 0  # candidates with a known outcome
    failed: int = 0  # of these
    wins: int = 0
    hope: float = 1.0
    exhausted: bool = False
    history: list[tuple[float, float]] = field(default_factory=list)  # seconds, best_ns

    def __post_init__(self) -> None:
        self.best_ns = self.best_ns or self.baseline_ns

    @property
    def gain(self) -> float:
        return self.baseline_ns / self.best_ns if self.best_ns else 1.0

    @property
    def room_ns(self) -> float:
        """The possible gain, weighted."""
        if self.exhausted:
            return 0.0
        share = min(self.floor_ns / self.best_ns, 1.0) if self.best_ns else 1.0
        return self.weight * self.best_ns * max(1.0 - share, LEAST_ROOM) * self.hope

    def tried(self, count: int, won: bool) -> None:
        """Record a finished batch."""
        self.hope = hope_after(self.hope, count, won)


def hope_after(hope: float, count: int, won: bool) -> float:
    """The hope left after a batch of trials."""
    return min(1.0, hope * 1.5) if won else hope * PATIENCE ** min(count, 4)


def left(tasks: Sequence[Progress], whole_ns: float) -> float:
    """The share of a model's time that may still be gained."""
    return sum(each.room_ns for each in tasks) / whole_ns if whole_ns else 0.0


def is_enough(tasks: Sequence[Progress], whole_ns: float) -> bool:
    return left(tasks, whole_ns) < ENOUGH


def allot(
    tasks: Sequence[Progress], count: int, least: int = 1, most: int = 0
) -> Mapping[str, int]:
    """The number of candidates of a round per task, in proportion to its room; at most `most` if
    that is not 0.

    Tasks with less than one candidate's worth get none this time: their room stays, while that of
    others shrinks as they are tried.
    """
    rooms = {each.name: each.room_ns for each in tasks if each.room_ns > 0}
    total = sum(rooms.values())
    given: dict[str, int] = {}
    spent = 0
    for name, room in sorted(rooms.items(), key=lambda pair: -pair[1]):
        if spent >= count:
            break
        part = min(max(least, round(count * room / total)), count - spent, most or count)
        given[name] = part
        spent += part
    return given
