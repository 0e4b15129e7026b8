"""A Gaussian process in NumPy: no extra dependency, sample-efficient, with uncertainty."""

from __future__ import annotations

import numpy as np

from tilewright.tune.cost.model import Array, Guess

MAX_TRIALS = 400  # the newest trials to fit
CHUNK_ROWS = 1 << 14
NOISE = 0.02  # standard deviation of a measurement's logarithm
LEAST_SPREAD = 0.05  # of corrections, until there are enough trials to estimate it


class GaussianProcess:
    """A smooth function of the features, with the trials' variance around 0 as its prior."""

    name = "gaussian process"

    def __init__(self) -> None:
        self._known: tuple[Array, Array, Array] | None = None  # scaled rows, weights, inverse
        self._centre = self._scale = np.zeros(0)
        self._mean, self._length, self._variance = 0.0, 1.0, LEAST_SPREAD**2

    def fit(self, features: Array, log_ratio: Array) -> None:
        if not len(log_ratio):
            self._known = None
            return
        rows = np.asarray(features[-MAX_TRIALS:], np.float64)
        values = np.asarray(log_ratio[-MAX_TRIALS:], np.float64)
        self._centre, spread = rows.mean(axis=0), rows.std(axis=0)
        self._scale = np.where(spread > 1e-6, spread, 1.0)
        scaled = (rows - self._centre) / self._scale
        self._mean = float(np.median(values))
        self._variance = max(float(values.var()), LEAST_SPREAD**2)
        distance = _squared(scaled, scaled)
        off = distance[np.triu_indices(len(rows), 1)]
        self._length = float(np.sqrt(np.median(off[off > 0]))) if (off > 0).any() else 1.0
        covariance = self._kernel(distance)
        noise = NOISE**2 + 0.02 * self._variance
        inverse = np.linalg.inv(covariance + noise * np.eye(len(rows)))
        self._known = scaled, inverse @ (values - self._mean), inverse

    def _kernel(self, distance: Array) -> Array:
        """Half of the variance has a short length scale, half a long one: structures differ more
        than sizes."""
        near = np.exp(-2.0 * distance / self._length**2)
        far = np.exp(-0.5 * distance / self._length**2)
        made: Array = self._variance * (near + far) / 2
        return made

    def predict(self, features: Array) -> Guess:
        count = len(features)
        mean, deviation = np.zeros(count), np.full(count, np.sqrt(self._variance))
        if self._known is None:
            return Guess(mean, np.zeros(count))
        known, weights, inverse = self._known
        for start in range(0, count, CHUNK_ROWS):
            some = slice(start, start + CHUNK_ROWS)
            scaled = (np.asarray(features[some], np.float64) - self._centre) / self._scale
            cross = self._kernel(_squared(scaled, known))
            mean[some] = self._mean + cross @ weights
            left = self._variance - ((cross @ inverse) * cross).sum(axis=1)
            deviation[some] = np.sqrt(np.maximum(left, 0.0))
        return Guess(mean, deviation)


def _squared(a: Array, b: Array) -> Array:
    """Squared distances between rows."""
    apart: Array = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    return np.maximum(apart, 0.0)
