"""Normalization: softmax and related operators; layer, group and batch normalization.

Low-precision floats compute in f32 throughout and round once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import F32
from tilewright.graph.op import ELEMENTWISE, FLOAT, OPAQUE, REDUCTION, Attr, Call, Input, Op
from tilewright.graph.ops.layout import in_layouts
from tilewright.graph.ops.linalg import wide
from tilewright.graph.ops.rules import same_dim, same_type
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ONE, Const, Expr

Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------ along axes


def _axes_type(call: Call) -> tuple[Type, ...]:
    rank = len(call.shape(0))
    for axis in call["axes"]:
        if not 0 <= axis < max(rank, 1):
            raise call.error("TW1208", f"axis {axis} of {call.op} is not one of {rank}")
    return (call.tensor(0),)


def _axes(call: Call, x: Array) -> tuple[int, ...]:
    return tuple(call["axes"]) if x.ndim else ()


def _centred(call: Call, x: Array) -> Array:
    """x less its maximum, so that exp does not overflow."""
    big = wide(x)
    return np.asarray(big - np.max(big, axis=_axes(call, x), keepdims=True))


def _softmax(call: Call, x: Array) -> Array:
    if not x.size:
        return x
    powers = np.exp(_centred(call, x))
    total = np.sum(powers, axis=_axes(call, x), keepdims=True)
    return np.asarray(powers / total).astype(x.dtype)


def _log_softmax(call: Call, x: Array) -> Array:
    if not x.size:
        return x
    centred = _centred(call, x)
    total = np.sum(np.exp(centred), axis=_axes(call, x), keepdims=True)
    return np.asarray(centred - np.log(total)).astype(x.dtype)


def _hardmax(call: Call, x: Array) -> Array:
    axes = tuple(call["axes"])
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = np.moveaxis(x, axes, last)
    rows = moved.reshape(-1, int(np.prod(moved.shape[x.ndim - len(axes) :])))
    out = np.zeros(rows.shape, x.dtype)
    if x.size:
        out[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    return np.moveaxis(out.reshape(moved.shape), last, axes)


# ------------------------------------------------------------------ centring and scaling


def _trailing(call: Call) -> int:
    """The first of the normalized axes."""
    rank, axis = len(call.shape(0)), call["axis"]
    if not 0 <= axis < rank:
        raise call.error("TW1208", f"axis {axis} of {call.op} is not one of {rank}")
    return int(axis)


def _layer_norm_type(call: Call) -> tuple[Type, ...]:
    x, axis = call.shape(0), _trailing(call)
    kept = TensorType(F32, (*x[:axis], *[ONE] * (len(x) - axis)))
    return (call.tensor(0), kept, kept)[: call.outputs]


def _layer_norm(
    call: Call, x: Array, scale: Array | None = None, bias: Array | None = None
) -> tuple[Array, ...]:
    axes = tuple(range(call["axis"], x.ndim))
    big = wide(x)
    mean = np.mean(big, axis=axes, keepdims=True)
    centred = big - mean
    spread = np.mean(centred * centred, axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(spread + big.dtype.type(call["epsilon"]))
    out = _affine(centred * inverse, scale, bias).astype(x.dtype)
    return (out, mean.astype(np.float32), inverse.astype(np.float32))[: call.outputs]


def _affine(x: Array, scale: Array | None, bias: Array | None) -> Array:
    out = x if scale is None else x * wide(scale)
    return np.asarray(out if bias is None else out + wide(bias))


def _rms_norm_type(call: Call) -> tuple[Type, ...]:
    _trailing(call)
    return (TensorType(call.tensor(1).dtype, call.shape(0)),)


def _rms_norm(call: Call, x: Array, scale: Array) -> Array:
    axes = tuple(range(call["axis"], x.ndim))
    big = wide(x)
    squares = np.mean(big * big, axis=axes, keepdims=True)
    out = big / np.sqrt(squares + big.dtype.type(call["epsilon"]))
    return np.asarray(out * wide(scale)).astype(scale.dtype)


def _per_channel(call: Call, *inputs: int) -> None:
    """Check inputs with one value per channel."""
    x = call.shape(0)
    channels = x[1] if len(x) > 1 else ONE
    for at in inputs:
        shape = call.shape(at)
        if len(shape) != 1:
            raise call.error("TW1209", f"input {at} of {call.op} has rank {len(shape)}, not 1")
        same_dim(call, shape[0], channels, "channels")


def _group_norm_type(call: Call) -> tuple[Type, ...]:
    _per_channel(call, 1, 2)
    channels, groups = call.shape(0)[1], call["groups"]
    if isinstance(channels, Const) and isinstance(groups, int) and channels.value % groups:
        raise call.error("TW1205", f"{groups} groups do not divide {channels} channels")
    return (call.tensor(0),)


def _group_norm(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    if not x.size:
        return x
    big = wide(x)
    grouped = big.reshape(x.shape[0], call["groups"], -1)
    mean = grouped.mean(axis=2, keepdims=True)
    centred = grouped - mean
    spread = np.mean(centred * centred, axis=2, keepdims=True)
    out = centred / np.sqrt(spread + big.dtype.type(call["epsilon"]))
    each = (-1, *[1] * (x.ndim - 2))
    return _affine(out.reshape(x.shape), scale.reshape(each), bias.reshape(each)).astype(x.dtype)


def _batch_norm_type(call: Call) -> tuple[Type, ...]:
    _per_channel(call, 1, 2, 3, 4)
    return (call.tensor(0),)


def _batch_norm(
    call: Call, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array:
    each = (-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else (-1,)
    scale, bias, mean, variance = (
        wide(array).reshape(each) for array in (scale, bias, mean, variance)
    )
    factor = scale / np.sqrt(variance + variance.dtype.type(call["epsilon"]))
    return np.asarray((wide(x) - mean) * factor + bias).astype(x.dtype)


def _lrn_type(call: Call) -> tuple[Type, ...]:
    rank = len(call.shape(0))
    if rank < 2:
        raise call.error("TW1208", f"axis 1 of {call.op} is not one of {rank}")
    if call["size"] < 1:
        raise call.error("TW1204", f"{call.op} over a window of {call['size']} channels")
    return tuple(same_type(call))


def _lrn(call: Call, x: Array) -> Array:
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta."""
    size = call["size"]
    big = wide(x)
    before, after = (size - 1) // 2, size // 2
    pads = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(big * big, pads)
    total = sum(squares[:, at : at + x.shape[1]] for at in range(size))
    factor = (call["bias"] + call["alpha"] / size * total) ** call["beta"]
    return np.asarray(big / factor).astype(x.dtype)


