"""Loss functions."""

from __future__ import annotations

from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.tensors import dims, reshape
from tilewright.graph import Value


def _likelihood(node: Context, logs: Value, target: Value, weight: Value | None) -> Value:
    """The weighted negative log-likelihood of each target's class; ignored targets give zero."""
    ignored = node.attr("ignore_index")
    counts: Value | None = None  # weight of each sample
    if ignored is not None:
        valid = node.emit("not_equal", target, ignored)
        target = node.emit("where", valid, target, node.like(target, 0))
    if weight is not None:
        counts = node.emit("gather", weight, target, axis=0)
    if ignored is not None:
        ones = counts if counts is not None else node.like(logs, 1.0)
        counts = node.emit("where", valid, ones, node.like(logs, 0.0))
    picked = node.emit("gather_elements", logs, node.unsqueeze(target, 1), axis=1)
    loss = node.emit("neg", reshape(node, picked, *dims(node, target)))
    if counts is not None:
        loss = node.emit("mul", loss, counts)
    reduction = node.attr("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction == "mean" and counts is None:
        return node.emit("reduce_mean", loss, keepdims=False)
    total = node.emit("reduce_sum", loss, keepdims=False)
    if reduction == "sum" or counts is None:
        return total
    return node.emit("div", total, node.emit("reduce_sum", counts, keepdims=False))


def _cross_entropy(node: Context) -> tuple[Value, Value]:
    logs = node.emit("log_softmax", node[0], axes=(1,))
    return _likelihood(node, logs, node[1], node.get(2)), logs


RULES: dict[str, Rule] = {
    "NegativeLogLikelihoodLoss": lambda node: _likelihood(node, node[0], node[1], node.get(2)),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
