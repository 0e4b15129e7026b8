"""Activation functions, decomposed to arithmetic, which fusion combines again."""

from __future__ import annotations

import math

from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.tensors import reshape
from tilewright.graph import Value


def _below_zero(node: Context, x: Value, negative: Value) -> Value:
    """x, or another value where x is negative."""
    return node.emit("where", node.emit("less", x, 0.0), negative, x)


def leaky_relu(node: Context, x: Value, alpha: float = 0.01) -> Value:
    return _below_zero(node, x, node.emit("mul", x, alpha))


def _prelu(node: Context) -> Value:
    slope = node[1]
    if node.opset < 7 and node.rank(1) == 1:  # before broadcasting: one slope per channel
        slope = reshape(node, slope, -1, *[1] * (node.rank() - 2))
    return _below_zero(node, node[0], node.emit("mul", node[0], slope))


def elu(node: Context, x: Value, alpha: float = 1.0) -> Value:
    return _below_zero(node, x, node.emit("mul", node.emit("expm1", x), alpha))


def _selu(node: Context) -> Value:
    alpha = node.attr("alpha", 1.67326319217681884765625)
    gamma = node.attr("gamma", 1.05070102214813232421875)
    below = node.emit("mul", node.emit("expm1", node[0]), alpha)
    return node.emit("mul", _below_zero(node, node[0], below), gamma)


def _celu(node: Context) -> Value:
    x, alpha = node[0], node.attr("alpha", 1.0)
    below = node.emit("mul", node.emit("expm1", node.emit("div", x, alpha)), alpha)
    return _below_zero(node, x, below)


def gelu(node: Context, x: Value, *, tanh: bool = False) -> Value:
    """GELU: x times the normal distribution function of x, or its tanh approximation."""
    if not tanh:
        normal = node.emit("erf", node.emit("mul", x, math.sqrt(0.5)))
    else:
        cube = node.emit("mul", node.emit("mul", x, x), x)
        inner = node.emit("add", x, node.emit("mul", cube, 0.044715))
        normal = node.emit("tanh", node.emit("mul", inner, math.sqrt(2 / math.pi)))
    return node.emit("mul", node.emit("mul", x, 0.5), node.emit("add", normal, 1.0))


def hard_sigmoid(node: Context, x: Value, alpha: float = 0.2, beta: float = 0.5) -> Value:
    line = node.emit("add", node.emit("mul", x, alpha), beta)
    return node.emit("clip", line, node.like(x, 0.0), node.like(x, 1.0))


def hard_swish(node: Context, x: Value) -> Value:
    return node.emit("mul", x, hard_sigmoid(node, x, 1 / 6))


def swish(node: Context, x: Value, alpha: float = 1.0) -> Value:
    """x * sigmoid(alpha * x)."""
    scaled = x if alpha == 1.0 else node.emit("mul", x, alpha)
    return node.emit("mul", x, node.emit("sigmoid", scaled))


def softplus(node: Context, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which does not overflow."""
    tail = node.emit("log1p", node.emit("exp", node.emit("neg", node.emit("abs", x))))
    return node.emit("add", node.emit("relu", x), tail)


def _softsign(node: Context) -> Value:
    return node.emit("div", node[0], node.emit("add", node.emit("abs", node[0]), 1.0))


def _thresholded_relu(node: Context) -> Value:
    x = node[0]
    above = node.emit("greater", x, node.attr("alpha", 1.0))
    return node.emit("where", above, x, node.like(x, 0.0))


def _shrink(node: Context) -> Value:
    x, bias, limit = node[0], node.attr("bias", 0.0), node.attr("lambd", 0.5)
    above = node.emit("greater", x, limit)
    kept = node.emit("where", above, node.emit("sub", x, bias), node.like(x, 0.0))
    return node.emit("where", node.emit("less", x, -limit), node.emit("add", x, bias), kept)


RULES: dict[str, Rule] = {
    "LeakyRelu": lambda node: leaky_relu(node, node[0], node.attr("alpha", 0.01)),
    "PRelu": _prelu,
    "Elu": lambda node: elu(node, node[0], node.attr("alpha", 1.0)),
    "Selu": _selu,
    "Celu": _celu,
    "Gelu": lambda node: gelu(node, node[0], tanh=node.attr("approximate", "none") == "tanh"),
    "HardSigmoid": lambda node: hard_sigmoid(
        node, node[0], node.attr("alpha", 0.2), node.attr("beta", 0.5)
    ),
    "HardSwish": lambda node: hard_swish(node, node[0]),
    "Mish": lambda node: node.emit("mul", node[0], node.emit("tanh", softplus(node, node[0]))),
    "Swish": lambda node: swish(node, node[0], node.attr("alpha", 1.0)),
    "Softplus": lambda node: softplus(node, node[0]),
    "Softsign": _softsign,
    "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink,
}
