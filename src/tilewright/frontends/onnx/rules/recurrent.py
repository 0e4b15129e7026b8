"""Recurrent layers: the input projection as a GEMM, each direction separately."""

from __future__ import annotations

import re
from typing import Any, Protocol

from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.tensors import dims, item, part, stack, transpose
from tilewright.graph import Value
from tilewright.graph.ops.recurrent import ACTIVATIONS

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# Activations that take parameters from activation_alpha and activation_beta.
_TAKES_ALPHA = {"affine", "leaky_relu", "thresholded_relu", "scaled_tanh", "hard_sigmoid", "elu"}
_TAKES_BETA = {"affine", "scaled_tanh", "hard_sigmoid"}


class Weights(Protocol):
    """The weights of a layer, one direction at a time."""

    def projected(self, node: Context, x: Value, at: int) -> Value:
        """GEMM of x with the input weights."""

    def recurrent(self, node: Context, at: int) -> tuple[Value | None, ...]:
        """The operands of the state's GEMM."""


class Real:
    """Weights in ONNX's layout: rows of gates."""

    def projected(self, node: Context, x: Value, at: int) -> Value:
        return node.emit("matmul", x, transpose(node, item(node, node[1], at), 1, 0))

    def recurrent(self, node: Context, at: int) -> tuple[Value | None, ...]:
        return (item(node, node[2], at),)


REAL = Real()


def layer(node: Context, weights: Weights = REAL, lstm: str = "lstm") -> tuple[Value, ...]:
    """All directions of a layer, combined in ONNX's layout; `lstm` is the operator for LSTMs."""
    by_batch = bool(node.attr("layout", 0))
    direction = node.attr("direction", "forward")
    reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    x = transpose(node, node[0], 1, 0, 2) if by_batch else node[0]
    activations = _activations(node, len(reverses[direction]))
    runs = [
        _direction(node, x, at, weights, lstm, reverse=reverse, activations=activations[at])
        for at, reverse in enumerate(reverses[direction])
    ]
    sequences, *lasts = zip(*runs, strict=True)
    # A state is [directions, batch, hidden], all states [time, directions, batch, hidden]; with
    # batch first, [batch, directions, hidden] and [batch, time, directions, hidden].
    out = stack(node, sequences, 1)
    if by_batch:
        out = transpose(node, out, 2, 0, 1, 3)
    return (out, *(stack(node, states, 1 if by_batch else 0) for states in lasts))


def _direction(
    node: Context,
    x: Value,
    at: int,
    weights: Weights,
    lstm: str,
    *,
    reverse: bool,
    activations: tuple[Any, ...],
) -> tuple[Value, ...]:
    kind, by_batch = _kind(node), bool(node.attr("layout", 0))
    gates = _GATES[kind]
    projected, recurrent = weights.projected(node, x, at), weights.recurrent(node, at)
    assert recurrent[0] is not None
    hidden = node.attr("hidden_size") or dims(node, recurrent[0])[1]
    late: Value | None = None  # a recurrent bias that cannot be added to the gates
    if node.has(3):
        bias = item(node, node[3], at)
        first, second = (
            part(node, bias, 0, gates * hidden, 0),
            part(node, bias, gates * hidden, 2 * gates * hidden, 0),
        )
        if node.attr("linear_before_reset", 0):
            late = second
        else:
            first = node.emit("add", first, second)
        projected = node.emit("add", projected, first)
    lengths = node.get(4)
    states = [
        None if node.get(place) is None else item(node, node[place], at, 1 if by_batch else 0)
        for place in ((5, 6) if kind == "LSTM" else (5,))
    ]
    clip = node.attr("clip")
    common: dict[str, Any] = {
        "activations": activations,
        "reverse": reverse,
        "clip": None if clip is None else float(clip),
    }
    if kind == "RNN":
        return node.emit_many("rnn", projected, *recurrent, lengths, *states, outputs=2, **common)
    if kind == "GRU":
        common["linear_before_reset"] = bool(node.attr("linear_before_reset", 0))
        return node.emit_many(
            "gru", projected, *recurrent, late, lengths, *states, outputs=2, **common
        )
    peephole = item(node, node[7], at) if node.has(7) else None
    common["input_forget"] = bool(node.attr("input_forget", 0))
    return node.emit_many(
        lstm, projected, *recurrent, lengths, *states, peephole, outputs=3, **common
    )


def _kind(node: Context) -> str:
    return node.op_type.removeprefix("DynamicQuantize")


def _activations(node: Context, directions: int) -> list[tuple[Any, ...]]:
    """The activations of each direction, with their parameters."""
    defaults = _DEFAULTS[_kind(node)]
    given = node.attr("activations")
    names = [_ours(node, name) for name in given or defaults * directions]
    alphas = iter(node.attr("activation_alpha", ()))
    betas = iter(node.attr("activation_beta", ()))
    made = []
    for name in names[: len(defaults) * directions]:
        _, alpha, beta = ACTIVATIONS[name]
        alpha = next(alphas, alpha) if name in _TAKES_ALPHA else alpha
        beta = next(betas, beta) if name in _TAKES_BETA else beta
        made.append((name, float(alpha), float(beta)))
    count = len(defaults)
    return [tuple(made[at * count : (at + 1) * count]) for at in range(directions)]


def _ours(node: Context, name: str) -> str:
    """Convert a name: ScaledTanh to scaled_tanh."""
    made = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    if made not in ACTIVATIONS:
        raise Skip(f"{node.op_type} with activation {name}")
    return made


RULES: dict[str, Rule] = {"RNN": layer, "GRU": layer, "LSTM": layer}
