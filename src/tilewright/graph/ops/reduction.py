"""Reductions and cumulative operators along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.graph.op import (
    ANY,
    INTEGER,
    NUMBER,
    OPAQUE,
    REDUCTION,
    Attr,
    Call,
    Input,
    Known,
    Op,
)
from tilewright.graph.ops.moves import check_axes, check_axis, new_sizes, objects
from tilewright.graph.ops.rules import same_type
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ONE, Expr

Array = np.ndarray[Any, Any]

_KEEPDIMS = Attr("keepdims", bool, True)


def _reduced_type(call: Call) -> tuple[Type, ...]:
    of, shape, keep = call.tensor(0), call.shape(0), call["keepdims"]
    axes = call.ints(1)
    if call.has(1) and axes is None:
        given = call.tensor(1).static_shape
        if keep:
            return (TensorType(of.dtype, new_sizes(call, len(shape))),)
        rest = None if given is None else new_sizes(call, len(shape) - given[0])
        return (TensorType(of.dtype, rest),)
    named = check_axes(call, tuple(range(len(shape))) if axes is None else axes, len(shape))
    return (TensorType(of.dtype, without(shape, named, keep=keep)),)


def without(shape: tuple[Expr, ...], axes: tuple[int, ...], *, keep: bool) -> tuple[Expr, ...]:
    """A shape after a reduction."""
    if keep:
        return tuple(ONE if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _reduce(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Accumulate low-precision floats in f32 and round once; integers wrap in their own type."""

    def run(call: Call, x: Array, axes: Array | None = None) -> Array:
        named = None if axes is None else tuple(int(axis) for axis in np.ravel(axes))
        small = x.dtype.itemsize < 4 and x.dtype.kind not in "iub"
        made = fn(x.astype(np.float32) if small else x, axis=named, keepdims=call["keepdims"])
        return np.asarray(made).astype(x.dtype)

    return run


def _sum(x: Array, **where: Any) -> Array:
    return np.asarray(np.sum(x, dtype=x.dtype, **where))


def _prod(x: Array, **where: Any) -> Array:
    return np.asarray(np.prod(x, dtype=x.dtype, **where))


def _mean(x: Array, **where: Any) -> Array:
    """For integers, the quotient truncates."""
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            count = np.sum(np.ones(x.shape, np.int64), **where)
            return np.asarray(np.trunc(np.sum(x, **where) / count))
        total = np.sum(x, **where)
        return np.asarray(total / (x.size // max(total.size, 1) if x.size else np.nan))


def _max(x: Array, **where: Any) -> Array:
    return np.asarray(np.max(x, initial=_extreme(x.dtype, least=True), **where))


def _min(x: Array, **where: Any) -> Array:
    return np.asarray(np.min(x, initial=_extreme(x.dtype, least=False), **where))


def _extreme(of: np.dtype[Any], *, least: bool) -> Any:
    """The identity of minimum or maximum."""
    if of.kind == "b":
        return not least
    if of.kind in "iu":
        return np.iinfo(of).min if least else np.iinfo(of).max
    return -np.inf if least else np.inf


def _fold(build: Callable[[Any, Any], Expr]) -> Callable[[Call], Known | None]:
    """Evaluate reductions of known contents, such as the product of a shape."""
    combine = np.frompyfunc(build, 2, 1)

    def run(call: Call) -> Known | None:
        contents, axes = objects(call, 0), call.ints(1)
        if contents is None or not contents.size or (call.has(1) and axes is None):
            return None
        named = range(contents.ndim) if axes is None else (a % contents.ndim for a in axes)
        for axis in sorted(named, reverse=True):
            contents = np.asarray(combine.reduce(contents, axis=axis), object)
        return tuple(sym.simplify(item) for item in contents.ravel().tolist())

    return run


def _reduction(
    name: str,
    doc: str,
    fn: Callable[..., Array],
    kind: str = NUMBER,
    evaluate: Callable[[Call], Known | None] | None = None,
) -> Op:
    return Op(
        name,
        doc,
        (Input("x", kind), Input("axes", INTEGER, optional=True, folds=True)),
        _reduced_type,
        _reduce(fn),
        REDUCTION,
        (_KEEPDIMS,),
        evaluate=evaluate,
    )


# ------------------------------------------------------------------------------------ arg


def _arg_type(call: Call) -> tuple[Type, ...]:
    shape = call.shape(0)
    axis = check_axis(call, call["axis"], len(shape))
    return (TensorType(I64, without(shape, (axis,), keep=call["keepdims"])),)


def _arg(fn: Callable[..., Any]) -> Callable[..., Array]:
    def run(call: Call, x: Array) -> Array:
        axis, dim = call["axis"], x.shape[call["axis"]]
        if x.dtype.kind not in "iubf":
            x = x.astype(np.float32)
        if call["last"]:
            found = dim - 1 - fn(np.flip(x, axis), axis=axis, keepdims=call["keepdims"])
        else:
            found = fn(x, axis=axis, keepdims=call["keepdims"])
        return np.asarray(found).astype(np.int64)

    return run


def _arg_op(name: str, which: str, fn: Callable[..., Any]) -> Op:
    return Op(
        name,
        f"The position of the {which} along an axis: of the first one, or the last.",
        (Input("x", NUMBER),),
        _arg_type,
        _arg(fn),
        REDUCTION,
        (Attr("axis", int, required=True), _KEEPDIMS, Attr("last", bool, False)),
    )


# ------------------------------------------------------------------------------------ running


def _running(fn: Callable[..., Any], start: int) -> Callable[..., Array]:
    def run(call: Call, x: Array, axis: Array) -> Array:
        at = int(np.asarray(axis).reshape(()))
        small = x.dtype.itemsize < 4 and x.dtype.kind not in "iub"
        wide = x.astype(np.float32) if small else x
        if call["reverse"]:
            wide = np.flip(wide, at)
        out = fn(wide, axis=at, dtype=wide.dtype)
        if call["exclusive"]:
            shape = list(x.shape)
            shape[at] = min(1, x.shape[at])
            first = np.full(shape, start, out.dtype)
            out = np.concatenate([first, np.delete(out, slice(-1, None), axis=at)], axis=at)
        if call["reverse"]:
            out = np.flip(out, at)
        return np.asarray(out).astype(x.dtype)

    return run


_PIECES = "With `piece`, pieces of so many elements are computed in parallel."


def _running_op(name: str, doc: str, fn: Callable[..., Any], start: int) -> Op:
    return Op(
        name,
        doc,
        (Input("x", NUMBER), Input("axis", INTEGER, folds=True)),
        same_type,
        _running(fn, start),
        OPAQUE,
        (Attr("exclusive", bool, False), Attr("reverse", bool, False), Attr("piece", int, 0)),
    )


OPS = (
    _reduction(
        "reduce_sum", "The sum along axes, by default along all.", _sum, evaluate=_fold(sym.add)
    ),
    _reduction("reduce_prod", "The product along axes.", _prod, evaluate=_fold(sym.mul)),
    _reduction("reduce_mean", "The mean along axes.", _mean),
    _reduction("reduce_max", "The maximum along axes; NaN propagates.", _max, ANY),
    _reduction("reduce_min", "The minimum along axes; NaN propagates.", _min, ANY),
    _arg_op("arg_max", "maximum", np.argmax),
    _arg_op("arg_min", "minimum", np.argmin),
    _running_op("cumsum", f"Running sums along an axis. {_PIECES}", np.cumsum, 0),
    _running_op("cumprod", f"Running products along an axis. {_PIECES}", np.cumprod, 1),
)
