"""Choice of the cost model, and transfer from other tasks.

model = choose("", names)      boosted trees where xgboost is installed, else a Gaussian process
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tilewright.base.errors import UserError
from tilewright.tune.cost.gaussian import GaussianProcess
from tilewright.tune.cost.model import Array, CostModel, EstimateAlone, Guess
from tilewright.tune.cost.trees import RANK, Trees, is_installed
from tilewright.tune.record import Line, Trial
from tilewright.tune.treegru import TreeGRU

MODELS: Mapping[str, Callable[[Sequence[str]], CostModel]] = {  # given the features' names
    "trees": lambda names: Trees(),
    "rank": lambda names: Trees(RANK),
    "gaussian": lambda names: GaussianProcess(),
    "treegru": TreeGRU,
    "estimate": lambda names: EstimateAlone(),
}
LEAST_TRANSFER = 16  # least trials of other tasks for transfer
MAX_TRANSFER = 4000


def choose(name: str = "", feature_names: Sequence[str] = ()) -> CostModel:
    """A model by name; without a name, the best that is installed."""
    name = name or ("trees" if is_installed() else "gaussian")
    if name not in MODELS:
        raise UserError(
            "TW5007", f"there is no cost model {name!r}", help=f"use {', '.join(MODELS)}"
        )
    return MODELS[name](feature_names)


class Layered:
    """A global model of other tasks, and a local one that learns the residual."""

    def __init__(self, overall: CostModel, local: CostModel) -> None:
        self._overall, self._local = overall, local
        self.name = f"{local.name} with transfer"

    def fit(self, features: Array, log_ratio: Array) -> None:
        known = self._overall.predict(features).mean if len(log_ratio) else log_ratio
        self._local.fit(features, log_ratio - known)

    def predict(self, features: Array) -> Guess:
        overall, local = self._overall.predict(features), self._local.predict(features)
        mean: Array = overall.mean + local.mean
        return Guess(mean, np.maximum(local.deviation, 0.5 * overall.deviation))


def with_transfer(name: str, feature_names: tuple[str, ...], others: Iterable[Line]) -> CostModel:
    """A model pretrained on other tasks' trials with the same features."""
    rows, ratios = transferred(feature_names, others)
    if len(ratios) < LEAST_TRANSFER:
        return choose(name, feature_names)
    overall = choose(name, feature_names)
    overall.fit(rows, ratios)
    return Layered(overall, choose(name, feature_names))


def transferred(feature_names: tuple[str, ...], others: Iterable[Line]) -> tuple[Array, Array]:
    """Features and corrections of other tasks' trials, in the columns of this one.

    Each task's corrections are relative to their median: a constant error of the estimate says
    nothing about the order of another task's points.
    """
    places = {name: at for at, name in enumerate(feature_names)}
    by_task: dict[object, list[tuple[Trial, list[int]]]] = {}
    for line in others:
        trial = line.record
        if not isinstance(trial, Trial) or trial.error or not (trial.ns and trial.estimate_ns):
            continue
        if len(trial.names) != len(trial.features):
            continue
        columns = [places.get(name, -1) for name in trial.names]
        if sum(at > 0 for at in columns):
            by_task.setdefault((line.key, trial.space), []).append((trial, columns))
    rows, ratios = [], []
    for trials in by_task.values():
        logs = [float(np.log(each.ns / each.estimate_ns)) for each, _ in trials]
        middle = float(np.median(logs))
        for (trial, columns), value in zip(trials, logs, strict=True):
            row = np.zeros(len(feature_names), np.float32)
            for at, number in zip(columns, trial.features, strict=True):
                if at >= 0:
                    row[at] = number
            rows.append(row)
            ratios.append(value - middle)
    if not rows:
        return np.zeros((0, len(feature_names)), np.float32), np.zeros(0)
    return np.stack(rows[-MAX_TRANSFER:]), np.array(ratios[-MAX_TRANSFER:])
