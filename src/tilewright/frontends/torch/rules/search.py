"""Searching and counting, and results of data-dependent size."""

from __future__ import annotations

import math

import torch

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.reduction import comparable
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import const


def places(node: Context, sorted_: Value, values: Value, *, right: bool) -> Value:
    """The number of elements in sorted rows that are below values, or not above them."""
    return node.emit("search_sorted", sorted_, values, right=right)


def _is_right(node: Context) -> bool:
    side = node.get("side")
    return bool(node.get("right", False)) or side == "right"


def _search(node: Context) -> Value:
    of = node.promoted("sorted_sequence", "self")
    rows, values = node.cast(node["sorted_sequence"], of), node.value(node.get("self"), of)
    if node.get("sorter") is not None:
        axis = len(node.shape(rows)) - 1
        rows = node.emit("gather_elements", rows, node["sorter"], axis=axis)
    return node.cast(places(node, rows, values, right=_is_right(node)), node.to)


def _bucketize(node: Context) -> Value:
    of = node.promoted("boundaries", "self")
    values = node.value(node.get("self"), of)
    edges = node.cast(node["boundaries"], of)
    return node.cast(places(node, edges, values, right=bool(node.get("right", False))), node.to)


# ------------------------------------------------------------------------------------ running


def _seen(node: Context, x: Value, hidden: float | int) -> Value:
    """[..., n, n] from rows [..., n]: row i has the elements up to i, then `hidden`."""
    count = node.shape(x)[-1]
    place = node.iota(count)
    behind = node.emit("greater", place, node.unsqueeze(place, 1))
    wide = node.unsqueeze(x, len(node.shape(x)) - 1)
    return node.emit("where", behind, node.value(hidden, x.tensor.dtype), wide)


def fronted(node: Context, x: Value, axis: int) -> tuple[Value, list[int]]:
    """x with an axis moved last, and the permutation that undoes it."""
    rank = len(node.shape(x))
    order = [at for at in range(rank) if at != axis] + [axis]
    return transpose(node, x, order), sorted(range(rank), key=lambda at: order[at])


def _running_extreme(kind: str) -> Rule:
    """The running maximum or minimum, and its last position."""

    def rule(node: Context) -> tuple[Value, Value]:
        x = comparable(node, node["self"])
        if not node.rank():
            return node["self"], node.constant(0)
        best, where = node.emit_many(f"cum{kind}", x, outputs=2, axis=node.dim())
        return node.cast(best, node.to), where

    return rule


def _log_sums(node: Context) -> Value:
    """log(cumsum(exp(x))), with the running maximum subtracted before each exponential."""
    x = node.cast(node["self"], node.to)
    if not node.rank():
        return x
    rows, back = fronted(node, x, node.dim())
    seen = _seen(node, rows, -math.inf)
    axis = len(node.shape(seen)) - 1
    most = node.emit("reduce_max", seen, axes=(axis,), keepdims=True)
    finite = node.emit("less", node.emit("abs", most), math.inf)
    shift = node.emit("where", finite, most, node.like(most, 0))
    powers = node.emit("exp", node.emit("sub", seen, shift))
    total = node.emit("reduce_sum", powers, axes=(axis,), keepdims=True)
    made = node.emit("add", node.emit("log", total), shift)
    return transpose(node, node.reshape(made, node.shape(rows)), back)


# ------------------------------------------------------------------------------------ by data


def _masked_select(node: Context) -> Value:
    """The elements where a mask is true, in order."""
    x, mask = node["self"], node.cast(node["mask"], BOOL)
    zero = node.cast(node.emit("logical_and", mask, node.value(False, BOOL)), BOOL)
    both = node.emit("where", zero, x, x) if node.shape(mask) != node.dims() else x
    wide = node.emit("expand", mask, shape=items_of(node.shape(both)))
    total = product(node.shape(both))
    found = node.emit("nonzero", node.reshape(wide, (total,)))
    where = node.reshape(found, (node.shape(found)[1],))
    return node.emit("gather", node.reshape(both, (total,)), where, axis=0)


