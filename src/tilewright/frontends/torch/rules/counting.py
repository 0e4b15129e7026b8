"""Histograms, modes and medians, and segment reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import BOOL, F64, I64
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.reduction import comparable
from tilewright.frontends.torch.rules.search import fronted
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.frontends.torch.rules.sorting import ordered
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import Const

# ------------------------------------------------------------------------------------ modes


def _mode(node: Context) -> tuple[Value, Value]:
    """The most frequent value along an axis, the least of several, and its last position."""
    if not node.rank():
        return node["self"], node.constant(0)
    axis = node.axis(node.get("dim", -1), node.rank())
    rows, _ = fronted(node, comparable(node, node["self"]), axis)
    rank = len(node.shape(rows))
    same = node.emit("equal", node.unsqueeze(rows, rank - 1), node.unsqueeze(rows, rank))
    often = node.emit("reduce_sum", node.cast(same, I64), axes=(rank,), keepdims=False)
    last = (rank - 1,)
    most = node.emit("reduce_max", often, axes=last, keepdims=True)
    of = rows.tensor.dtype
    greatest = node.value(of.max if of.is_int else math.inf, of)
    kept = node.emit("where", node.emit("equal", often, most), rows, greatest)
    best = node.emit("reduce_min", kept, axes=last, keepdims=True)
    hits = node.cast(node.emit("equal", rows, best), I64)
    where = node.emit("arg_max", hits, axis=rank - 1, keepdims=True, last=True)
    value, place = (node.reshape(x, node.out) for x in (best, where))
    return node.cast(value, node.to), place


def _nan_median(node: Context) -> tuple[Value, Value]:
    """The lower median of the elements that are not NaN, and its position.

    NaN sorts after every number, so the position depends on the count of numbers.
    """
    if not node.rank():
        return node["self"], node.constant(0)
    axis = node.axis(node.get("dim", -1), node.rank())
    best, where = _middle(node, node["self"], axis)
    return node.reshape(best, node.out), node.reshape(where, node.out)


def _middle(node: Context, x: Value, axis: int) -> tuple[Value, Value]:
    rows, _ = fronted(node, x, axis)
    rank, count = len(node.shape(rows)), node.shape(rows)[-1]
    values, places = ordered(node, rows, rank - 1, count, descending=False)
    numbers = node.full(True, BOOL, node.shape(rows))
    if x.tensor.dtype.is_float:
        numbers = node.emit("logical_not", node.emit("isnan", rows))
    many = node.emit("reduce_sum", node.cast(numbers, I64), axes=(rank - 1,), keepdims=True)
    at = node.emit("maximum", node.emit("floordiv", node.emit("sub", many, 1), 2), 0)
    return tuple(  # type: ignore[return-value]
        node.emit("gather_elements", each, at, axis=rank - 1) for each in (values, places)
    )


def _nan_median_of_all(node: Context) -> Value:
    total = product(node.dims())
    if isinstance(total, Const) and total.value == 0:
        return node.full(math.nan, node.to, ())
    flat = node.reshape(node["self"], (total,))
    return node.reshape(_middle(node, flat, 0)[0], ())


# ------------------------------------------------------------------------------------ histograms


def _bins(node: Context, x: Value, edges: Value) -> tuple[Value, Value]:
    """The bin of each element by binary search, as in PyTorch for unsorted edges, and whether it is
    in any. The last bin includes its upper edge."""
    (count,) = node.shape(edges)
    low, high = (slice_axis(node, edges, 0, at, at + 1) for at in (0, count - 1))
    inside = node.emit(
        "logical_and", node.emit("greater_equal", x, low), node.emit("less_equal", x, high)
    )
    above = node.emit("search_sorted", edges, x, right=True)
    place = node.emit("minimum", node.emit("sub", above, 1), node.number(count - 2))
    return node.emit("maximum", place, 0), inside


def _edges(node: Context, x: Value, bins: int, low: Any, high: Any) -> Value:
    """bins + 1 evenly spaced points, as in PyTorch's linspace: from both ends to the middle."""
    of = x.tensor.dtype
    step = node.emit("div", node.emit("sub", high, low), float(bins))
    at = node.cast(node.iota(bins + 1), of)
    front = node.emit("add", low, node.emit("mul", at, step))
    rest = node.emit("sub", node.value(float(bins), of), at)
    back = node.emit("sub", high, node.emit("mul", rest, step))
    return node.emit("where", node.emit("less", at, (bins + 1) // 2), front, back)


def _range(
    node: Context, x: Value, given: Sequence[Any] | None, margin: float
) -> tuple[Value, Value]:
    """The ends of a histogram: given, or the range of the data; an empty range is widened."""
    of = x.tensor.dtype
    (count,) = node.shape(x)
    if given is not None:
        low, high = (node.value(float(end), of) for end in given)
    elif isinstance(count, Const) and count.value == 0:
        return node.value(0.0, of), node.value(1.0, of)
    else:
        low, high = (node.emit(f"reduce_{kind}", x, axes=(0,), keepdims=False) for kind in
                     ("min", "max"))  # fmt: skip
    same = node.emit("equal", low, high)
    below, above = node.emit("sub", low, margin), node.emit("add", high, margin)
    return node.emit("where", same, below, low), node.emit("where", same, above, high)


def _counted(
    node: Context, columns: Sequence[Value], edges: Sequence[Value], weight: Value | None
) -> Value:
    """The count, or the sum of weights, of samples in each bin; bins are positions in a flat array
    [bins of the first coordinate, of the second, ...]."""
    (many,) = node.shape(columns[0])
    where = node.full(0, I64, (many,))
    inside = node.full(True, BOOL, (many,))
    bins = [node.shape(ends)[0] - 1 for ends in edges]
    for column, ends, count in zip(columns, edges, bins, strict=True):
        place, found = _bins(node, column, ends)
        inside = node.emit("logical_and", inside, found)
        where = node.emit("add", node.emit("mul", where, node.number(count)), place)
    ones = node.full(1, F64, (many,))
    share = ones if weight is None else node.cast(node.reshape(weight, (many,)), F64)
    share = node.emit("where", inside, share, node.like(share, 0))
    none = node.full(0, F64, (product(bins),))
    made = node.emit("scatter_elements", none, where, share, axis=0, reduction="add")
    return node.reshape(made, bins)


def _flat(node: Context) -> Value:
    return node.reshape(node["self"], (product(node.dims()),))


def _histc(node: Context) -> Value:
    x, bins = _flat(node), int(node.get("bins", 100))
    ends = (node.get("min", 0), node.get("max", 0))
    if any(isinstance(end, Value) for end in ends):
        raise Skip("histc with computed ends")
    if not x.tensor.dtype.is_float:
        x = node.cast(x, F64)
    given = None if ends[0] == ends[1] == 0 else ends
    low, high = _range(node, x, given, 1.0)
    return node.cast(_counted(node, [x], [_edges(node, x, bins, low, high)], None), node.to)


def _widths(node: Context, edges: Value) -> Value:
    (count,) = node.shape(edges)
    above, below = slice_axis(node, edges, 0, 1, count), slice_axis(node, edges, 0, 0, count - 1)
    return node.cast(node.emit("sub", above, below), F64)


def _histogram(node: Context) -> tuple[Value, Value]:
    x, bins = _flat(node), node.args["bins"]
    if isinstance(bins, Value):
        edges = bins
    else:
        low, high = _range(node, x, node.get("range"), 0.5)
        edges = _edges(node, x, int(bins), low, high)
    made = _counted(node, [x], [edges], node.get("weight"))
    if node.get("density", False):
        total = node.emit("reduce_sum", made, axes=(0,), keepdims=False)
        made = node.emit("div", node.emit("div", made, total), _widths(node, edges))
    return node.cast(made, node.to), edges


def _samples_of(node: Context) -> list[Value]:
    """The coordinates of samples [m, n], one tensor each."""
    *lead, count = node.dims()
    x = node.reshape(node["self"], (product(lead), count))
    if not isinstance(count, Const):
        raise Skip("histogramdd of a dynamic number of coordinates")
    return [
        node.reshape(slice_axis(node, x, 1, at, at + 1), node.shape(x)[:1])
        for at in range(int(count.value))
    ]


def _edges_by_counts(node: Context) -> list[Value]:
    """The edges of the bins along each coordinate."""
    given = node.get("range")
    made = []
    for at, (x, bins) in enumerate(zip(_samples_of(node), node.args["bins"], strict=True)):
        ends = None if given is None else given[2 * at : 2 * at + 2]
        made.append(_edges(node, x, int(bins), *_range(node, x, ends, 0.5)))
    return made


def _histogram_of_samples(node: Context) -> Value:
    """A histogram of samples with several coordinates."""
    return _boxes(node, _edges_by_counts(node))


def _histogram_by_edges(node: Context) -> Value:
    return _boxes(node, node.args["bins"])


def _boxes(node: Context, edges: Sequence[Value]) -> Value:
    """The counts of samples with several coordinates."""
    made = _counted(node, _samples_of(node), edges, node.get("weight"))
    if node.get("density", False):
        axes = tuple(range(len(node.out)))
        made = node.emit("div", made, node.emit("reduce_sum", made, axes=axes, keepdims=False))
        for axis, ends in enumerate(edges):
            made = node.emit("div", made, node.column(_widths(node, ends), axis, len(axes)))
    return node.cast(made, node.to)


# ------------------------------------------------------------------------------------ segments

_STARTS = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _segment_reduce(node: Context) -> Value:
    """Reduce segments along an axis, given by lengths or offsets."""
    x, kind = node["data"], str(node.args["reduce"])
    lengths, offsets = node.get("lengths"), node.get("offsets")
    axis, of = int(node.get("axis", 0)), x.tensor.dtype
    if offsets is None:
        lengths = node.cast(lengths, I64)
        ends = node.emit("cumsum", lengths, axis=axis)
        starts = node.emit("sub", ends, lengths)
    else:
        offsets = node.cast(offsets, I64)
        count = node.shape(offsets)[axis]
        starts = slice_axis(node, offsets, axis, 0, count - 1)
        ends = slice_axis(node, offsets, axis, 1, count)
        lengths = node.emit("sub", ends, starts)
    rest = node.rank("data") - axis - 1
    initial = node.get("initial")
    start = _STARTS[kind] if initial is None else float(initial)
    op = "sum" if kind == "mean" else kind
    reduced = _in_segments if axis else _by_segment
    made = reduced(node, x, starts, ends, op)
    if initial is not None or kind in ("max", "min"):
        join = {"sum": "add", "mean": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
        made = node.emit(join[kind], made, node.value(start, of))
    if kind == "mean":
        many = node.unsqueeze(lengths, *range(axis + 1, axis + 1 + rest)) if rest else lengths
        empty = node.emit("equal", many, 0)
        if initial is None:
            return node.emit("div", made, node.cast(many, of))
        by = node.emit("where", empty, node.like(many, 1), many)
        made = node.emit("div", made, node.cast(by, of))
    return made


def _by_segment(node: Context, x: Value, starts: Value, ends: Value, op: str) -> Value:
    """Reduce segments of rows; the segment of each row is found by binary search."""
    place, reduction = node.iota(node.shape(x)[0]), {"sum": "add", "prod": "mul"}.get(op, op)
    found = node.emit("search_sorted", ends, place, right=True)
    early = node.emit("less", place, slice_axis(node, starts, 0, 0, 1))
    segments = node.emit("where", early, node.like(found, -1), found)
    count = node.number(node.shape(starts)[0])
    return node.emit("segment_reduce", x, segments, count, reduction=reduction)


def _in_segments(node: Context, x: Value, starts: Value, ends: Value, op: str) -> Value:
    """Separate segments for each position of the leading axes: [..., segments, elements]."""
    dims, axis = node.shape(x), len(node.shape(starts)) - 1
    place = node.iota(dims[axis])
    inside = node.emit(
        "logical_and",
        node.emit("greater_equal", place, node.unsqueeze(starts, axis + 1)),
        node.emit("less", place, node.unsqueeze(ends, axis + 1)),
    )
    last = range(axis + 2, len(dims) + 1)
    mask = node.unsqueeze(inside, *last) if last else inside
    none = node.value(_STARTS[op], x.tensor.dtype)
    kept = node.emit("where", mask, node.unsqueeze(x, axis), none)
    return node.emit(f"reduce_{op}", kept, axes=(axis + 1,), keepdims=False)


def _nonzero_static(node: Context) -> Value:
    """Positions of nonzero elements, truncated or padded to a static count."""
    x, size = node["self"], node.args["size"]
    found = transpose(node, node.emit("nonzero", x), (1, 0))
    rank = max(node.rank(), 0)
    fill = node.full(int(node.get("fill_value", -1)), I64, (size, rank))
    joint = node.emit("concat", found, fill, axis=0)
    return node.emit("slice", joint, starts=(0,), ends=items_of([size]), axes=(0,), steps=(1,))


RULES: dict[str, Rule] = {
    "aten.mode": _mode,
    "aten.nanmedian": _nan_median_of_all,
    "aten.nanmedian.dim": _nan_median,
    "aten.histc": _histc,
    "aten.histogram.bin_ct": _histogram,
    "aten.histogram.bins_tensor": _histogram,
    "aten._histogramdd_bin_edges": _edges_by_counts,
    "aten._histogramdd_from_bin_cts": _histogram_of_samples,
    "aten._histogramdd_from_bin_tensors": _histogram_by_edges,
    "aten.segment_reduce": _segment_reduce,
    "aten.nonzero_static": _nonzero_static,
}
