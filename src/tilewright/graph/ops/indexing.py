"""Gather and scatter by index; negative indices count from the end, or are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64, DType
from tilewright.graph.op import ANY, INJECTIVE, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axis, moved
from tilewright.graph.ops.rules import check_one_dtype, same_dim, same_type
from tilewright.graph.ops.shape import product
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr, const

Array = np.ndarray[Any, Any]

# The combination of an update with the old element.
REDUCTIONS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def counted(indices: Array, dim: int, *, from_end: bool = True) -> Array:
    """Normalize negative indices; an index out of range is an error."""
    least = -dim if from_end else 0
    if np.any((indices < least) | (indices >= dim)):
        bad = indices[(indices < least) | (indices >= dim)].ravel()[0]
        raise IndexError(f"index {bad} is outside a dimension of {dim}")
    return np.where(indices < 0, indices + dim, indices)


# ------------------------------------------------------------------------------------ gather


def _gather_type(call: Call) -> tuple[Type, ...]:
    shape, indices = call.shape(0), call.shape(1)
    axis = check_axis(call, call["axis"], len(shape))
    return (TensorType(call.tensor(0).dtype, (*shape[:axis], *indices, *shape[axis + 1 :])),)


def _gather(call: Call, x: Array, indices: Array) -> Array:
    axis = call["axis"]
    if not call["from_end"]:
        indices = counted(indices, x.shape[axis], from_end=False)
    try:
        return x.take(indices, axis)
    except IndexError:
        return np.take(x, counted(indices, x.shape[axis]), axis=axis)  # its error names the index


def _gather_elements_type(call: Call) -> tuple[Type, ...]:
    shape, indices = call.shape(0), call.shape(1)
    _check_ranks(call, shape, indices)
    check_axis(call, call["axis"], len(shape))
    return (TensorType(call.tensor(0).dtype, indices),)


def _check_ranks(call: Call, *shapes: tuple[Expr, ...]) -> None:
    if len({len(shape) for shape in shapes}) > 1:
        counts = ", ".join(str(len(shape)) for shape in shapes)
        raise call.error("TW1304", f"{call.op} needs tensors of one rank, got {counts}")


def _gather_elements(call: Call, x: Array, indices: Array) -> Array:
    axis = call["axis"] % max(x.ndim, 1)
    within = [slice(n) for n in indices.shape]
    within[axis] = slice(None)
    where = counted(indices, x.shape[axis], from_end=call["from_end"])
    return np.take_along_axis(x[tuple(within)], where, axis)


def _index_depth(call: Call) -> int:
    """The number of leading dimensions addressed by the last axis of the indices."""
    indices = call.shape(1)
    depth = indices[-1] if indices else None
    if not isinstance(depth, Const):
        raise call.error("TW1307", f"the number of dimensions that {call.op} addresses is unknown")
    return int(depth.value)


def _gather_nd_type(call: Call) -> tuple[Type, ...]:
    shape, indices, batch = call.shape(0), call.shape(1), call["batch_dims"]
    depth = _index_depth(call)
    if batch + depth > len(shape) or batch >= len(indices):
        raise call.error(
            "TW1307", f"gather_nd addresses {batch} + {depth} dimensions of {len(shape)}"
        )
    for axis in range(batch):
        same_dim(call, shape[axis], indices[axis], f"batch dimensions {axis}")
    return (TensorType(call.tensor(0).dtype, (*indices[:-1], *shape[batch + depth :])),)


def _gather_nd(call: Call, x: Array, indices: Array) -> Array:
    batch, depth = call["batch_dims"], indices.shape[-1]
    grid = np.ogrid[tuple(slice(n) for n in indices.shape[:-1])][:batch]
    where = [counted(indices[..., at], x.shape[batch + at]) for at in range(depth)]
    shape = indices.shape[:-1]
    return np.asarray(x[tuple(np.broadcast_to(part, shape) for part in (*grid, *where))])


# ------------------------------------------------------------------------------------ scatter


def _check_reduction(call: Call) -> None:
    if call["reduction"] not in REDUCTIONS:
        raise call.error(
            "TW1308",
            f"{call.op} has no reduction {call['reduction']!r}",
            help=f"use {', '.join(REDUCTIONS)}",
        )


def _check_updates(call: Call) -> None:
    _check_reduction(call)
    if call.tensor(0).dtype is not call.tensor(2).dtype:
        check_one_dtype(Call(call.op, (call.types[0], call.types[2]), {}, loc=call.loc))


def _scatter_elements_type(call: Call) -> tuple[Type, ...]:
    _check_updates(call)
    shape, indices, updates = call.shape(0), call.shape(1), call.shape(2)
    _check_ranks(call, shape, indices, updates)
    check_axis(call, call["axis"], len(shape))
    for axis, (a, b) in enumerate(zip(indices, updates, strict=True)):
        same_dim(call, a, b, f"dimensions {axis} of indices and updates")
    return same_type(call)  # type: ignore[return-value]


def _scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    axis = call["axis"] % max(x.ndim, 1)
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = counted(indices, x.shape[axis], from_end=call["from_end"])
    return placed(x, tuple(grid), updates, call["reduction"])


def placed(x: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """x with updates at the indices; duplicates are reduced, or the last one is used."""
    combine = REDUCTIONS[reduction]
    if combine is None:
        out = x.copy()
        out[where] = updates
        return out
    small = x.dtype.itemsize < 4 and x.dtype.kind not in "iub"
    out = x.astype(np.float32) if small else x.copy()
    if x.dtype == bool:
        combine = {np.add: np.logical_or, np.multiply: np.logical_and}.get(combine, combine)  # type: ignore[call-overload]
    combine.at(out, where, updates.astype(out.dtype))  # type: ignore[union-attr]
    return out.astype(x.dtype)


def _scatter_nd_type(call: Call) -> tuple[Type, ...]:
    _check_updates(call)
    shape, indices, updates = call.shape(0), call.shape(1), call.shape(2)
    depth = _index_depth(call)
    if depth > len(shape):
        raise call.error("TW1307", f"scatter_nd addresses {depth} dimensions of {len(shape)}")
    want = (*indices[:-1], *shape[depth:])
    _check_ranks(call, want, updates)
    for axis, (a, b) in enumerate(zip(want, updates, strict=True)):
        same_dim(call, a, b, f"dimensions {axis} of the updates and what they replace")
    return same_type(call)  # type: ignore[return-value]


def _scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    where = tuple(counted(indices[..., at], x.shape[at]) for at in range(indices.shape[-1]))
    return placed(x, where, updates, call["reduction"])


# ------------------------------------------------------------------------------------ segments


def _segment_reduce_type(call: Call) -> tuple[Type, ...]:
    _check_reduction(call)
    if call["reduction"] == "none":
        raise call.error("TW1308", "segment_reduce needs a reduction")
    of, shape, segments = call.tensor(0), call.shape(0), call.shape(1)
    _check_ranks(call, shape[:1], segments)
    same_dim(call, shape[0], segments[0], "the numbers of rows and of their segments")
    known = call.value(2)
    count = sym.size("segments") if known is None else known[0]
    return (TensorType(of.dtype, (count, *shape[1:])),)


def neutral(reduction: str, of: DType) -> float:
    """The identity of a reduction."""
    if reduction in ("add", "mul") or of.is_bool:
        return {"add": 0, "max": 0, "mul": 1, "min": 1}[reduction]
    return of.min if reduction == "max" else of.max


def _segment_reduce(call: Call, x: Array, segments: Array, count: Array) -> Array:
    rows, start = int(np.ravel(count)[0]), neutral(call["reduction"], call.tensor(0).dtype)
    begun = np.full((rows, *x.shape[1:]), start).astype(x.dtype)
    inside = (segments >= 0) & (segments < rows)
    return placed(begun, (segments[inside],), x[inside], call["reduction"])


# ------------------------------------------------------------------------------------ search


def _nonzero(call: Call, x: Array) -> Array:
    found = np.nonzero(x.astype(bool).reshape(x.shape or (1,)))
    return np.stack(found).astype(np.int64)[: x.ndim]


def _unique_type(call: Call) -> tuple[Type, ...]:
    of, shape, axis = call.tensor(0), call.shape(0), call["axis"]
    count = sym.size("unique")
    dims: tuple[Expr, ...] = (count,)
    total = product(shape)
    if axis is not None:
        axis = check_axis(call, axis, len(shape))
        dims, total = (*shape[:axis], count, *shape[axis + 1 :]), shape[axis]
    one, every = TensorType(I64, (count,)), TensorType(I64, (total,))
    return (TensorType(of.dtype, dims), one, every, one)[: call.outputs]


def _unique(call: Call, x: Array) -> tuple[Array, ...]:
    axis = call["axis"]
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not call["sorted"]:
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    made = (values, first, np.ravel(inverse), counts)
    return (made[0], *(part.astype(np.int64) for part in made[1:]))[: call.outputs]


_AXIS = Attr("axis", int, required=True)
_FROM_END = Attr("from_end", bool, True)  # whether negative indices count from the end
_REDUCTION = Attr("reduction", str, "none")

_BY_RESULTS = Attr("by_results", bool, False)
_RUNS = Attr("runs", tuple, ())
OPS = (
    Op(
        "gather",
        "Slices of x along an axis, by index.",
        (Input("x"), Input("indices", INTEGER)),
        _gather_type,
        _gather,
        INJECTIVE,
        (_AXIS, _FROM_END),
        evaluate=moved(_gather, 0),
    ),
    Op(
        "gather_elements",
        "out[i, j, k] = x[i, indices[i, j, k], k], for axis 1.",
        (Input("x"), Input("indices", INTEGER)),
        _gather_elements_type,
        _gather_elements,
        INJECTIVE,
        (_AXIS, _FROM_END),
        evaluate=moved(_gather_elements, 0),
    ),
    Op(
        "gather_nd",
        "out[b, ...] = x[b, *indices[b, ...]]: each row of indices addresses leading dimensions.",
        (Input("x"), Input("indices", INTEGER)),
        _gather_nd_type,
        _gather_nd,
        INJECTIVE,
        (Attr("batch_dims", int, 0),),
        evaluate=moved(_gather_nd, 0),
    ),
    Op(
        "scatter_elements",
        "x with out[i, indices[i, j, k], k] = updates[i, j, k], for axis 1; updates of one "
        "element are reduced, in any order. With `by_results`, each result searches for its "
        "updates; with `runs`, updates are sorted by position, merging so many runs at a time.",
        (Input("x"), Input("indices", INTEGER), Input("updates")),
        _scatter_elements_type,
        _scatter_elements,
        OPAQUE,
        (_AXIS, _REDUCTION, _BY_RESULTS, _RUNS, _FROM_END),
        evaluate=moved(_scatter_elements, 0, 2),
    ),
    Op(
        "scatter_nd",
        "x with out[*indices[b]] = updates[b]; updates of one element are reduced, in any order. "
        "With `by_results`, each result searches for its updates; with `runs`, updates are sorted "
        "by position, merging so many runs at a time.",
        (Input("x"), Input("indices", INTEGER), Input("updates")),
        _scatter_nd_type,
        _scatter_nd,
        OPAQUE,
        (_REDUCTION, _BY_RESULTS, _RUNS),
        evaluate=moved(_scatter_nd, 0, 2),
    ),
    Op(
        "segment_reduce",
        "Rows of x reduced to one for each of `count` segments, by the segment number of each "
        "row, in any order; rows of other segments are ignored. With `runs`, rows are sorted by "
        "segment, merging so many runs at a time.",
        (Input("x"), Input("segments", INTEGER), Input("count", INTEGER, folds=True)),
        _segment_reduce_type,
        _segment_reduce,
        OPAQUE,
        (Attr("reduction", str, "add"), _RUNS),
    ),
    Op(
        "nonzero",
        "The indices of all nonzero elements, a column each, in order. With `piece`, elements are "
        "counted in parallel pieces of this length, and each column searches for its element.",
        (Input("x", ANY),),
        lambda call: (TensorType(I64, (const(len(call.shape(0))), sym.size("nonzero"))),),
        _nonzero,
        OPAQUE,
        (Attr("piece", int, 0),),
    ),
    Op(
        "unique",
        "The distinct elements (or slices along an axis), sorted or by first occurrence; then the "
        "index of the first occurrence of each, the inverse indices, and the counts. With `runs`, "
        "elements are sorted in parallel, merging so many runs at a time.",
        (Input("x"),),
        _unique_type,
        _unique,
        OPAQUE,
        (Attr("axis", int, None), Attr("sorted", bool, True), _RUNS),
    ),
)
