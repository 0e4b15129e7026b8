"""Sorting and selection; NaN counts as greater than every number."""

from __future__ import annotations

from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Dim, Rule
from tilewright.frontends.torch.rules.reduction import comparable
from tilewright.frontends.torch.rules.shape import slice_axis
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import Const


def ordered(
    node: Context, x: Value, axis: int, count: Dim, *, descending: bool
) -> tuple[Value, Value]:
    """The first `count` elements in sorted order along an axis, and their positions."""
    of = x.tensor.dtype
    best, where = node.emit_many(
        "top_k",
        comparable(node, x),
        outputs=2,
        k=items_of((count,)),
        axis=axis,
        largest=descending,
    )
    return node.cast(best, of), where


def _sort(node: Context) -> tuple[Value, Value]:
    if not node.rank():
        return node["self"], node.constant(0)
    axis = node.axis(node.get("dim", -1), node.rank())
    descending = bool(node.get("descending", False))
    return ordered(node, node["self"], axis, node.dims()[axis], descending=descending)


def _top_k(node: Context) -> tuple[Value, Value]:
    if not node.rank():
        return node["self"], node.constant(0)
    axis = node.axis(node.get("dim", -1), node.rank())
    largest = bool(node.get("largest", True))
    return ordered(node, node["self"], axis, node.args["k"], descending=largest)


def _kth(node: Context) -> tuple[Value, Value]:
    """The k-th smallest element along an axis."""
    if not node.rank():
        return node["self"], node.constant(0)
    axis, k = node.axis(node.get("dim", -1), node.rank()), int(node.args["k"])
    best, where = ordered(node, node["self"], axis, k, descending=False)
    pair = (slice_axis(node, each, axis, k - 1, k) for each in (best, where))
    first, second = (node.reshape(each, node.out) for each in pair)
    return first, second


def _median(node: Context) -> Value:
    """The lower median of all elements; NaN if any element is NaN."""
    total = product(node.dims())
    if not isinstance(total, Const):
        raise Skip("the median of a dynamic number of elements")
    flat = node.reshape(node["self"], (total,))
    if total.value == 0:
        return node.full(float("nan"), node.to, ())
    middle = (int(total.value) - 1) // 2
    best, _ = ordered(node, flat, 0, middle + 1, descending=False)
    found = node.reshape(slice_axis(node, best, 0, middle, middle + 1), ())
    if not found.tensor.dtype.is_float:
        return found
    return node.emit(
        "where",
        node.emit("reduce_max", node.emit("isnan", flat), axes=(0,), keepdims=False),
        node.like(found, float("nan")),
        found,
    )


def _median_along(node: Context) -> tuple[Value, Value]:
    """The lower median along an axis and its position; NaN, and the first one, if there is any."""
    if not node.rank():
        return node["self"], node.constant(0)
    axis, x = node.dim(), node["self"]
    count = node.dims()[axis]
    if not isinstance(count, Const):
        raise Skip("the median along a dynamic axis")
    k = (int(count.value) + 1) // 2
    pair = ordered(node, x, axis, k, descending=False)
    best, where = (slice_axis(node, each, axis, k - 1, k) for each in pair)
    if x.tensor.dtype.is_float:
        odd = node.emit("isnan", x)
        lost = node.emit("reduce_max", odd, axes=(axis,), keepdims=True)
        first = node.emit("arg_max", comparable(node, odd), axis=axis, keepdims=True)
        best = node.emit("where", lost, node.like(best, float("nan")), best)
        where = node.emit("where", lost, first, where)
    return node.reshape(best, node.out), node.reshape(where, node.out)


RULES: dict[str, Rule] = {
    "aten.sort": _sort,
    "aten.sort.stable": _sort,
    "aten.topk": _top_k,
    "aten.kthvalue": _kth,
    "aten.median": _median,
    "aten.median.dim": _median_along,
}