def _unique(node: Context) -> tuple[Value, ...]:
    """The distinct elements (or slices), the index of each in them, and their counts."""
    x, axis = node["self"], node.get("dim")
    dims = node.dims()
    if axis is None:
        x = node.reshape(comparable(node, x), (product(dims),))
    made = node.emit_many(
        "unique",
        x,
        outputs=4,
        axis=None if axis is None else node.axis(axis, len(dims)),
        sorted=True,
    )
    values, _, which, counts = made
    inverse = node.reshape(which, dims) if axis is None else which
    return node.cast(values, node.to), *_asked_for(node, inverse, counts)


def _asked_for(node: Context, *values: Value) -> list[Value]:
    """The further results; PyTorch returns empty ones for those not requested."""

    def is_empty(fake: torch.Tensor) -> bool:
        return [dim for dim in fake.shape if not isinstance(dim, torch.SymInt)] == [0]

    pairs = zip(values, node.results[1:], strict=True)
    return [node.full(0, I64, (0,)) if is_empty(fake) else value for value, fake in pairs]


def _unique_runs(node: Context) -> tuple[Value, ...]:
    """The first of each run of equal elements (or slices), the run of each, and run lengths."""
    x, dim, dims = node["self"], node.get("dim"), node.dims()
    if dim is None:
        x, axis, places = node.reshape(x, (product(dims),)), 0, dims
    else:
        axis = node.axis(dim, len(dims))
        places = (dims[axis],)
    total = node.shape(x)[axis]
    if total is sym.ZERO:
        return x, *_asked_for(node, *[node.full(0, I64, (0,))] * 2)
    first = node.full(True, BOOL, (1,))
    before = slice_axis(node, x, axis, 0, sym.simplify(sym.sub(total, 1)))
    new = node.emit("not_equal", slice_axis(node, x, axis, 1, total), before)
    others = tuple(each for each in range(len(node.shape(x))) if each != axis)
    if others:
        new = node.emit("reduce_max", node.cast(new, I64), axes=others, keepdims=False)
    starts = node.emit("concat", first, node.cast(new, BOOL), axis=0)
    which = node.emit("sub", node.emit("cumsum", node.cast(starts, I64), axis=0), 1)
    found = node.emit("nonzero", starts)
    (count,) = node.shape(found)[1:]
    at = node.reshape(found, (count,))
    ends = node.emit("concat", slice_axis(node, at, 0, 1, count),
                     node.reshape(node.number(total), (1,)), axis=0)  # fmt: skip
    lengths = node.emit("sub", ends, at)
    inverse = node.reshape(which, places)
    return node.emit("gather", x, at, axis=axis), *_asked_for(node, inverse, lengths)


def _repeat_interleave(node: Context) -> Value:
    """Index i repeated by the i-th number: the count of running sums up to each position."""
    repeats = node.cast(node["repeats"], I64)
    ends = node.emit("cumsum", repeats, axis=0)
    total = node.emit("reduce_sum", repeats, axes=(0,), keepdims=False)
    steps = node.emit("range", node.constant(0), total, node.constant(1), to=I64)
    return node.cast(places(node, ends, steps, right=True), node.to)


def _bincount(node: Context) -> Value:
    """The count, or the sum of weights, of each number."""
    x = node.cast(node["self"], I64)
    count = node.emit("add", node.emit("reduce_max", x, axes=(0,), keepdims=False), 1)
    count = node.emit("maximum", count, max(int(node.get("minlength", 0)), 0))
    numbers = node.emit("range", node.constant(0), count, node.constant(1), to=I64)
    hits = node.emit("equal", node.unsqueeze(numbers, 1), x)
    weights = node.get("weights")
    if weights is None:
        return node.emit("reduce_sum", node.cast(hits, I64), axes=(1,), keepdims=False)
    shares = node.emit("mul", node.cast(hits, node.to), node.cast(weights, node.to))
    return node.emit("reduce_sum", shares, axes=(1,), keepdims=False)


# ------------------------------------------------------------------------------------ bags


