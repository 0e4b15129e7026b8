"""Operators that move elements, and that compute with shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import numpy_helper

from onnx_random.pick import an_axis, new, pick, random_dim
from onnx_random.values import (
    CHOICES,
    DTYPES,
    INF,
    Dim,
    Scope,
    Shape,
    Val,
    fixed,
    is_fixed,
)

MOVED = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


def product(dims: Shape) -> Dim:
    return tuple(int(np.prod([dim[k] for dim in dims])) for k in range(CHOICES))


def reshape(scope: Scope) -> None:
    x = pick(scope, MOVED, 0, 4, least=1)
    rank, shape = x.rank, x.shape
    way = scope.rng.choice(["flat", "merge", "keep", "by_shape", "one"])
    if way == "flat" or rank < 2:
        target, dims = [-1], (product(shape),)
    elif way == "merge":
        at = scope.rng.randrange(rank - 1)
        dims = (*shape[:at], product(shape[at : at + 2]), *shape[at + 2 :])
        target = [0] * at + [-1] + [dim[0] for dim in shape[at + 2 :]]
        if not all(is_fixed(dim) for dim in shape[at + 2 :]):
            return
    elif way == "keep":
        tail = [dim[0] for dim in shape[1:]]
        if not all(is_fixed(dim) for dim in shape[1:]):
            return
        target, dims = [0, int(np.prod(tail)), 1], (shape[0], product(shape[1:]), fixed(1))
    elif way == "one":
        target, dims = [1, -1], (fixed(1), product(shape))
    else:
        like = scope.add("Shape", [x], [Val(scope.fresh(), "int64", (fixed(rank),), bound=INF)])
        scope.values.pop()
        order = list(range(rank))
        scope.rng.shuffle(order)
        turned = [Val(scope.fresh(), "int64", (fixed(rank),), bound=INF)]
        scope.add("Gather", [like, scope.ints(order)], turned, axis=0)
        scope.values.pop()
        scope.add("Reshape", [x, turned[0]], [scope.like(x, shape=tuple(shape[o] for o in order))])
        return
    scope.add("Reshape", [x, scope.ints(target)], [scope.like(x, shape=dims)])


def flatten(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 4)
    axis = scope.rng.randint(0, x.rank)
    made = scope.like(x, shape=(product(x.shape[:axis]), product(x.shape[axis:])))
    scope.add("Flatten", [x], [made], axis=axis)


def transpose(scope: Scope) -> None:
    x = pick(scope, DTYPES, 1, 4)
    perm = list(range(x.rank))
    scope.rng.shuffle(perm)
    if scope.rng.random() < 0.2:
        scope.add("Transpose", [x], [scope.like(x, shape=x.shape[::-1])])
        return
    made = scope.like(x, shape=tuple(x.shape[axis] for axis in perm))
    scope.add("Transpose", [x], [made], perm=perm)


def squeeze(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 5, suits=lambda v: fixed(1) in v.shape)
    ones = [at for at, dim in enumerate(x.shape) if dim == fixed(1)]
    if not ones:
        return
    gone = scope.rng.sample(ones, scope.rng.randint(1, len(ones)))
    made = scope.like(x, shape=tuple(d for at, d in enumerate(x.shape) if at not in gone))
    scope.add("Squeeze", [x, scope.ints(gone)], [made])


def unsqueeze(scope: Scope) -> None:
    x = pick(scope, MOVED, 0, 3)
    axis = scope.rng.randint(0, x.rank)
    made = scope.like(x, shape=(*x.shape[:axis], fixed(1), *x.shape[axis:]))
    written = axis if scope.rng.random() < 0.6 else axis - x.rank - 1
    scope.add("Unsqueeze", [x, scope.ints([written])], [made])


def concat(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 4)
    axis, written = an_axis(scope, x.rank)

    def fits(other: Val) -> bool:
        same = [a == b for at, (a, b) in enumerate(zip(x.shape, other.shape, strict=False))]
        return other.rank == x.rank and all(s for at, s in enumerate(same) if at != axis)

    more = range(scope.rng.randint(0, 2))
    parts = [x, *(pick(scope, (x.dtype,), x.rank, x.rank, suits=fits) for _ in more)]
    if not all(fits(part) for part in parts):
        parts = [x, x]
    total = tuple(sum(part.shape[axis][k] for part in parts) for k in range(CHOICES))
    made = scope.like(
        x,
        shape=(*x.shape[:axis], total, *x.shape[axis + 1 :]),
        exact=all(part.exact for part in parts),
        bound=max(part.bound for part in parts),
        terms=max(part.terms for part in parts),
    )
    scope.add("Concat", parts, [made], axis=written)


def split(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 4, suits=lambda v: any(is_fixed(d) and d[0] > 1 for d in v.shape))
    axes = [at for at, dim in enumerate(x.shape) if is_fixed(dim) and dim[0] > 1]
    if not axes:
        return
    axis = scope.rng.choice(axes)
    first = scope.rng.randint(0, x.shape[axis][0])
    parts = [first, x.shape[axis][0] - first]
    outputs = [
        scope.like(x, shape=(*x.shape[:axis], fixed(n), *x.shape[axis + 1 :])) for n in parts
    ]
    scope.add("Split", [x, scope.ints(parts)], outputs, axis=axis)


def taken(n: int, start: int, end: int, step: int) -> range:
    """Python's slice, but that a start before the first element is at it, also backwards."""
    return range(n)[(0 if step < 0 and start < -n else start) : end : step]


