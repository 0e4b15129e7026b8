"""Gradients of resizing and sampling.

Resizing is linear and separable. The weight of each element in each output is found by letting
PyTorch resize unit vectors; the gradient of an element gathers the outputs that used it, which are
contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tilewright.base.dtype import F32
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.traced import traced
from tilewright.graph import Value
from tilewright.sym import ONE

aten = torch.ops.aten
Array = np.ndarray[Any, Any]


def _shares(forward: Any, units: Tensor, axis: int, outputs: int, options: Any) -> Array:
    """Weights [elements, outputs] along an axis: the share of each element in each output."""
    scales = [name for name in options if name.startswith("scales")]
    others = {name: None for at, name in enumerate(scales) if at != axis}
    # Two elements along other axes: PyTorch mistakes axes of one for channels.
    before, after = [2] * len(scales), [2] * len(scales)
    before[axis], after[axis] = len(units), outputs
    place = [1] * len(scales)
    place[axis] = -1
    with unset_fake_temporarily(), torch.no_grad():
        spread = units.reshape(1, len(units), *place).expand(1, len(units), *before).contiguous()
        made = forward(spread, after, **{**options, **others})[0]
    return np.asarray(made.movedim(axis + 1, 1).reshape(len(units), outputs, -1)[..., 0])


def _gathered(node: Context, gradient: Value, axis: int, shares: Array) -> Value:
    """For each element the weighted sum over the outputs that used it."""
    elements, outputs = shares.shape
    taken = shares != 0
    first = np.where(taken.any(1), taken.argmax(1), 0)
    last = np.where(taken.any(1), outputs - 1 - taken[:, ::-1].argmax(1), 0)
    reach = int((last - first).max(initial=0)) + 1
    places = first[:, None] + np.arange(reach)
    inside = np.minimum(places, outputs - 1)
    weights = np.where(places < outputs, np.take_along_axis(shares, inside, 1), 0)
    dims = list(node.shape(gradient))
    found = node.emit("gather", gradient, node.constant(inside.reshape(-1)), axis=axis)
    found = node.reshape(found, [*dims[:axis], elements, reach, *dims[axis + 1 :]])
    factor = node.constant(weights.astype(gradient.tensor.dtype.numpy))
    factor = node.reshape(factor, [elements, reach, *(ONE for _ in dims[axis + 1 :])])
    scaled = node.emit("mul", found, factor)
    return node.emit("reduce_sum", scaled, axes=(axis + 1,), keepdims=False)


def _resize_gradient(forward: Any) -> Rule:
    names = [each.name for each in forward._schema.arguments[2:]]

    def rule(node: Context) -> Value:
        counts = zip(node.args["input_size"][2:], node.args["output_size"], strict=True)
        of = F32 if node.to.bits < F32.bits else node.to
        made = node.cast(node["grad_output"], of)
        for axis, (elements, outputs) in enumerate(counts):
            if not isinstance(elements, int) or not isinstance(outputs, int):
                raise Skip(f"{node.op_type} of dynamic sizes")
            with unset_fake_temporarily():
                units = torch.eye(elements, dtype=torch.float if of is F32 else torch.double)
            options = {name: node.args[name] for name in names}
            made = _gathered(node, made, axis + 2, _shares(forward, units, axis, outputs, options))
        return node.cast(made, node.to)

    return rule


def _sample_gradient(
    grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Any,
) -> Any:  # fmt: skip
    """By PyTorch's own formula for sampling."""
    formula = decomposition_table[aten.grid_sampler_2d.default]

    def sampled(x: Tensor, places: Tensor) -> Any:
        return formula(x, places, interpolation_mode, padding_mode, align_corners)

    _, gradients = torch.func.vjp(sampled, input, grid)
    return gradients(grad_output)


_RESIZES = (
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)

RULES: dict[str, Rule] = {
    **{f"aten.{name}_backward": _resize_gradient(getattr(aten, name).default) for name in _RESIZES},
    "aten.grid_sampler_2d_backward": traced(_sample_gradient),
}
