"""Choosing operands: a value in sight that suits, or a new input or constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_random.values import (
    CHOICES,
    FLOATS,
    INF,
    SIGNED,
    Dim,
    Scope,
    Shape,
    Val,
    fixed,
    is_fixed,
)

EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8)
NASTY = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, 65504.0, 1e30]


def random_dim(scope: Scope, *, least: int = 0) -> Dim:
    """A number, or one of the named dimensions."""
    named = [dim for dim in scope.names.values() if min(dim) >= least]
    if named and scope.rng.random() < 0.4:
        return scope.rng.choice(named)
    if least == 0 and scope.rng.random() < 0.02:
        return fixed(0)
    return fixed(scope.rng.choice(EXTENTS[max(least, 1) - 1 :]))


def random_shape(scope: Scope, low: int = 0, high: int = 4, *, least: int = 0) -> Shape:
    return tuple(random_dim(scope, least=least) for _ in range(scope.rng.randint(low, high)))


def random_dtype(scope: Scope, among: Sequence[str]) -> str:
    """float32 and int64 are what most models use."""
    common = [dtype for dtype in ("float32", "int64") if dtype in among]
    if common and scope.rng.random() < 0.6:
        return scope.rng.choice(common)
    return scope.rng.choice(list(among))


def fill(scope: Scope, dtype: str) -> Callable[[np.random.Generator, tuple[int, ...]], Any]:
    """Contents for an input: sixteenths, small integers, and odd ones where asked for."""
    nasty = scope.nasty and dtype in FLOATS

    def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        made = rng.integers(-64, 65, shape) / 16.0
        if nasty and made.size:
            places = rng.random(shape) < 0.15
            made = np.where(places, rng.choice(NASTY, shape), made)
        return made

    def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return rng.integers(-7 if dtype in SIGNED else 0, 8, shape)

    if dtype == "bool":
        return lambda rng, shape: rng.random(shape) < 0.5
    return floats if dtype in FLOATS else integers


def new(scope: Scope, dtype: str, shape: Shape) -> Val:
    """A new input, or a constant where the shape allows."""
    contents = fill(scope, dtype)
    if all(is_fixed(dim) for dim in shape) and scope.rng.random() < 0.35:
        seed = scope.rng.randrange(1 << 30)
        extents = tuple(dim[0] for dim in shape)
        return scope.constant(contents(np.random.default_rng(seed), extents), dtype)
    value = scope.input(dtype, shape, contents)
    return replace_bound(scope, value)


def replace_bound(scope: Scope, value: Val) -> Val:
    """Odd numbers have no bound."""
    if not (scope.nasty and value.is_float):
        return value
    odd = Val(value.name, value.dtype, value.shape, value.exact, INF, value.terms)
    top = scope
    while top.outer is not None:
        top = top.outer
    top.values[top.values.index(value)] = odd
    return odd


def pick(
    scope: Scope,
    among: Sequence[str],
    low: int = 0,
    high: int = 4,
    *,
    least: int = 0,
    exact: bool = False,
    bound: float = INF,
    suits: Callable[[Val], bool] = lambda value: True,
) -> Val:
    """A value in sight that suits, mostly; else a new one."""
    found = [
        value
        for value in scope.visible()
        if value.dtype in among
        and low <= value.rank <= high
        and all(min(dim) >= least for dim in value.shape)
        and (value.exact or not exact)
        and value.bound <= bound
        and value.count <= 4096
        and suits(value)
    ]
    if found and scope.rng.random() < 0.85:
        at = min(int(scope.rng.expovariate(0.4)), len(found) - 1)
        return found[-1 - at]
    quiet = scope.nasty and bound < INF
    scope_nasty, scope.nasty = scope.nasty, scope.nasty and not quiet
    for _ in range(20):
        value = new(scope, random_dtype(scope, among), random_shape(scope, low, high, least=least))
        if suits(value):
            break
    scope.nasty = scope_nasty
    return value


def partner(scope: Scope, value: Val, *, exact: bool = False, bound: float = INF) -> Val:
    """A value of the same element type that broadcasts with another."""
    found = [
        other
        for other in scope.visible()
        if other.dtype == value.dtype
        and (other.exact or not exact)
        and other.bound <= bound
        and broadcast([value.shape, other.shape]) is not None
    ]
    if found and scope.rng.random() < 0.6:
        return scope.rng.choice(found[-6:])
    dims = [fixed(1) if scope.rng.random() < 0.35 else dim for dim in value.shape]
    dims = dims[scope.rng.randint(0, len(dims)) if scope.rng.random() < 0.4 else 0 :]
    if value.rank < 4 and scope.rng.random() < 0.15:
        dims.insert(0, random_dim(scope))
    quiet = scope.nasty and bound < INF
    scope_nasty, scope.nasty = scope.nasty, scope.nasty and not quiet
    dims = [dim if declarable(scope, dim) else fixed(1) for dim in dims]
    other = new(scope, value.dtype, tuple(dims))
    scope.nasty = scope_nasty
    return other


def declarable(scope: Scope, dim: Dim) -> bool:
    """Whether an input may have a dimension: a number, or one that has a name."""
    return is_fixed(dim) or dim in scope.names.values()


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that all broadcast to under every choice; None if they do not."""
    rank = max((len(shape) for shape in shapes), default=0)
    out: list[Dim] = []
    for axis in range(-rank, 0):
        dims = [shape[axis] for shape in shapes if len(shape) >= -axis]
        made = []
        for choice in range(CHOICES):
            extents = {dim[choice] for dim in dims} - {1}
            if len(extents) > 1:
                return None
            made.append(extents.pop() if extents else 1)
        # Extents of one that are so only under some choice broadcast at run time: valid, and rare.
        out.append(tuple(made))
    return tuple(out)


def some_axes(scope: Scope, rank: int) -> list[int]:
    """A random set of axes, some counted from the back."""
    axes = [axis for axis in range(rank) if scope.rng.random() < 0.5]
    return [axis - rank if scope.rng.random() < 0.3 else axis for axis in axes]


def an_axis(scope: Scope, rank: int) -> tuple[int, int]:
    """An axis from the front, and as it is written."""
    axis = scope.rng.randrange(rank)
    return axis, axis - rank if scope.rng.random() < 0.3 else axis
