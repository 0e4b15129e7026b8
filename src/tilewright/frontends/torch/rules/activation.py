"""Activations and softmax."""

from __future__ import annotations

import math

from tilewright.base.dtype import F32, DType
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.graph import Value


def gelu(node: Context) -> Value:
    """x * Phi(x), with the cumulative normal distribution Phi, or its approximation by tanh."""
    x = node["self"]
    if node.get("approximate", "none") == "tanh":
        cube = node.emit("mul", node.emit("mul", x, x), x)
        inner = node.emit("add", x, node.emit("mul", cube, 0.044715))
        share = node.emit("tanh", node.emit("mul", inner, math.sqrt(2 / math.pi)))
    else:
        share = node.emit("erf", node.emit("mul", x, math.sqrt(0.5)))
    return node.emit("mul", node.emit("mul", x, 0.5), node.emit("add", share, 1.0))


def _silu(node: Context) -> Value:
    return node.emit("mul", node["self"], node.emit("sigmoid", node["self"]))


def _elu(node: Context) -> Value:
    """scale * x above zero, below alpha * scale * (exp(x * input_scale) - 1)."""
    x, scale = node["self"], float(node.get("scale", 1))
    inner = node.emit("mul", node.emit("minimum", x, 0.0), float(node.get("input_scale", 1)))
    below = node.emit("mul", node.emit("expm1", inner), float(node.get("alpha", 1)) * scale)
    return node.emit("where", node.emit("greater", x, 0.0), node.emit("mul", x, scale), below)


def _leaky_relu(node: Context) -> Value:
    x = node["self"]
    slope = float(node.get("negative_slope", 0.01))
    return node.emit("where", node.emit("greater", x, 0.0), x, node.emit("mul", x, slope))


def _hardtanh(node: Context) -> Value:
    x = node["self"]
    low, high = node.get("min_val", -1), node.get("max_val", 1)
    return node.emit("minimum", node.emit("maximum", x, low), high)


def _hardsigmoid(node: Context) -> Value:
    return _ramp(node, node["self"])


def _ramp(node: Context, x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    moved = node.emit("add", x, 3.0)
    return node.emit("div", node.emit("minimum", node.emit("maximum", moved, 0.0), 6.0), 6.0)


def _hardswish(node: Context) -> Value:
    return node.emit("mul", node["self"], _ramp(node, node["self"]))


def _softmax(op: str) -> Rule:
    """Softmax along one axis, computed in f32 for narrower types; a scalar counts as one axis."""

    def rule(node: Context) -> Value:
        x = _computed(node, node["self"])
        dims = node.shape(x)
        if not dims:
            made = node.emit(op, node.reshape(x, (1,)), axes=(0,))
            return node.cast(node.reshape(made, ()), node.to)
        return node.cast(node.emit(op, x, axes=(node.dim(),)), node.to)

    return rule


def _computed(node: Context, x: Value) -> Value:
    """x in the type that softmax computes in: that of the result if it is wider."""
    to: DType = node.to
    return node.cast(x, to) if to is F32 and x.tensor.dtype is not F32 else x


def _prelu(node: Context) -> Value:
    x, weight = node["self"], node["weight"]
    return node.emit("where", node.emit("greater", x, 0.0), x, node.emit("mul", x, weight))


def _softmax_backward(node: Context) -> Value:
    """y * (g - sum(g * y))."""
    g, y, axis = (
        node["grad_output"],
        node["output"],
        node.axis(node.args["dim"], node.rank("output")),
    )
    product = node.emit("mul", g, y)
    if not node.rank("output"):
        return node.emit("sub", product, node.emit("mul", y, product))
    total = node.emit("reduce_sum", product, axes=(axis,), keepdims=True)
    return node.cast(node.emit("sub", product, node.emit("mul", y, total)), node.to)


def _log_softmax_backward(node: Context) -> Value:
    """g - exp(y) * sum(g)."""
    g, y, axis = (
        node["grad_output"],
        node["output"],
        node.axis(node.args["dim"], node.rank("output")),
    )
    total = node.emit("reduce_sum", g, axes=(axis,), keepdims=True) if node.rank("output") else g
    return node.cast(node.emit("sub", g, node.emit("mul", node.emit("exp", y), total)), node.to)


RULES: dict[str, Rule] = {
    "aten.gelu": gelu,
    "aten.silu": _silu,
    "aten.elu": _elu,
    "aten.leaky_relu": _leaky_relu,
    "aten.hardtanh": _hardtanh,
    "aten.hardsigmoid": _hardsigmoid,
    "aten.hardswish": _hardswish,
    "aten._prelu_kernel": _prelu,
    "aten._softmax": _softmax("softmax"),
    "aten._log_softmax": _softmax("log_softmax"),
    "aten._softmax_backward_data": _softmax_backward,
    "aten._log_softmax_backward_data": _log_softmax_backward,
}
