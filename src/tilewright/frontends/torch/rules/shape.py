"""Reshaping, reordering, slicing and padding. PyTorch's traces contain the result shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright import sym
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Dim, Rule
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Expr

END = (1 << 63) - 1


def _view(node: Context) -> Value:
    """A view of the same elements in the same order."""
    return node.reshape(node["self"], node.out)


def _expand(node: Context) -> Value:
    return node.emit("expand", node["self"], shape=items_of(node.out))


def _view_dtype(node: Context) -> Value:
    if node["self"].tensor.dtype.bits != node.to.bits:
        raise Skip("view as an element type of another width")
    return node.emit("bitcast", node["self"], to=node.to)


# ------------------------------------------------------------------------------------ order


def transpose(node: Context, x: Value, perm: Sequence[int]) -> Value:
    """Permute the axes of x, unless they are in order."""
    if tuple(perm) == tuple(range(len(perm))):
        return x
    return node.emit("transpose", x, perm=tuple(perm))


def _permute(node: Context) -> Value:
    rank = node.rank()
    return transpose(node, node["self"], [node.axis(axis, rank) for axis in node.args["dims"]])


def _transpose(node: Context) -> Value:
    rank = node.rank()
    if not rank:
        return node["self"]
    a, b = node.axis(node.args["dim0"], rank), node.axis(node.args["dim1"], rank)
    perm = list(range(rank))
    perm[a], perm[b] = b, a
    return transpose(node, node["self"], perm)


def _t(node: Context) -> Value:
    return transpose(node, node["self"], range(node.rank())[::-1])


def _flip(node: Context) -> Value:
    x = node["self"]
    axes = [node.axis(axis, node.rank()) for axis in node.args["dims"]] if node.rank() else []
    if not axes:
        return x
    count = len(axes)
    return node.emit(
        "slice",
        x,
        starts=(-1,) * count,
        ends=(-END,) * count,
        axes=tuple(axes),
        steps=(-1,) * count,
    )


def _roll(node: Context) -> Value:
    x, shifts, axes = node["self"], node.args["shifts"], node.get("dims", [])
    if not axes:
        flat = rolled(node, node.reshape(x, (product(node.dims()),)), 0, shifts[0])
        return node.reshape(flat, node.dims())
    for shift, axis in zip(shifts, axes, strict=True):
        x = rolled(node, x, node.axis(axis, node.rank()), shift)
    return x


def rolled(node: Context, x: Value, axis: int, shift: Dim) -> Value:
    """x rotated along an axis."""
    dim = node.shape(x)[axis]
    if dim is sym.ZERO:
        return x
    start = sym.simplify(sym.floormod(sym.mul(sym.as_expr(shift), -1), dim))
    if start is sym.ZERO:
        return x
    back = slice_axis(node, x, axis, start, dim)
    return node.emit("concat", back, slice_axis(node, x, axis, 0, start), axis=axis)


# ------------------------------------------------------------------------------------ extent


def slice_axis(node: Context, x: Value, axis: int, start: Dim, end: Dim, step: int = 1) -> Value:
    """x[start:end:step] along one axis."""
    first, last = items_of([start, end])
    return node.emit("slice", x, starts=(first,), ends=(last,), axes=(axis,), steps=(step,))


def _slice(node: Context) -> Value:
    start, end, step = node.get("start", 0), node.get("end", END), node.get("step", 1)
    if (start, end, step) == (0, END, 1):
        return node["self"]
    return slice_axis(node, node["self"], node.dim(), start, end, step)


def position(node: Context, index: Dim, dim: Expr) -> Expr:
    """A non-negative index."""
    if isinstance(index, int):
        return sym.as_expr(index) if index >= 0 else sym.simplify(sym.add(dim, index))
    if sym.prove(sym.le(0, index), sym.EMPTY):
        return index
    return sym.simplify(sym.select(sym.lt(index, 0), sym.add(index, dim), index))


def _select(node: Context) -> Value:
    axis, dims = node.dim(), node.dims()
    index = node.args["index"]
    if isinstance(index, Value):
        return node.emit("gather", node["self"], index, axis=axis)
    at = position(node, index, dims[axis])
    part = slice_axis(node, node["self"], axis, at, sym.simplify(sym.add(at, 1)))
    return node.reshape(part, (*dims[:axis], *dims[axis + 1 :]))


def _cat(node: Context) -> Value:
    """Empty vectors among tensors of another rank are ignored."""
    given = [node.cast(x, node.to) for x in node.args["tensors"]]
    rank = len(node.out)
    kept = [x for x in given if not (x.tensor.rank == 1 and x.tensor.static_shape == (0,))]
    kept = kept if rank > 1 and kept else given
    if len(kept) == 1:
        return kept[0]
    return node.emit("concat", *kept, axis=node.axis(node.get("dim", 0), rank))


def _split(node: Context) -> list[Value]:
    """Parts with the lengths that PyTorch computed."""
    axis = node.axis(node.get("dim", 0), node.rank())
    parts, start = [], sym.as_expr(0)
    for fake in node.results:
        end = sym.simplify(sym.add(start, node.dims_of(fake)[axis]))
        parts.append(slice_axis(node, node["self"], axis, start, end))
        start = end
    return parts


def _unbind(node: Context) -> list[Value]:
    axis = node.axis(node.get("dim", 0), node.rank())
    parts = [slice_axis(node, node["self"], axis, at, at + 1) for at in range(len(node.results))]
    return [node.reshape(x, node.out) for x in parts]


def _repeat(node: Context) -> Value:
    repeats = node.args["repeats"]
    lead = len(repeats) - node.rank()
    x = node.unsqueeze(node["self"], *range(lead)) if lead else node["self"]
    return node.emit("tile", x, repeats=items_of(repeats)) if repeats else x


def _constant_pad(node: Context) -> Value:
    """Amounts come in pairs, the last axis first."""
    amounts, rank = node.args["pad"], node.rank()
    count = len(amounts) // 2
    axes = tuple(rank - 1 - at for at in range(count))
    if not count:
        return node["self"]
    befores, afters = amounts[0::2], amounts[1::2]
    fill = node.value(node.get("value", 0), node.to)
    pads = items_of([*befores, *afters])
    return node.emit("pad", node["self"], None, fill, pads=pads, axes=axes)


def _pad(mode: str) -> Rule:
    def rule(node: Context) -> Value:
        amounts, rank = node.args["padding"], node.rank()
        axes = tuple(rank - 1 - at for at in range(len(amounts) // 2))
        pads = items_of([*amounts[0::2], *amounts[1::2]])
        return node.emit("pad", node["self"], None, None, pads=pads, axes=axes, mode=mode)

    return rule


def _narrow(node: Context) -> Value:
    axis = node.dim()
    start = position(node, node.args["start"], node.dims()[axis])
    end = sym.simplify(sym.add(start, node.args["length"]))
    return slice_axis(node, node["self"], axis, start, end)


def _flat_diagonal(node: Context, count: Expr) -> tuple[Value, Value, list[int]]:
    """The two axes of a diagonal moved last and flattened, the positions of the diagonal in them,
    and the permutation.

    Elements of a diagonal are a row and one apart.
    """
    dims, rank = node.dims(), node.rank()
    first = node.axis(node.get("dim1", 0), rank)
    second = node.axis(node.get("dim2", 1), rank)
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    order = [*rest, first, second]
    x = transpose(node, node["self"], order)
    rows, columns = dims[first], dims[second]
    flat = node.reshape(x, (*(dims[axis] for axis in rest), sym.simplify(sym.mul(rows, columns))))
    offset = node.get("offset", 0)
    start = offset if offset >= 0 else sym.mul(columns, -offset)
    steps = node.emit("mul", node.iota(count), node.number(sym.simplify(sym.add(columns, 1))))
    return flat, node.emit("add", steps, node.number(sym.simplify(sym.as_expr(start)))), order


def _diagonal(node: Context) -> Value:
    flat, places, order = _flat_diagonal(node, node.out[-1])
    return node.emit("gather", flat, places, axis=len(order) - 2)


def _diagonal_scatter(node: Context) -> Value:
    """A tensor with its diagonal replaced."""
    source = node.cast(node["src"], node.to)
    dims = node.shape(source)
    flat, places, order = _flat_diagonal(node, dims[-1])
    axis = len(order) - 2
    index = node.emit("expand", places, shape=items_of(dims))
    made = node.emit("scatter_elements", flat, index, source, axis=axis)
    whole = node.reshape(made, [node.dims()[at] for at in order])
    return transpose(node, whole, sorted(range(len(order)), key=lambda at: order[at]))


def _unfold(node: Context) -> Value:
    """Windows along an axis, with their elements as a new last axis."""
    x, rank = node["self"], node.rank()
    length, step = node.args["size"], node.args["step"]
    if not rank:
        return node.reshape(x, node.out)
    axis = node.axis(node.args["dimension"], rank)
    starts = node.emit("mul", node.iota(node.out[axis]), step)
    places = node.emit("add", node.unsqueeze(starts, 1), node.iota(length))
    windows = node.emit("gather", x, places, axis=axis)  # [..., windows, elements, ...]
    perm = [at for at in range(rank + 1) if at != axis + 1]
    return transpose(node, windows, [*perm, axis + 1])


# ------------------------------------------------------------------------------------ strides


def in_memory_order(node: Context, name: str) -> Value:
    """The elements of a tensor as a vector in the order of PyTorch's memory."""
    fake, x = node.raw[name], node[name]
    strides = fake.stride()
    if any(isinstance(each, torch.SymInt) for each in (*strides, *fake.shape)):
        if not fake.is_contiguous():
            raise Skip(f"{node.op_type} of a strided tensor of dynamic shape")
        return node.reshape(x, (product(node.shape(x)),))
    order = sorted(range(len(strides)), key=lambda axis: (-strides[axis], fake.shape[axis]))
    spread = 1
    for axis in reversed(order):
        if fake.shape[axis] != 1:
            if strides[axis] != spread:
                raise Skip(f"{node.op_type} of a tensor with gaps or overlaps in memory")
            spread *= fake.shape[axis]
    return node.reshape(transpose(node, x, order), (product(node.shape(x)),))


