"""Sorting and selection."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.graph.op import FLOAT, INTEGER, NUMBER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axis
from tilewright.graph.ops.rules import check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr, const

Array = np.ndarray[Any, Any]


def _top_k_type(call: Call) -> tuple[Type, ...]:
    of, shape, k = call.tensor(0), call.shape(0), call.value(1)
    axis = check_axis(call, call["axis"], len(shape))
    count: Expr = sym.size("top_k") if k is None else k[0]
    dims = (*shape[:axis], count, *shape[axis + 1 :])
    return TensorType(of.dtype, dims), TensorType(I64, dims)


def order(x: Array, axis: int, *, descending: bool) -> Array:
    """The indices that sort x along an axis; equal elements stay in order."""
    if x.dtype.kind not in "iubf":
        x = x.astype(np.float32)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sorted backwards from the back: equal elements come out in order again.
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
        f"The {which} element so far along an axis, and where it was; of equals the last, and NaN "
        "stays.",
        (Input("x", NUMBER),),
        _cumulative_type,
        _cumulative,
        OPAQUE,
        (Attr("axis", int, required=True),),
    )


# ------------------------------------------------------------------------------------ suppression


def _suppression_type(call: Call) -> tuple[Type, ...]:
    boxes, scores = call.shape(0), call.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        raise call.error("TW1304", "non_max_suppression takes boxes and scores of rank 3")
    same_dim(call, boxes[0], scores[0], "the batches of boxes and scores")
    same_dim(call, boxes[1], scores[2], "the numbers of boxes and scores")
    return (TensorType(I64, (sym.size("selected"), const(3))),)


def _corners(boxes: Array, *, center: bool) -> Array:
    """Boxes as low and high corners, [..., 4]."""
    if center:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of a box with others."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=-1)
    area = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=-1)
    union = area - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0)


def _suppression(
    call: Call,
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    overlap: Array | None = None,
    threshold: Array | None = None,
) -> Array:
    most = 0 if limit is None else int(np.ravel(limit)[0])
    allowed = 0.0 if overlap is None else float(np.ravel(overlap)[0])
    least = None if threshold is None else np.ravel(threshold)[0]
    found: list[tuple[int, int, int]] = []
    corners = _corners(boxes, center=call["center"])
    for batch, label in np.ndindex(*scores.shape[:2]):
        given = scores[batch, label]
        ranks = order(given, 0, descending=True)
        left = ranks if least is None else ranks[given[ranks] > least]
        kept = 0
        while left.size and kept < most:
            best, left = int(left[0]), left[1:]
            found.append((batch, label, best))
            kept += 1
            near = _overlaps(corners[batch, best], corners[batch, left]) > allowed
            left = left[~near]
    return np.array(found, np.int64).reshape(-1, 3)


OPS = (
    Op(
        "top_k",
        "The k greatest (or least) elements along an axis, best first, and their indices; of "
        "equals the first. With `pieces`, code counts ranks: of the best of pieces of so many "
        "elements, of pieces of those, and so on, then of the elements in the best ones. With "
        "`runs`, it sorts: so many elements become a run, so many of these one, and so on.",
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
        "How many elements of a sorted row lie below each value (with `right`, below or at it); "
        "of one row, or of a row for each row of values. NaN is the greatest.",
        (Input("rows", NUMBER), Input("values", NUMBER)),
        _search_sorted_type,
        _search_sorted,
        OPAQUE,
        (Attr("right", bool, False),),
    ),
    _cumulative_op("cummax", "greatest"),
    _cumulative_op("cummin", "least"),
    Op(
        "non_max_suppression",
        "Boxes by score, without those that overlap a better one of their class: rows of batch, "
        "class and box. `limit` counts per batch and class. With `runs`, code sorts the boxes of "
        "all classes side by side, so many runs at a time.",
        (
            Input("boxes", FLOAT),
            Input("scores", FLOAT),
            Input("limit", INTEGER, optional=True),
            Input("overlap", FLOAT, optional=True),
            Input("threshold", FLOAT, optional=True),
        ),
        _suppression_type,
        _suppression,
        OPAQUE,
        (
            Attr("center", bool, False),  # boxes as center and extent, not corners
            Attr("runs", tuple, ()),
        ),
    ),
)
