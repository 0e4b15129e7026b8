"""Whether one program is faster than another: interleaved pairs, and order statistics.

Run times are not normally distributed: a few take long for unrelated reasons. So nothing here is a
mean: the median of the ratios of adjacent runs, with distribution-free confidence bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

CONFIDENCE = 0.95
WORTH = 1.02  # the gain a candidate needs
LEAST_PAIRS = 5  # fewer are never significant at 95%


@dataclass(frozen=True)
class Paired:
    """Times of two interleaved programs: how much faster the second is."""

    first: tuple[float, ...]
    second: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.first) == len(self.second)

    @property
    def ratios(self) -> list[float]:
        return sorted(a / b for a, b in zip(self.first, self.second, strict=True) if b > 0)

    @property
    def gain(self) -> float:
        """The median of the first's time over the second's."""
        return median(self.ratios) if self.ratios else 1.0

    @property
    def least_gain(self) -> float:
        """The lower bound of the gain at 95% confidence; 0 with too few pairs."""
        at = bound_index(len(self.ratios))
        return self.ratios[at] if at is not None else 0.0

    @property
    def most_gain(self) -> float:
        """The upper bound of the gain at 95% confidence."""
        at = bound_index(len(self.ratios))
        return self.ratios[-1 - at] if at is not None else math.inf

    @property
    def is_win(self) -> bool:
        """At least 2% at the median, and faster with 95% confidence."""
        return bool(self.gain >= WORTH and self.least_gain > 1.0)

    @property
    def is_loss(self) -> bool:
        """Slower, with 95% confidence."""
        return bool(self.most_gain < 1.0)

    def __add__(self, other: Paired) -> Paired:
        return Paired(self.first + other.first, self.second + other.second)


def bound_index(count: int, confidence: float = CONFIDENCE) -> int | None:
    """The index of the sorted value that is below the true median with this confidence.

    The k-th smallest is above the median if fewer than k values fall below it: a binomial tail.
    """
    tail, found = 0.0, None
    for k in range(count):
        tail += math.comb(count, k) * 0.5**count
        if tail > 1.0 - confidence:
            break
        found = k
    return found


def is_no_slower(gains: Sequence[float]) -> bool:
    """Whether a program compared several times (rebuilt, or at other sizes) is no slower: on
    average by more than the spread of its gains, and at none by more than two wins make up for. A
    single comparison has no spread: it must be a win."""
    if len(gains) < 2:
        return bool(gains) and gains[0] >= WORTH
    if min(gains) < 1.0 / WORTH**2:
        return False
    logs = [math.log(gain) for gain in gains]
    return fmean(logs) >= stdev(logs) / math.sqrt(len(logs))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0