_AXES = (Attr("axes", tuple, required=True),)
_EPSILON = Attr("epsilon", float, 1e-5)

OPS = (
    Op(
        "softmax",
        "exp(x) divided by its sum along the axes.",
        (Input("x", FLOAT),),
        _axes_type,
        _softmax,
        REDUCTION,
        _AXES,
    ),
    Op(
        "log_softmax",
        "The logarithm of softmax.",
        (Input("x", FLOAT),),
        _axes_type,
        _log_softmax,
        REDUCTION,
        _AXES,
    ),
    Op(
        "hardmax",
        "1 at the first maximum along the axes, 0 elsewhere.",
        (Input("x", FLOAT),),
        _axes_type,
        _hardmax,
        OPAQUE,
        _AXES,
    ),
    Op(
        "layer_norm",
        "x centred and scaled to unit variance over the axes from `axis` on, times scale, plus "
        "bias; optionally also the mean and the inverse standard deviation in f32.",
        (Input("x", FLOAT), Input("scale", FLOAT, True), Input("bias", FLOAT, True)),
        _layer_norm_type,
        _layer_norm,
        REDUCTION,
        (Attr("axis", int, required=True), _EPSILON),
    ),
    Op(
        "rms_norm",
        "x divided by its root mean square over the axes from `axis` on, times scale.",
        (Input("x", FLOAT), Input("scale", FLOAT)),
        _rms_norm_type,
        _rms_norm,
        REDUCTION,
        (Attr("axis", int, required=True), _EPSILON),
    ),
    in_layouts(
        Op(
            "group_norm",
            "x centred and scaled over each group of channels of each image, times scale, plus "
            "bias per channel.",
            (Input("x", FLOAT), Input("scale", FLOAT), Input("bias", FLOAT)),
            _group_norm_type,
            _group_norm,
            REDUCTION,
            (Attr("groups", (int, Expr), required=True), _EPSILON),
        )
    ),
    in_layouts(
        Op(
            "batch_norm",
            "(x - mean) / sqrt(variance + epsilon) * scale + bias, per channel.",
            (
                Input("x", FLOAT),
                Input("scale", FLOAT),
                Input("bias", FLOAT),
                Input("mean", FLOAT),
                Input("variance", FLOAT),
            ),
            _batch_norm_type,
            _batch_norm,
            ELEMENTWISE,
            (_EPSILON,),
        )
    ),
    in_layouts(
        Op(
            "lrn",
            "x divided by a power of the sum of squares of neighbouring channels.",
            (Input("x", FLOAT),),
            _lrn_type,
            _lrn,
            REDUCTION,
            (
                Attr("size", int, required=True),
                Attr("alpha", float, 1e-4),
                Attr("beta", float, 0.75),
                Attr("bias", float, 1.0),
            ),
        )
    ),
)