def _embedding_bag(node: Context) -> tuple[Value | None, ...]:
    """Rows of a table summed, averaged or maximized within bags that offsets delimit."""
    mode = ("sum", "mean", "max")[int(node.get("mode", 0))]
    table, index = node["weight"], node.cast(node["indices"], I64)
    offsets = node.cast(node["offsets"], I64)
    (count,), (bags,) = node.shape(index), node.shape(offsets)
    if node.get("include_last_offset", False):
        bags = sym.simplify(sym.sub(bags, 1))
        offsets = slice_axis(node, offsets, 0, 0, bags)
    place = places(node, offsets, node.iota(count), right=True)
    bag = node.unsqueeze(node.emit("sub", place, 1), 1)
    rows = node.emit("gather", table, index, axis=0, from_end=False)
    width, of = node.shape(table)[1], table.tensor.dtype
    weights = node.get("per_sample_weights")
    if weights is not None:
        rows = node.emit("mul", rows, node.unsqueeze(node.cast(weights, of), 1))
    ones = node.full(1, I64, (count,))
    pad = node.get("padding_idx", -1)
    if isinstance(pad, int) and pad >= 0:
        kept = node.emit("not_equal", index, pad)
        rows = node.emit("where", node.unsqueeze(kept, 1), rows,
                         node.like(rows, -math.inf if mode == "max" else 0))  # fmt: skip
        ones = node.cast(kept, I64)
    sizes = node.emit("scatter_nd", node.full(0, I64, (bags,)), bag, ones, reduction="add")
    start = -math.inf if mode == "max" else 0
    base = node.full(start, of, (bags, width))
    made = node.emit("scatter_nd", base, bag, rows, reduction="max" if mode == "max" else "add")
    filled = node.unsqueeze(node.emit("greater", sizes, 0), 1)
    if mode == "mean":
        by = node.cast(node.emit("maximum", sizes, 1), of)
        made = node.emit("div", made, node.unsqueeze(by, 1))
    elif mode == "max":
        made = node.emit("where", filled, made, node.like(made, 0))
    bag = node.reshape(bag, (count,))
    which = _greatest_rows(node, made, rows, bag, index) if node.wants(3) else None
    return made, *_told(node, 1, bag), *_told(node, 2, sizes), which


def _told(node: Context, at: int, value: Value) -> tuple[Value | None]:
    """A result if it is used; PyTorch returns an empty one where it is not computed."""
    if not node.wants(at):
        return (None,)
    fake = node.results[at]
    return (node.full(0, I64, (0,)) if fake.shape == (0,) else value,)


def _greatest_rows(node: Context, made: Value, rows: Value, bag: Value, index: Value) -> Value:
    """For each bag and column the row of the table with the maximum, the first of several."""
    dims, (count,) = node.dims_of(node.results[3]), node.shape(index)
    if len(dims) != 2 or count is const(0):  # not in mode max
        return node.full(0, I64, dims)
    hit = node.emit("equal", rows, node.emit("gather", made, bag, axis=0))
    last = node.number(sym.simplify(sym.sub(count, 1)))
    place = node.emit("where", hit, node.unsqueeze(node.iota(count), 1), last)
    none = node.emit("expand", last, shape=items_of(dims))
    first = node.emit("scatter_nd", none, node.unsqueeze(bag, 1), place, reduction="min")
    return node.emit("gather", index, first, axis=0)


def _is_in(node: Context) -> Value:
    """Whether each element is among others."""
    of = node.promoted("elements", "test_elements")
    x, others = node.value(node.args["elements"], of), node.value(node.args["test_elements"], of)
    flat = node.reshape(others, (product(node.shape(others)),))
    hits = node.emit("equal", node.unsqueeze(x, len(node.shape(x))), flat)
    axis = len(node.shape(hits)) - 1
    found = node.emit("reduce_max", hits, axes=(axis,), keepdims=False)
    return node.emit("logical_not", found) if node.get("invert", False) else found


RULES: dict[str, Rule] = {
    "aten.searchsorted.Tensor": _search,
    "aten.searchsorted.Scalar": _search,
    "aten.bucketize.Tensor": _bucketize,
    "aten.bucketize.Scalar": _bucketize,
    "aten.cummax": _running_extreme("max"),
    "aten.cummin": _running_extreme("min"),
    "aten.logcumsumexp": _log_sums,
    "aten.masked_select": _masked_select,
    "aten._unique2": _unique,
    "aten.unique_dim": _unique,
    "aten.unique_consecutive": _unique_runs,
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "aten.bincount": _bincount,
    "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_forward_only": _embedding_bag,
    **{f"aten.isin.{kind}": _is_in for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")},
}
