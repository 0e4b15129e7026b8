"""Sorting and selection."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.graph.op import INTEGER, NUMBER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axis
from tilewright.graph.ops.rules import check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr

Array = np.ndarray[Any, Any]


def _top_k_type(call: Call) -> tuple[Type, ...]:
    of, shape, k = call.tensor(0), call.shape(0), call.value(1)
    axis = check_axis(call, call["axis"], len(shape))
    count: Expr = sym.size("top_k") if k is None else k[0]
    if isinstance(count, Const) and count.value < 0:
        raise call.error("TW1017", f"the {count} greatest of {shape[axis]} elements")
    dims = (*shape[:axis], count, *shape[axis + 1 :])
    return TensorType(of.dtype, dims), TensorType(I64, dims)


def order(x: Array, axis: int, *, descending: bool) -> Array:
    """The indices that sort x along an axis, stably."""
    if x.dtype.kind not in "iubf":
        x = x.astype(np.float32)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sort the reversed array and reverse the result: equal elements keep their order.
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(back, axis))


def _top_k(call: Call, x: Array, k: Array) -> tuple[Array, Array]:
    axis, count = call["axis"], int(np.ravel(k)[0])
    if count > x.shape[axis]:
        raise ValueError(f"the {count} greatest of {x.shape[axis]} elements")
    ranks = order(x, axis, descending=call["largest"])
    chosen = np.take(ranks, np.arange(count), axis=axis).astype(np.int64)
    return np.take_along_axis(x, chosen, axis), chosen


def _search_sorted_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    rows, values = call.shape(0), call.shape(1)
    if not rows or (len(rows) > 1 and len(rows) != len(values)):
        raise call.error("TW1202", "search_sorted takes one row, or rows and as many of values")
    for row, value in zip(rows[:-1], values, strict=False):
        same_dim(call, row, value, "the numbers of rows and of rows of values")
    return (TensorType(I64, values),)


def _search_sorted(call: Call, rows: Array, values: Array) -> Array:
    side: Literal["left", "right"] = "right" if call["right"] else "left"
    rows, values = (x if x.dtype.kind in "iuf" else x.astype(np.float32) for x in (rows, values))
    if rows.ndim == 1:
        return np.asarray(np.searchsorted(rows, values, side), np.int64)
    made = np.empty(values.shape, np.int64)
    for at in np.ndindex(*rows.shape[:-1]):
        made[at] = np.searchsorted(rows[at], values[at], side)
    return made


def _cumulative_type(call: Call) -> tuple[Type, ...]:
    of, shape = call.tensor(0), call.shape(0)
    check_axis(call, call["axis"], len(shape))
    return TensorType(of.dtype, shape), TensorType(I64, shape)


def _cumulative(call: Call, x: Array) -> tuple[Array, Array]:
    rows = np.moveaxis(x, call["axis"], 0)
    values, places = rows.copy(), np.zeros(rows.shape, np.int64)
    for at in range(1, len(rows)):
        new, old = rows[at], values[at - 1]
        better = new >= old if call.op == "cummax" else new <= old
        taken = np.isnan(new) | (better & ~np.isnan(old)) if x.dtype.kind not in "iu" else better
        values[at] = np.where(taken, new, old)
        places[at] = np.where(taken, at, places[at - 1])
    return np.moveaxis(values, 0, call["axis"]), np.moveaxis(places, 0, call["axis"])


def _cumulative_op(name: str, which: str) -> Op:
    return Op(
        name,
        f"The running {which} along an axis and its position, the last of equal ones; NaN "
        "persists.",
        (Input("x", NUMBER),),
        _cumulative_type,
        _cumulative,
        OPAQUE,
        (Attr("axis", int, required=True),),
    )


OPS = (
    Op(
        "top_k",
        "The k largest (or smallest) elements along an axis, best first, and their indices; the "
        "first of equal ones first. With `pieces`, ranks are counted in parallel: among the best "
        "of pieces of so many elements, of pieces of those, and so on, then among the elements of "
        "the best ones. With `runs`, elements are sorted: so many form a run, so many of these "
        "are merged, and so on.",
        (Input("x", NUMBER), Input("k", INTEGER, folds=True)),
        _top_k_type,
        _top_k,
        OPAQUE,
        (
            Attr("axis", int, required=True),
            Attr("largest", bool, True),
            Attr("pieces", tuple, ()),
            Attr("runs", tuple, ()),
        ),
    ),
    Op(
        "search_sorted",
        "The number of elements of a sorted row that are below each value (with `right`, below or "
        "equal); of one row, or of a row for each row of values. NaN is the greatest.",
        (Input("rows", NUMBER), Input("values", NUMBER)),
        _search_sorted_type,
        _search_sorted,
        OPAQUE,
        (Attr("right", bool, False),),
    ),
    _cumulative_op("cummax", "maximum"),
    _cumulative_op("cummin", "minimum"),
)
