"""The progress of tuning and its result, as carried by a compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.tune.record import Winner
from tilewright.tune.tasks import Progress

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Snapshot:
    """How tuning stands: what is shown while it goes on.

    Examples:
        >>> from tilewright.tune import Snapshot
        >>> now = Snapshot(12.0, 60.0, "searching", tasks=(), left=0.2)
        >>> f"{now.stage}: {now.seconds:.0f} of {now.budget_s:.0f} s"
        'searching: 12 of 60 s'
    """

    seconds: float
    budget_s: float
    stage: str
    tasks: Sequence[Progress]
    left: float  # share of the model's time that may be left to gain


@dataclass(frozen=True)
class Outcome:
    """What tuning came to: `model.tuning` of a model compiled with `tune=`.

    Examples:
        >>> from tilewright.tune import Outcome
        >>> outcome = Outcome(1.07, 1.05, {}, (), 60.0, 310, 4, "trees", "time is up")
        >>> f"{outcome.gain:.2f}x after {outcome.trials} candidates"
        '1.07x after 310 candidates'
    """

    gain: float  # untuned by tuned time of the whole model, in turns
    least_gain: float  # with 95% confidence
    winners: Mapping[str, Winner]  # by task
    tasks: Sequence[Progress]
    seconds: float
    trials: int
    failed: int
    model: str  # the cost model in use
    stopped: str  # why it ended
    notes: Sequence[str] = ()
    curve: Sequence[tuple[float, float]] = ()  # seconds, and the gain of all kernels by then
    graph_gain: float = 1.0  # the part of the gain that choices of the graph have


def interrupted(notes: Sequence[str]) -> Outcome:
    """What tuning came to where it was ended before any candidate was tried."""
    return Outcome(1.0, 1.0, {}, (), 0.0, 0, 0, "", INTERRUPTED, notes)
