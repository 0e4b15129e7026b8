"""Recurrent layers: the projected input is the layer's input, with identity input weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import I32, DType
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable
from tilewright.frontends.onnx.export.rules.elementwise import of_input
from tilewright.graph.ir import Node
from tilewright.sym import Const

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_TAKES_ALPHA = {"affine", "leaky_relu", "thresholded_relu", "scaled_tanh", "hard_sigmoid", "elu"}
_TAKES_BETA = {"affine", "scaled_tanh", "hard_sigmoid"}


def _layer(e: Emitter, node: Node) -> list[str]:
    kind, of = node.op.removeprefix("quantized_"), of_input(node)
    r = node.inputs[1]
    assert r is not None
    hidden = None if r.tensor.shape is None else r.tensor.shape[1]
    if not isinstance(hidden, Const):
        raise Unwritable("a recurrent layer of unknown width")
    width = int(hidden.value)
    given = [*e.inputs(node), *[""] * 9]
    gates, weights, *rest = given
    if kind != node.op:
        scale, _, zero, *rest = rest
        weights = _real(e, of, weights, scale, zero)
    bias = rest.pop(0) if kind == "gru" else ""
    lengths, h0, *more = rest
    rows = GATES[kind] * width
    one = e.constant(np.eye(rows, dtype=of.numpy)[None])
    front = e.ints(0)
    both = ""
    if bias:
        zeros = e.constant(np.zeros(rows, of.numpy))
        both = e.emit("Unsqueeze", e.emit("Concat", zeros, bias, axis=0), front)
    inputs = [
        gates,
        one,
        e.emit("Unsqueeze", weights, front),
        both,
        e.cast(lengths, I32) if lengths else "",
        e.emit("Unsqueeze", h0, front) if h0 else "",
    ]
    if kind == "lstm":
        inputs += [e.emit("Unsqueeze", x, front) if x else "" for x in more[:2]]
    attributes: dict[str, Any] = {
        "hidden_size": width,
        "direction": "reverse" if node.get("reverse") else "forward",
        "clip": node.get("clip"),
        **_activations(node),
    }
    if kind == "lstm":
        attributes["input_forget"] = int(node.get("input_forget", False))
    if kind == "gru":
        attributes["linear_before_reset"] = int(node.get("linear_before_reset", False))
    count = 3 if kind == "lstm" else 2
    sequence, *states = e.emit(kind.upper(), *inputs, outputs=count, **attributes)
    made = [e.emit("Squeeze", sequence, e.ints(1))]
    made += [e.emit("Squeeze", state, front) for state in states]
    return made[: len(node.outputs)]


def _real(e: Emitter, of: DType, weights: str, scale: str, zero: str) -> str:
    """Dequantize weights; ONNX has no layer that quantizes its states dynamically."""
    real, behind = e.cast(weights, of), e.ints(1)
    if zero:
        real = e.emit("Sub", real, e.emit("Unsqueeze", e.cast(zero, of), behind))
    return str(e.emit("Mul", real, e.emit("Unsqueeze", scale, behind)))


def _activations(node: Node) -> dict[str, Any]:
    names, alphas, betas = [], [], []
    for name, alpha, beta in node["activations"]:
        names.append("".join(word.capitalize() for word in name.split("_")))
        if name in _TAKES_ALPHA:
            alphas.append(float(alpha))
        if name in _TAKES_BETA:
            betas.append(float(beta))
    made: dict[str, Any] = {"activations": names}
    if alphas:
        made["activation_alpha"] = alphas
    if betas:
        made["activation_beta"] = betas
    return made


COMPOSITES = ("rnn", "gru", "lstm", "quantized_lstm")
RULES: dict[str, Rule] = dict.fromkeys(COMPOSITES, _layer)
