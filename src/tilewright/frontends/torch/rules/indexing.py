"""Gather, scatter and indexing."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.reduction import row_norms
from tilewright.frontends.torch.rules.shape import END, position, slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.ops.rules import broadcast_dims
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Expr

RENORM_EPSILON = 1e-7  # what PyTorch adds to a norm before it divides by it


def _embedding(node: Context) -> Value:
    return node.emit("gather", node["weight"], node["indices"], axis=0, from_end=False)


def _index_select(node: Context) -> Value:
    x, index = node["self"], node["index"]
    if not node.rank():
        return node.reshape(x, node.out)
    flat = index if index.tensor.rank == 1 else node.reshape(index, (ONE,))
    return node.emit("gather", x, flat, axis=node.dim(), from_end=False)


def _gather(node: Context) -> Value:
    x, index = node["self"], node.cast(node["index"], I64)
    if not node.rank():
        return node.reshape(x, node.out)
    if sym.ZERO in node.out:  # empty, whatever the rank of the index
        return node.full(0, node.to, node.out)
    how = {"axis": node.dim(), "from_end": False}
    if not index.tensor.rank:
        index = node.reshape(index, (ONE,) * node.rank())
        return node.reshape(node.emit("gather_elements", x, index, **how), node.out)
    return node.emit("gather_elements", cropped(node, x, index, node.dim()), index, **how)


def cropped(node: Context, x: Value, to: Value, but: int = -1) -> Value:
    """x cropped to the extents of another tensor along all axes but one."""
    for axis, (have, want) in enumerate(zip(node.shape(x), node.shape(to), strict=True)):
        if axis != but and have is not want:
            x = slice_axis(node, x, axis, 0, want)
    return x


# ------------------------------------------------------------------------------------ x[i, j]


def _indices(node: Context, given: Sequence[Value | None]) -> list[Value | None]:
    """Indices as integers: a mask becomes the positions of its true elements, a list per axis."""
    found: list[Value | None] = []
    for index in given:
        if index is None or not (index.tensor.dtype.is_bool or index.tensor.dtype.name == "u8"):
            found.append(None if index is None else node.cast(index, I64))
            continue
        places = node.emit("nonzero", index)
        for at in range(len(node.shape(index))):
            row = slice_axis(node, places, 0, at, at + 1)
            found.append(node.reshape(row, node.shape(row)[1:]))
    return found


def _joint(node: Context, indices: Sequence[Value | None]) -> tuple[
    list[int], tuple[Expr, ...], Value
]:  # fmt: skip
    """The indexed axes, the shape that the indices broadcast to, and all indices concatenated."""
    axes = [at for at, index in enumerate(indices) if index is not None]
    values = [index for index in indices if index is not None]
    most = max(len(node.shape(value)) for value in values)
    dims: list[Expr] = []
    for axis in range(-most, 0):
        dim: Expr = ONE
        for value in values:
            shape = node.shape(value)
            if len(shape) >= -axis:
                joined = broadcast_dims(dim, shape[axis])
                dim = dim if joined is None else joined
        dims.append(dim)
    columns = [
        node.unsqueeze(node.emit("expand", value, shape=items_of(dims)), most) for value in values
    ]
    joint = columns[0] if len(columns) == 1 else node.emit("concat", *columns, axis=most)
    return axes, tuple(dims), joint


def _index(node: Context) -> Value:
    """x[i, :, j]: gather with indexed axes first; the result has them in place if they are
    adjacent."""
    x, rank = node["self"], node.rank()
    indices = _indices(node, node.args["indices"])
    axes = [at for at, index in enumerate(indices) if index is not None]
    if not axes:
        return x
    if len(axes) == 1:
        index = indices[axes[0]]
        assert index is not None
        return node.emit("gather", x, index, axis=axes[0])
    axes, dims, joint = _joint(node, indices)
    rest = [axis for axis in range(rank) if axis not in axes]
    picked = node.emit("gather_nd", transpose(node, x, [*axes, *rest]), joint)
    if axes != list(range(axes[0], axes[0] + len(axes))):
        return picked
    count, before = len(dims), axes[0]
    total = count + len(rest)
    perm = [*range(count, count + before), *range(count), *range(count + before, total)]
    return transpose(node, picked, perm)


def _index_put(node: Context) -> Value:
    """x with x[i, :, j] replaced, or added to."""
    x, rank = node["self"], node.rank()
    given, values = node.args["indices"], node.cast(node["values"], node.to)
    add = bool(node.get("accumulate", False))
    masked = _masked(node, given, values) if not add else None
    if masked is not None:
        return masked
    indices = _indices(node, given)
    if all(index is None for index in indices):
        new = node.emit("expand", values, shape=items_of(node.dims()))
        return node.emit("add", x, new) if add else new
    single = _one_place(node, indices, values) if not add else None
    if single is not None:
        return single
    axes, dims, joint = _joint(node, indices)
    rest = [axis for axis in range(rank) if axis not in axes]
    order = [*axes, *rest]
    shape = [*dims, *(node.dims()[axis] for axis in rest)]
    values = _aligned(node, values, axes, len(dims), shape)
    base = transpose(node, x, order)
    made = node.emit("scatter_nd", base, joint, values, reduction="add" if add else "none")
    return transpose(node, made, sorted(range(rank), key=lambda axis: order[axis]))


def _one_place(node: Context, indices: Sequence[Value | None], values: Value) -> Value | None:
    """A single position of one axis: a select for each element, which can run in place."""
    axes = [at for at, index in enumerate(indices) if index is not None]
    index = indices[axes[0]]
    if index is None or len(axes) > 1 or node.shape(index) != (ONE,):
        return None
    x, axis, rank = node["self"], axes[0], node.rank()
    extent = node.dims()[axis]
    zero, end = node.number(0), node.number(extent)
    place = node.cast(index, I64)
    place = node.emit("where", node.emit("less", place, zero), node.emit("add", place, end), place)
    inside = node.emit(
        "logical_and",
        node.emit("greater_equal", place, zero),
        node.emit("less", place, end),
    )
    message = f"{node.op_type}: an index is outside of its axis"
    node.importer.check(node.reshape(inside, ()), message, node)
    here = node.column(node.emit("equal", node.iota(extent), place), axis, rank)
    return node.emit("where", here, values, x)


def _aligned(node: Context, values: Value, axes: list[int], count: int, shape: list[Expr]) -> Value:
    """Values with the axes of x[i, :, j], transposed to have indexed axes first."""
    side_by_side = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if side_by_side else 0
    total = len(shape)
    if before:
        have = len(node.shape(values))
        values = node.unsqueeze(values, *range(total - have)) if have < total else values
        perm = [*range(before, before + count), *range(before), *range(before + count, total)]
        values = transpose(node, values, perm)
    return node.emit("expand", values, shape=items_of(shape))


def _masked(node: Context, given: Sequence[Value | None], values: Value) -> Value | None:
    """A mask over leading axes and a single value: a select."""
    x = node["self"]
    mask = given[0] if len(given) == 1 else None
    if mask is None or not mask.tensor.dtype.is_bool or product(node.shape(values)) is not ONE:
        return None
    missing = node.rank() - len(node.shape(mask))
    wide = node.reshape(mask, (*node.shape(mask), *[ONE] * missing)) if missing else mask
    return node.emit("where", wide, node.reshape(values, ()), x)


# ------------------------------------------------------------------------------------ scatter

_REDUCTIONS = {
    "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"
}  # fmt: skip


def _scattered(node: Context, x: Value, index: Value, source: Value, reduction: str) -> Value:
    """scatter_elements, also for scalars."""
    dims = node.shape(x)
    if not dims:
        x, index, source = (node.reshape(each, (ONE,)) for each in (x, index, source))
    axis = node.axis(node.args["dim"], max(len(dims), 1))
    if not node.shape(index):
        index, source = (node.reshape(each, (ONE,) * len(dims)) for each in (index, source))
    how = {"axis": axis, "reduction": reduction, "from_end": False}
    made = node.emit("scatter_elements", x, index, source, **how)
    return made if dims else node.reshape(made, ())


def _sources(node: Context) -> tuple[Value, Value, Value]:
    """x, the indices, and the source: a tensor cropped to the extents of the indices, or a
    number."""
    x, index = node["self"], node.cast(node["index"], I64)
    given = node.get("src", node.get("value"))
    if isinstance(given, Value) and given.tensor.rank == index.tensor.rank:
        source = cropped(node, node.cast(given, node.to), index)
    else:
        source = node.full(given, node.to, node.shape(index))
    return x, index, source


def _scatter(reduction: str) -> Rule:
    return lambda node: _scattered(node, *_sources(node), reduction)


def _scatter_by(node: Context) -> Value:
    return _scattered(node, *_sources(node), _REDUCTIONS[node.args["reduce"]])


def _scatter_reduce(node: Context) -> Value:
    """Scatter with a reduction; `include_self` says whether x takes part in it."""
    x, index, source = _sources(node)
    dims = node.shape(x)
    if not dims or not node.shape(index):
        lead = (ONE,) * max(len(dims), 1)
        index, source = (node.reshape(each, lead) for each in (index, source))
        x = x if dims else node.reshape(x, (ONE,))
    axis = node.axis(node.args["dim"], max(len(dims), 1))
    keeps = node.get("include_self", True)
    made = reduced(node, x, index, source, node.args["reduce"], keeps=keeps, axis=axis)
    return node.reshape(made, dims)


def reduced(
    node: Context, x: Value, index: Value, source: Value, kind: str, *, keeps: bool, axis: int
) -> Value:
    """Reduce elements into positions along an axis, with or without the values there."""

    def scattered(base: Value, new: Value, how: str) -> Value:
        return node.emit(
            "scatter_elements", base, index, new, axis=axis, reduction=how, from_end=False
        )

    of = x.tensor.dtype
    if of.is_bool:  # as integers: nonzero is true
        x, source = (node.cast(each, I64) for each in (x, source))
        return node.cast(reduced(node, x, index, source, kind, keeps=keeps, axis=axis), BOOL)
    start = {"sum": 0, "mean": 0, "prod": 1, "amax": of.min, "amin": of.max}[kind]
    base = x if keeps else scattered(x, node.full(start, of, node.shape(index)), "none")
    made = scattered(base, source, "add" if kind == "mean" else _REDUCTIONS[kind])
    if kind != "mean":
        return made
    ones = node.full(1, I64, node.shape(index))
    had = node.full(1 if keeps else 0, I64, node.shape(x))
    count = node.emit("maximum", scattered(had, ones, "add"), 1)
    return node.emit("div" if of.is_float else "floordiv", made, node.cast(count, of))


def _select_scatter(node: Context) -> Value:
    axis, dims = node.dim(), node.dims()
    at = position(node, node.args["index"], dims[axis])
    new = node.unsqueeze(node.cast(node["src"], node.to), axis)
    return _spliced(node, new, axis, at, sym.simplify(sym.add(at, 1)))


def _spliced(node: Context, new: Value, axis: int, start: Expr, end: Expr) -> Value:
    """x with the range from start to end along an axis replaced."""
    x, dim = node["self"], node.dims()[axis]
    parts = []
    if start is not sym.ZERO:
        parts.append(slice_axis(node, x, axis, 0, start))
    parts.append(new)
    if end is not dim:
        parts.append(slice_axis(node, x, axis, end, dim))
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=axis)


def _slice_scatter(node: Context) -> Value:
    axis, dims = node.axis(node.get("dim", 0), node.rank()), node.dims()
    start = _bound(node.get("start", 0), dims[axis])
    end = _bound(node.get("end", dims[axis]), dims[axis])
    step, new = node.get("step", 1), node.cast(node["src"], node.to)
    if step == 1:
        return _spliced(node, new, axis, start, sym.simplify(sym.maximum(start, end)))
    count = node.shape(new)[axis]
    places = node.emit("mul", node.iota(count), step)
    places = node.emit("add", places, node.number(start))
    column = node.column(places, axis, len(dims))
    index = node.emit("expand", column, shape=items_of(node.shape(new)))
    return node.emit("scatter_elements", node["self"], index, new, axis=axis)


def _bound(bound: Expr | int, dim: Expr) -> Expr:
    """A bound of a slice, non-negative and clamped to the dimension."""
    if bound == END:
        return dim
    at = sym.as_expr(bound)
    if not sym.prove(sym.le(0, at), sym.EMPTY):
        at = sym.select(sym.lt(at, 0), sym.add(at, dim), at)
    return sym.simplify(sym.maximum(sym.minimum(at, dim), 0))


def _masked_scatter(node: Context) -> Value:
    """Each true element of the mask gets the next element of the source."""
    dims = node.out  # what the tensor and the mask broadcast to
    mask = node.emit("expand", node.cast(node["mask"], BOOL), shape=items_of(dims))
    total = product(dims)
    flat = node.reshape(mask, (total,))
    order = node.emit("sub", node.emit("cumsum", node.cast(flat, I64), axis=0), 1)
    count = product(node.shape(node["source"]))
    source = node.reshape(node["source"], (count,))
    if not sym.prove(sym.lt(0, count), sym.EMPTY):  # an empty one cannot be gathered from
        source = node.emit("concat", source, node.full(0, node.to, (ONE,)), axis=0)
    places = node.emit("maximum", order, 0)
    last = node.number(sym.simplify(sym.sub(node.shape(source)[0], 1)))
    picked = node.emit("gather", source, node.emit("minimum", places, last), axis=0)
    return node.emit("where", mask, node.reshape(picked, dims), node["self"])


def _nonzero(node: Context) -> Value:
    return transpose(node, node.emit("nonzero", node["self"]), (1, 0))


def _embedding_gradient(node: Context) -> Value:
    """Gradients summed by row of the table, without those of the padding index."""
    gradient, index = node["grad_output"], node.cast(node["indices"], I64)
    rows, pad = node.args["num_weights"], node.get("padding_idx", -1)
    width = node.shape(gradient)[-1]
    count = product(node.shape(index))
    flat, places = node.reshape(gradient, (count, width)), node.reshape(index, (count, ONE))
    if isinstance(pad, int) and pad >= 0:
        kept = node.emit("not_equal", places, pad)
        flat = node.emit("where", kept, flat, node.like(flat, 0))
    zero = node.full(0, node.to, (rows, width))
    made = node.emit("scatter_nd", zero, places, flat, reduction="add")
    if not node.get("scale_grad_by_freq", False):
        return made
    ones = node.full(1, node.to, (count,))
    often = node.emit("scatter_nd", node.full(0, node.to, (rows,)), places, ones, reduction="add")
    often = node.unsqueeze(node.emit("maximum", often, 1.0), 1)
    return node.emit("div", made, often)


def _index_add(node: Context) -> Value:
    """Add slices along an axis at their indices."""
    x, index, alpha = node["self"], node.cast(node["index"], I64), node.get("alpha", 1)
    source = node.cast(node["source"], node.to)
    if node.to.is_bool:  # as integers: a nonzero sum is true
        x, source = node.cast(x, I64), node.cast(source, I64)
        source = source if alpha else node.like(source, 0)
    elif alpha != 1:
        source = node.emit("mul", source, node.value(alpha, node.to))
    if not node.rank():
        return node.cast(node.emit("add", x, node.reshape(source, ())), node.to)
    flat = node.reshape(index, (product(node.shape(index)),))
    dims = node.dims("source") if node.rank("source") else node.shape(source)
    source = node.emit("expand", source, shape=items_of(dims))
    return node.cast(_added(node, x, flat, source, node.dim()), node.to)


def _added(node: Context, x: Value, index: Value, source: Value, axis: int) -> Value:
    """Add slices along an axis at the indices in a vector."""
    dims = node.shape(source)
    places = node.emit("expand", node.column(index, axis, len(dims)), shape=items_of(dims))
    return node.emit("scatter_elements", x, places, source, axis=axis, reduction="add")


def _replication_pad_backward(node: Context) -> Value:
    """Axis by axis: the gradients of padding are added to the border that it copied."""
    made, dims, amounts = node["grad_output"], node.dims(), node.args["padding"]
    for at, before in enumerate(amounts[0::2]):
        axis = len(dims) - 1 - at
        shape = (*node.shape(made)[:axis], dims[axis], *node.shape(made)[axis + 1 :])
        read = node.emit("sub", node.iota(node.shape(made)[axis]), node.value(before, I64))
        last = node.value(sym.simplify(sym.sub(dims[axis], 1)), I64)
        read = node.emit("minimum", node.emit("maximum", read, 0), last)
        made = _added(node, node.full(0, node.to, shape), read, made, axis)
    return made


def _index_reduce(node: Context) -> Value:
    """Reduce slices along an axis at their indices."""
    x, index = node["self"], node.cast(node["index"], I64)
    source, kind = node.cast(node["source"], node.to), node.args["reduce"]
    if not node.rank():
        x, source = node.reshape(x, (ONE,)), node.reshape(source, (ONE,))
    axis = node.axis(node.args["dim"], max(node.rank(), 1))
    flat = node.reshape(index, (product(node.shape(index)),))
    column = node.column(flat, axis, max(node.rank(), 1))
    places = node.emit("expand", column, shape=items_of(node.shape(source)))
    made = reduced(node, x, places, source, kind, keeps=node.get("include_self", True), axis=axis)
    return node.reshape(made, node.out)


def _renormed(node: Context) -> Value:
    """Scale down the rows of a table that are indexed and exceed a norm."""
    x, most = node["self"], float(node.args["max_norm"])
    flat = node.reshape(node.cast(node["indices"], I64), (product(node.dims("indices")),))
    none, one = node.full(0, I64, node.dims()[:1]), node.full(1, I64, node.shape(flat))
    named = node.emit("scatter_elements", none, flat, one, axis=0, reduction="none")
    norms = row_norms(node, node.emit("abs", x), float(node.args["norm_type"]))
    long = node.emit("logical_and", node.cast(named, BOOL), node.emit("greater", norms, most))
    scale = node.emit("div", node.like(norms, most), node.emit("add", norms, RENORM_EPSILON))
    scale = node.emit("where", long, scale, node.like(norms, 1))
    return node.emit("mul", x, node.unsqueeze(scale, 1))


def _take(node: Context) -> Value:
    """Elements by their positions in the flattened tensor."""
    flat = node.reshape(node["self"], (product(node.dims()),))
    return node.emit("gather", flat, node.cast(node["index"], I64), axis=0)


def _put(node: Context) -> Value:
    """Replace elements, or add to them, by their positions in the flattened tensor."""
    total = product(node.dims())
    flat = node.reshape(node["self"], (total,))
    count = product(node.shape(node["index"]))
    where = node.reshape(node.cast(node["index"], I64), (count,))
    new = node.reshape(node["source"], (count,))
    how = "add" if node.get("accumulate", False) else "none"
    return node.reshape(
        node.emit("scatter_elements", flat, where, new, axis=0, reduction=how), node.out
    )


RULES: dict[str, Rule] = {
    "aten.embedding": _embedding,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.scatter.src": _scatter("none"),
    "aten.scatter.value": _scatter("none"),
    "aten.scatter.reduce": _scatter_by,
    "aten.scatter.value_reduce": _scatter_by,
    "aten.scatter_add": _scatter("add"),
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.select_scatter": _select_scatter,
    "aten.slice_scatter": _slice_scatter,
    "aten.masked_scatter": _masked_scatter,
    "aten.nonzero": _nonzero,
    "aten.index_add": _index_add,
    **{f"aten.replication_pad{n}d_backward": _replication_pad_backward for n in (1, 2, 3)},
    "aten.index_reduce": _index_reduce,
    "aten.embedding_renorm": _renormed,
    "aten.take": _take,
    "aten.put": _put,
    "aten.embedding_dense_backward": _embedding_gradient,
}
