"""Formulas of operators on lists of tensors: `_foreach_*`, which apply one operator to each, and
`_fused_*`, the steps of optimizers.

_foreach_add.List(xs, ys, alpha=2)  ->  [add(x, y, alpha=2) for x, y in zip(xs, ys)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
PREFIX = "_foreach_"
Formula = Callable[..., Any]


def _scaled(scaled: Formula, by: Formula) -> Formula:
    """addcmul or addcdiv, with the factor as the last operand."""

    def one(x: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Any:
        if isinstance(value, Tensor):
            return x + by(first, second) * value.to(x.dtype)
        return scaled(x, first, second, value=value)

    return one


def _norm(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _power_sum(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return (x if dtype is None else x.to(dtype)).abs().pow(order).sum()


# The operator on one tensor, where its name differs.
EACH: dict[str, Formula] = {
    "addcmul": _scaled(torch.addcmul, torch.mul),
    "addcdiv": _scaled(torch.addcdiv, torch.div),
    "copy": aten.copy.default,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "powsum": _power_sum,
    "zero": torch.zeros_like,
}


def _overloads() -> Iterator[Any]:
    """The functional operators on lists."""
    for each in torch._C._dispatch_get_all_op_names():
        name, _, overload = each.removeprefix("aten::").partition(".")
        if name.startswith(PREFIX):
            operator = getattr(getattr(aten, name), overload or "default")
            if not operator._schema.is_mutable:
                yield operator


def _for_each(operator: Any) -> Formula:
    """An operator on lists as one operator per tensor."""
    schema = operator._schema
    name = schema.name.removeprefix(f"aten::{PREFIX}")
    one = EACH.get(name) or getattr(torch, name)
    names = [each.name for each in schema.arguments if not each.kwarg_only]
    lists = {each.name for each in schema.arguments if str(each.type).startswith("List[")}
    if name in ("addcmul", "addcdiv"):
        lists.add("scalars")  # a tensor with a factor for each

    def formula(*args: Any, **kwargs: Any) -> list[Any]:
        named = list(zip(names, args, strict=False))
        several = [value for name, value in named if name in lists]
        made: list[Any] = []
        for values in zip(*several, strict=True):
            own = iter(values)
            given = [next(own) if name in lists else value for name, value in named]
            made.append(one(*given, **kwargs))
        return made

    return formula


# ------------------------------------------------------------------------------------ optimizers

Tensors = Sequence[Tensor]


def _unscaled(grad: Tensor, maximize: bool, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """A gradient to descend along, and the one to return."""
    kept = grad if scale is None else grad / scale
    return (-kept if maximize else kept), kept


def _unless(found: Tensor | None, new: Sequence[Any], old: Sequence[Any]) -> Sequence[Any]:
    """A step, unless a gradient was infinite."""
    if found is None:
        return new
    pairs = zip(new, old, strict=True)
    return [None if x is None else torch.where(found == 1, y, x) for x, y in pairs]


def _lists(rows: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    """The lists of tensors of each weight; None instead of absent lists."""
    columns = zip(*rows, strict=True)
    return tuple([each for each in column if each is not None] for column in columns)


def _adam(decoupled: bool) -> Formula:
    """Adam; with decoupled weight decay, AdamW."""

    def one(
        weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, most: Tensor | None,
        step: Tensor, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
        if weight_decay and decoupled:
            weight = weight - weight * (lr * weight_decay)
        elif weight_decay:
            grad = grad + weight * weight_decay
        mean = torch.lerp(mean, grad, 1 - beta1)
        square = torch.addcmul(square * beta2, grad, grad, value=1 - beta2)
        most = None if most is None else torch.maximum(most, square)
        count = step.double()  # 1 - beta2 loses precision in f32
        rate = (lr / (1 - beta1**count)).to(weight.dtype)
        root = (1 - beta2**count).sqrt().to(weight.dtype)
        denominator = (square if most is None else most).sqrt() / root + eps
        return weight - rate * mean / denominator, mean, square, most

    def formula(
        weights: Tensors, grads: Tensors, means: Tensors, squares: Tensors, mosts: Tensors,
        steps: Tensors, *, amsgrad: bool, maximize: bool, grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None, **rates: Any,
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        rows: list[Sequence[Any]] = []
        for at, weight in enumerate(weights):
            down, kept = _unscaled(grads[at], maximize, grad_scale)
            own = (means[at], squares[at], mosts[at] if amsgrad else None)
            stepped, *others = one(weight, down, *own, steps[at], **rates)
            old = (weight, grads[at], *own)
            rows.append(_unless(found_inf, (stepped, kept, *others), old))
        return _lists(rows)

    return formula


def _sgd(
    weights: Tensors, grads: Tensors, momenta: Tensors, *, weight_decay: float, momentum: float,
    lr: Any, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    rows: list[Sequence[Any]] = []
    for at, weight in enumerate(weights):
        grad, kept = _unscaled(grads[at], maximize, grad_scale)
        grad = grad + weight * weight_decay if weight_decay else grad
        old = momenta[at] if momentum else None
        new = None
        if old is not None:
            new = grad if is_first_step else old * momentum + grad * (1 - dampening)
            grad = grad + new * momentum if nesterov else new
        step = (weight - lr * grad, kept, new)
        rows.append(_unless(found_inf, step, (weight, grads[at], old)))
    return _lists(rows)


def _adagrad(
    weights: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    rows: list[Sequence[Any]] = []
    for weight, given, total, step in zip(weights, grads, sums, steps, strict=True):
        grad, kept = _unscaled(given, maximize, grad_scale)
        grad = grad + weight * weight_decay if weight_decay else grad
        new = torch.addcmul(total, grad, grad)
        rate = (lr / (1 + (step.double() - 1) * lr_decay)).to(weight.dtype)
        stepped = weight - rate * grad / (new.sqrt() + eps)
        rows.append(_unless(found_inf, (stepped, kept, new), (weight, given, total)))
    return _lists(rows)


def _with_steps(weights: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, **of: Any) -> Any:
    return (*_adagrad(weights, grads, sums, steps, **of), list(steps))


FORMULAS: dict[Any, Formula] = {
    **{operator: _for_each(operator) for operator in _overloads()},
    aten._fused_adam.default: _adam(decoupled=False),
    aten._fused_adam.tensor_lr: _adam(decoupled=False),
    aten._fused_adamw.default: _adam(decoupled=True),
    aten._fused_adamw.tensor_lr: _adam(decoupled=True),
    aten._fused_sgd.default: _sgd,
    aten._fused_sgd.tensor_lr: _sgd,
    aten._fused_adagrad.default: _with_steps,
    aten._fused_adagrad.tensor_lr: _adagrad,
}
