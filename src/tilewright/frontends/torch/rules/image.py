"""Resizing and sampling of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.pool import mixed
from tilewright.frontends.torch.rules.shape import slice_axis
from tilewright.graph import Value
from tilewright.graph.ops.image import cubic_weights, linear_weights
from tilewright.graph.types import items_of
from tilewright.sym import Const


def _scales(node: Context) -> list[float] | None:
    """The scale factors that coordinates use, if the user gave them."""
    given = node.get("scale_factors")
    if given is None:
        named = [node.get(name) for name in ("scales", "scales_d", "scales_h", "scales_w")]
        given = [scale for scale in named if scale is not None] or None
    return None if given is None else [float(scale) for scale in given]


def _resize(node: Context, **attributes: Any) -> Value:
    x = node["input"] if "input" in node.args else node["self"]
    rank = len(node.shape(x))
    axes = tuple(range(2, rank))
    scales = _scales(node)
    if not x.tensor.dtype.is_float and attributes["mode"] != "nearest":
        raise Skip(f"{node.op_type} of integers")
    if scales is not None and len(scales) == len(axes) and not _by_corners(attributes):
        factors = node.constant(np.asarray(scales, np.float32))
        made = node.emit("resize", x, None, factors, None, axes=axes, **attributes)
        pairs = list(zip(node.shape(made), node.out, strict=True))
        if all(sym.prove(sym.le(want, have), sym.EMPTY) for have, want in pairs):
            for axis, (have, want) in enumerate(pairs):  # as many as requested
                made = made if have is want else slice_axis(node, made, axis, 0, want)
            return made
    return node.emit("resize", x, sizes=items_of(node.out[2:]), axes=axes, **attributes)


def _by_corners(attributes: dict[str, Any]) -> bool:
    """Whether positions follow from sizes alone, whatever the scale factors."""
    return attributes["coordinates"] == "align_corners"


def _nearest(node: Context) -> Value:
    return _resize(node, mode="nearest", coordinates="asymmetric", nearest="floor")


def _nearest_exact(node: Context) -> Value:
    return _resize(node, mode="nearest", coordinates="half_pixel", nearest="round_prefer_ceil")


def _smooth(mode: str, *, antialias: bool = False) -> Rule:
    def rule(node: Context) -> Value:
        corners = bool(node.args["align_corners"])
        if corners and antialias:
            return _antialiased(node, mode)
        return _resize(
            node,
            mode=mode,
            coordinates="align_corners" if corners else "half_pixel",
            antialias=antialias,
            exclude_outside=antialias,  # renormalize without weights beyond the border
            cubic_a=-0.5 if antialias else -0.75,
        )

    return rule


def _antialiased(node: Context, mode: str) -> Value:
    """With align_corners only the scale changes: output i is centred at scale * (i + 1/2)."""
    x = node["input"] if "input" in node.args else node["self"]
    for axis in (2, 3):
        before, after = node.shape(x)[axis], node.out[axis]
        if not isinstance(before, Const) or not isinstance(after, Const):
            raise Skip(f"{node.op_type} with aligned corners to dynamic sizes")
        weights = filter_matrix(int(before.value), int(after.value), mode)
        x = mixed(node, x, axis, node.constant(weights.astype(x.tensor.dtype.numpy)))
    return x


def filter_matrix(before: int, after: int, mode: str) -> np.ndarray[Any, Any]:
    """Weights [after, before] of each output for each element."""
    scale = (before - 1) / (after - 1) if after > 1 else 0.0
    stretch = max(scale, 1.0)
    reach = (1.0 if mode == "linear" else 2.0) * stretch
    center = scale * (np.arange(after)[:, None] + 0.5)
    place = np.arange(before)[None, :]
    first = np.maximum(np.trunc(center - reach + 0.5), 0)
    last = np.minimum(np.trunc(center + reach + 0.5), before)
    distance = (place - center + 0.5) / stretch
    weight = linear_weights(distance) if mode == "linear" else cubic_weights(distance, -0.5)
    weight = np.where((place >= first) & (place < last), weight, 0.0)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _grid_sample(node: Context) -> Value:
    return node.emit(
        "grid_sample",
        node["input"],
        node["grid"],
        mode=_MODES[node.args["interpolation_mode"]],
        padding=_PADDINGS[node.args["padding_mode"]],
        align_corners=bool(node.args["align_corners"]),
    )


def _roi_align(node: Context) -> Value:
    """torchvision's: a region is the index of its image and its four edges."""
    regions = node["rois"]
    first = slice_axis(node, regions, 1, 0, 1)
    return node.emit(
        "roi_align",
        node["input"],
        slice_axis(node, regions, 1, 1, 5),
        node.cast(node.reshape(first, node.shape(first)[:1]), I64),
        size=(node.settled("pooled_height"), node.settled("pooled_width")),
        scale=float(node.args["spatial_scale"]),
        sampling_ratio=max(node.settled("sampling_ratio"), 0),
        half_pixel=bool(node.args["aligned"]),
    )


_FORMS = ("", ".vec")

RULES: dict[str, Rule] = {
    **{f"aten.upsample_nearest{n}d{form}": _nearest for n in (1, 2, 3) for form in _FORMS},
    **{
        f"aten._upsample_nearest_exact{n}d{form}": _nearest_exact
        for n in (1, 2, 3)
        for form in _FORMS
    },
    **{
        f"aten.upsample_{name}{form}": _smooth("linear")
        for name in ("linear1d", "bilinear2d", "trilinear3d")
        for form in _FORMS
    },
    **{f"aten.upsample_bicubic2d{form}": _smooth("cubic") for form in _FORMS},
    **{f"aten._upsample_bilinear2d_aa{form}": _smooth("linear", antialias=True) for form in _FORMS},
    **{f"aten._upsample_bicubic2d_aa{form}": _smooth("cubic", antialias=True) for form in _FORMS},
    "aten.grid_sampler_2d": _grid_sample,
    "aten.grid_sampler_3d": _grid_sample,
    "aten.grid_sampler": _grid_sample,
    "torchvision.roi_align": _roi_align,
}
