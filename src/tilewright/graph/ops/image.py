"""Image resampling: resizing, and sampling at given positions.

A position along an axis is interpolated from a few neighbouring elements (taps) with weights;
several axes are separable. `resize` has the same positions for every line, `grid_sample` separate
ones for each output.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.op import ANY, FLOAT, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.linalg import wide
from tilewright.graph.ops.rules import contents_or_sizes, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ZERO, Const, Expr

Array = np.ndarray[Any, Any]

NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
    "round_even": np.rint,
}
MODES = ("nearest", "linear", "cubic")
RESIZES: dict[str, tuple[str, ...]] = {
    "mode": MODES,
    "nearest": tuple(NEAREST),
    "coordinates": (
        "half_pixel",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    "policy": ("stretch", "not_larger", "not_smaller"),
}
GRID_SAMPLES: dict[str, tuple[str, ...]] = {
    "mode": MODES,
    "padding": ("zeros", "border", "reflection"),
}


def _check_choices(call: Call, code: str, choices: dict[str, tuple[str, ...]]) -> None:
    """Check attributes that select one of several values."""
    for name, values in choices.items():
        if call[name] not in values:
            known = ", ".join(values)
            raise call.error(code, f"{call.op} has no {name} {call[name]!r}", f"use {known}")


# ------------------------------------------------------------------ resize


def _resize_type(call: Call) -> tuple[Type, ...]:
    x = list(call.shape(0))
    _check_choices(call, "TW1212", RESIZES)
    if call.has(2) == call.has(3):
        raise call.error("TW1212", "resize takes either scales or sizes")
    for at, axis in enumerate(call["axes"]):
        if not 0 <= axis < len(x):
            raise call.error("TW1208", f"axis {axis} of resize is not one of {len(x)}")
        before, x[axis] = x[axis], _resized_dim(call, at, x[axis])
        _check_not_empty(call, axis, before, x[axis])
    return (TensorType(call.tensor(0).dtype, tuple(x)),)


def _check_not_empty(call: Call, axis: int, before: Expr | int, after: Expr | int) -> None:
    """Reject resizing of an empty axis, which has nothing to interpolate."""
    sizes = [int(d.value) if isinstance(d, Const) else d for d in (before, after)]
    if sizes[0] == 0 and isinstance(sizes[1], int) and sizes[1] != 0:
        raise call.error("TW1212", f"resize of axis {axis} from 0 elements to {sizes[1]}")


def _resized_dim(call: Call, at: int, size: Expr) -> Expr:
    """A dimension after resizing; a new size if it depends on unknown contents."""
    sizes = call.value(3)
    if sizes is not None and call["policy"] == "stretch":
        return sizes[at]
    if isinstance(size, Const) and call.array(3 if call.has(3) else 2) is not None:
        before = [d.value for d in (call.shape(0)[a] for a in call["axes"]) if isinstance(d, Const)]
        if len(before) == len(call["axes"]):
            after, _ = _targets(call, [int(d) for d in before], *_numbers(call))
            return sym.const(after[at])
    scales = call.array(2)
    if scales is not None and not call["crop"]:
        scale = scales.ravel()[at]
        if isinstance(size, Const):
            return sym.const(int(np.float32(size.value) * np.float32(scale)))
        part = Fraction(float(scale))
        if part.denominator <= 4096:  # exact in f32 for all practical sizes
            return sym.simplify(sym.floordiv(sym.mul(size, part.numerator), part.denominator))
    return sym.size("resized")


def _numbers(call: Call) -> tuple[Array | None, Array | None, Array | None]:
    return call.array(1), call.array(2), call.array(3)


def _targets(
    call: Call,
    before: Sequence[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
) -> tuple[list[int], list[float]]:
    """The new size and the scale along each axis."""
    if scales is not None:
        factors = [float(scale) for scale in scales.ravel()]
        crop = np.ones(len(before)) if not call["crop"] or roi is None else _crop(roi)[1]
        exact = np.array(before, np.float32) * crop.astype(np.float32)
        exact = exact * scales.ravel().astype(np.float32)
        return [int(size) for size in np.floor(exact)], factors
    assert sizes is not None
    wanted = [int(size) for size in sizes.ravel()]
    if call["policy"] != "stretch":
        choose = min if call["policy"] == "not_larger" else max
        for axis, size, most in zip(call["axes"], before, wanted, strict=True):
            _check_not_empty(call, axis, size, most)
        scale = choose((w / b for w, b in zip(wanted, before, strict=True) if b), default=1.0)
        wanted = [int(scale * b + 0.5) for b in before]
        return wanted, [scale] * len(before)
    return wanted, [w / b if b else 1.0 for w, b in zip(wanted, before, strict=True)]


def _crop(roi: Array) -> tuple[Array, Array]:
    """The start and length of the region along each axis, relative to the axis."""
    start, end = np.split(wide(roi).astype(np.float64), 2)
    return start, end - start


def _resize(
    call: Call,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Array:
    before = [x.shape[axis] for axis in call["axes"]]
    after, factors = _targets(call, before, roi, scales, sizes)
    for axis, size, wanted in zip(call["axes"], before, after, strict=True):
        _check_not_empty(call, axis, size, wanted)
    floating = call.tensor(0).dtype.is_float
    out = wide(x) if floating else x
    if call["mode"] != "nearest" and not floating:
        out = out.astype(np.float32)
    outside = np.zeros((), bool)
    for at, axis in enumerate(call["axes"]):
        if before[at] == after[at] and factors[at] == 1.0 and not call["crop"]:
            continue
        start, length = (0.0, 1.0)
        if call["crop"] and roi is not None:
            start, length = (float(part[at]) for part in _crop(roi))
        places = _places(call, before[at], after[at], factors[at], start, length)
        index, weight = _taps(call, places, before[at], factors[at])
        out = _apply(out, axis, index, weight)
        if call["crop"]:
            far = (places < 0) | (places > before[at] - 1)
            outside = outside | far.reshape(-1, *[1] * (x.ndim - axis - 1))
    if call["crop"]:
        out = np.where(outside, out.dtype.type(call["extrapolation"]), out)
    return np.asarray(out).astype(x.dtype)


def _places(
    call: Call, before: int, after: int, scale: float, start: float, length: float
) -> Array:
    """For each output position along an axis, its input position."""
    x = np.arange(after, dtype=np.float64)
    mode = call["coordinates"]
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and after > 1):
        return (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return np.zeros(after)
    if mode == "half_pixel_symmetric":
        offset = before / 2 * (1 - after / (scale * before))
        return offset + (x + 0.5) / scale - 0.5
    if mode == "align_corners":
        # If the scale gives a fractional size, the last corner is between elements.
        corner = scale * before - 1
        return x * (before - 1) / corner if corner > 0 else np.zeros(after)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    assert mode == "tf_crop_and_resize", mode
    if after > 1:
        return start * (before - 1) + x * length * (before - 1) / (after - 1)
    return np.full(after, (start + length / 2) * (before - 1))


def _taps(call: Call, places: Array, size: int, scale: float) -> tuple[Array, Array | None]:
    """For each position, its taps and their weights [positions, taps]."""
    if call["mode"] == "nearest":
        index = NEAREST[call["nearest"]](places).astype(np.int64)
        return np.clip(index, 0, size - 1)[:, None], None
    # When downscaling, a wider filter includes the pixels in between.
    stretch = min(scale, 1.0) if call["antialias"] else 1.0
    reach = 1 if call["mode"] == "linear" else 2
    first = int(np.floor(-reach / stretch)) + 1
    steps = np.arange(first, 2 - first)
    low = np.floor(places)
    distance = (steps[None, :] - (places - low)[:, None]) * stretch
    weight = linear_weights(distance) if reach == 1 else cubic_weights(distance, call["cubic_a"])
    index = low.astype(np.int64)[:, None] + steps
    if call["exclude_outside"]:
        weight = np.where((index >= 0) & (index < size), weight, 0)
    if call["exclude_outside"] or stretch != 1.0:
        weight = weight / weight.sum(axis=1, keepdims=True)
    return np.clip(index, 0, size - 1), weight


def linear_weights(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def cubic_weights(distance: Array, a: float) -> Array:
    """Keys' cubic convolution kernel."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _apply(x: Array, axis: int, index: Array, weight: Array | None) -> Array:
    """Interpolate along an axis: the weighted sum of each position's taps."""
    seen = np.take(x, index.ravel(), axis=axis)
    if weight is None:
        return seen
    seen = seen.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    spread = weight.astype(x.dtype).reshape(*index.shape, *[1] * (x.ndim - axis - 1))
    return np.asarray((seen * spread).sum(axis=axis + 1))


