"""Pooling over windows, or over regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.graph.op import FLOAT, INTEGER, NUMBER, OPAQUE, REDUCTION, Attr, Call, Input, Op
from tilewright.graph.ops.layout import in_layouts
from tilewright.graph.ops.linalg import wide
from tilewright.graph.ops.rules import contents_or_sizes, same_dim
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
from tilewright.sym import Const, Expr, ExprLike

Array = np.ndarray[Any, Any]

_WINDOW = (
    Attr("kernel", tuple, required=True),
    STRIDES,
    PADS,
    DILATIONS,
    Attr("ceil_mode", bool, False),  # the last window may extend past the end
    Attr("overhang", bool, False),  # one window for an image smaller than it by less than a stride
)


def _pooled_shape(call: Call) -> tuple[Expr, ...]:
    x, kernel = call.shape(0), call["kernel"]
    check_window(call, len(x) - 2)
    if len(kernel) != len(x) - 2:
        raise call.error(
            "TW1204", f"the kernel of {call.op} needs {len(x) - 2} values, got {len(kernel)}"
        )
    return (*x[:2], *_windows_along(call, x[2:]))


def _pooled_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(call.tensor(0).dtype, _pooled_shape(call)),)


def _windows_along(call: Call, spatial: Sequence[ExprLike]) -> tuple[Expr, ...]:
    rounding = {name: call[name] for name in ("ceil_mode", "overhang")}
    return window_counts(call, spatial, call["kernel"], **rounding)


def _counts(call: Call, spatial: Sequence[int]) -> list[int]:
    counts = _windows_along(call, spatial)
    return [int(count.value) for count in counts if isinstance(count, Const)]


def _pad_to_windows(call: Call, x: Array, fill: Any) -> tuple[Array, list[int]]:
    """Pad x so that all windows are complete; returns the number of windows, too."""
    rank, counts = x.ndim - 2, _counts(call, x.shape[2:])
    ends = [
        (n - 1) * s + (k - 1) * d + 1 - size - begin
        for n, s, k, d, size, begin in zip(
            counts,
            call["strides"],
            call["kernel"],
            call["dilations"],
            x.shape[2:],
            call["pads"][:rank],
            strict=True,
        )
    ]
    return pad_spatial(x, (*call["pads"][:rank], *(max(0, end) for end in ends)), fill), counts


def _windows(call: Call, counts: Sequence[int]) -> Any:
    return taps(call["kernel"], counts, call["strides"], call["dilations"])


# ------------------------------------------------------------------ maximum


def _max_pool_type(call: Call) -> tuple[Type, ...]:
    shape = _pooled_shape(call)
    types = (TensorType(call.tensor(0).dtype, shape), TensorType(I64, shape))
    return types[: call.outputs]


def _max_pool(call: Call, x: Array) -> tuple[Array, ...]:
    """The maximum of each window; of equal ones the first."""
    least = call.tensor(0).dtype.min
    padded, counts = _pad_to_windows(call, x, least)
    inside, _ = _pad_to_windows(call, np.ones(x.shape, np.bool_), False)
    out = np.full((*x.shape[:2], *counts), least, x.dtype)
    chosen, begun = np.zeros(out.shape, np.int64), np.zeros(out.shape, np.bool_)
    if not out.size:
        return (out, chosen)[: call.outputs]
    places = np.meshgrid(*map(np.arange, counts), indexing="ij")
    for tap, where in _windows(call, counts):
        seen, is_there = padded[where], inside[where]
        better = (seen > out) | (np.isnan(seen) & ~np.isnan(out)) | (is_there & ~begun)
        out, begun = np.where(better, seen, out), begun | is_there
        if call.outputs > 1:
            chosen = np.where(better, _flat_index(call, x.shape[2:], places, tap), chosen)
    if call.outputs == 1:
        return (out,)
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(counts))
    return out, chosen + images * math.prod(x.shape[2:])


def _flat_index(
    call: Call, spatial: Sequence[int], places: Sequence[Array], tap: Sequence[int]
) -> Array:
    """The flat index in the image of a kernel position of windows."""
    axes = range(len(spatial))
    flat = np.zeros(places[0].shape, np.int64)
    for axis in reversed(axes) if call["column_major"] else axes:
        index = places[axis] * call["strides"][axis] + tap[axis] * call["dilations"][axis]
        flat = flat * spatial[axis] + index - call["pads"][axis]
    return flat


def _max_unpool_type(call: Call) -> tuple[Type, ...]:
    x = call.shape(0)
    check_window(call, len(x) - 2)
    shape = contents_or_sizes(call, 2, "unpooled") if call.has(2) else _unpooled(call, x)
    return (TensorType(call.tensor(0).dtype, shape),)


def _unpooled(call: Call, x: Sequence[Expr | int]) -> tuple[Expr, ...]:
    """The shape that pooling reduced to x, if no elements were left over."""
    rank = len(x) - 2
    dims = [sym.as_expr(dim) for dim in x[:2]]
    for axis in range(rank):
        grown = sym.mul(sym.sub(x[axis + 2], 1), call["strides"][axis])
        full = sym.add(grown, extent(call["kernel"][axis], call["dilations"][axis]))
        pads = sym.add(sym.as_expr(call["pads"][axis]), call["pads"][axis + rank])
        dims.append(sym.simplify(sym.sub(full, pads)))
    return tuple(dims)


def _max_unpool(call: Call, x: Array, indices: Array, shape: Array | None = None) -> Array:
    """Put elements back to their positions; a larger shape is zero-padded at the end."""
    natural = [int(d.value) for d in _unpooled(call, x.shape) if isinstance(d, Const)]
    out = np.zeros(math.prod(natural), x.dtype)
    out[indices.ravel()] = x.ravel()
    out = out.reshape(natural)
    if shape is None:
        return out
    large = np.zeros(shape.tolist(), x.dtype)
    both = tuple(slice(0, min(a, b)) for a, b in zip(natural, large.shape, strict=True))
    large[both] = out[both]
    return large


# ------------------------------------------------------------------ means and norms


def _avg_pool(call: Call, x: Array) -> Array:
    padded, counts = _pad_to_windows(call, wide(x), 0)
    rank = x.ndim - 2
    # Elements, and pads if requested; never the overhang of windows rounded up.
    ones = np.ones((1, 1, *x.shape[2:]), padded.dtype)
    ones = pad_spatial(ones, call["pads"], 1 if call["include_pad"] else 0)
    extra = [max(0, p - o) for p, o in zip(padded.shape[2:], ones.shape[2:], strict=True)]
    ones = pad_spatial(ones, (*[0] * rank, *extra), 0)
    total = np.zeros((*x.shape[:2], *counts), padded.dtype)
    count = np.zeros((1, 1, *counts), padded.dtype)
    for _, where in _windows(call, counts):
        total += padded[where]
        count += ones[where]
    return np.asarray(total / np.maximum(count, 1)).astype(x.dtype)


def _lp_pool(call: Call, x: Array) -> Array:
    p = call["p"]
    padded, counts = _pad_to_windows(call, np.abs(wide(x)) ** p, 0)
    total = np.zeros((*x.shape[:2], *counts), padded.dtype)
    for _, where in _windows(call, counts):
        total += padded[where]
    return np.asarray(total ** (1 / p)).astype(x.dtype)


# ------------------------------------------------------------------ regions of interest


def _regions_type(call: Call) -> tuple[Type, ...]:
    """One pooled image for each region."""
    x, rois = call.shape(0), call.shape(1)
    if len(x) != 4 or len(rois) != 2:
        ranks = f"{len(x)} and {len(rois)}"
        raise call.error(
            "TW1207", f"{call.op} takes images and regions of rank 4 and 2, not {ranks}"
        )
    if call.has(2):
        same_dim(call, rois[0], call.shape(2)[0], "regions and their images")
    dims = tuple(sym.const(size) for size in call["size"])
    return (TensorType(call.tensor(0).dtype, (rois[0], x[1], *dims)),)


def _roi_align(call: Call, x: Array, rois: Array, images: Array) -> Array:
    """Each bin is the mean (or maximum) of interpolated samples."""
    height, width = x.shape[2:]
    rows, columns = call["size"]
    out = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    shift = 0.5 if call["half_pixel"] else 0.0
    for at, (roi, image) in enumerate(zip(wide(rois), images, strict=True)):
        x1, y1, x2, y2 = (float(edge) * call["scale"] - shift for edge in roi)
        tall, broad = y2 - y1, x2 - x1
        if not call["half_pixel"]:
            tall, broad = max(tall, 1.0), max(broad, 1.0)
        ratio = call["sampling_ratio"]
        down = ratio if ratio > 0 else max(0, math.ceil(tall / rows))
        across = ratio if ratio > 0 else max(0, math.ceil(broad / columns))
        ys = _samples(y1, tall / rows, rows, down)
        xs = _samples(x1, broad / columns, columns, across)
        corners = _bilinear(wide(x[int(image)]), ys, xs, height, width)
        # ONNX takes the maximum over the weighted corners.
        largest = call["mode"] == "max"
        each = np.max(corners, axis=0) if largest else np.sum(corners, axis=0)
        bins = each.reshape(x.shape[1], rows, down, columns, across)
        if bins.size:
            out[at] = bins.max(axis=(2, 4)) if largest else bins.mean(axis=(2, 4))
    return out


def _samples(start: float, step: float, bins: int, each: int) -> Array:
    """Sample positions along an axis: `each` per bin, evenly spaced."""
    inside = (np.arange(each) + 0.5) / max(each, 1)
    return np.asarray(start + step * (np.arange(bins)[:, None] + inside)).ravel()


def _bilinear(image: Array, ys: Array, xs: Array, height: int, width: int) -> list[Array]:
    """The four weighted neighbours of every (y, x); zero far outside."""
    y_low, y_high, y_part, y_far = _neighbours(ys, height)
    x_low, x_high, x_part, x_far = _neighbours(xs, width)
    keep = ~(y_far[:, None] | x_far[None, :])
    return [
        image[:, y[:, None], x[None, :]] * (keep * wy[:, None] * wx[None, :]).astype(image.dtype)
        for y, wy in ((y_low, 1 - y_part), (y_high, y_part))
        for x, wx in ((x_low, 1 - x_part), (x_high, x_part))
    ]


def _neighbours(at: Array, size: int) -> tuple[Array, Array, Array, Array]:
    far = (at < -1) | (at > size)
    inside = np.clip(at, 0, size - 1)
    low = np.floor(inside).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), inside - low, far


def _max_roi_pool(call: Call, x: Array, rois: Array) -> Array:
    """Each bin is the maximum of the whole pixels it covers."""
    rows, columns = call["size"]
    out = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    scale = np.float32(call["scale"])
    for at, roi in enumerate(wide(rois)):
        image = x[int(roi[0])]
        x1, y1, x2, y2 = (math.floor(edge * scale + 0.5) for edge in roi[1:])
        ys = _bins(y1, max(y2 - y1 + 1, 1), rows, x.shape[2])
        xs = _bins(x1, max(x2 - x1 + 1, 1), columns, x.shape[3])
        for row, (top, bottom) in enumerate(ys):
            for column, (left, right) in enumerate(xs):
                if bottom > top and right > left:
                    out[at, :, row, column] = image[:, top:bottom, left:right].max(axis=(1, 2))
    return out


def _bins(start: int, size: int, bins: int, limit: int) -> list[tuple[int, int]]:
    step = size / bins
    edges = [(math.floor(b * step) + start, math.ceil((b + 1) * step) + start) for b in range(bins)]
    return [(min(max(low, 0), limit), min(max(high, 0), limit)) for low, high in edges]


OPS = (
    in_layouts(
        Op(
            "max_pool",
            "The maximum of each window and, optionally, its index in the whole tensor.",
            (Input("x", NUMBER),),
            _max_pool_type,
            _max_pool,
            REDUCTION,
            (*_WINDOW, Attr("column_major", bool, False)),  # order of indices within an image
        )
    ),
    in_layouts(
        Op(
            "avg_pool",
            "The mean of each window; padding counts as zeros, or is excluded.",
            (Input("x", FLOAT),),
            _pooled_type,
            _avg_pool,
            REDUCTION,
            (*_WINDOW, Attr("include_pad", bool, False)),
        )
    ),
    in_layouts(
        Op(
            "lp_pool",
            "The p-norm of each window.",
            (Input("x", FLOAT),),
            _pooled_type,
            _lp_pool,
            REDUCTION,
            (*_WINDOW, Attr("p", int, 2)),
        )
    ),
    Op(
        "max_unpool",
        "Elements at the positions where max_pool took them from, zeros elsewhere.",
        (
            Input("x", NUMBER),
            Input("indices", INTEGER),
            Input("shape", INTEGER, optional=True, folds=True),
        ),
        _max_unpool_type,
        _max_unpool,
        OPAQUE,
        (Attr("kernel", tuple, required=True), STRIDES, PADS, DILATIONS),
    ),
    in_layouts(
        Op(
            "roi_align",
            "Regions of images, sampled by interpolation and pooled to one size.",
            (Input("x", FLOAT), Input("rois", FLOAT), Input("images", INTEGER)),
            _regions_type,
            _roi_align,
            OPAQUE,
            (
                Attr("size", tuple, required=True),
                Attr("scale", float, 1.0),
                Attr("sampling_ratio", int, 0),  # samples per bin and axis; 0: one per pixel
                Attr("mode", str, "avg"),  # or max
                Attr("half_pixel", bool, True),
            ),
        )
    ),
    Op(
        "max_roi_pool",
        "Regions of images, max-pooled to one size.",
        (Input("x", FLOAT), Input("rois", FLOAT)),
        _regions_type,
        _max_roi_pool,
        OPAQUE,
        (Attr("size", tuple, required=True), Attr("scale", float, 1.0)),
    ),
)
