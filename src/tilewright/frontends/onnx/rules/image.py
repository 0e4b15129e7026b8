"""Resizing and sampling of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.graph import Value
from tilewright.sym import Expr


def _present(node: Context, at: int) -> Value | None:
    """Input `at`; None if it is empty, which means absent."""
    value = node.get(at)
    if value is None or value.tensor.static_shape == (0,):
        return None
    return value


def _resize(node: Context) -> Value:
    rank = node.rank()
    if node.opset < 11:  # no region, asymmetric coordinates
        made: dict[str, Any] = {"coordinates": "asymmetric", "nearest": "floor"}
        return _emit(node, None, node[1], None, **made)
    coordinates = node.attr("coordinate_transformation_mode", "half_pixel")
    crop = coordinates == "tf_crop_and_resize"
    axes = tuple(axis % rank for axis in node.attr("axes", range(rank)))
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    scales, sizes = _present(node, 2), _present(node, 3)
    if not crop and policy == "stretch":
        axes, scales, sizes = _without_kept(node, axes, scales, sizes)
    return _emit(
        node,
        _present(node, 1) if crop else None,
        scales,
        sizes,
        axes=axes,
        coordinates=coordinates,
        nearest=node.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=node.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        policy=policy,
        crop=crop,
        extrapolation=node.attr("extrapolation_value", 0.0),
    )


def _without_kept(
    node: Context, axes: tuple[int, ...], scales: Value | None, sizes: Value | None
) -> tuple[tuple[int, ...], Value | None, Value | None]:
    """Remove the axes whose scale or size is known to leave the dimension unchanged, such as batch
    and channels; returns the rest with their axes."""
    told = sizes if scales is None else scales
    if told is None or told in node.builder.known or told in node.builder.data:
        return axes, scales, sizes
    dims, known = node.dims(), node.elements(told)
    kept = [dims[axis] if scales is None else 1.0 for axis in axes]
    changed = [at for at, same in enumerate(kept) if not _is(known.get(at), same)]
    if not changed or len(changed) == len(axes):
        return axes, scales, sizes
    left = node.emit("gather", told, node.constant(changed), axis=0)
    rest = tuple(axes[at] for at in changed)
    return (rest, None, left) if scales is None else (rest, left, sizes)


def _is(element: Expr | float | None, wanted: Expr | float) -> bool:
    if isinstance(element, Expr) and isinstance(wanted, Expr):
        return sym.equal(element, wanted)
    return isinstance(element, float) and element == wanted


def _emit(
    node: Context, roi: Value | None, scales: Value | None, sizes: Value | None, **attributes: Any
) -> Value:
    attributes.setdefault("axes", tuple(range(node.rank())))
    mode = node.attr("mode", "nearest")
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    return node.emit("resize", node[0], roi, scales, sizes, mode=mode, **attributes)


def _upsample(node: Context) -> Value:
    if node.opset < 9:
        scales = node.constant(np.array(node.attr("scales"), np.float32))
    else:
        scales = node[1]
    return _emit(node, None, scales, None, coordinates="asymmetric", nearest="floor")


def _grid_sample(node: Context) -> Value:
    mode = node.attr("mode", "linear")
    return node.emit(
        "grid_sample",
        node[0],
        node[1],
        mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
        padding=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )


def _affine_grid(node: Context) -> Value:
    align = bool(node.attr("align_corners", 0))
    return node.emit("affine_grid", node[0], node[1], align_corners=align)


RULES: dict[str, Rule] = {
    "AffineGrid": _affine_grid,
    "Resize": _resize,
    "Upsample": _upsample,
    "GridSample": _grid_sample,
}
