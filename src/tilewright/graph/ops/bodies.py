"""Operators with a scalar function as a body, to compare, combine or update elements.

    sort(*values) {axis} do { graph(a0, b0, a1, b1, ...) -> whether a comes before b }
    reduce_window(*values, *starts) {window, strides, dilations, pads} do {
        graph(*so_far, *elements) -> *joined }
    scatter_slices(x, starts, updates) {axes, inserted} do { graph(old, new) -> joined }

Bodies have scalar parameters and results and no captures: they are part of the operator's kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import BOOL, DType
from tilewright.graph.ir import Graph
from tilewright.graph.op import ANY, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.control import Run
from tilewright.graph.ops.moves import check_axis
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.ops.slices import check_starts, kept_axes
from tilewright.graph.ops.windows import DILATIONS, PADS, STRIDES, check_window, window_counts
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const

Array = np.ndarray[Any, Any]


def _check_body(call: Call, params: Sequence[DType], results: Sequence[DType]) -> None:
    """Check that there is one body with scalar parameters and results of these types."""
    if len(call.bodies) != 1:
        raise call.error("TW1312", f"{call.op} needs one body, it has {len(call.bodies)}")
    (body,) = call.bodies
    for what, values, want in (("takes", body.params, params), ("gives", body.results, results)):
        have = [value.type for value in values]
        fits = [TensorType(of, ()) for of in want]
        if have != fits:
            shown, asked = (", ".join(map(str, types)) for types in (have, fits))
            raise call.error(
                "TW1312", f"the body of {call.op} {what} ({shown}), where ({asked}) is needed"
            )


def _check_alike(call: Call, count: int) -> tuple[Any, ...]:
    """The common shape of the first `count` inputs."""
    shape = call.shape(0)
    for at in range(1, count):
        other = call.shape(at)
        if len(other) != len(shape):
            raise call.error("TW1202", f"the inputs of {call.op} have different ranks")
        for axis, (a, b) in enumerate(zip(shape, other, strict=True)):
            same_dim(call, a, b, f"dimensions {axis} of the inputs")
    return shape


def _scalars(run: Run, body: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
    given = zip(values, body.params, strict=True)
    return run(body, [np.asarray(x, param.tensor.dtype.numpy) for x, param in given])


# ------------------------------------------------------------------------------------ sort


def _sort_type(call: Call) -> tuple[Type, ...]:
    count = len(call.types)
    if not count:
        raise call.error("TW1312", "sort needs something to sort")
    shape = _check_alike(call, count)
    if not shape:
        raise call.error("TW1301", "sort needs an axis")
    check_axis(call, call["axis"], len(shape))
    types = [call.tensor(at).dtype for at in range(count)]
    _check_body(call, [of for of in types for _ in range(2)], [BOOL])
    return tuple(TensorType(of, shape) for of in types)


def _sort(call: Call, run: Run, *values: Array) -> tuple[Array, ...]:
    (body,) = call.bodies
    axis = call["axis"] % values[0].ndim
    rows = [np.moveaxis(x, axis, -1) for x in values]
    out = [np.empty_like(x) for x in rows]
    for index in np.ndindex(rows[0].shape[:-1]):
        lines = [row[index] for row in rows]

        def before(a: int, b: int, lines: list[Array] = lines) -> bool:
            pairs = [line[at] for line in lines for at in (a, b)]
            return bool(_scalars(run, body, pairs)[0])

        def order(a: int, b: int) -> int:
            return before(b, a) - before(a, b)

        ranks = sorted(range(len(lines[0])), key=functools.cmp_to_key(order))
        for made, line in zip(out, lines, strict=True):
            made[index] = line[ranks]
    return tuple(np.moveaxis(x, -1, axis) for x in out)


# ------------------------------------------------------------------------------------ windows


def _reduce_window_type(call: Call) -> tuple[Type, ...]:
    count, odd = divmod(len(call.types), 2)
    if not count or odd:
        raise call.error("TW1312", "reduce_window takes tensors and as many scalars to start with")
    shape = _check_alike(call, count)
    check_window(call, len(shape))
    window = call["window"]
    if len(window) != len(shape):
        raise call.error("TW1204", f"a window of {len(window)} axes over {len(shape)}")
    types = [call.tensor(at).dtype for at in range(count)]
    for at, of in enumerate(types):
        if call.types[count + at] != TensorType(of, ()):
            raise call.error(
                "TW1312", f"reduce_window of {of} starts with {call.types[count + at]}"
            )
    _check_body(call, [*types, *types], types)
    dims = window_counts(call, shape, window)
    return tuple(TensorType(of, dims) for of in types)


def _reduce_window(call: Call, run: Run, *given: Array) -> tuple[Array, ...]:
    (body,) = call.bodies
    values, starts = given[: len(given) // 2], given[len(given) // 2 :]
    shape, rank = values[0].shape, values[0].ndim
    counts = window_counts(call, shape, call["window"])
    dims = [int(count.value) for count in counts if isinstance(count, Const)]
    out = [np.empty(dims, x.dtype) for x in values]
    for index in np.ndindex(*dims):
        joined: tuple[Any, ...] = starts
        for tap in np.ndindex(*(int(size) for size in call["window"])):
            at = tuple(
                index[axis] * call["strides"][axis]
                + tap[axis] * call["dilations"][axis]
                - call["pads"][axis]
                for axis in range(rank)
            )
            if all(0 <= place < size for place, size in zip(at, shape, strict=True)):
                joined = _scalars(run, body, [*joined, *(x[at] for x in values)])
        for made, value in zip(out, joined, strict=True):
            made[index] = value
    return tuple(out)


# ------------------------------------------------------------------------------------ scatter


def _scatter_slices_type(call: Call) -> tuple[Type, ...]:
    of, shape, updates = call.tensor(0), call.shape(0), call.shape(2)
    check_starts(call, len(shape))
    lead, kept = call.shape(1)[:-1], kept_axes(call, "inserted", len(shape))
    if len(updates) != len(lead) + len(kept):
        raise call.error(
            "TW1307", f"{len(updates)} axes of updates, where {len(lead) + len(kept)} are needed"
        )
    for axis, (a, b) in enumerate(zip(lead, updates, strict=False)):
        same_dim(call, a, b, f"dimensions {axis} of the starts and the updates")
    _check_body(call, [of.dtype, call.tensor(2).dtype], [of.dtype])
    return (of,)


def _scatter_slices(call: Call, run: Run, x: Array, starts: Array, updates: Array) -> Array:
    (body,) = call.bodies
    out, lead = x.copy(), starts.ndim - 1
    kept = kept_axes(call, "inserted", x.ndim)
    for index in np.ndindex(*updates.shape):
        at = [0] * x.ndim
        for axis, start in zip(call["axes"], starts[index[:lead]], strict=True):
            at[axis] = int(start)
        for axis, offset in zip(kept, index[lead:], strict=True):
            at[axis] += offset
        where = tuple(at)
        if all(0 <= place < size for place, size in zip(where, x.shape, strict=True)):
            (out[where],) = _scalars(run, body, [out[where], updates[index]])
    return out


OPS = (
    Op(
        "sort",
        "Stable sort of tensors of one shape along an axis, by the order that the body defines: "
        "whether elements a come before elements b.",
        (Input("values", ANY, variadic=True),),
        _sort_type,
        _sort,
        OPAQUE,
        (Attr("axis", int, -1),),
    ),
    Op(
        "reduce_window",
        "The elements of each window over all axes, reduced sequentially by the body from the "
        "initial values; padding is skipped.",
        (Input("values", ANY, variadic=True),),
        _reduce_window_type,
        _reduce_window,
        OPAQUE,
        (Attr("window", tuple, required=True), STRIDES, DILATIONS, PADS),
    ),
    Op(
        "scatter_slices",
        "x with slices of updates combined into it by the body, one element after the other. The "
        "last axis of `starts` gives the start of a slice along `axes`; slices lack the axes "
        "`inserted`. Elements outside of x are ignored.",
        (Input("x", ANY), Input("starts", INTEGER), Input("updates", ANY)),
        _scatter_slices_type,
        _scatter_slices,
        OPAQUE,
        (Attr("axes", tuple, required=True), Attr("inserted", tuple, ())),
    ),
)
