"""Gradient-boosted trees (xgboost): a bootstrap ensemble gives the uncertainty."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.tune.cost.model import Array, Guess

BAGS = 3
ROUNDS = 30
REGRESSION, RANK = "reg:squarederror", "rank:pairwise"
PARAMETERS = {"max_depth": 5, "eta": 0.25, "min_child_weight": 1, "subsample": 0.9, "nthread": 1}


def is_installed() -> bool:
    return importlib.util.find_spec("xgboost") is not None


class Trees:
    """Learns log(measured / estimated), or only which of two points is faster.

    Ranking starts from the estimate's order (the first feature is its logarithm), so that either
    objective gives a correction of the estimate.
    """

    def __init__(self, objective: str = REGRESSION, seed: int = 0) -> None:
        if not is_installed():
            raise UserError(
                "TW5006",
                "boosted trees need xgboost, which is not installed",
                help="pip install 'tilewright[tune]', or leave the model to be chosen",
            )
        import xgboost

        self._xgboost = xgboost
        self.objective, self.seed = objective, seed
        self.name = "boosted trees" if objective == REGRESSION else "ranking trees"
        self._boosters: list[Any] = []

    def fit(self, features: Array, log_ratio: Array) -> None:
        random = np.random.default_rng(self.seed)
        count = len(log_ratio)
        self._boosters = []
        for bag in range(BAGS if count else 0):
            rows = np.arange(count) if bag == 0 else random.integers(0, count, count)
            data = self._data(features[rows], log_ratio[rows])
            given = {**PARAMETERS, "objective": self.objective, "seed": self.seed + bag}
            self._boosters.append(self._xgboost.train(given, data, ROUNDS))

    def _data(self, features: Array, log_ratio: Array) -> Any:
        if self.objective == REGRESSION:
            return self._xgboost.DMatrix(features, label=log_ratio, base_margin=0 * log_ratio)
        measured = log_ratio + features[:, 0]
        order = np.empty(len(measured))
        order[np.argsort(-measured, kind="stable")] = np.arange(len(measured))
        relevance = np.floor(order * 31 / max(1, len(order)))
        data = self._xgboost.DMatrix(features, label=relevance, base_margin=-features[:, 0])
        data.set_group([len(measured)])
        return data

    def predict(self, features: Array) -> Guess:
        if not self._boosters:
            zeros = np.zeros(len(features))
            return Guess(zeros, zeros)
        data = self._xgboost.DMatrix(features, base_margin=np.zeros(len(features), np.float32))
        told = np.stack([each.predict(data, output_margin=True) for each in self._boosters])
        sign = 1.0 if self.objective == REGRESSION else -1.0
        return Guess(sign * told.mean(axis=0), told.std(axis=0))
