"""Experimental operators of early ONNX, in no release, but in existing files.

The semantics are those of ONNX Runtime.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx.rules.activation import softplus
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.graph import Value
from tilewright.sym import Const


def _line(node: Context, x: Value, slope: float, offset: float | Value) -> Value:
    return node.emit("add", node.emit("mul", x, slope), offset)


def _affine(node: Context) -> Value:
    return _line(node, node[0], node.attr("alpha", 1.0), node.attr("beta", 0.0))


def _image_scaler(node: Context) -> Value:
    """Scale images [batch, channels, height, width] and add a bias per channel."""
    bias = np.asarray(node.attr("bias", ()), node[0].tensor.dtype.numpy)
    channels = (node[0].tensor.shape or ())[1:2]
    if not bias.size or any(isinstance(dim, Const) and dim.value != bias.size for dim in channels):
        raise Skip("ImageScaler without a bias for each channel")
    return _line(node, node[0], node.attr("scale", 1.0), node.constant(bias.reshape(-1, 1, 1)))


def _parametric_softplus(node: Context) -> Value:
    inner = node.emit("mul", node[0], node.attr("beta", 1.0))
    return node.emit("mul", softplus(node, inner), node.attr("alpha", 1.0))


def _scaled_tanh(node: Context) -> Value:
    inner = node.emit("mul", node[0], node.attr("beta", 1.0))
    return node.emit("mul", node.emit("tanh", inner), node.attr("alpha", 1.0))


def _crop(node: Context) -> Value:
    """Crop the borders of images, or to a size after the first two borders."""
    border, size = node.attr("border", ()), node.attr("scale")
    if len(border) != 4 or (size and len(size) != 2):
        raise Skip("Crop with other than four borders or two sizes")
    left, top, right, bottom = border
    taken = (top + size[0], left + size[1]) if size else (top + bottom, left + right)
    if min(border) < 0 or any(
        isinstance(dim, Const) and dim.value < most
        for dim, most in zip((node[0].tensor.shape or ())[2:], taken, strict=False)
    ):
        raise Skip("Crop of what is not in the image")
    whole = np.iinfo(np.int32).max
    ends = (-bottom if bottom else whole, -right if right else whole)
    if size:
        ends = taken
    return node.emit("slice", node[0], starts=(top, left), ends=ends, axes=(2, 3))


RULES: dict[str, Rule] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": lambda node: node.emit("mul", node[0], node.attr("scale", 1.0)),
    "ScaledTanh": _scaled_tanh,
}
