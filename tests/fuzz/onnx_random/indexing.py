"""Gathering, scattering, finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_random.pick import an_axis, declarable, new, pick, random_shape
from onnx_random.values import Scope, Shape, Val, fixed, is_fixed

MOVED = ("float32", "float64", "int32", "int64", "uint8", "bool")


def indices(scope: Scope, shape: Shape, extent: int, *, unique: bool = False) -> Val:
    """Indices below an extent, some counted from the back; an input or a constant."""
    dtype = scope.rng.choice(["int64", "int64", "int32"])

    def fill(rng: np.random.Generator, extents: tuple[int, ...]) -> Any:
        if unique:
            return rng.permutation(extent)[: int(np.prod(extents))].reshape(extents)
        return rng.integers(-extent, extent, extents)

    if all(is_fixed(dim) for dim in shape) and scope.rng.random() < 0.5:
        rng = np.random.default_rng(scope.rng.randrange(1 << 30))
        return scope.constant(fill(rng, tuple(dim[0] for dim in shape)), dtype)
    return scope.input(dtype, shape, fill)


def gather(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 3, least=1)
    axis, written = an_axis(scope, x.rank)
    at = indices(scope, random_shape(scope, 0, 2), min(x.shape[axis]))
    made = scope.like(x, shape=(*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))
    scope.add("Gather", [x, at], [made], axis=written)


def gather_elements(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 3, least=1, suits=lambda v: all(map(is_fixed, v.shape)))
    if not all(map(is_fixed, x.shape)):
        return
    axis, written = an_axis(scope, x.rank)
    shape = (*x.shape[:axis], fixed(scope.rng.randint(1, 4)), *x.shape[axis + 1 :])
    at = indices(scope, shape, min(x.shape[axis]))
    scope.add("GatherElements", [x, at], [scope.like(x, shape=shape)], axis=written)


def gather_nd(scope: Scope) -> None:
    x = pick(scope, MOVED, 2, 4, least=1)
    depth = scope.rng.randint(1, x.rank)
    least = min(min(dim) for dim in x.shape[:depth])
    at = indices(scope, (fixed(scope.rng.randint(1, 4)), fixed(depth)), least)
    at = _as_int64(scope, at)
    made = scope.like(x, shape=(at.shape[0], *x.shape[depth:]))
    scope.add("GatherND", [x, at], [made])


def _as_int64(scope: Scope, at: Val) -> Val:
    if at.dtype == "int64":
        return at
    made = scope.like(at, dtype="int64")
    scope.add("Cast", [at], [made], to=7)
    scope.values.pop()
    return made


def scatter(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int32", "int64"), 1, 3, least=1, bound=1e4)
    rows = min(x.shape[0])
    count = scope.rng.randint(1, rows)
    kinds = ["none", "none", "add"] if scope.opset >= 16 else ["none"]
    kinds += ["mul", "max", "min"] if scope.opset >= 18 else []
    how = scope.rng.choice(kinds)
    at = indices(scope, (fixed(count), fixed(1)), rows, unique=how == "none")
    at = _as_int64(scope, at)
    if not all(declarable(scope, dim) for dim in x.shape[1:]):
        return
    updates = pick(
        scope, (x.dtype,), x.rank, x.rank, suits=lambda v: v.shape == (fixed(count), *x.shape[1:])
    )
    if updates.shape != (fixed(count), *x.shape[1:]) or updates.bound > 1e4:
        nasty, scope.nasty = scope.nasty, False
        updates = new(scope, x.dtype, (fixed(count), *x.shape[1:]))
        scope.nasty = nasty
    exact = how in ("none", "max", "min") and x.exact and updates.exact
    bound = (x.bound + 1) * (updates.bound + 1) ** count if how == "mul" else 16 * x.bound + 1e4
    made = scope.like(x, exact=exact or not x.is_float, bound=bound, terms=max(x.terms, count + 1))
    keywords = {} if how == "none" else {"reduction": how}
    scope.add("ScatterND", [x, at, updates], [made], **keywords)


def scatter_elements(scope: Scope) -> None:
    x = pick(
        scope,
        ("float32", "int32", "int64"),
        1,
        3,
        least=1,
        suits=lambda v: all(map(is_fixed, v.shape)),
        bound=1e4,
    )
    if not all(map(is_fixed, x.shape)):
        return
    axis, written = an_axis(scope, x.rank)
    shape = tuple(
        fixed(1) if at == axis else fixed(scope.rng.randint(1, dim[0]))
        for at, dim in enumerate(x.shape)
    )
    at = indices(scope, shape, x.shape[axis][0])
    nasty, scope.nasty = scope.nasty, False
    updates = new(scope, x.dtype, shape)
    scope.nasty = nasty
    how = scope.rng.choice(["none", "add"] if scope.opset >= 16 else ["none"])
    keywords = {} if how == "none" else {"reduction": how}
    exact = x.exact and (how == "none" or not x.is_float)
    made = scope.like(x, exact=exact, bound=x.bound + updates.bound)
    scope.add("ScatterElements", [x, at, updates], [made], axis=written, **keywords)


def one_hot(scope: Scope) -> None:
    depth = scope.rng.randint(1, 6)
    at = _as_int64(scope, indices(scope, random_shape(scope, 1, 2), depth))
    made = Val(scope.fresh(), "float32", (*at.shape, fixed(depth)))
    values = scope.constant(np.array([0, 1], np.float32))
    scope.add("OneHot", [at, scope.constant(np.int64(depth)), values], [made], axis=-1)


def reverse_sequence(scope: Scope) -> None:
    x = pick(scope, ("float32", "int64"), 2, 3, least=1)
    if not is_fixed(x.shape[1]):
        return
    least = min(x.shape[0])

    def fill(rng: np.random.Generator, extents: tuple[int, ...]) -> Any:
        return rng.integers(1, least + 1, extents)

    lengths = scope.input("int64", (x.shape[1],), fill)
    scope.add("ReverseSequence", [x, lengths], [scope.like(x)], time_axis=0, batch_axis=1)


def nonzero(scope: Scope) -> None:
    x = pick(scope, ("float32", "int32", "int64", "bool", "uint8"), 1, 3, exact=True)
    scope.end("NonZero", [x], [Val(scope.fresh(), "int64", (fixed(x.rank), fixed(0)))])


def compress(scope: Scope) -> None:
    x = pick(scope, ("float32", "int64", "bool"), 1, 3)
    axis, written = an_axis(scope, x.rank)
    if not is_fixed(x.shape[axis]):
        return
    keep = pick(scope, ("bool",), 1, 1, suits=lambda v: v.shape == (x.shape[axis],))
    if keep.shape == (x.shape[axis],):
        scope.end("Compress", [x, keep], [scope.like(x)], axis=written)


def unique(scope: Scope) -> None:
    x = pick(scope, ("float32", "int64"), 1, 2, exact=True, bound=1e6)
    flat = (fixed(0),)
    places = [scope.like(x, dtype="int64", shape=flat) for _ in range(3)]
    outputs = [scope.like(x, shape=flat), *places]
    scope.end("Unique", [x], outputs, sorted=1)


def suppression(scope: Scope) -> None:
    count, classes = scope.rng.randint(1, 8), scope.rng.randint(1, 3)

    def corners(rng: np.random.Generator, extents: tuple[int, ...]) -> Any:
        low = rng.integers(0, 40, (*extents[:2], 2)) / 16
        return np.concatenate([low, low + rng.integers(1, 40, low.shape) / 16], 2)

    boxes = scope.input("float32", (fixed(1), fixed(count), fixed(4)), corners)

    def distinct(rng: np.random.Generator, extents: tuple[int, ...]) -> Any:
        return (rng.permutation(int(np.prod(extents))).reshape(extents) + 1) / 64

    scores = scope.input("float32", (fixed(1), fixed(classes), fixed(count)), distinct)
    most = scope.constant(np.array([scope.rng.randint(1, 4)], np.int64))
    limits = [scope.constant(np.array([t], np.float32)) for t in (0.4375, 0.1)]
    made = Val(scope.fresh(), "int64", (fixed(0), fixed(3)))
    scope.end("NonMaxSuppression", [boxes, scores, most, *limits], [made])


def eye(scope: Scope) -> None:
    x = pick(scope, ("float32", "int64"), 2, 2)
    scope.add("EyeLike", [x], [scope.like(x, exact=True, bound=1)], k=scope.rng.randint(-1, 2))


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (gather, 2.5),
    (gather_elements, 1),
    (gather_nd, 1),
    (scatter, 1.5),
    (scatter_elements, 1),
    (one_hot, 0.7),
    (reverse_sequence, 0.4),
    (nonzero, 0.5),
    (compress, 0.4),
    (unique, 0.4),
    (suppression, 0.5),
    (eye, 0.3),
)
