"""Reductions, scans and sorting along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_random.pick import an_axis, pick, some_axes
from onnx_random.values import INF, Dim, Scope, Shape, Val, fixed

COMMON = ("float32", "float64")
WITH_INTEGERS = (*COMMON, "int32", "int64")

# Whether axes are an input: from which opset on.
AXES_INPUT = {"ReduceSum": 13}
KINDS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)


def reduced(shape: Shape, axes: list[int], *, keep: bool) -> Shape:
    gone = {axis % len(shape) for axis in axes}
    return tuple(
        fixed(1) if at in gone else dim for at, dim in enumerate(shape) if keep or at not in gone
    )


def lengths(shape: Shape, axes: list[int]) -> int:
    """How many elements go into one, at most."""
    dims = [shape[axis] for axis in axes]
    return max([1, *(int(np.prod([dim[k] for dim in dims])) for k in range(len(fixed(0))))])


def reduce(scope: Scope) -> None:
    op = scope.rng.choice(KINDS)
    picks = op in ("ReduceMax", "ReduceMin")
    among = WITH_INTEGERS if op in ("ReduceSum", "ReduceProd", "ReduceL1") or picks else COMMON
    bound = 16 if op == "ReduceLogSumExp" else 64 if not picks else INF
    # Of nothing there is no largest; and the peer gives wrong shapes at older opsets.
    x = pick(scope, among, 1, 4, bound=bound, least=0 if op == "ReduceSum" else 1)
    if op == "ReduceProd" and x.count > 16:
        return
    axes = some_axes(scope, x.rank)
    keep = scope.rng.random() < 0.5
    attributes: dict[str, Any] = {"keepdims": int(keep)}
    inputs: list[Val | str] = [x]
    through_input = scope.opset >= AXES_INPUT.get(op, 18)
    used = axes or list(range(x.rank))
    if axes and through_input:
        inputs.append(scope.ints(axes))
    elif axes:
        attributes["axes"] = axes
    elif through_input and scope.rng.random() < 0.3:
        attributes["noop_with_empty_axes"] = 1
        used = []
    if not used and op not in ("ReduceSum", "ReduceMax", "ReduceMin"):
        return
    terms = max(x.terms, lengths(x.shape, used)) if used else x.terms
    exact = (picks and x.exact) or not x.is_float
    made = scope.like(
        x,
        shape=reduced(x.shape, used, keep=keep) if used else x.shape,
        exact=exact,
        bound=x.bound if picks else x.bound * terms if op in ("ReduceSum", "ReduceMean") else INF,
        terms=terms,
    )
    scope.add(op, inputs, [made], **attributes)


def arg(scope: Scope) -> None:
    op = scope.rng.choice(["ArgMax", "ArgMin"])
    x = pick(scope, (*COMMON, "int32", "int8", "uint8"), 1, 4, exact=True, least=1)
    axis, written = an_axis(scope, x.rank)
    keep = scope.rng.random() < 0.5
    last = int(scope.rng.random() < 0.3)
    made = scope.like(
        x, dtype="int64", shape=reduced(x.shape, [axis], keep=keep), bound=max(x.shape[axis])
    )
    scope.add(op, [x], [made], axis=written, keepdims=int(keep), select_last_index=last)


def softmax(scope: Scope) -> None:
    op = scope.rng.choice(["Softmax", "LogSoftmax", "Hardmax"])
    x = pick(scope, COMMON, 1, 4, exact=op == "Hardmax", least=1)
    axis, written = an_axis(scope, x.rank)
    terms = max(x.terms, max(x.shape[axis]))
    made = scope.like(x, exact=op == "Hardmax", bound=1 if op != "LogSoftmax" else INF, terms=terms)
    scope.add(op, [x], [made], axis=written)


def cumsum(scope: Scope) -> None:
    x = pick(scope, WITH_INTEGERS, 1, 4, bound=1e4)
    axis, written = an_axis(scope, x.rank)
    made = scope.like(
        x, exact=not x.is_float, bound=x.bound * 16, terms=max(x.terms, max(x.shape[axis]))
    )
    flags = {name: int(scope.rng.random() < 0.4) for name in ("exclusive", "reverse")}
    scope.add("CumSum", [x, scope.constant(np.int64(written))], [made], **flags)


def top_k(scope: Scope) -> None:
    x = pick(scope, (*COMMON, "int32", "int64"), 1, 3, exact=True, least=1)
    axis, written = an_axis(scope, x.rank)
    k = scope.rng.randint(1, min(x.shape[axis]))
    shape = _with(x.shape, axis, fixed(k))
    values, places = scope.like(x, shape=shape), scope.like(x, shape=shape, dtype="int64")
    flags = {"largest": int(scope.rng.random() < 0.6), "sorted": 1}
    scope.add("TopK", [x, scope.ints([k])], [values, places], axis=written, **flags)


def _with(shape: Shape, axis: int, dim: Dim) -> Shape:
    return (*shape[:axis], dim, *shape[axis + 1 :])


def normalize(scope: Scope) -> None:
    x = pick(scope, COMMON, 1, 4, bound=64, least=1)
    axis, written = an_axis(scope, x.rank)
    made = scope.like(x, exact=False, bound=1, terms=max(x.terms, max(x.shape[axis])))
    scope.add("LpNormalization", [x], [made], axis=written, p=scope.rng.choice([1, 2]))


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (reduce, 5),
    (arg, 1.5),
    (softmax, 2),
    (cumsum, 1),
    (top_k, 1),
    (normalize, 0.4),
)
