"""Optimizer steps: new values of tensors and of their optimizer states."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.graph import Value


def _groups(node: Context, kinds: int) -> list[list[Value]]:
    """The inputs after rate and count, by tensor: [value, gradient, states...]."""
    count = (len(node.inputs) - 2) // kinds
    return [[node[2 + at + kind * count] for kind in range(kinds)] for at in range(count)]


def _in_order(rows: Sequence[tuple[Value, ...]]) -> list[Value]:
    """All new values, then all first states, and so on."""
    return [value for column in zip(*rows, strict=True) for value in column]


def _regularized(node: Context, x: Value, gradient: Value) -> Value:
    coefficient = node.attr("norm_coefficient", 0.0)
    return node.emit("add", node.emit("mul", x, coefficient), gradient)


def _square(node: Context, x: Value) -> Value:
    return node.emit("mul", x, x)


def _mix(node: Context, old: Value, new: Value, keep: float) -> Value:
    return node.emit("add", node.emit("mul", old, keep), node.emit("mul", new, 1 - keep))


def _momentum(node: Context) -> list[Value]:
    rate, started = node[0], node.emit("greater", node[1], 0)
    alpha, beta = node.attr("alpha"), node.attr("beta")
    rows = []
    for x, gradient, speed in _groups(node, 3):
        force = _regularized(node, x, gradient)
        share = node.emit("where", started, node.like(x, beta), node.like(x, 1.0))
        new = node.emit("add", node.emit("mul", speed, alpha), node.emit("mul", force, share))
        step = new
        if node.attr("mode") == "nesterov":
            step = node.emit("add", force, node.emit("mul", new, alpha))
        rows.append((node.emit("sub", x, node.emit("mul", step, rate)), new))
    return _in_order(rows)


def _adagrad(node: Context) -> list[Value]:
    count = node.emit("cast", node[1], to=node[0].tensor.dtype)
    slower = node.emit("add", node.emit("mul", count, node.attr("decay_factor", 0.0)), 1.0)
    rate = node.emit("div", node[0], slower)
    rows = []
    for x, gradient, squares in _groups(node, 3):
        force = _regularized(node, x, gradient)
        total = node.emit("add", squares, _square(node, force))
        root = node.emit("add", node.emit("sqrt", total), node.attr("epsilon", 1e-6))
        step = node.emit("div", node.emit("mul", force, rate), root)
        rows.append((node.emit("sub", x, step), total))
    return _in_order(rows)


def _adam(node: Context) -> list[Value]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    of = node[0].tensor.dtype
    count = node.emit("cast", node[1], to=of)
    started = node.emit("greater", node[1], 0)
    unbiased = [
        node.emit("sub", node.like(node[0], 1.0), node.emit("pow", node.like(count, base), count))
        for base in (beta, alpha)
    ]
    warm = node.emit("mul", node[0], node.emit("sqrt", unbiased[0]))
    rate = node.emit("where", started, node.emit("div", warm, unbiased[1]), node[0])
    kept = 1 - node.attr("norm_coefficient_post", 0.0)
    rows = []
    for x, gradient, mean, squares in _groups(node, 4):
        force = _regularized(node, x, gradient)
        mean = _mix(node, mean, force, alpha)
        squares = _mix(node, squares, _square(node, force), beta)
        root = node.emit("add", node.emit("sqrt", squares), node.attr("epsilon", 1e-6))
        step = node.emit("div", node.emit("mul", mean, rate), root)
        rows.append((node.emit("mul", node.emit("sub", x, step), kept), mean, squares))
    return _in_order(rows)


RULES: dict[str, Rule] = {"Momentum": _momentum, "Adagrad": _adagrad, "Adam": _adam}
