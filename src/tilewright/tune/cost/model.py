"""What a cost model is, and the one that has learned nothing.

    model.fit(features, log_ratio)          log(measured / estimated) of what was measured
    guess = model.predict(features)         its mean and uncertainty, for any number of points

A model corrects the estimate and never replaces it: with no trial yet every correction is 0, and
the order of points is the estimate's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Guess:
    """Of many points: the logarithm of measured over estimated, and one standard deviation."""

    mean: Array
    deviation: Array


class CostModel(Protocol):
    """Learns from features what the estimate does not know."""

    @property
    def name(self) -> str: ...

    def fit(self, features: Array, log_ratio: Array) -> None:
        """Learn from all that was measured; what was learned before is replaced."""

    def predict(self, features: Array) -> Guess:
        """The correction of each row."""


class EstimateAlone:
    """Trusts the analytical model."""

    name = "estimate"

    def fit(self, features: Array, log_ratio: Array) -> None:
        pass

    def predict(self, features: Array) -> Guess:
        zeros = np.zeros(len(features))
        return Guess(zeros, zeros)
