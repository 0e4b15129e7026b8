"""im2col: windows of an image as rows, so that a convolution is a GEMM."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.op import INJECTIVE, Attr, Call, Input, Op
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr

Array = np.ndarray[Any, Any]


def _patches_type(call: Call) -> tuple[Type, ...]:
    batch, *spatial, channels = call.shape(0)
    kernel = call["kernel"]
    if not len(kernel) == len(call["strides"]) == len(call["dilations"]) == len(spatial):
        raise call.error("TW1218", "patches needs a kernel size, stride and dilation for each axis")
    counts: list[Expr] = []
    for size, k, stride, step in zip(
        spatial, kernel, call["strides"], call["dilations"], strict=True
    ):
        room = sym.sub(size, (k - 1) * step + 1)
        counts.append(sym.simplify(sym.maximum(sym.add(sym.floordiv(room, stride), 1), 0)))
    taps = tuple(sym.const(k) for k in kernel)
    return (TensorType(call.tensor(0).dtype, (batch, *counts, *taps, channels)),)


def _patches(call: Call, x: Array) -> Array:
    kernel, rank = call["kernel"], len(call["kernel"])
    counts = [
        max(0, (size - (k - 1) * step - 1) // stride + 1)
        for size, k, stride, step in zip(
            x.shape[1:-1], kernel, call["strides"], call["dilations"], strict=True
        )
    ]
    out = np.zeros((x.shape[0], *counts, *kernel, x.shape[-1]), x.dtype)
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(at * step, at * step + count * stride, stride)
            for at, step, stride, count in zip(
                tap, call["dilations"], call["strides"], counts, strict=True
            )
        )
        seen = x[(slice(None), *where)][(slice(None), *(slice(count) for count in counts))]
        out[(slice(None),) * (rank + 1) + tap] = seen
    return out


OPS = (
    Op(
        "patches",
        "The elements of each window of an image, channels last (im2col): [batch, *positions, "
        "*kernel, channels].",
        (Input("x"),),
        _patches_type,
        _patches,
        INJECTIVE,
        (
            Attr("kernel", tuple, required=True),
            Attr("strides", tuple, required=True),
            Attr("dilations", tuple, required=True),
        ),
    ),
)
