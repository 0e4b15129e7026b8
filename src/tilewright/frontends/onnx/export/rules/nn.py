"""Convolutions, pools, norms, images, quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import F32, I32, I64
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable, code_of
from tilewright.frontends.onnx.export.rules.elementwise import narrowed, of_input, wide_type
from tilewright.graph.ir import Node

# ------------------------------------------------------------------ windows


def _rank(node: Node) -> int:
    x = node.inputs[0]
    rank = None if x is None else x.tensor.rank
    if rank is None:
        raise Unwritable(f"{node.op} of an unknown rank")
    return rank


def _windows(node: Node) -> dict[str, Any]:
    made = {"strides": node["strides"], "pads": node["pads"], "dilations": node["dilations"]}
    if node.get("kernel") is not None:
        made["kernel_shape"] = node["kernel"]
    return made


def _fronted(e: Emitter, node: Node, x: str) -> str:
    """Transpose to channels first, as in ONNX."""
    if node.get("layout", "channels_first") == "channels_first":
        return x
    rank = _rank(node)
    return str(e.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]))


def _back(e: Emitter, node: Node, x: str) -> str:
    if node.get("layout", "channels_first") == "channels_first":
        return x
    rank = _rank(node)
    return str(e.emit("Transpose", x, perm=[0, *range(2, rank), 1]))


def _conv(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        names, of, to = e.inputs(node), of_input(node), node.outputs[0].tensor.dtype
        if of.is_int:
            raise Unwritable("a convolution of integers")
        if of is not to:
            names = [e.cast(name, to) if name else "" for name in names]
        names[0] = _fronted(e, node, names[0])
        more = _windows(node)
        if op == "ConvTranspose":
            more["output_padding"] = node["output_padding"]
        made = e.emit(op, *names, group=node.get("groups", 1), **more)
        return _back(e, node, made)

    return rule


def _conv_integer(e: Emitter, node: Node) -> str:
    x, w, x_zero, w_zero, bias = [*e.inputs(node), "", "", ""][:5]
    made = e.emit(
        "ConvInteger",
        _fronted(e, node, x),
        w,
        x_zero,
        w_zero,
        group=node.get("groups", 1),
        **_windows(node),
    )
    if bias:
        shape = e.ints(1, -1, *[1] * (_rank(node) - 2))
        made = e.emit("Add", made, e.emit("Reshape", bias, shape))
    return _back(e, node, made)


def _deform_conv(e: Emitter, node: Node) -> str:
    groups = {"group": node.get("groups", 1), "offset_group": node.get("offset_groups", 1)}
    return str(e.emit("DeformConv", *e.inputs(node), **_windows(node), **groups))


def _col2im(e: Emitter, node: Node) -> str:
    parts = [e.inputs(node)[0], e.operand(node, 1), e.operand(node, 2)]
    return str(e.emit("Col2Im", *parts, **_windows(node)))


def _max_pool(e: Emitter, node: Node) -> list[str]:
    x, of = _fronted(e, node, e.inputs(node)[0]), of_input(node)
    if of.is_int and str(of) not in ("i8", "u8"):
        raise Unwritable("a pool of integers")
    flags: dict[str, Any] = {"ceil_mode": int(node.get("ceil_mode", False))}
    if node.get("column_major"):
        flags["storage_order"] = 1
    made = e.emit("MaxPool", x, outputs=len(node.outputs), **_windows(node), **flags)
    names = [made] if isinstance(made, str) else list(made)
    return [_back(e, node, name) for name in names]


def _avg_pool(e: Emitter, node: Node) -> str:
    x = _fronted(e, node, e.inputs(node)[0])
    flags: dict[str, Any] = {
        "ceil_mode": int(node.get("ceil_mode", False)),
        "count_include_pad": int(node.get("include_pad", False)),
    }
    return _back(e, node, e.emit("AveragePool", x, **_windows(node), **flags))


def _lp_pool(e: Emitter, node: Node) -> str:
    x = _fronted(e, node, e.inputs(node)[0])
    flags: dict[str, Any] = {"ceil_mode": int(node.get("ceil_mode", False))}
    flags["p"] = node.get("p", 2)
    return _back(e, node, e.emit("LpPool", x, **_windows(node), **flags))


def _max_unpool(e: Emitter, node: Node) -> str:
    more = {"kernel_shape": node["kernel"], "strides": node["strides"], "pads": node["pads"]}
    x, indices = e.inputs(node)[:2]
    return str(e.emit("MaxUnpool", x, indices, e.operand(node, 2), **more))


def _roi_align(e: Emitter, node: Node) -> str:
    x, rois, images = e.inputs(node)
    if of_input(node, 2) is not I64:
        images = e.cast(images, I64)
    height, width = node["size"]
    made = e.emit(
        "RoiAlign",
        x,
        rois,
        images,
        output_height=height,
        output_width=width,
        spatial_scale=float(node.get("scale", 1.0)),
        sampling_ratio=node.get("sampling_ratio", 0),
        mode=node.get("mode", "avg"),
        coordinate_transformation_mode=(
            "half_pixel" if node.get("half_pixel", True) else "output_half_pixel"
        ),
    )
    return str(made)


def _max_roi_pool(e: Emitter, node: Node) -> str:
    scale = float(node.get("scale", 1.0))
    return str(
        e.emit("MaxRoiPool", *e.inputs(node), pooled_shape=node["size"], spatial_scale=scale)
    )


# ------------------------------------------------------------------ norms


def _softmax(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (x,), axes = e.inputs(node), node["axes"]
        if len(axes) == 1:
            return str(e.emit(op, x, axis=axes[0]))
        if op == "Hardmax":
            raise Unwritable("hardmax along several axes")
        along = e.ints(*axes)
        centred = e.emit("Sub", x, e.emit("ReduceMax", x, along, keepdims=1))
        powers = e.emit("Exp", centred)
        total = e.emit("ReduceSum", powers, along, keepdims=1)
        if op == "Softmax":
            return str(e.emit("Div", powers, total))
        return str(e.emit("Sub", centred, e.emit("Log", total)))

    return rule


def _layer_norm(e: Emitter, node: Node) -> list[str]:
    """Decomposed to mean and variance over the last axes."""
    x, scale, bias = [*e.inputs(node), "", ""][:3]
    of, rank = of_input(node), _rank(node)
    axis = node["axis"] % rank
    work = F32 if of.size_bytes < 4 else of
    x = e.cast(x, work) if work is not of else x
    along = e.ints(*range(axis, rank))
    mean = e.emit("ReduceMean", x, along, keepdims=1)
    centred = e.emit("Sub", x, mean)
    variance = e.emit("ReduceMean", e.emit("Mul", centred, centred), along, keepdims=1)
    epsilon = e.scalar(node.get("epsilon", 1e-5), work)
    inverse = e.emit("Reciprocal", e.emit("Sqrt", e.emit("Add", variance, epsilon)))
    out = e.emit("Mul", centred, inverse)
    if work is not of:
        out = e.cast(out, of)
    if scale:
        out = e.emit("Mul", out, scale)
    if bias:
        out = e.emit("Add", out, bias)
    made = [out, mean, inverse][: len(node.outputs)]
    types = [value.tensor.dtype for value in node.outputs]
    kinds = [of, work, work]
    return [
        e.cast(name, to) if to is not kind else name
        for name, to, kind in zip(made, types, kinds, strict=False)
    ]


def _rms_norm(e: Emitter, node: Node) -> str:
    x, scale = e.inputs(node)
    of, rank = of_input(node), _rank(node)
    work = F32 if of.size_bytes < 4 else of
    x = e.cast(x, work) if work is not of else x
    along = e.ints(*range(node["axis"] % rank, rank))
    square = e.emit("ReduceMean", e.emit("Mul", x, x), along, keepdims=1)
    root = e.emit("Sqrt", e.emit("Add", square, e.scalar(node.get("epsilon", 1e-5), work)))
    out = e.emit("Div", x, root)
    return str(e.emit("Mul", e.cast(out, of) if work is not of else out, scale))


def _group_norm(e: Emitter, node: Node) -> str:
    x, scale, bias = e.inputs(node)
    of, rank = of_input(node), _rank(node)
    x = _fronted(e, node, x)
    shape = e.emit("Shape", x)
    groups = e.emit("Reshape", e.size(node["groups"]), e.ints(1))
    split = e.emit("Concat", e.emit("Shape", x, start=0, end=1), groups, e.ints(-1), axis=0)
    rows = e.emit("Reshape", x, split)
    along = e.ints(2)
    mean = e.emit("ReduceMean", rows, along, keepdims=1)
    centred = e.emit("Sub", rows, mean)
    variance = e.emit("ReduceMean", e.emit("Mul", centred, centred), along, keepdims=1)
    epsilon = e.scalar(node.get("epsilon", 1e-5), of)
    root = e.emit("Sqrt", e.emit("Add", variance, epsilon))
    whole = e.emit("Reshape", e.emit("Div", centred, root), shape)
    per_channel = e.ints(-1, *[1] * (rank - 2))
    scaled = e.emit("Mul", whole, e.emit("Reshape", scale, per_channel))
    return _back(e, node, e.emit("Add", scaled, e.emit("Reshape", bias, per_channel)))


def _batch_norm(e: Emitter, node: Node) -> str:
    names = e.inputs(node)
    names[0] = _fronted(e, node, names[0])
    return _back(e, node, e.emit("BatchNormalization", *names, epsilon=node.get("epsilon", 1e-5)))


def _lrn(e: Emitter, node: Node) -> str:
    x = _fronted(e, node, e.inputs(node)[0])
    numbers = {
        "size": node["size"],
        "alpha": node.get("alpha", 1e-4),
        "beta": node.get("beta", 0.75),
        "bias": node.get("bias", 1.0),
    }
    return _back(e, node, e.emit("LRN", x, **numbers))


# ------------------------------------------------------------------ quantization


def _quantize(e: Emitter, node: Node) -> str:
    x, scale, zero = [*e.inputs(node), "", ""][:3]
    if node.get("precision") is not None or node.get("reciprocal"):
        raise Unwritable("a quantization with a type or a factor of its own")
    more: dict[str, Any] = {"axis": node.get("axis", 1), "block_size": node.get("block_size", 0)}
    if not node.get("saturate", True):
        more["saturate"] = 0
    if not zero:
        more["output_dtype"] = code_of(node["to"])
    of = of_input(node)
    if of.is_int:
        x = e.cast(x, F32)
    if not scale:
        scale = e.scalar(1.0, F32 if of.is_int else of)
    elif not of.is_int and of_input(node, 1) is not of:
        x = e.cast(x, of_input(node, 1))
    return str(e.emit("QuantizeLinear", x, scale, zero, **more))


def _dequantize(e: Emitter, node: Node) -> str:
    more = {"axis": node.get("axis", 1), "block_size": node.get("block_size", 0)}
    made = e.emit("DequantizeLinear", *e.inputs(node), **more)
    return made if node["to"] is of_input(node, 1) else e.cast(made, node["to"])


def _lookup(e: Emitter, node: Node) -> str:
    x, table = e.inputs(node)
    return str(e.emit("Gather", table, e.cast(x, I32)))


# ------------------------------------------------------------------ images


def _resize(e: Emitter, node: Node) -> str:
    x, roi = [*e.inputs(node), ""][:2]
    scales, sizes = e.operand(node, 2), e.operand(node, 3)
    of, rank = of_input(node), _rank(node)
    if wide_type(of) is not of and str(of) not in ("i8", "u8"):
        x = e.cast(x, I32)
    crop = node.get("crop", False)
    more: dict[str, Any] = {
        "mode": node.get("mode", "nearest"),
        "coordinate_transformation_mode": (
            "tf_crop_and_resize" if crop else node.get("coordinates", "half_pixel")
        ),
        "nearest_mode": node.get("nearest", "round_prefer_floor"),
        "cubic_coeff_a": float(node.get("cubic_a", -0.75)),
        "exclude_outside": int(node.get("exclude_outside", False)),
        "antialias": int(node.get("antialias", False)),
        "keep_aspect_ratio_policy": node.get("policy", "stretch"),
        "extrapolation_value": float(node.get("extrapolation", 0.0)),
    }
    if sizes:
        scales = ""
    if tuple(node["axes"]) != tuple(range(rank)):
        more["axes"] = node["axes"]
    made = e.emit("Resize", x, roi, scales, sizes, **more)
    return narrowed(e, made, node) if str(of) not in ("i8", "u8") else str(made)


def _grid_sample(e: Emitter, node: Node) -> str:
    more = {
        "mode": node.get("mode", "linear"),
        "padding_mode": node.get("padding", "zeros"),
        "align_corners": int(node.get("align_corners", False)),
    }
    return str(e.emit("GridSample", *e.inputs(node), **more))


def _affine_grid(e: Emitter, node: Node) -> str:
    align = int(node.get("align_corners", False))
    return str(e.emit("AffineGrid", e.inputs(node)[0], e.operand(node, 1), align_corners=align))


def _patches(e: Emitter, node: Node) -> str:
    """im2col: one strided slice of the image for each kernel position."""
    kernel: Sequence[int] = node["kernel"]
    strides, dilations = node["strides"], node["dilations"]
    (x,), out = e.inputs(node), node.outputs[0].tensor.shape
    if out is None:
        raise Unwritable("patches of an unknown rank")
    count = len(kernel)
    places = out[1 : 1 + count]
    axes = e.ints(*range(1, 1 + count))
    parts = []
    for position in np.ndindex(*kernel):
        starts = tuple(int(p) * d for p, d in zip(position, dilations, strict=True))
        ends = tuple(s + (n - 1) * k + 1 for s, n, k in zip(starts, places, strides, strict=True))
        part = e.emit("Slice", x, e.ints(*starts), e.items(ends), axes, e.ints(*strides))
        parts.append(e.emit("Unsqueeze", part, e.ints(1 + count)))
    stacked = parts[0] if len(parts) == 1 else e.emit("Concat", *parts, axis=1 + count)
    return str(e.emit("Reshape", stacked, e.items(tuple(out)), allowzero=1))


RULES: dict[str, Rule] = {
    "conv": _conv("Conv"),
    "conv_integer": _conv_integer,
    "conv_transpose": _conv("ConvTranspose"),
    "deform_conv": _deform_conv,
    "col2im": _col2im,
    "patches": _patches,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "lp_pool": _lp_pool,
    "max_unpool": _max_unpool,
    "roi_align": _roi_align,
    "max_roi_pool": _max_roi_pool,
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "hardmax": _softmax("Hardmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "lrn": _lrn,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "lookup_bytes": _lookup,
    "resize": _resize,
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
}
COMPOSITES = ("layer_norm", "rms_norm", "group_norm", "patches")
