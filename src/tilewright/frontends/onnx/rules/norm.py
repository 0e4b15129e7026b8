"""Normalization operators."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtype import F32, DType
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.tensors import dims, reshape
from tilewright.graph import Value
from tilewright.graph.ops.windows import as_number


def _axis(node: Context, default: int) -> int:
    """The attribute `axis`, normalized."""
    rank = node.rank()
    axis = int(node.attr("axis", default))
    return axis + rank if axis < 0 else axis


def _along(op: str) -> Rule:
    """Along one axis; before opset 13, along all axes from `axis` on together."""

    def rule(node: Context) -> Value:
        if node.opset >= 13:
            axes: tuple[int, ...] = (_axis(node, -1),)
        else:
            axes = tuple(range(_axis(node, 1), node.rank()))
        return node.emit(op, node[0], axes=axes)

    return rule


def _layer_norm(node: Context) -> tuple[Value, ...]:
    of = _wider(node)
    out, *others = node.emit_many(
        "layer_norm",
        *(None if x is None else node.cast(x, of) for x in (node[0], node[1], node.get(2))),
        outputs=max(1, node.outputs),
        axis=_axis(node, -1),
        epsilon=node.attr("epsilon", 1e-5),
    )
    return node.cast(out, node[1].tensor.dtype), *others


def _rms_norm(node: Context) -> Value:
    given = {"axis": _axis(node, -1), "epsilon": node.attr("epsilon", 1e-5)}
    x, scale = (node.cast(value, _wider(node)) for value in (node[0], node[1]))
    return node.cast(node.emit("rms_norm", x, scale, **given), node[1].tensor.dtype)


def _wider(node: Context) -> DType:
    """The wider of the types of input and scale, which before opset 17 may differ: results have the
    scale's type, which may be narrower than the input's."""
    x, scale = (node[at].tensor.dtype for at in (0, 1))
    return x if x.bits > scale.bits else scale


def _instance_norm(node: Context) -> Value:
    shape = node[0].tensor.shape
    if shape is None:
        raise Skip("InstanceNormalization on a tensor of unknown rank")
    groups = as_number(shape[1])
    epsilon = node.attr("epsilon", 1e-5)
    return node.emit("group_norm", *node.inputs, groups=groups, epsilon=epsilon)


def _batch_norm(node: Context) -> Value | Sequence[Value]:
    epsilon = node.attr("epsilon", 1e-5)
    if node.attr("training_mode", 0) or any(map(node.wants, range(1, 5))):
        return _trained_batch_norm(node)
    x, scale, bias, mean, variance = (node[at] for at in range(5))
    if node.attr("spatial", 1):
        return node.emit("batch_norm", x, scale, bias, mean, variance, epsilon=epsilon)
    # Before opset 9: statistics per element of an image.
    deviation = node.emit("sqrt", node.emit("add", variance, epsilon))
    centred = node.emit("div", node.emit("sub", x, mean), deviation)
    return node.emit("add", node.emit("mul", centred, scale), bias)


def _trained_batch_norm(node: Context) -> Sequence[Value]:
    """Use the batch's statistics, which also update the running ones."""
    x, scale, bias, mean, variance = (node[at] for at in range(5))
    axes = (0, *range(2, node.rank()))
    wide = x if x.tensor.dtype.bits >= 32 else node.emit("cast", x, to=F32)
    centre = node.emit("reduce_mean", wide, axes=axes, keepdims=True)
    centred = node.emit("sub", wide, centre)
    squares = node.emit("mul", centred, centred)
    current = [
        reshape(node, node.emit("reduce_mean", wide, axes=axes, keepdims=False), -1),
        reshape(node, node.emit("reduce_mean", squares, axes=axes, keepdims=False), -1),
    ]
    current = [node.emit("cast", value, to=mean.tensor.dtype) for value in current]
    out = node.emit("batch_norm", x, scale, bias, *current, epsilon=node.attr("epsilon", 1e-5))
    momentum = node.attr("momentum", 0.9)
    running = [
        node.emit("add", node.emit("mul", old, momentum), node.emit("mul", new, 1 - momentum))
        for old, new in zip((mean, variance), current, strict=True)
    ]
    return (out, *running, *current)


def _group_norm(node: Context) -> Value:
    x, scale, bias = (node[at] for at in range(3))
    groups, channels = node.attr("num_groups"), dims(node, x)[1]
    if node.opset < 21 and channels != groups:  # one value per group
        if not isinstance(channels, int):
            raise Skip("GroupNormalization with an unknown number of channels")
        shape = (groups, channels // groups)
        scale, bias = (
            reshape(node, node.emit("expand", node.unsqueeze(v, 1), shape=shape), channels)
            for v in (scale, bias)
        )
    epsilon = node.attr("epsilon", 1e-5)
    return node.emit("group_norm", x, scale, bias, groups=groups, epsilon=epsilon)


def _lp_normalization(node: Context) -> Value:
    """x divided by its norm along an axis; zero vectors stay zero."""
    x, axes = node[0], (_axis(node, -1),)
    if node.attr("p", 2) == 1:
        norm = node.emit("reduce_sum", node.emit("abs", x), axes=axes, keepdims=True)
    else:
        squares = node.emit("mul", x, x)
        norm = node.emit("sqrt", node.emit("reduce_sum", squares, axes=axes, keepdims=True))
    none = node.emit("equal", norm, 0.0)
    return node.emit("div", x, node.emit("where", none, node.like(x, 1.0), norm))


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
    "SimplifiedLayerNormalization": _rms_norm,  # ONNX Runtime's name before it was in ONNX
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "BatchNormalization": _batch_norm,
    "LpNormalization": _lp_normalization,
    "LRN": _lrn,
}
