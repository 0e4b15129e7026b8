"""Post-processing of scores in classifiers and regressors of ai.onnx.ml."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontends.onnx.rules.base import Context, Skip
from tilewright.graph import Value

Array = np.ndarray[Any, Any]


def as_rows(node: Context, x: Value) -> Value:
    """The input [rows, features]; a vector becomes one row."""
    return node.unsqueeze(x, 0) if x.tensor.rank == 1 else x


def transformed(node: Context, scores: Value, how: str) -> Value:
    """Scores [rows, targets] after a transform."""
    match how:
        case "NONE":
            return scores
        case "LOGISTIC":
            return node.emit("sigmoid", scores)
        case "SOFTMAX":
            return node.emit("softmax", scores, axes=(1,))
        case "SOFTMAX_ZERO":
            return _softmax_zero(node, scores)
        case "PROBIT":
            return _probit(node, scores)
    raise Skip(f"{node.op_type} with the transform {how}")


def _softmax_zero(node: Context, scores: Value) -> Value:
    """Softmax of the nonzero scores; zeros stay zero."""
    most = node.emit("reduce_max", scores, axes=(1,), keepdims=True)
    powers = node.emit("exp", node.emit("sub", scores, most))
    used = node.emit("greater", node.emit("abs", scores), 1e-7)
    kept = node.emit("where", used, powers, node.like(scores, 0.0))
    return node.emit("div", kept, node.emit("reduce_sum", kept, axes=(1,), keepdims=True))


def _probit(node: Context, p: Value) -> Value:
    """The normal quantile, sqrt(2) * erfinv(2p - 1), by Winitzki's approximation."""
    x = node.emit("sub", node.emit("mul", p, 2.0), 1.0)
    square = node.emit("sub", node.like(p, 1.0), node.emit("mul", x, x))
    log = node.emit("log", square)
    a = node.emit("add", node.emit("mul", log, 0.5), 2 / (math.pi * 0.147))
    b = node.emit("mul", log, 1 / 0.147)
    root = node.emit("sqrt", node.emit("sub", node.emit("mul", a, a), b))
    size = node.emit("sqrt", node.emit("sub", root, a))
    signed = node.emit("where", node.emit("less", x, 0.0), node.emit("neg", size), size)
    return node.emit("mul", signed, math.sqrt(2.0))


def labels_of(node: Context, *names: str) -> Array:
    """The class labels, integers or strings."""
    for name in names:
        found = node.attr(name)
        if found is not None and len(found):
            return np.asarray(found, object if isinstance(found[0], str) else np.int64)
    raise Skip(f"{node.op_type} without class labels")


def pick_labels(node: Context, scores: Value, labels: Array) -> Value:
    """The label of the largest score in each row."""
    best = node.emit("arg_max", scores, axis=1, keepdims=False)
    return node.emit("gather", node.constant(labels), best, axis=0)


def binary_scores(
    node: Context, score: Value, labels: Array, how: str, *, positive: bool, rest: bool
) -> tuple[Value, Value]:
    """Labels and both scores of two classes, from one score [rows, 1] of the second.

    If all weights are positive, the score is a probability, with threshold one half; otherwise the
    threshold is zero. The first class gets the `rest` up to 1, or the negated score.
    """
    if how == "PROBIT":
        raise Skip(f"{node.op_type} of two classes with the transform PROBIT")
    second = node.emit("greater", score, 0.5 if positive else 0.0)
    names = (node.constant(label) for label in (labels[1:2].reshape(()), labels[:1].reshape(())))
    chosen = node.reshape(node.emit("where", second, *names), node.dims(score)[:1])
    if rest and how != "LOGISTIC":
        other = node.emit("sub", node.like(score, 1.0), score)
    else:
        other = node.emit("neg", score)
    pair = node.emit("concat", other, score, axis=1)
    return chosen, node.emit("sigmoid", pair) if how == "LOGISTIC" else pair
