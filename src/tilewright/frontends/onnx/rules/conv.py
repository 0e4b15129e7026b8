"""Convolutions: plain, integer, quantized, transposed, deformable."""

from __future__ import annotations

from typing import Any

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.windows import kernel_dims, spatial_dims, window
from tilewright.graph import Value
from tilewright.graph.ops.windows import as_number, extent
from tilewright.sym import Expr


def _attributes(node: Context, weights: int = 1) -> dict[str, Any]:
    made = window(node, kernel_dims(node, weights))
    return {**made, "groups": node.attr("group", 1)}


def conv(node: Context) -> Value:
    return node.emit("conv", node[0], node[1], node.get(2), **_attributes(node))


def _conv_integer(node: Context) -> Value:
    zeros = (node.get(2), node.get(3))
    return node.emit("conv_integer", node[0], node[1], *zeros, **_attributes(node))


def _qlinear_conv(node: Context) -> Value:
    """Accumulate in i32, dequantize, quantize."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node[at] for at in range(8))
    attributes = _attributes(node, 3)
    total = node.emit("conv_integer", x, w, x_zero, w_zero, node.get(8), **attributes)
    scale = node.emit("mul", x_scale, w_scale)
    real = node.emit("dequantize", total, scale, to=F32, axis=1)
    return node.emit("quantize", real, y_scale, y_zero, to=y_zero.tensor.dtype)


def _conv_transpose(node: Context) -> Value:
    spatial, kernel = spatial_dims(node), kernel_dims(node)
    rank = len(spatial)
    strides = tuple(node.attr("strides", (1,) * rank))
    dilations = tuple(node.attr("dilations", (1,) * rank))
    more = tuple(node.attr("output_padding", (0,) * rank))
    auto = node.attr("auto_pad", "NOTSET")
    wanted: tuple[Expr | int, ...] | None = node.attr("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(sym.mul(n, s) for n, s in zip(spatial, strides, strict=True))
    if wanted is None:
        pads = (0,) * (2 * rank) if auto == "VALID" else node.attr("pads", (0,) * (2 * rank))
    else:
        begins, ends = [], []
        for axis in range(rank):
            grown = sym.mul(sym.sub(spatial[axis], 1), strides[axis])
            full = sym.add(grown, extent(kernel[axis], dilations[axis]))
            total = sym.sub(sym.add(full, more[axis]), wanted[axis])
            half = sym.floordiv(total, 2)
            rest = sym.sub(total, half)
            begin, end = (half, rest) if auto == "SAME_UPPER" else (rest, half)
            begins.append(as_number(begin))
            ends.append(as_number(end))
        pads = (*begins, *ends)
    return node.emit(
        "conv_transpose",
        node[0],
        node[1],
        node.get(2),
        strides=strides,
        dilations=dilations,
        pads=tuple(pads),
        groups=node.attr("group", 1),
        output_padding=more,
    )


def _deform_conv(node: Context) -> Value:
    inputs = (node[0], node[1], node[2], node.get(3), node.get(4))
    groups = node.attr("offset_group", 1)
    return node.emit("deform_conv", *inputs, **_attributes(node), offset_groups=groups)


def _col2im(node: Context) -> Value:
    of = node[1].tensor.static_shape
    contents = node.builder.known.get(node[1])
    rank = len(contents) if contents is not None else 0 if of is None else of[0]
    return node.emit(
        "col2im",
        *(node[at] for at in range(3)),
        strides=tuple(node.attr("strides", (1,) * rank)),
        dilations=tuple(node.attr("dilations", (1,) * rank)),
        pads=tuple(node.attr("pads", (0,) * (2 * rank))),
    )


RULES: dict[str, Rule] = {
    "Conv": conv,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "Col2Im": _col2im,
}
