"""Pooling over windows, whole images and regions."""

from __future__ import annotations

from typing import Any

from tilewright import sym
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.windows import spatial_dims, window
from tilewright.graph import Value
from tilewright.graph.ops.windows import extent
from tilewright.sym import ONE, Const


def _attributes(node: Context) -> dict[str, Any]:
    kernel = tuple(node.attr("kernel_shape"))
    # Automatic pads determine the number of windows, regardless of rounding.
    automatic = node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    ceil = bool(node.attr("ceil_mode", 0)) and not automatic
    made = {"kernel": kernel, "ceil_mode": ceil, **window(node, kernel)}
    if not ceil and not automatic and _may_overhang(node, made):
        made["overhang"] = True
    return made


def _may_overhang(node: Context, made: dict[str, Any]) -> bool:
    """Whether an image may be smaller than a window. ONNX Runtime rounds the number of windows
    towards zero, so that there is one window that covers the whole image."""
    spatial, pads = spatial_dims(node), made["pads"]
    for axis, size in enumerate(spatial):
        reach = extent(made["kernel"][axis], made["dilations"][axis])
        outside = pads[axis] + pads[axis + len(spatial)]
        least = size if isinstance(size, Const) else ONE
        if made["strides"][axis] > 1 and not sym.prove(sym.le(reach, sym.add(least, outside))):
            return True
    return False


def max_pool(node: Context) -> tuple[Value, ...]:
    order = bool(node.attr("storage_order", 0))
    outputs = 2 if node.wants(1) else 1
    return node.emit_many(
        "max_pool", node[0], outputs=outputs, column_major=order, **_attributes(node)
    )


def avg_pool(node: Context, x: Value) -> Value:
    include = bool(node.attr("count_include_pad", 0))
    return node.emit("avg_pool", x, include_pad=include, **_attributes(node))


def _max_unpool(node: Context) -> Value:
    made = _attributes(node)
    made = {name: made[name] for name in ("kernel", "strides", "pads", "dilations")}
    return node.emit("max_unpool", node[0], node[1], node.get(2), **made)


def _roi_align(node: Context) -> Value:
    # Before opset 16 there was no attribute: coordinates have no half-pixel shift.
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    shift = node.attr("coordinate_transformation_mode", default) == "half_pixel"
    return node.emit(
        "roi_align",
        node[0],
        node[1],
        node[2],
        size=(node.attr("output_height", 1), node.attr("output_width", 1)),
        scale=node.attr("spatial_scale", 1.0),
        sampling_ratio=node.attr("sampling_ratio", 0),
        mode=node.attr("mode", "avg"),
        half_pixel=shift,
    )


def _max_roi_pool(node: Context) -> Value:
    return node.emit(
        "max_roi_pool",
        node[0],
        node[1],
        size=tuple(node.attr("pooled_shape")),
        scale=node.attr("spatial_scale", 1.0),
    )


def _whole(node: Context, op: str) -> Value:
    """Reduce each image and channel to one value."""
    return node.emit(op, node[0], axes=tuple(range(2, node.rank())), keepdims=True)


def _global_lp(node: Context) -> Value:
    p = node.attr("p", 2)
    powers = node.emit("pow", node.emit("abs", node[0]), float(p))
    axes = tuple(range(2, node.rank()))
    total = node.emit("reduce_sum", powers, axes=axes, keepdims=True)
    return node.emit("pow", total, 1 / p)


RULES: dict[str, Rule] = {
    "MaxPool": max_pool,
    "AveragePool": lambda node: avg_pool(node, node[0]),
    "LpPool": lambda node: node.emit("lp_pool", node[0], p=node.attr("p", 2), **_attributes(node)),
    "GlobalMaxPool": lambda node: _whole(node, "reduce_max"),
    "GlobalAveragePool": lambda node: _whole(node, "reduce_mean"),
    "GlobalLpPool": _global_lp,
    "MaxUnpool": _max_unpool,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
}