def slice_(scope: Scope) -> None:
    x = pick(scope, MOVED, 1, 4)
    axes = [axis for axis in range(x.rank) if scope.rng.random() < 0.6] or [0]
    starts, ends, steps = [], [], []
    shape = list(x.shape)
    for axis in axes:
        start = scope.rng.choice([0, 1, 2, -1, -3, -100, 100])
        end = scope.rng.choice([1, 3, 5, -1, 1 << 62, -(1 << 62), 100])
        step = scope.rng.choice([1, 1, 2, 3, -1, -2])
        starts.append(start)
        ends.append(end)
        steps.append(step)
        shape[axis] = tuple(len(taken(n, start, end, step)) for n in x.shape[axis])
    written = [axis - x.rank if scope.rng.random() < 0.3 else axis for axis in axes]
    lists = [scope.ints(items) for items in (starts, ends, written, steps)]
    scope.add("Slice", [x, *lists], [scope.like(x, shape=tuple(shape))])


def pad(scope: Scope) -> None:
    mode = scope.rng.choice(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "wrap" and scope.opset < 19:
        mode = "edge"
    least = {"constant": 0, "reflect": 3, "edge": 1, "wrap": 2}[mode]
    x = pick(scope, ("float32", "float64", "int32", "int64"), 1, 4, least=least)
    if any(min(dim) < least for dim in x.shape):
        return
    low = -1 if mode == "constant" and all(min(dim) > 2 for dim in x.shape) else 0
    pads = [scope.rng.randint(low, 2) for _ in range(2 * x.rank)]
    shape = tuple(
        tuple(n + pads[at] + pads[at + x.rank] for n in dim) for at, dim in enumerate(x.shape)
    )
    inputs: list[Val | str] = [x, scope.ints(pads)]
    if mode == "constant" and scope.rng.random() < 0.5:
        inputs.append(scope.constant(np.array(2.5), x.dtype))
    scope.add("Pad", inputs, [scope.like(x, shape=shape, bound=x.bound + 3)], mode=mode)


def tile(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int8", "int32", "int64", "bool"), 1, 3)
    repeats = [scope.rng.choice([1, 1, 2, 3]) for _ in x.shape]
    shape = tuple(tuple(n * r for n in dim) for dim, r in zip(x.shape, repeats, strict=True))
    scope.add("Tile", [x, scope.ints(repeats)], [scope.like(x, shape=shape)])


def expand(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int32", "int64", "bool"), 0, 3)
    target: list[int] = []
    shape: list[Dim] = []
    for dim in x.shape:
        to = scope.rng.choice([2, 3]) if dim == fixed(1) else 1
        target.append(to)
        shape.append(fixed(to) if dim == fixed(1) else dim)
    if scope.rng.random() < 0.4:
        target, shape = [2, *target], [fixed(2), *shape]
    scope.add("Expand", [x, scope.ints(target)], [scope.like(x, shape=tuple(shape))])


def shape_of(scope: Scope) -> None:
    x = pick(scope, DTYPES, 0, 4)
    most = float(max([0, *(max(dim) for dim in x.shape)]))
    if scope.rng.random() < 0.3:
        made = Val(scope.fresh(), "int64", (), bound=float(x.count))
        scope.add("Size", [x], [made])
        return
    attributes: dict[str, Any] = {}
    axes = list(range(x.rank))
    if scope.opset >= 15 and scope.rng.random() < 0.4:
        attributes = {"start": scope.rng.choice([0, 1, -1, -2]), "end": scope.rng.choice([1, 2, 9])}
        axes = axes[attributes["start"] : attributes["end"]]
    made = Val(scope.fresh(), "int64", (fixed(len(axes)),), bound=most)
    scope.add("Shape", [x], [made], **attributes)


def of_shape(scope: Scope) -> None:
    """Zeros, ones or a range as large as another tensor."""
    x = pick(scope, MOVED, 1, 3)
    dims = Val(scope.fresh(), "int64", (fixed(x.rank),))
    scope.add("Shape", [x], [dims])
    scope.values.pop()
    dtype = scope.rng.choice(["float32", "int64", "int32", "bool"])
    value = numpy_helper.from_array(np.array([scope.rng.randint(0, 3)]).astype(dtype))
    made = Val(scope.fresh(), dtype, x.shape)
    scope.add("ConstantOfShape", [dims], [made], value=value)


def range_(scope: Scope) -> None:
    dim = random_dim(scope)
    x = pick(scope, MOVED, 1, 3, suits=lambda v: dim in v.shape)
    if dim not in x.shape:
        return
    length = Val(scope.fresh(), "int64", (fixed(1),))
    dims = Val(scope.fresh(), "int64", (fixed(x.rank),))
    scope.add("Shape", [x], [dims])
    scope.values.pop()
    scope.add("Gather", [dims, scope.constant(np.int64(x.shape.index(dim)))], [length], axis=0)
    scope.values.pop()
    start, step = scope.constant(np.int64(0)), scope.constant(np.int64(1))
    scope.add("Range", [start, length, step], [Val(scope.fresh(), "int64", (dim,), bound=10)])


def depth(scope: Scope) -> None:
    back = scope.rng.random() < 0.5
    n, h, w = random_dim(scope), scope.rng.randint(1, 3), scope.rng.randint(1, 3)
    block = 2
    shape = (n, fixed(3), fixed(h * block), fixed(w * block))
    if back:
        shape = (n, fixed(3 * block * block), fixed(h), fixed(w))
    x = new(scope, "float32", shape)
    if back:
        made = scope.like(x, shape=(n, fixed(3), fixed(h * block), fixed(w * block)))
        mode = scope.rng.choice(["DCR", "CRD"])
        scope.add("DepthToSpace", [x], [made], blocksize=block, mode=mode)
    else:
        made = scope.like(x, shape=(n, fixed(3 * block * block), fixed(h), fixed(w)))
        scope.add("SpaceToDepth", [x], [made], blocksize=block)


def trilu(scope: Scope) -> None:
    if scope.opset < 14:
        return
    x = pick(scope, ("float32", "float64", "int64", "bool"), 2, 4)
    upper = int(scope.rng.random() < 0.5)
    inputs: list[Val | str] = [x]
    if scope.rng.random() < 0.6:
        inputs.append(scope.constant(np.int64(scope.rng.randint(-3, 3))))
    scope.add("Trilu", inputs, [scope.like(x)], upper=upper)


def identity(scope: Scope) -> None:
    x = pick(scope, DTYPES)
    scope.add("Identity", [x], [scope.like(x)])


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (reshape, 3),
    (flatten, 1),
    (transpose, 3),
    (squeeze, 1),
    (unsqueeze, 1.5),
    (concat, 2),
    (split, 1.5),
    (slice_, 3),
    (pad, 1.5),
    (tile, 1),
    (expand, 1),
    (shape_of, 1),
    (of_shape, 0.7),
    (range_, 0.7),
    (depth, 0.4),
    (trilu, 0.5),
    (identity, 0.3),
)
