"""Formulas of fake-quantization operators, for which PyTorch has none.

Each returns the rounded tensor and the mask of elements in range, through which gradients pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _rounded(x: Tensor, scale: Tensor, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """In the operands' promoted type: eager mode computes 16-bit floats in f32."""
    level = torch.round(x * (1.0 / scale)) + zero
    level = torch.where(level == level, level, -torch.inf)  # NaN becomes the least integer
    return (level.clamp(low, high) - zero) * scale, (level >= low) & (level <= high)


def _by_numbers(x: Tensor, scale: float, zero: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    made, inside = _rounded(x.float(), x.new_full((), scale, dtype=torch.float), zero, low, high)
    return made.to(x.dtype), inside


def _by_tensors(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    made, inside = _rounded(x.float(), scale.float(), zero, low, high)
    is_on = enabled != 0
    return torch.where(is_on, made.to(x.dtype), x), inside | ~is_on


def _by_channel(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * x.dim()
    shape[axis] = -1
    made, inside = _rounded(x, scale.float().view(shape), zero.view(shape), low, high)
    return made.to(x.dtype), inside


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: _by_channel,
}
