"""Formulas, in PyTorch's own operators, of operators that PyTorch has no formula for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Formula = Callable[..., Any]


# ------------------------------------------------------------------------------------- windows


def _window(of: Callable[..., Tensor]) -> Formula:
    """A window of a signal, from `of`: its values at places, of so many in a period."""

    def formula(
        length: int, periodic: bool = True, *shape: float,
        dtype: torch.dtype | None = None, device: Any = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        dtype = dtype or torch.get_default_dtype()
        places = torch.arange(length, dtype=torch.float64, device=device)
        if length < 2:
            return torch.ones_like(places).to(dtype)
        return of(places, length if periodic else length - 1, *shape).to(dtype)

    return formula


def _bartlett(places: Tensor, period: int) -> Tensor:
    return 1 - (2 * places / period - 1).abs()


def _blackman(places: Tensor, period: int) -> Tensor:
    turns = places * (2 * math.pi / period)
    return 0.42 - 0.5 * turns.cos() + 0.08 * (2 * turns).cos()


def _hamming(places: Tensor, period: int, alpha: float = 0.54, beta: float = 0.46) -> Tensor:
    return alpha - beta * (places * (2 * math.pi / period)).cos()


def _kaiser(places: Tensor, period: int, beta: float = 12.0) -> Tensor:
    height = (1 - (2 * places / period - 1).square()).sqrt()
    return torch.i0(beta * height) / torch.i0(torch.full_like(height, beta))


# ------------------------------------------------------------------------------------ gradients


def _weight_norm_backward(
    grad: Tensor, direction: Tensor, length: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Of w = g v / |v|: dg = dw.v / |v|, dv = g / |v| (dw - v dg / |v|)."""
    axes = [axis for axis in range(direction.dim()) if axis != dim]
    norms = norms.to(length.dtype)
    along = (grad * direction).sum(axes, keepdim=True) / norms
    return length / norms * (grad - direction * (along / norms)), along


def _zeros_of_tangent(x: Tensor, like: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros of a tensor's type and the other's shape, behind the axes that are batches'."""
    return x.new_zeros([*x.shape[:self_num_batch_dims], *like.shape])


def _overloads(name: str) -> list[Any]:
    """Those that make a tensor of their own."""
    packet = getattr(aten, name)
    return [getattr(packet, each) for each in packet.overloads() if "out" not in each]


WINDOWS: dict[str, Callable[..., Tensor]] = {
    "bartlett_window": _bartlett,
    "blackman_window": _blackman,
    "hamming_window": _hamming,
    "kaiser_window": _kaiser,
}
FORMULAS: dict[Any, Formula] = {
    **{op: _window(of) for name, of in WINDOWS.items() for op in _overloads(name)},
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten._new_zeros_with_same_feature_meta.default: _zeros_of_tangent,
}
