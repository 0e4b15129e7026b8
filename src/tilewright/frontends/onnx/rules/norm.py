"""Normalization."""

from __future__ import annotations

from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.graph import Value
from tilewright.graph.ops.windows import as_number


def _axis(node: Context, default: int) -> int:
    """The attribute `axis`, counted from the front."""
    rank = node.rank()
    axis = int(node.attr("axis", default))
    return axis + rank if axis < 0 else axis


def _along(op: str) -> Rule:
    """Along one axis; before opset 13, along all from `axis` on as if they were one."""

    def rule(node: Context) -> Value:
        if node.opset >= 13:
            axes: tuple[int, ...] = (_axis(node, -1),)
        else:
            axes = tuple(range(_axis(node, 1), node.rank()))
        return node.emit(op, node[0], axes=axes)

    return rule


def _layer_norm(node: Context) -> tuple[Value, ...]:
    return node.emit_many(
        "layer_norm",
        node[0],
        node[1],
        node.get(2),
        outputs=max(1, node.outputs),
        axis=_axis(node, -1),
        epsilon=node.attr("epsilon", 1e-5),
    )


def _rms_norm(node: Context) -> Value:
    epsilon = node.attr("epsilon", 1e-5)
    return node.emit("rms_norm", node[0], node[1], axis=_axis(node, -1), epsilon=epsilon)


def _instance_norm(node: Context) -> Value:
    shape = node[0].tensor.shape
    if shape is None:
        raise Skip("InstanceNormalization on a tensor of unknown rank")
    groups = as_number(shape[1])
    epsilon = node.attr("epsilon", 1e-5)
    return node.emit("group_norm", *node.inputs, groups=groups, epsilon=epsilon)


def _batch_norm(node: Context) -> Value:
    epsilon = node.attr("epsilon", 1e-5)
    if node.attr("training_mode", 0) or any(map(node.wants, range(1, 5))):
        raise Skip("BatchNormalization in training mode")
    x, scale, bias, mean, variance = (node[at] for at in range(5))
    if node.attr("spatial", 1):
        return node.emit("batch_norm", x, scale, bias, mean, variance, epsilon=epsilon)
    # Before opset 9: statistics for each element of an image.
    deviation = node.emit("sqrt", node.emit("add", variance, epsilon))
    centred = node.emit("div", node.emit("sub", x, mean), deviation)
    return node.emit("add", node.emit("mul", centred, scale), bias)


def _lrn(node: Context) -> Value:
    return node.emit(
        "lrn",
        node[0],
        size=node.attr("size"),
        alpha=node.attr("alpha", 1e-4),
        beta=node.attr("beta", 0.75),
        bias=node.attr("bias", 1.0),
    )


RULES: dict[str, Rule] = {
    "Softmax": _along("softmax"),
    "LogSoftmax": _along("log_softmax"),
    "Hardmax": _along("hardmax"),
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "BatchNormalization": _batch_norm,
    "LRN": _lrn,
}
