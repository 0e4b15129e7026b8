"""Convolution, its transpose, and the gradients of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import sym
from tilewright.base.dtype import F64
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Dim, Rule
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import Const, Expr


def each(given: Any, count: int, default: int = 1) -> tuple[int, ...]:
    """One number per spatial axis; a single one stands for all."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return (default,) * count
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    return tuple(listed * count if len(listed) == 1 else listed)


class Window:
    """The attributes of a convolution, by the names of its schema."""

    def __init__(self, node: Context, spatial: int) -> None:
        self.strides = each(node.args["stride"], spatial)
        self.pads = each(node.args["padding"], spatial, 0)
        self.dilations = each(node.args["dilation"], spatial)
        self.extra = each(node.get("output_padding"), spatial, 0)
        self.groups = int(node.args["groups"])


def _convolution(node: Context) -> Value:
    x, w, bias = node["input"], node["weight"], node.get("bias")
    of = x.tensor.dtype
    if not of.is_float:  # computed in f64, exact while sums stay below 2**53
        x, w = node.cast(x, F64), node.cast(w, F64)
        bias = None if bias is None else node.cast(bias, F64)
    spatial = node.rank("input") - 2
    window = Window(node, spatial)
    shared: dict[str, Any] = {
        "strides": window.strides,
        "pads": window.pads * 2,
        "dilations": window.dilations,
        "groups": window.groups,
    }
    if not node.args["transposed"]:
        made = node.emit("conv", x, w, bias, **shared)
    else:
        made = node.emit("conv_transpose", x, w, bias, output_padding=window.extra, **shared)
    return node.cast(made, of)


def spread(
    node: Context,
    gradient: Value,
    w: Value,
    to: Sequence[Expr],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """The gradient of a convolution for its input of spatial extents `to`: what its windows add to
    each position."""
    ends: list[Dim] = []
    extra: list[int] = []
    counts, kernel = node.shape(gradient)[2:], node.shape(w)[2:]
    for axis, (count, k, size) in enumerate(zip(counts, kernel, to, strict=True)):
        covered = sym.add(sym.mul(sym.sub(count, 1), strides[axis]), 1)
        covered = sym.add(covered, sym.mul(sym.sub(k, 1), dilations[axis]))
        behind = sym.simplify(sym.sub(sym.sub(covered, pads[axis]), size))
        if not isinstance(behind, Const):
            raise Skip("the gradient of a convolution over dynamic extents")
        ends.append(max(int(behind.value), 0))
        extra.append(max(-int(behind.value), 0))
    return node.emit(
        "conv_transpose",
        gradient,
        w,
        strides=tuple(strides),
        pads=items_of([*pads, *ends]),
        dilations=tuple(dilations),
        groups=groups,
        output_padding=tuple(extra),
        finite=True,  # of other weights there is no gradient worth the name
    )


def weight_gradient(
    node: Context, x: Value, gradient: Value, kernel: Sequence[Expr], window: Window
) -> Value:
    """The gradient of a grouped convolution for its weights: a convolution of the input by the
    output's gradient, with batch and channels exchanged.

    Strides and dilations are exchanged as well: neighbouring outputs lie a stride apart in the
    input.
    """
    taps = [int(k.value) for k in kernel if isinstance(k, Const)]
    if window.groups == 1 and len(taps) == len(kernel):
        return _product_of_windows(node, x, gradient, taps, window)
    batch, channels, *extents = node.shape(x)
    groups, rank = window.groups, len(extents)
    inner = sym.simplify(sym.floordiv(channels, groups))
    rest = tuple(range(3, 3 + rank))
    split = node.reshape(x, (batch, groups, inner, *extents))
    turned = transpose(node, split, (2, 1, 0, *rest))
    stacked = node.reshape(turned, (inner, sym.simplify(sym.mul(batch, groups)), *extents))
    kernels = transpose(node, gradient, (1, 0, *range(2, 2 + rank)))
    made = node.emit(
        "conv",
        stacked,
        kernels,
        strides=window.dilations,
        pads=window.pads * 2,
        dilations=window.strides,
        groups=groups,
    )
    for axis, k in enumerate(kernel):
        if node.shape(made)[2 + axis] is not k:
            made = slice_axis(node, made, 2 + axis, 0, k)
    return transpose(node, made, (1, 0, *range(2, 2 + rank)))


def _product_of_windows(
    node: Context, x: Value, gradient: Value, kernel: Sequence[int], window: Window
) -> Value:
    """A GEMM of the gradient with the im2col matrix of the input, summed over output positions."""
    batch, outer, *counts = node.shape(gradient)
    spatial = len(counts)
    if any(window.pads):
        axes = tuple(range(2, 2 + spatial))
        x = node.emit("pad", x, None, None, pads=items_of([*window.pads] * 2), axes=axes)
    last = (0, *range(2, 2 + spatial), 1)
    sees = node.emit(
        "patches",
        transpose(node, x, last),
        kernel=tuple(kernel),
        strides=window.strides,
        dilations=window.dilations,
    )
    for axis, count in enumerate(counts, start=1):
        if node.shape(sees)[axis] is not count:
            sees = slice_axis(node, sees, axis, 0, count)
    inner = node.shape(x)[1]
    positions, seen = product((batch, *counts)), product((inner, *map(sym.as_expr, kernel)))
    rows = node.reshape(transpose(node, gradient, last), (positions, outer))
    made = node.emit("matmul", transpose(node, rows, (1, 0)), node.reshape(sees, (positions, seen)))
    whole = node.reshape(made, (outer, *map(sym.as_expr, kernel), inner))
    return transpose(node, whole, (0, 1 + spatial, *range(1, 1 + spatial)))


def _gradients(node: Context) -> list[Value | None]:
    """The gradients of input, weights and bias that the mask asks for."""
    g, x, w = node["grad_output"], node["input"], node["weight"]
    extents, kernel = node.shape(x)[2:], node.shape(w)[2:]
    window = Window(node, len(extents))
    transposed = node.args["transposed"]
    wants_x, wants_w, wants_b = node.args["output_mask"]
    dx = dw = db = None
    if wants_x and transposed:
        dx = node.emit(
            "conv",
            g,
            w,
            strides=window.strides,
            pads=window.pads * 2,
            dilations=window.dilations,
            groups=window.groups,
        )
    elif wants_x:
        dx = spread(
            node, g, w, extents, window.strides, window.pads, window.dilations, window.groups
        )
    if wants_w:
        big, small = (g, x) if transposed else (x, g)
        dw = weight_gradient(node, big, small, kernel, window)
    if wants_b:
        axes = (0, *range(2, 2 + len(extents)))
        db = node.emit("reduce_sum", g, axes=axes, keepdims=False)
    return [dx, dw, db]


RULES: dict[str, Rule] = {
    "aten.convolution": _convolution,
    "aten.convolution_backward": _gradients,
}