# ------------------------------------------------------------------ sampling


def _grid_sample_type(call: Call) -> tuple[Type, ...]:
    _check_choices(call, "TW1213", GRID_SAMPLES)
    x, grid = call.shape(0), call.shape(1)
    if len(x) < 3 or len(grid) != len(x):
        raise call.error(
            "TW1213", f"grid_sample has an image of rank {len(x)}, a grid of rank {len(grid)}"
        )
    batch = same_dim(call, x[0], grid[0], "the batches")
    same_dim(call, grid[-1], sym.const(len(x) - 2), "coordinates and axes")
    places = (batch, x[1], *grid[1:-1])
    if any(d is ZERO for d in x[2:]) and all(isinstance(d, Const) and d.value for d in places):
        raise call.error("TW1213", "grid_sample of an image without pixels")
    return (TensorType(call.tensor(0).dtype, (batch, x[1], *grid[1:-1])),)


def _grid_sample(call: Call, x: Array, grid: Array) -> Array:
    batch, channels, spatial = x.shape[0], x.shape[1], x.shape[2:]
    floating = call.tensor(0).dtype.is_float
    image = wide(x) if floating else x.astype(np.float64)
    flat = image.reshape(batch, channels, -1)
    places = wide(grid).astype(np.float64)
    axes = []
    for axis, size in enumerate(spatial):
        at = places[..., len(spatial) - 1 - axis]  # grids have the innermost axis first
        if call["align_corners"]:
            at = (at + 1) / 2 * (size - 1)
        else:
            at = ((at + 1) * size - 1) / 2
        axes.append(_sample_taps(call, at, size))
    out = np.zeros((batch, channels, *grid.shape[1:-1]), image.dtype)
    for taps in itertools.product(*axes):
        index = np.zeros(out.shape[2:], np.int64)
        weight = np.ones(out.shape[2:])
        for (near, part), size in zip(taps, spatial, strict=True):
            index, weight = index * size + near, weight * part
        seen = np.take_along_axis(flat, index.reshape(batch, 1, -1), axis=2).reshape(out.shape)
        out += seen * weight[:, None].astype(image.dtype)
    return out.astype(x.dtype)


