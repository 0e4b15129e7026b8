"""Answers that turn on rounding: the model in float64, with noise where float32 would round.

A logarithm of what should be zero, a quotient of two rests: no two correct programs agree on these.
Such an output moves as far when every operator's result is disturbed by the little that rounding
may change it; one that does not move is held to the usual tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph import Module, Node
from tilewright.graph.interp import Interpreter
from tilewright.graph.op import BROADCAST, COMPLEX, ELEMENTWISE
from tilewright.graph.ops import OPS

TRIALS = 8
FACTOR = 8.0  # how much farther apart two answers may be than the trials are
# Whose terms may cancel: rounding is measured against the largest term, not against each result.
SUMS = {"reduce_sum", "reduce_mean", "avg_pool", "dft", "stft", "cumsum", "det", "log_softmax"}
SUMS |= {"layer_norm", "rms_norm", "group_norm", "rnn", "gru", "lstm", "resize", "grid_sample"}
EXACT = {"relu", "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "clip", "cast", "where"}
EXACT |= {"minimum", "maximum"}


class Noisy(Interpreter):
    """Runs a model with results that are off by up to a part of what they are."""

    def __init__(self, module: Module, part: float, seed: int) -> None:
        super().__init__(module)
        self.part = part
        self.random = np.random.default_rng(seed)

    def _node(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        results = super()._node(node, inputs)
        return tuple(self.disturbed(node.op, inputs[:1], made) for made in results)

    def disturbed(self, name: str, terms: list[Any], made: Any) -> Any:
        if not isinstance(made, np.ndarray) or made.dtype != np.float64 or name not in OPS:
            return made
        pattern = OPS[name].pattern
        if name in EXACT or not (pattern in (ELEMENTWISE, BROADCAST, COMPLEX) or name in SUMS):
            return made
        scale: Any = np.abs(made)
        if pattern == COMPLEX or name in SUMS:
            scale = max(map(largest, [made, *terms] if name in SUMS else [made]))
        noise = self.random.uniform(-self.part, self.part, made.shape)
        with np.errstate(all="ignore"):
            return np.where(np.isfinite(made), made + noise * scale, made)


def largest(array: Any) -> float:
    """The largest finite magnitude."""
    sizes = np.abs(np.asarray(array, np.float64))
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))


def moved_by_rounding(
    module: Module, feeds: list[Any], at: int, got: Any, want: Any, part: float
) -> Any:
    """Which elements of output `at` move about as far as two answers to it are apart."""
    runs = [Noisy(module, part, seed).run(module.main, feeds)[at] for seed in range(TRIALS)]
    trials = np.stack([np.asarray(run, np.float64) for run in runs])
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    with np.errstate(all="ignore"):
        spread = np.max(trials, axis=0) - np.min(trials, axis=0)
        finite = np.isfinite(trials)
        mixed = finite.any(axis=0) & ~finite.all(axis=0)  # now a number, now none
        return mixed | (np.abs(a - b) <= FACTOR * spread)
