"""Non-maximum suppression of overlapping boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.graph.op import FLOAT, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.ops.sorting import order
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr, const

Array = np.ndarray[Any, Any]
Classes = tuple[Expr, Expr]  # number of images and of classes


def _checked(call: Call) -> tuple[Classes, Expr]:
    """Check boxes and scores: images and classes, and the number of boxes."""
    boxes, scores = call.shape(0), call.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        raise call.error("TW1304", f"{call.op} takes boxes and scores of rank 3")
    same_dim(call, boxes[0], scores[0], "the batches of boxes and scores")
    same_dim(call, boxes[1], scores[2], "the numbers of boxes and scores")
    return (scores[0], scores[1]), scores[2]


def _listed_type(call: Call) -> tuple[Type, ...]:
    _checked(call)
    return (TensorType(I64, (sym.size("selected"), const(3))),)


def _rows_type(call: Call) -> tuple[Type, ...]:
    kept, counts = call.shape(0), call.shape(1)
    if len(kept) != 3 or len(counts) != 2:
        raise call.error("TW1304", "list_boxes takes boxes of rank 3 and their numbers")
    for boxes, number in zip(kept, counts, strict=False):
        same_dim(call, boxes, number, "the classes of boxes and of their numbers")
    return (TensorType(I64, (sym.size("selected"), const(3))),)


def _rows(call: Call, kept: Array, counts: Array) -> Array:
    rows = [(*at, box) for at in np.ndindex(*counts.shape) for box in kept[at][: counts[at]]]
    return np.array(rows, np.int64).reshape(-1, 3)


def _kept_type(call: Call) -> tuple[Type, ...]:
    classes, count = _checked(call)
    capacity = count if call["capacity"] is None else const(call["capacity"])
    return TensorType(I64, (*classes, capacity)), TensorType(I64, classes)


def _corners(boxes: Array, *, center: bool) -> Array:
    """Convert boxes to low and high corners, [..., 4]."""
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


def _selected(
    call: Call,
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    overlap: Array | None = None,
    threshold: Array | None = None,
) -> list[list[int]]:
    """The kept boxes of each class of each image."""
    most = 0 if limit is None else int(np.ravel(limit)[0])
    allowed = 0.0 if overlap is None else float(np.ravel(overlap)[0])
    least = None if threshold is None else np.ravel(threshold)[0]
    found: list[list[int]] = []
    corners = _corners(boxes, center=call["center"])
    for batch, label in np.ndindex(*scores.shape[:2]):
        given = scores[batch, label]
        ranks = order(given, 0, descending=True)
        left = ranks if least is None else ranks[given[ranks] > least]
        kept: list[int] = []
        while left.size and len(kept) < most:
            best, left = int(left[0]), left[1:]
            kept.append(best)
            near = _overlaps(corners[batch, best], corners[batch, left]) > allowed
            left = left[~near]
        found.append(kept)
    return found


def _listed(call: Call, boxes: Array, scores: Array, *rest: Array | None) -> Array:
    return _rows(call, *_padded(scores, _selected(call, boxes, scores, *rest), scores.shape[2]))


def _kept(call: Call, boxes: Array, scores: Array, *rest: Array | None) -> tuple[Array, Array]:
    capacity = scores.shape[2] if call["capacity"] is None else call["capacity"]
    lists = [some[:capacity] for some in _selected(call, boxes, scores, *rest)]
    return _padded(scores, lists, capacity)


def _padded(scores: Array, lists: list[list[int]], capacity: int) -> tuple[Array, Array]:
    kept = np.zeros((len(lists), capacity), np.int64)
    for row, some in zip(kept, lists, strict=True):
        row[: len(some)] = some
    counts = np.array([len(some) for some in lists], np.int64)
    return kept.reshape(*scores.shape[:2], capacity), counts.reshape(scores.shape[:2])


INPUTS = (
    Input("boxes", FLOAT),
    Input("scores", FLOAT),
    Input("limit", INTEGER, optional=True),
    Input("overlap", FLOAT, optional=True),
    Input("threshold", FLOAT, optional=True),
)
CENTER = Attr("center", bool, False)  # boxes are center and extent instead of corners

OPS = (
    Op(
        "non_max_suppression",
        "Boxes by descending score, without those that overlap a better one of their class: rows "
        "of batch, class and box. `limit` is per batch and class.",
        INPUTS,
        _listed_type,
        _listed,
        OPAQUE,
        (CENTER,),
    ),
    Op(
        "list_boxes",
        "Rows of batch, class and box, given the boxes and their number for each class. With "
        "`side_by_side`, all rows are computed in parallel.",
        (Input("kept", INTEGER), Input("counts", INTEGER)),
        _rows_type,
        _rows,
        OPAQUE,
        (Attr("side_by_side", bool, False),),
    ),
    Op(
        "suppress_boxes",
        "The boxes of `non_max_suppression` by batch and class, in arrays of `capacity` (by "
        "default, for all boxes), padded with zeros; and their numbers. With `runs`, the boxes of "
        "all classes are sorted in parallel, merging so many runs at a time.",
        INPUTS,
        _kept_type,
        _kept,
        OPAQUE,
        (CENTER, Attr("capacity", int, None), Attr("runs", tuple, ())),
    ),
)