def _as_strided(node: Context) -> Value:
    flat = in_memory_order(node, "self")
    start = node.get("storage_offset")
    if start is None:
        start = 0
    elif isinstance(start, int):
        start -= node.raw["self"].storage_offset()
    strides = node.args["stride"]
    if start == 0 and _is_whole(node.shape(flat)[0], node.out, strides):
        return node.reshape(flat, node.out)
    places = strided_places(node, node.out, strides, start)
    return node.emit("gather", flat, places, axis=0)


def _is_whole(count: Expr, dims: Sequence[Expr], strides: Sequence[Dim]) -> bool:
    """Whether strides are those of `count` contiguous elements; the stride of an axis of one is
    ignored.

    The mean that PyTorch's global pooling becomes ends in such a view.
    """
    inner: Expr = ONE
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim is ONE:
            continue
        if sym.simplify(sym.as_expr(stride)) is not inner:
            return False
        inner = sym.simplify(sym.mul(inner, dim))
    return inner is sym.simplify(count)


def _as_strided_scatter(node: Context) -> Value:
    """A tensor with the elements at strided positions replaced."""
    if not node.raw["self"].is_contiguous():
        raise Skip("as_strided_scatter of a strided tensor")
    flat = in_memory_order(node, "self")
    dims = node.shape(node["src"])
    start = node.get("storage_offset", 0)
    places = strided_places(node, dims, node.args["stride"], start)
    count = product(dims)
    where, new = node.reshape(places, (count, ONE)), node.reshape(node["src"], (count,))
    return node.reshape(node.emit("scatter_nd", flat, where, new), node.out)


