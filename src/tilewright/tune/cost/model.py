"""The interface of cost models, and the one that has learned nothing.

    model.fit(features, log_ratio)          log(measured / estimated) of the trials
    guess = model.predict(features)         its mean and uncertainty, for any number of points

A model corrects the estimate and never replaces it: without trials every correction is 0, and
points are ordered by the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Guess:
    """For many points: mean and standard deviation of log(measured / estimated)."""

    mean: Array
    deviation: Array


class CostModel(Protocol):
    """Learns corrections of the estimate from features."""

    @property
    def name(self) -> str: ...

    def fit(self, features: Array, log_ratio: Array) -> None:
        """Fit all trials, replacing what was learned before."""

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
