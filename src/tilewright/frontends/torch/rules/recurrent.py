"""Recurrent layers: the input projection as a GEMM, each direction separately.

PyTorch orders the gates of an LSTM as input, forget, cell, output and those of a GRU as reset,
update, new; the graph IR, like ONNX, as input, output, forget, cell and update, reset, new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.sym import ONE

_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def _reordered(node: Context, w: Value, kind: str) -> Value:
    """Rows of gates in the graph IR's order."""
    order = _ORDER[kind]
    if len(order) == 1:
        return w
    hidden = int(w.tensor.static_shape[0]) // len(order)  # type: ignore[index]
    parts = [slice_axis(node, w, 0, at * hidden, (at + 1) * hidden) for at in order]
    return node.emit("concat", *parts, axis=0)


def _direction(
    node: Context,
    kind: str,
    x: Value,
    weights: Sequence[Value],
    states: Sequence[Value],
    *,
    reverse: bool,
    activations: tuple[str, ...],
) -> tuple[Value, ...]:
    """All states of one direction of one layer, and the last one."""
    w, r, *biases = (_reordered(node, each, kind) for each in weights)
    projected = node.emit("matmul", x, transpose(node, w, (1, 0)))
    late: Value | None = None
    if biases and kind == "gru":
        projected, late = node.emit("add", projected, biases[0]), biases[1]
    elif biases:
        projected = node.emit("add", projected, node.emit("add", *biases))
    common: dict[str, Any] = {
        "activations": tuple((name, 0.0, 0.0) for name in activations),
        "reverse": reverse,
    }
    if kind == "lstm":
        return node.emit_many("lstm", projected, r, None, *states, outputs=3, **common)
    if kind == "gru":
        return node.emit_many(
            "gru", projected, r, late, None, *states, outputs=2, linear_before_reset=True, **common
        )
    return node.emit_many("rnn", projected, r, None, *states, outputs=2, **common)


def _layers(kind: str, activations: tuple[str, ...]) -> Rule:
    def rule(node: Context) -> list[Value]:
        if node.args["train"] and node.args["dropout"]:
            raise Skip(f"{node.op_type} with dropout")
        x, by_batch = node["input"], bool(node.args["batch_first"])
        if by_batch:
            x = transpose(node, x, (1, 0, 2))
        params, states = list(node.args["params"]), node.args["hx"]
        states = list(states) if isinstance(states, (list, tuple)) else [states]
        directions = 2 if node.args["bidirectional"] else 1
        per = 4 if node.args["has_biases"] else 2
        if len(params) != per * directions * node.args["num_layers"]:
            raise Skip(f"{node.op_type} with projections")
        lasts: list[list[Value]] = [[] for _ in states]
        for layer in range(node.args["num_layers"]):
            outs = []
            for side in range(directions):
                at = layer * directions + side
                initial = [_item(node, state, at) for state in states]
                made = _direction(
                    node,
                    kind,
                    x,
                    params[at * per : (at + 1) * per],
                    initial,
                    reverse=side == 1,
                    activations=activations,
                )
                outs.append(made[0])
                for column, last in zip(lasts, made[1:], strict=True):
                    column.append(node.unsqueeze(last, 0))
            x = outs[0] if directions == 1 else node.emit("concat", *outs, axis=2)
        if by_batch:
            x = transpose(node, x, (1, 0, 2))
        return [x, *(_joined(node, column) for column in lasts)]

    return rule


def _item(node: Context, x: Value, at: int) -> Value:
    part = slice_axis(node, x, 0, at, at + 1)
    return node.reshape(part, node.shape(part)[1:])


def _joined(node: Context, parts: Sequence[Value]) -> Value:
    assert node.shape(parts[0])[0] is ONE
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=0)


_KINDS = {
    "lstm": _layers("lstm", ("sigmoid", "tanh", "tanh")),
    "gru": _layers("gru", ("sigmoid", "tanh")),
    "rnn_tanh": _layers("rnn", ("tanh",)),
    "rnn_relu": _layers("rnn", ("relu",)),
}
RULES: dict[str, Rule] = {
    **{f"aten.{kind}.input": rule for kind, rule in _KINDS.items()},
    **{f"tilewright.{kind}": rule for kind, rule in _KINDS.items()},  # under torch.compile
}