def strided_places(node: Context, dims: Sequence[Dim], strides: Sequence[Dim], start: Dim) -> Value:
    """start + sum of index * stride, for every index of a shape."""
    rank = len(dims)
    total = node.full(start, node.iota(1).tensor.dtype, [ONE] * rank)
    for axis, (dim, stride) in enumerate(zip(dims, strides, strict=True)):
        steps = node.emit("mul", node.iota(dim), node.number(stride))
        total = node.emit("add", total, node.column(steps, axis, rank))
    return node.emit("expand", total, shape=items_of(dims))


def _same(node: Context) -> Value:
    return node["self"]


_SAME = (
    *("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "view_as_real_copy"),
    *("lift_fresh", "positive", "resolve_conj", "resolve_neg", "detach_copy", "alias_copy"),
)
_VIEWS = (
    *("view", "_unsafe_view", "reshape", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze"),
    *("flatten.using_ints", "unflatten.int", "view_copy", "_reshape_alias", "squeeze_copy"),
    *("unsqueeze_copy", "squeeze_copy.dim", "squeeze_copy.dims", "view_as", "resize_", "resize"),
)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _same for name in _SAME},
    **{f"aten.{name}": _view for name in _VIEWS},
    "aten.expand": _expand,
    "aten.expand_copy": _expand,
    "aten.view.dtype": _view_dtype,
    "aten.permute": _permute,
    "aten.permute_copy": _permute,
    "aten.transpose.int": _transpose,
    "aten.t": _t,
    "aten.flip": _flip,
    "aten.roll": _roll,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.cat": _cat,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes": _split,
    "aten.split_with_sizes_copy": _split,
    "aten.split_copy.Tensor": _split,
    "aten.unbind.int": _unbind,
    "aten.unbind_copy.int": _unbind,
    "aten.narrow_copy": _narrow,
    "aten.diagonal_scatter": _diagonal_scatter,
    "aten.repeat": _repeat,
    "aten.constant_pad_nd": _constant_pad,
    **{f"aten.reflection_pad{n}d": _pad("reflect") for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d": _pad("edge") for n in (1, 2, 3)},
    "aten.diagonal": _diagonal,
    "aten.diagonal_copy": _diagonal,
    "aten.unfold": _unfold,
    "aten.unfold_copy": _unfold,
    "aten.as_strided": _as_strided,
    "aten.as_strided_copy": _as_strided,
    "aten.as_strided_scatter": _as_strided_scatter,
}
