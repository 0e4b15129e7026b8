"""Formulas, in PyTorch's operators, of operators that PyTorch has no formulas for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Formula = Callable[..., Any]


# ------------------------------------------------------------------------------------- windows


def _window(of: Callable[..., Tensor]) -> Formula:
    """A window function: `of` gives its values at positions, for a number of samples per period."""

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
    """For w = g v / |v|: dg = dw.v / |v|, dv = g / |v| (dw - v dg / |v|)."""
    axes = [axis for axis in range(direction.dim()) if axis != dim]
    norms = norms.to(length.dtype)
    along = (grad * direction).sum(axes, keepdim=True) / norms
    return length / norms * (grad - direction * (along / norms)), along


def _shrunk_gradient(grad: Tensor, x: Tensor, bound: float) -> Tensor:
    return torch.where((x >= -bound) & (x <= bound), 0.0, grad)


def _distance_slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """The derivative of a p-norm for each difference; zero where the norm is."""
    sign = difference.sign()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return torch.where(difference.abs() == distance, sign, 0.0)
    share = difference.abs() / torch.where(distance == 0, 1.0, distance)
    return torch.where(distance == 0, 0.0, sign * share.pow(p - 1))


def _cdist_gradient(grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    slope = _distance_slope(difference, distances.unsqueeze(-1), p)
    return (grad.unsqueeze(-1) * slope).sum(-2)


def _pdist_gradient(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    slope = _distance_slope(x[first] - x[second], distances.unsqueeze(-1), p)
    each = grad.unsqueeze(-1) * slope
    return torch.zeros_like(x).index_add(0, first, each).index_add(0, second, -each)


def _masked_scatter_gradient(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradient of each element of the source: the n-th went to the n-th true element of the
    mask."""
    flat, chosen = grad.reshape(-1), mask.expand_as(grad).reshape(-1)
    place = torch.where(chosen, chosen.cumsum(0) - 1, 0)
    made = grad.new_zeros(math.prod(sizes))
    return made.index_add(0, place, torch.where(chosen, flat, 0.0)).reshape(sizes)


# --------------------------------------------------------------------------------------- losses

MEAN = 1  # reductions of losses


def _multi_margin_gradient(
    grad: Tensor, x: Tensor, target: Tensor, p: float, margin: float,
    weight: Tensor | None = None, reduction: int = MEAN,
) -> Tensor:  # fmt: skip
    """The gradient of sum(max(0, margin - x[target] + x[other])^p) w[target] / classes."""
    rows, target = x.reshape(-1, x.shape[-1]), target.reshape(-1, 1)
    is_target = target == torch.arange(rows.shape[1], device=x.device)
    distance = (margin - rows.gather(1, target) + rows).clamp_min(0)
    slope = (distance > 0).to(x.dtype) if p == 1 else 2 * distance
    slope = torch.where(is_target, 0.0, slope)
    slope = slope if weight is None else slope * weight[target]
    slope = torch.where(is_target, -slope.sum(1, keepdim=True), slope)
    share = rows.numel() if reduction == MEAN else rows.shape[1]
    return (slope * (grad.reshape(-1, 1) / share)).reshape(x.shape)


# ------------------------------------------------------------------------------------ embeddings

MEAN_OF_BAG, MAX_OF_BAG = 1, 2


def _bag_of_each(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index, which PyTorch does not always return."""
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, places, right=True) - 1


def _bag_gradient(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, places: Tensor,
    rows: int, by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None,
    padding: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of a table whose rows are summed, averaged or maximized in bags."""
    bag = _bag_of_each(indices, offsets)
    each = grad.index_select(0, bag)
    if mode == MEAN_OF_BAG:
        each = each / sizes.index_select(0, bag).clamp_min(1).unsqueeze(1)
    if weights is not None:
        each = each * weights.unsqueeze(1)
    if mode == MAX_OF_BAG:
        filled = torch.where((sizes > 0).unsqueeze(1), grad, 0.0)
        table = grad.new_zeros(rows, grad.shape[1])
        return table.scatter_add(0, places.clamp_min(0), filled)
    return aten.embedding_dense_backward(each, indices, rows, padding, by_frequency)


def _bag_weights_gradient(
    grad: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int,
    padding: int = -1,
) -> Tensor:  # fmt: skip
    bag = _bag_of_each(indices, offsets)
    made = (grad.index_select(0, bag) * table.index_select(0, indices)).sum(1)
    return torch.where(indices == padding, 0.0, made)


def _zeros_of_tangent(x: Tensor, like: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros of a tensor's type and the other's shape, after the batch axes."""
    return x.new_zeros([*x.shape[:self_num_batch_dims], *like.shape])


def _overloads(name: str) -> list[Any]:
    """The functional overloads."""
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
    aten._neg_view.default: torch.neg,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.hardshrink_backward.default: _shrunk_gradient,
    aten.softshrink_backward.default: _shrunk_gradient,
    aten._cdist_backward.default: _cdist_gradient,
    aten._pdist_backward.default: _pdist_gradient,
    aten.masked_scatter_backward.default: _masked_scatter_gradient,
    aten.multi_margin_loss_backward.default: _multi_margin_gradient,
    aten._embedding_bag_backward.default: _bag_gradient,
    aten._embedding_bag_per_sample_weights_backward.default: _bag_weights_gradient,
    aten._new_zeros_with_same_feature_meta.default: _zeros_of_tangent,
}
