"""Constants, shapes, and operators that reshape, reorder, slice and pad."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.base.errors import UserError
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip, element_type
from tilewright.graph import Value
from tilewright.graph.ops.shape import END, product
from tilewright.graph.types import items_of
from tilewright.sym import EMPTY, ONE, Const, Expr, const

# ------------------------------------------------------------------------------------ constants


def _constant(node: Context) -> Value:
    for attribute in node.node.attribute:
        value = node.attr(attribute.name)
        match attribute.name:
            case "value" | "sparse_value":
                return node.constant(value)
            case "value_float" | "value_floats":
                return node.constant(np.asarray(value, np.float32))
            case "value_int" | "value_ints":
                return node.constant(np.asarray(value, np.int64))
            case "value_string" | "value_strings":
                return node.constant(np.asarray(value, object))
    raise Skip("Constant without a value")


def _constant_of_shape(node: Context) -> Value:
    value = node.attr("value")
    fill = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    return node.emit("expand", node.constant(fill), node[0])


def _eye_like(node: Context) -> Value:
    rows, columns = node.dims()
    code = node.attr("dtype")
    to = node[0].tensor.dtype if code is None else element_type(code)
    on = node.emit("equal", diagonal(node, rows, columns), node.attr("k", 0))
    return on if to is BOOL else node.emit("cast", on, to=to)


def diagonal(node: Context, rows: Expr, columns: Expr) -> Value:
    """The diagonal of each element of a matrix: column - row."""
    row = node.unsqueeze(iota(node, rows), 1)
    return node.emit("sub", iota(node, columns), row)


def iota(node: Context, count: Expr | int) -> Value:
    """0, 1, ... as i64."""
    (limit,) = items_of([count])
    return node.emit("range", start=0, limit=limit, delta=1, to=I64)


def _range(node: Context) -> Value:
    to = node[0].tensor.dtype
    return node.emit("range", *(_scalar(node, node[at]) for at in range(3)), to=to)


def _scalar(node: Context, x: Value) -> Value:
    return node.reshape(x, ()) if x.tensor.rank == 1 else x


# ------------------------------------------------------------------------------------ shapes


def _shape(node: Context) -> Value:
    rank = node.rank()
    start = min(max(_from_front(node.attr("start", 0), rank), 0), rank)
    end = min(max(_from_front(node.attr("end", rank), rank), 0), rank)
    shape = node.emit("shape", node[0])
    if (start, end) == (0, rank):
        return shape
    return node.emit("slice", shape, starts=(start,), ends=(max(start, end),), axes=(0,))


def _from_front(position: int, count: int) -> int:
    return position + count if position < 0 else position


def _size(node: Context) -> Value:
    return node.emit("reduce_prod", node.emit("shape", node[0]), axes=(0,), keepdims=False)


# ------------------------------------------------------------------------------------ reshape


def _reshape(node: Context) -> Value:
    x, known, keeps_zero = node[0], node.known(1), node.attr("allowzero", 0)
    if known is None:
        target = node[1] if keeps_zero else _with_copied_dims(node)
        return node.emit("reshape", x, target)
    dims = list(known)
    if not keeps_zero:
        for at, dim in enumerate(dims):
            if isinstance(dim, Const) and dim.value == 0:
                dims[at] = node.dims()[at]
    return node.reshape(x, dims)


def _with_copied_dims(node: Context) -> Value:
    """A target shape with zeros replaced by the input's dimensions, at run time."""
    wanted = node[1].tensor.static_shape
    if wanted is None:
        raise Skip("Reshape to an unknown number of dimensions")
    rank, count = node.rank(), wanted[0]
    shape = node.emit("shape", node[0])
    if rank > count:
        shape = node.emit("slice", shape, starts=(0,), ends=(count,), axes=(0,))
    elif rank < count:
        shape = node.emit("pad", shape, pads=(0, count - rank))
    return node.emit("where", node.emit("equal", node[1], 0), shape, node[1])