def _sample_taps(call: Call, at: Array, size: int) -> list[tuple[Array, Array]]:
    """The taps of positions along an axis, with their weights."""
    if call["mode"] == "nearest":
        found = [(np.rint(at), np.ones(at.shape))]
    else:
        low = np.floor(at)
        linear = call["mode"] == "linear"
        found = []
        for step in range(2) if linear else range(-1, 3):
            distance = low + step - at
            weight = linear_weights(distance) if linear else cubic_weights(distance, -0.75)
            found.append((low + step, weight))
    return [_pad(call, index, weight, size) for index, weight in found]


def _pad(call: Call, index: Array, weight: Array, size: int) -> tuple[Array, Array]:
    """Map taps outside of the image according to the padding mode."""
    inside = (index >= 0) & (index < size)
    if call["padding"] == "zeros":
        weight = np.where(inside, weight, 0)
    elif call["padding"] == "reflection":
        index = _reflected(index, size, align_corners=call["align_corners"])
    return np.clip(np.nan_to_num(index), 0, size - 1).astype(np.int64), weight


def _reflected(index: Array, size: int, *, align_corners: bool) -> Array:
    """Reflect positions outside at the borders, repeatedly if necessary."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return np.zeros_like(index)
    folded = np.mod(index - low, 2 * span)
    return low + np.where(folded > span, 2 * span - folded, folded)


def _affine_grid_type(call: Call) -> tuple[Type, ...]:
    theta = call.shape(0)
    if len(theta) != 3:
        raise call.error("TW1213", f"affine_grid takes matrices of rank 3, not {len(theta)}")
    size = contents_or_sizes(call, 1, "grid")
    return (TensorType(call.tensor(0).dtype, (size[0], *size[2:], sym.const(len(size) - 2))),)


def _affine_grid(call: Call, theta: Array, size: Array) -> Array:
    """Every position in an image of this size, innermost axis first, mapped by a matrix."""
    spatial = size.tolist()[2:]
    lines = []
    for count in spatial:
        steps = np.arange(count, dtype=np.float64)
        if call["align_corners"]:
            lines.append(steps * 2 / (count - 1) - 1 if count > 1 else np.zeros(count))
        else:
            lines.append((steps * 2 + 1) / count - 1)
    places = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(spatial)], axis=-1)
    flat = places.reshape(-1, len(spatial) + 1)
    out = np.matmul(flat, np.swapaxes(wide(theta).astype(np.float64), 1, 2))
    return np.asarray(out.reshape(len(theta), *spatial, len(spatial))).astype(theta.dtype)


OPS = (
    Op(
        "affine_grid",
        "The positions of an image of the size [batch, channels, *spatial], normalized to [-1, "
        "1], each mapped by a matrix, for grid_sample.",
        (Input("theta", FLOAT), Input("size", INTEGER, folds=True)),
        _affine_grid_type,
        _affine_grid,
        OPAQUE,
        (Attr("align_corners", bool, False),),
    ),
    Op(
        "resize",
        "x resized along axes, by scales or to sizes, optionally from a region only.",
        (
            Input("x", ANY),
            Input("roi", FLOAT, optional=True),
            Input("scales", FLOAT, optional=True, folds=True),
            Input("sizes", INTEGER, optional=True, folds=True),
        ),
        _resize_type,
        _resize,
        OPAQUE,
        (
            Attr("axes", tuple, required=True),
            Attr("mode", str, "nearest"),  # nearest, linear, cubic
            Attr("coordinates", str, "half_pixel"),  # mapping from output to input positions
            Attr("nearest", str, "round_prefer_floor"),
            Attr("cubic_a", float, -0.75),
            Attr("exclude_outside", bool, False),
            Attr("antialias", bool, False),
            Attr("policy", str, "stretch"),  # or not_larger, not_smaller: keep the aspect ratio
            Attr("crop", bool, False),  # resample the region `roi` only
            Attr("extrapolation", float, 0.0),  # value outside of it
        ),
    ),
    Op(
        "grid_sample",
        "An image sampled at the positions of a grid, normalized to [-1, 1], innermost axis first.",
        (Input("x", ANY), Input("grid", FLOAT)),
        _grid_sample_type,
        _grid_sample,
        OPAQUE,
        (
            Attr("mode", str, "linear"),  # nearest, linear, cubic
            Attr("padding", str, "zeros"),  # zeros, border, reflection
            Attr("align_corners", bool, False),
        ),
    ),
)
