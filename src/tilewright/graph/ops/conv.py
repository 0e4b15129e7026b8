"""Convolutions over any number of spatial axes, and related operators.

x is [batch, channels, *spatial], or in the order of `layout`. Weights are [out channels, channels /
groups, *kernel], for transposed convolution [channels, out channels / groups, *kernel]. Pads are
explicit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I32, DType
from tilewright.graph.op import COMPLEX, FLOAT, INTEGER, NUMBER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.layout import in_layouts
from tilewright.graph.ops.linalg import exact, to_i32, wide
from tilewright.graph.ops.rules import check_one_dtype, contents_or_sizes, same_dim
from tilewright.graph.ops.windows import (
    DILATIONS,
    PADS,
    STRIDES,
    check_window,
    extent,
    pad_spatial,
    taps,
    window_counts,
)
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr

Array = np.ndarray[Any, Any]

GROUPS = Attr("groups", int, 1)
# Tile size of Winograd convolution; 0: direct convolution.
WINOGRAD = Attr("winograd", int, 0)
_WINDOW = (STRIDES, PADS, DILATIONS, GROUPS)


def _check_groups(call: Call, channels: Expr, what: str) -> None:
    if isinstance(channels, Const) and channels.value % call["groups"]:
        raise call.error("TW1205", f"{call['groups']} groups do not divide {channels} {what}")


def conv_shape(call: Call) -> tuple[Expr, ...]:
    """The shape of a convolution of input 0 with input 1."""
    x, w = call.shape(0), call.shape(1)
    if len(w) != len(x):
        raise call.error("TW1204", f"{call.op} has an input of rank {len(x)}, weights {len(w)}")
    check_window(call, len(x) - 2)
    per_group = sym.simplify(sym.mul(w[1], call["groups"]))
    same_dim(call, x[1], per_group, "the channels")
    _check_groups(call, w[0], "output channels")
    return (x[0], w[0], *window_counts(call, x[2:], w[2:]))


def _check_bias(call: Call, at: int, channels: Expr) -> None:
    if call.has(at):
        shape = call.shape(at)
        if len(shape) != 1:
            raise call.error("TW1204", f"the bias of {call.op} has rank {len(shape)}, not 1")
        same_dim(call, shape[0], channels, "bias and channels")


def _conv_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    shape = conv_shape(call)
    _check_bias(call, 2, shape[1])
    return (TensorType(call["to"] or call.tensor(0).dtype, shape),)


def grouped(x: Array, w: Array, call: Call) -> Array:
    """The sum over kernel positions of weights [g, m, c] times elements [n, g, c, positions]."""
    groups, kernel = call["groups"], w.shape[2:]
    padded = pad_spatial(x, call["pads"])
    counts = tuple(
        max(0, (size - (k - 1) * d - 1) // s + 1)
        for size, k, s, d in zip(
            padded.shape[2:], kernel, call["strides"], call["dilations"], strict=True
        )
    )
    batch, channels, places = x.shape[0], x.shape[1], math.prod(counts)
    weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], *kernel)
    out = np.zeros((batch, groups, w.shape[0] // groups, places), np.result_type(x, w))
    for tap, where in taps(kernel, counts, call["strides"], call["dilations"]):
        seen = padded[where]
        seen = seen.reshape(batch, groups, channels // groups, places)
        out += np.matmul(weights[(..., *tap)], seen)
    return out.reshape(batch, w.shape[0], *counts)


def _with_bias(out: Array, bias: Array | None) -> Array:
    if bias is None:
        return out
    return np.asarray(out + wide(bias).reshape(-1, *[1] * (out.ndim - 2)))


def _conv(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    to = x.dtype if call["to"] is None else call["to"].numpy
    return _with_bias(grouped(wide(x), wide(w), call), bias).astype(to)


def _conv_integer_type(call: Call) -> tuple[Type, ...]:
    shape = conv_shape(call)
    _check_bias(call, 4, shape[1])
    return (TensorType(I32, shape),)


def _conv_integer(
    call: Call,
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    if w_zero is not None and w_zero.ndim == 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    out = grouped(exact(x, x_zero), exact(w, w_zero), call)
    return to_i32(_with_bias(out, bias))


# ------------------------------------------------------------------ transposed convolution


def _conv_transpose_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    x, w = call.shape(0), call.shape(1)
    rank = len(x) - 2
    if len(w) != len(x):
        raise call.error("TW1204", f"{call.op} has an input of rank {len(x)}, weights {len(w)}")
    check_window(call, rank)
    same_dim(call, x[1], w[0], "the channels")
    _check_groups(call, x[1], "channels")
    dims: list[Expr] = []
    for axis in range(rank):
        grown = sym.mul(sym.sub(x[axis + 2], 1), call["strides"][axis])
        full = sym.add(grown, extent(w[axis + 2], call["dilations"][axis]))
        full = sym.add(full, call["output_padding"][axis])
        pads = sym.add(sym.as_expr(call["pads"][axis]), call["pads"][axis + rank])
        dims.append(sym.simplify(sym.sub(full, pads)))
    channels = sym.simplify(sym.mul(w[1], call["groups"]))
    _check_bias(call, 2, channels)
    return (TensorType(call.tensor(0).dtype, (x[0], channels, *dims)),)


def _conv_transpose(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Every element adds its multiple of the kernel to the output, which is cropped by the pads."""
    groups, strides, dilations = call["groups"], call["strides"], call["dilations"]
    batch, channels, counts, kernel = x.shape[0], x.shape[1], x.shape[2:], w.shape[2:]
    per_group = w.shape[1]
    weights = wide(w).reshape(groups, channels // groups, per_group, *kernel)
    elements = wide(x).reshape(batch, groups, channels // groups, math.prod(counts))
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 + more
        for n, s, k, d, more in zip(
            counts, strides, kernel, dilations, call["output_padding"], strict=True
        )
    )
    out = np.zeros((batch, groups * per_group, *full), elements.dtype)
    for tap, where in taps(kernel, counts, strides, dilations):
        added = np.matmul(np.swapaxes(weights[(..., *tap)], 1, 2), elements)
        out[where] += added.reshape(batch, groups * per_group, *counts)
    cut = pad_spatial(out, tuple(-pad for pad in call["pads"]))
    return _with_bias(cut, bias).astype(x.dtype)


# ------------------------------------------------------------------ deformable convolution


def _deform_conv_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    shape = conv_shape(call)
    _check_bias(call, 3, shape[1])
    return (TensorType(call.tensor(0).dtype, shape),)


def _deform_conv(
    call: Call,
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Each kernel position is sampled at its offset, by linear interpolation."""
    groups, shared = call["groups"], call["offset_groups"]
    batch, channels, spatial, kernel = x.shape[0], x.shape[1], x.shape[2:], w.shape[2:]
    rank, counts, count = len(spatial), offset.shape[2:], math.prod(w.shape[2:])
    offsets = wide(offset).reshape(batch, shared, count, rank, *counts)
    scale = None if mask is None else wide(mask).reshape(batch, shared, count, *counts)
    image = wide(x).reshape(batch, shared, channels // shared, math.prod(spatial))
    weights = wide(w).reshape(groups, w.shape[0] // groups, w.shape[1], count)
    out = np.zeros((batch, groups, w.shape[0] // groups, math.prod(counts)), image.dtype)
    grid = np.meshgrid(*map(np.arange, counts), indexing="ij")
    for at, tap in enumerate(itertools.product(*map(range, kernel))):
        places = [
            offsets[:, :, at, axis]
            + grid[axis] * call["strides"][axis]
            + tap[axis] * call["dilations"][axis]
            - call["pads"][axis]
            for axis in range(rank)
        ]
        seen = sample_linear(image, spatial, places)
        if scale is not None:
            seen = seen * scale[:, :, None, at]
        seen = seen.reshape(batch, groups, channels // groups, -1)
        out += np.matmul(weights[..., at], seen)
    return _with_bias(out.reshape(batch, w.shape[0], *counts), bias).astype(x.dtype)


def sample_linear(image: Array, spatial: Sequence[int], places: Sequence[Array]) -> Array:
    """Linear interpolation: image [*b, c, flat spatial] at positions [*b, *out] along each axis.

    Elements outside the image are zero.
    """
    lows = [np.floor(place) for place in places]
    batch = image.shape[:-2]
    out = np.zeros((*batch, image.shape[-2], *places[0].shape[len(batch) :]), image.dtype)
    for corner in itertools.product((0, 1), repeat=len(spatial)):
        weight = np.ones(places[0].shape, image.dtype)
        inside = np.ones(places[0].shape, bool)
        flat = np.zeros(places[0].shape, np.int64)
        for step, low, place, size in zip(corner, lows, places, spatial, strict=True):
            weight = weight * ((place - low) if step else (low + 1 - place))
            index = low.astype(np.int64) + step
            inside &= (index >= 0) & (index < size)
            flat = flat * size + np.clip(index, 0, max(0, size - 1))
        index = flat.reshape(*batch, 1, -1)
        found = np.take_along_axis(image, index, axis=-1).reshape(out.shape)
        out += found * np.where(inside, weight, 0)[(*[slice(None)] * len(batch), None)]
    return out


# ------------------------------------------------------------------ columns to image


def _col2im_type(call: Call) -> tuple[Type, ...]:
    x = call.shape(0)
    image = contents_or_sizes(call, 1, "image")
    check_window(call, len(image))
    block = call.value(2)
    channels: Expr
    if block is None:
        channels = sym.size("channels")
    else:
        count: Expr = sym.ONE
        for dim in block:
            count = sym.mul(count, dim)
        channels = sym.simplify(sym.floordiv(x[1], count))
    return (TensorType(call.tensor(0).dtype, (x[0], channels, *image)),)


def _col2im(call: Call, x: Array, image_shape: Array, block_shape: Array) -> Array:
    """Add columns to the windows that they were taken from."""
    image, block = image_shape.tolist(), block_shape.tolist()
    strides, dilations, pads = call["strides"], call["dilations"], call["pads"]
    rank = len(image)
    padded = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(image)]
    counts = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(padded, block, strides, dilations, strict=True)
    ]
    channels = x.shape[1] // math.prod(block)
    columns = x.reshape(x.shape[0], channels, *block, *counts)
    out = np.zeros((x.shape[0], channels, *padded), x.dtype)
    for tap, where in taps(block, counts, strides, dilations):
        out[where] += columns[(slice(None), slice(None), *tap)]
    return pad_spatial(out, tuple(-pad for pad in pads))


def _windowed(
    name: str, doc: str, inputs: tuple[Input, ...], infer: Any, reference: Any, *more: Attr
) -> Op:
    return Op(name, doc, inputs, infer, reference, COMPLEX, (*_WINDOW, *more))


def _image_op(*declaration: Any) -> Op:
    return in_layouts(_windowed(*declaration))


OPS = (
    _image_op(
        "conv",
        "Convolution (a sliding dot product), with a bias per output channel. Sums of "
        "low-precision floats are rounded once, to the type `to`, or else to theirs.",
        (Input("x", FLOAT), Input("w", FLOAT), Input("bias", FLOAT, optional=True)),
        _conv_type,
        _conv,
        WINOGRAD,
        Attr("to", DType, None),
    ),
    _image_op(
        "conv_integer",
        "Convolution of 8-bit integers less their zero points, in i32; padding is zero after that.",
        (
            Input("x", INTEGER),
            Input("w", INTEGER),
            Input("x_zero", INTEGER, optional=True),
            Input("w_zero", INTEGER, optional=True),
            Input("bias", INTEGER, optional=True),  # i32
        ),
        _conv_integer_type,
        _conv_integer,
        WINOGRAD,
    ),
    _image_op(
        "conv_transpose",
        "Transposed convolution: each element adds its multiple of the kernel to the result. If "
        "all weights are `finite`, zeros may be multiplied by them.",
        (Input("x", FLOAT), Input("w", FLOAT), Input("bias", FLOAT, optional=True)),
        _conv_transpose_type,
        _conv_transpose,
        Attr("output_padding", tuple, required=True),
        Attr("finite", bool, False),
    ),
    _windowed(
        "deform_conv",
        "Convolution with sampling positions shifted by offsets and products scaled by a mask.",
        (
            Input("x", FLOAT),
            Input("w", FLOAT),
            Input("offset", FLOAT),
            Input("bias", FLOAT, optional=True),
            Input("mask", FLOAT, optional=True),
        ),
        _deform_conv_type,
        _deform_conv,
        Attr("offset_groups", int, 1),
    ),
    Op(
        "col2im",
        "Blocks, one per column, summed into the image they cover.",
        (
            Input("x", NUMBER),
            Input("image_shape", INTEGER, folds=True),
            Input("block_shape", INTEGER, folds=True),
        ),
        _col2im_type,
        _col2im,
        OPAQUE,
        (STRIDES, PADS, DILATIONS),
    ),
)