def _flatten(node: Context) -> Value:
    dims = node.dims()
    axis = node.attr("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return node.reshape(node[0], (product(dims[:axis]), product(dims[axis:])))


def _axes(node: Context, at: int = 1) -> tuple[int, ...] | Value | None:
    """Axes from an attribute or an input, constant or not; None if absent."""
    given = node.attr("axes")
    if given is not None:
        return tuple(given)
    known = node.ints(at)
    return node.get(at) if known is None else known


def _unsqueeze(node: Context) -> Value:
    axes = _axes(node)
    if isinstance(axes, tuple):
        return node.unsqueeze(node[0], *axes)
    if axes is None:
        raise Skip("Unsqueeze without axes")
    count = axes.tensor.static_shape
    if count is None:
        raise Skip("Unsqueeze by an unknown number of axes")
    rank = node.rank() + (count[0] if count else 1)
    added = _named(node, axes, rank)
    old = node.emit("cumsum", node.emit("cast", node.emit("logical_not", added), to=I64), axis=0)
    dims = node.emit("pad", node.emit("shape", node[0]), pads=(1, 0))  # dimension i is at i + 1
    target = node.emit(
        "where", added, node.constant(np.int64(1)), node.emit("gather", dims, old, axis=0)
    )
    return node.emit("reshape", node[0], target)


def _named(node: Context, axes: Value, rank: int) -> Value:
    """Whether each of `rank` axes is in a list known at run time."""
    below = node.emit("less", axes, 0)
    counted = node.emit("where", below, node.emit("add", axes, rank), axes)
    counted = node.emit("reshape", counted, shape=(-1, 1))
    hits = node.emit("equal", counted, iota(node, rank))
    return node.emit("reduce_max", hits, axes=(0,), keepdims=False)


def _squeeze(node: Context) -> Value:
    dims, axes = node.dims(), _axes(node)
    if axes is None:
        unclear = [dim for dim in dims if not isinstance(dim, Const) and not _is_above_one(dim)]
        if unclear:
            raise Skip(f"Squeeze without axes on a tensor with the dimension {unclear[0]}")
        return node.reshape(node[0], [dim for dim in dims if dim is not ONE])
    if isinstance(axes, tuple):
        gone = {node.axis(axis, len(dims)) for axis in axes}
        return node.reshape(node[0], [dim for at, dim in enumerate(dims) if at not in gone])
    count = axes.tensor.static_shape
    if count is None:
        raise Skip("Squeeze by an unknown number of axes")
    # Sort the kept axes before the removed ones.
    rank, left = len(dims), len(dims) - (count[0] if count else 1)
    places = iota(node, rank)
    keys = node.emit("where", _named(node, axes, rank), node.emit("add", places, rank), places)
    kept, _ = node.emit_many("top_k", keys, outputs=2, k=(left,), axis=0, largest=False)
    target = node.emit("gather", node.emit("shape", node[0]), kept, axis=0)
    return node.emit("reshape", node[0], target)


def _is_above_one(dim: Expr) -> bool:
    return sym.prove(sym.lt(1, dim), EMPTY)


# ------------------------------------------------------------------------------------ movement


def _transpose(node: Context) -> Value:
    perm = node.attr("perm")
    rank = node.rank()
    return node.emit("transpose", node[0], perm=tuple(range(rank))[::-1] if perm is None else perm)


def _tile(node: Context) -> Value:
    return node.emit("tile", node[0], node[1])


def _concat(node: Context) -> Value:
    """Empty lists may be concatenated with tensors of any rank, as in ONNX Runtime."""
    given = [value for value in node.inputs if value is not None]
    ranks = {len(node.dims(value)) for value in given}
    if len(ranks) > 1:
        given = [value for value in given if value.tensor.static_shape != (0,)] or given[:1]
    axis = node.axis(node.attr("axis", 1), len(node.dims(given[0])))
    return given[0] if len(given) == 1 else node.emit("concat", *given, axis=axis)


def _split(node: Context) -> list[Value]:
    dims = node.dims()
    axis = node.axis(node.attr("axis", 0), len(dims))
    x, sizes = node[0], node.attr("split") or node.known(1)
    if sizes is None and node.has(1):
        return _split_at_run_time(node, axis)
    if sizes is None:
        count = const(node.attr("num_outputs", node.outputs))
        each = sym.simplify(sym.ceildiv(dims[axis], count))
        sizes = [each] * (node.outputs - 1)  # the last part is the rest
    else:
        x = _checked_whole(node, x, [sym.as_expr(size) for size in sizes], dims[axis])
    parts, start = [], sym.as_expr(0)
    for at in range(node.outputs):
        last = at >= len(sizes)
        end = dims[axis] if last else sym.simplify(sym.add(start, sizes[at]))
        parts.append(slice_axis(node, x, axis, start, end))
        start = end
    return parts


UNEVEN_SPLIT = "the parts of a split do not make up the whole"


def _checked_whole(node: Context, x: Value, sizes: Sequence[Expr], whole: Expr) -> Value:
    """The input of a split into parts of these sizes, which must be its outputs' and add up."""
    total = sym.simplify(functools.reduce(sym.add, sizes, sym.as_expr(0)))
    known = {int(each.value) for each in (total, whole) if isinstance(each, Const)}
    is_negative = any(isinstance(size, Const) and size.value < 0 for size in sizes)
    if len(sizes) != node.outputs or len(known) == 2 or is_negative:
        shown = ", ".join(map(str, sizes))
        raise UserError(
            "TW1110", f"Split of {whole} into {node.outputs} parts of {shown}", node.loc
        )
    if sym.equal(total, whole):
        return x
    both = [node.emit("dims", values=items_of([size])[0]) for size in (total, whole)]
    return node.emit("require", node.emit("equal", *both), x, message=UNEVEN_SPLIT)


def slice_axis(
    node: Context, x: Value, axis: int, start: Expr | int, end: Expr | int, step: int = 1
) -> Value:
    """x[start:end:step] along one axis."""
    (first, last) = items_of([start, end])
    return node.emit("slice", x, starts=(first,), ends=(last,), axes=(axis,), steps=(step,))


def _split_at_run_time(node: Context, axis: int) -> list[Value]:
    whole = node.emit("dims", values=items_of([node.dims()[axis]])[0])
    total = node.emit("reduce_sum", node[1], axes=(0,), keepdims=False)
    fits = node.emit("equal", total, whole)
    sizes = node.emit("require", fits, node[1], message=UNEVEN_SPLIT)
    ends = node.emit("cumsum", sizes, axis=0)
    starts = node.emit("sub", ends, sizes)
    parts = []
    for at in range(node.outputs):
        bounds = [slice_axis(node, x, 0, at, at + 1) for x in (starts, ends)]
        parts.append(node.emit("slice", node[0], *bounds, axes=(axis,)))
    return parts


MAX_TENSOR_BYTES = 1 << 47  # of any tensor: the address space of a process


def _slice(node: Context) -> Value:
    if node.opset >= 10:
        starts, given, *others = node.inputs[1:]
        known = _reachable(node)
        ends = given if known is None else node.constant(known)
        return node.emit("slice", node[0], *_of_one_length(node, (starts, ends, *others)))
    starts, ends = node.attr("starts"), node.attr("ends")
    axes = node.attr("axes", tuple(range(len(starts))))
    return node.emit("slice", node[0], starts=starts, ends=ends, axes=axes)


def _of_one_length(node: Context, lists: Sequence[Value | None]) -> list[Value | None]:
    """Unify the lengths of lists, if one of them is known."""
    dims = [None if value is None else value.tensor.shape for value in lists]
    lengths = [int(dim[0].value) for dim in dims if dim and isinstance(dim[0], Const)]

    def with_length(value: Value | None, dim: tuple[Expr, ...] | None) -> Value | None:
        if value is None or not dim or not lengths or isinstance(dim[0], Const):
            return value
        length = node.emit("dims", values=items_of([dim[0]])[0])
        fits = node.emit("equal", length, node.like(length, lengths[0]))
        message = "the bounds of a slice are lists of different lengths"
        return node.emit(
            "reshape", node.emit("require", fits, value, message=message), shape=(lengths[0],)
        )

    return [with_length(value, dim) for value, dim in zip(lists, dims, strict=True)]


def _reachable(node: Context) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The ends of a slice, with those beyond any tensor replaced by the maximum; None if there are
    none.

    Exporters write numbers such as 1000000000 for the whole dimension.
    """
    ends, shape = node.ints(2), node[0].tensor.shape
    if ends is None or shape is None:
        return None
    row = math.prod(int(dim.value) for dim in shape if isinstance(dim, Const) and dim.value)
    most = MAX_TENSOR_BYTES // (row * node[0].tensor.dtype.size_bytes)
    if not any(most < end < END for end in ends):
        return None
    return np.array([END if end > most else end for end in ends], np.int64)


def _pad(node: Context) -> Value:
    mode = node.attr("mode", "constant")
    if node.opset >= 11:
        value = node.get(2) if mode == "constant" else None
        return node.emit("pad", node[0], node[1], value, node.get(3), mode=mode)
    pads, fill = tuple(node.attr("pads")), node.attr("value", 0.0)
    value = node.like(node[0], fill) if mode == "constant" else None
    return node.emit("pad", node[0], None, value, pads=pads, mode=mode)


def _depth_to_space(node: Context) -> Value:
    batch, channels, height, width = node.dims()
    block = node.attr("blocksize")
    inner = sym.simplify(sym.floordiv(channels, block * block))
    if node.attr("mode", "DCR") == "DCR":
        split = node.reshape(node[0], (batch, block, block, inner, height, width))
        perm: tuple[int, ...] = (0, 3, 4, 1, 5, 2)
    else:
        split = node.reshape(node[0], (batch, inner, block, block, height, width))
        perm = (0, 1, 4, 2, 5, 3)
    moved = node.emit("transpose", split, perm=perm)
    grown = [sym.simplify(sym.mul(dim, block)) for dim in (height, width)]
    return node.reshape(moved, (batch, inner, *grown))


def _space_to_depth(node: Context) -> Value:
    batch, channels, height, width = node.dims()
    block = node.attr("blocksize")
    high, wide = (sym.simplify(sym.floordiv(dim, block)) for dim in (height, width))
    split = node.reshape(node[0], (batch, channels, high, block, wide, block))
    crd = node.attr("mode", "DCR") == "CRD"
    moved = node.emit("transpose", split, perm=(0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4))
    depth = sym.simplify(sym.mul(channels, block * block))
    return node.reshape(moved, (batch, depth, high, wide))


def _trilu(node: Context) -> Value:
    x, upper = node[0], node.attr("upper", 1)
    rows, columns = node.dims()[-2:]
    k: Value | int = 0 if node.get(1) is None else _scalar(node, node[1])
    kept = node.emit("greater_equal" if upper else "less_equal", diagonal(node, rows, columns), k)
    return node.emit("where", kept, x, zero_like(node, x))


def zero_like(node: Context, x: Value) -> Value:
    """A zero scalar (0, false or "") of the element type of x."""
    of = x.tensor.dtype
    return node.constant(np.asarray("", object) if of.is_str else np.zeros((), of.numpy))


def _reverse_sequence(node: Context) -> Value:
    """out[t, b] = x[length[b] - 1 - t, b] for t < length[b], else x[t, b]."""
    dims = node.dims()
    batch, time = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    rank = len(dims)
    lengths = node.reshape(node[1], _only(rank, batch, dims[batch]))
    steps = node.reshape(iota(node, dims[time]), _only(rank, time, dims[time]))
    back = node.emit("sub", node.emit("sub", lengths, 1), steps)
    index = node.emit("where", node.emit("less", steps, lengths), back, steps)
    index = node.emit("expand", index, shape=items_of(dims))
    return node.emit("gather_elements", node[0], index, axis=time)


def _only(rank: int, axis: int, dim: Expr) -> list[Expr]:
    """A shape of ones except along one axis."""
    return [dim if at == axis else ONE for at in range(rank)]


RULES: dict[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": lambda node: node.emit("expand", node[0], node[1]),
    "Tile": _tile,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
}
