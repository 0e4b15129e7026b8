"""Fourier transforms."""

from __future__ import annotations

from tilewright.frontends.onnx.rules.base import Context, Rule, element_type
from tilewright.graph import Value


def _dft(node: Context) -> Value:
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if node.opset >= 20 and node.has(2):
        return node.emit("dft", node[0], node.get(1), node[2], inverse=inverse, onesided=onesided)
    axis = -2 if node.opset >= 20 else node.attr("axis", 1)
    return node.emit("dft", node[0], node.get(1), axis=axis, inverse=inverse, onesided=onesided)


def _stft(node: Context) -> Value:
    """A real signal may lack the last axis of length 1, as in ONNX Runtime."""
    onesided = bool(node.attr("onesided", 1))
    signal = node.unsqueeze(node[0], -1) if node.rank() == 2 else node[0]
    return node.emit("stft", signal, node[1], node.get(2), node.get(3), onesided=onesided)


def _mel_weights(node: Context) -> Value:
    to = element_type(node.attr("output_datatype", 1))
    return node.emit("mel_weights", *(node[at] for at in range(5)), to=to)


RULES: dict[str, Rule] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weights}
