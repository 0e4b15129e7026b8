"""Data-dependent sizes, computed by separate small functions.

    %y: i64[2, k] = nonzero(%x)          lower_sizes -> func @sizes(%x, %out: i64[1]) : k

A node's outputs may have data-dependent dimensions: sizes that the node defines,
`fresh_sizes(node)`. `lower_sizes(node)` computes them from the inputs; the operator's lowering then
fills outputs of known sizes. A rule returns the dimensions of the outputs, as the operator's type
rule does for known contents. Invalid data, such as a reshape to another number of elements, gives
-1 for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, I64, INDEX
from tilewright.base.errors import Unsupported
from tilewright.graph.ir import Attribute, Node
from tilewright.graph.types import sizes_of
from tilewright.lower.axes import at_axis, axes_of, is_named, items, nth_left, slice_count
from tilewright.lower.base import (
    Use,
    front_axis,
    item,
    number,
    product,
    real_item,
    shape_of,
    use_of,
)
from tilewright.lower.search import count_nonzero, count_unique
from tilewright.lower.suppression import count_boxes
from tilewright.sym import ONE, ZERO, Const, Expr, Size, Var, free_vars
from tilewright.te import Tensor
from tilewright.tensor.ir import Function

BAD = sym.const(-1)  # invalid data
MOST = float(1 << 40)

Dims = Sequence[Expr]
# Maps a node's inputs (None: absent) to the dimensions of its outputs.
Rule = Callable[..., Sequence[Dims]]


def fresh_sizes(node: Node, known: Container[Var] = ()) -> tuple[Size, ...]:
    """The sizes that a node defines, in the order of its outputs' types.

    `known` sizes have a value though they are in no input's type.
    """
    seen: dict[Var, None] = {}
    for value in node.inputs:
        if value is not None:
            seen.update(sizes_of(value.type))
    for _, attribute in node.attributes:
        seen.update(_mentioned(attribute))
    found: dict[Var, None] = {}
    for value in node.outputs:
        found.update(sizes_of(value.type))
    return tuple(
        size for size in found if isinstance(size, Size) and size not in seen and size not in known
    )


def _mentioned(attribute: Attribute) -> dict[Var, None]:
    if isinstance(attribute, tuple):
        return {size: None for part in attribute for size in _mentioned(part)}
    return free_vars(attribute) if isinstance(attribute, Expr) else {}


def lower_sizes(node: Node) -> Function | None:
    """func @sizes(inputs..., out: i64[k], sizes of the inputs...), for the k sizes of the node.

    Inputs are those present, in order. None if a node defines no sizes.
    """
    fresh = fresh_sizes(node)
    if not fresh:
        return None
    rule = SIZE_RULES.get(node.op)
    if rule is None:
        raise Unsupported("TW1503", f"no native code for the sizes of {node.op}", node.loc)
    given = {
        value: te.placeholder(shape_of(value.tensor), value.tensor.dtype, name=value.name)
        for value in node.inputs
        if value is not None
    }
    inputs = [None if value is None else given[value] for value in node.inputs]
    use = use_of(node)
    dims = rule(use, *inputs, *[None] * (len(use.call.types) - len(inputs)))
    values = _solved(use, fresh, dims)
    out = te.compute((len(values),), lambda i: _chosen(values, i), name="out")
    scalars = _scalars(node, fresh)
    return te.function([*given.values(), out, *scalars], name="sizes")


def _scalars(node: Node, fresh: Sequence[Size]) -> list[Size]:
    """The outer sizes of a node, in order of its inputs', attributes' and outputs' types."""
    found: dict[Var, None] = {}
    for value in node.inputs:
        if value is not None:
            found.update(sizes_of(value.type))
    for _, attribute in node.attributes:
        found.update(_mentioned(attribute))
    return [size for size in found if isinstance(size, Size) and size not in fresh]


def _solved(use: Use, fresh: Sequence[Size], dims: Sequence[Dims]) -> list[Expr]:
    """The values of the sizes; -1 if dimensions are inconsistent."""
    values: dict[Var, Expr] = {}
    doubts: list[Expr] = []
    for of, found in zip(use.outputs, dims, strict=True):
        for dim, value in zip(shape_of(of), found, strict=True):
            told = sym.simplify(sym.substitute(dim, values))
            if isinstance(told, Size) and told in fresh:
                values[told] = value
            elif not free_vars(told).keys() & set(fresh) and not sym.equal(told, value):
                doubts.append(te.eq(told, value))
    missing = [size for size in fresh if size not in values]
    if missing:
        raise Unsupported(
            "TW1503", f"the size {missing[0]} of {use.call.op} is undetermined", use.call.loc
        )
    fits = te.all(*doubts) if doubts else None
    return [values[size] if fits is None else te.select(fits, values[size], BAD) for size in fresh]


def _chosen(values: Sequence[Expr], at: Expr) -> Expr:
    out = te.cast(values[-1], I64)
    for place, value in reversed(list(enumerate(values[:-1]))):
        out = te.select(te.eq(at, place), te.cast(value, I64), out)
    return out


# ------------------------------------------------------------------------------------ lists


def _checked(named: Sequence[Expr], rank: int, dims: Dims) -> list[Dims]:
    """The dimensions, if axes from memory are valid."""
    tests = [
        test for axis in named if not isinstance(axis, Const) for test in (axis >= 0, axis < rank)
    ]
    if not tests:
        return [dims]
    return [[te.select(te.all(*tests), dim, BAD) for dim in dims]]


def _as_shape(use: Use, at: int, tensor: Tensor | None) -> list[Dims]:
    return [items(use, at, tensor)]


# ------------------------------------------------------------------------------------ movement


def _reshape(use: Use, x: Tensor, shape: Tensor | None) -> list[Dims]:
    """-1 is inferred; the number of elements must not change."""
    wanted = items(use, 1, shape)
    total = product(x.shape)
    rest: Expr = ONE
    missing: Expr = ZERO
    for dim in wanted:
        open_ = te.eq(dim, -1)
        rest = rest * te.select(open_, ONE, dim)
        missing = missing + te.select(open_, ONE, ZERO)
    remaining = sym.floordiv(total, sym.maximum(rest, 1))
    fits = te.select(
        te.eq(missing, 0),
        te.eq(rest, total),
        te.all(te.eq(missing, 1), te.eq(remaining * rest, total), rest > 0),
    )
    return [[te.select(fits, te.select(te.eq(dim, -1), remaining, dim), BAD) for dim in wanted]]


def _expand(use: Use, x: Tensor, shape: Tensor | None) -> list[Dims]:
    wanted = items(use, 1, shape)
    rank = max(x.ndim, len(wanted))
    out: list[Expr] = []
    for axis in range(-rank, 0):
        have = x.shape[axis] if -axis <= x.ndim else ONE
        want = wanted[axis] if -axis <= len(wanted) else ONE
        wide = te.select(te.eq(have, 1), want, have)
        out.append(te.select(te.any(te.eq(want, 1), te.eq(want, wide)), wide, BAD))
    return [out]


def _tile(use: Use, x: Tensor, repeats: Tensor | None) -> list[Dims]:
    counts = items(use, 1, repeats)
    pairs = zip(x.shape, counts, strict=True)
    return [[te.select(times >= 0, dim * times, BAD) for dim, times in pairs]]


def _slice(
    use: Use,
    x: Tensor,
    starts: Tensor | None,
    ends: Tensor | None,
    axes: Tensor | None,
    steps: Tensor | None,
) -> list[Dims]:
    first, last = items(use, 1, starts), items(use, 2, ends)
    step = items(use, 4, steps) if use.call.has(4) else [ONE] * len(first)
    named = axes_of(use, 3, axes, len(first), x.ndim)
    out: list[Expr] = []
    for axis, dim in enumerate(x.shape):
        begin, end = at_axis(named, first, axis, ZERO), at_axis(named, last, axis, dim)
        stride = at_axis(named, step, axis, ONE)
        out.append(slice_count(begin, end, stride, dim))
    return _checked(named, x.ndim, out)


def _pad(
    use: Use, x: Tensor, pads: Tensor | None, value: Tensor | None, axes: Tensor | None
) -> list[Dims]:
    amounts = items(use, 1, pads)
    half = len(amounts) // 2
    named = axes_of(use, 3, axes, half, x.ndim)
    out: list[Expr] = []
    for axis, dim in enumerate(x.shape):
        before = at_axis(named, amounts[:half], axis, ZERO)
        after = at_axis(named, amounts[half:], axis, ZERO)
        out.append(sym.maximum(dim + before + after, 0))
    return _checked(named, x.ndim, out)


def _range(
    use: Use, start: Tensor | None, limit: Tensor | None, delta: Tensor | None
) -> list[Dims]:
    tensors = (start, limit, delta)
    if any(tensor is not None and tensor.dtype.is_float for tensor in tensors):
        first, last, step = (_real_item(use, at, tensor) for at, tensor in enumerate(tensors))
        count = te.max(te.ceil((last - first) / step), te.const(0, F64))
        count = te.select(te.all(te.isfinite(count), count < te.const(MOST, F64)), count, _real(-1))
        return [[te.cast(count, INDEX)]]
    first, last, step = (item(use, at, tensor, 0) for at, tensor in enumerate(tensors))
    gap = te.select(step > 0, last - first, first - last)
    width = sym.maximum(te.select(step > 0, step, ZERO - step), 1)
    count = sym.maximum(sym.floordiv(gap + width - 1, width), 0)
    return [[te.select(te.eq(step, 0), BAD, count)]]


def _real(value: Expr | float) -> Expr:
    return te.cast(value, F64) if isinstance(value, Expr) else te.const(value, F64)


def _real_item(use: Use, at: int, tensor: Tensor | None) -> Expr:
    known = use.call.value(at)
    if known is not None:
        return _real(known[0])
    assert tensor is not None
    return _real(tensor[(0,) * tensor.ndim])


# ------------------------------------------------------------------------------------ reduction


def _reduce(use: Use, x: Tensor, axes: Tensor | None) -> list[Dims]:
    named = axes_of(use, 1, axes, len(items(use, 1, axes)), x.ndim)
    gone = [is_named(named, at) for at in range(x.ndim)]
    if use["keepdims"]:
        kept = [te.select(test, ONE, dim) for test, dim in zip(gone, x.shape, strict=True)]
        return _checked(named, x.ndim, kept)
    left = [nth_left(gone, x.shape, place, BAD) for place in range(len(use.shape))]
    return _checked(named, x.ndim, left)


# ------------------------------------------------------------------------------------ search


def _nonzero(use: Use, x: Tensor) -> list[Dims]:
    return [[sym.const(x.ndim), te.cast(count_nonzero(x, use.name), INDEX)]]


def _unique(use: Use, x: Tensor) -> list[Dims]:
    count = te.cast(count_unique(use, x), INDEX)
    dims: Dims = [count]
    total = product(x.shape)
    if use["axis"] is not None:
        axis = front_axis(use["axis"], x.ndim)
        dims, total = [*x.shape[:axis], count, *x.shape[axis + 1 :]], x.shape[axis]
    return [dims, [count], [total], [count]][: len(use.outputs)]


def _top_k(use: Use, x: Tensor, k: Tensor | None) -> list[Dims]:
    axis = front_axis(use["axis"], x.ndim)
    count = item(use, 1, k, 0)
    count = te.select(count <= x.shape[axis], count, BAD)
    return [[*x.shape[:axis], count, *x.shape[axis + 1 :]]] * 2


def _segment_reduce(use: Use, x: Tensor, segments: Tensor, count: Tensor | None) -> list[Dims]:
    return [[item(use, 2, count, 0), *x.shape[1:]]]


def _list_boxes(use: Use, kept: Tensor, counts: Tensor) -> list[Dims]:
    return [[count_boxes(counts, use.name), sym.const(3)]]


# ------------------------------------------------------------------------------------ images


def _resize(
    use: Use,
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
) -> list[Dims]:
    """As in the reference: sizes times scales in f32, ratios of sizes in f64."""
    dims = list(x.shape)
    axes = use["axes"]
    if use.call.has(2):
        for at, axis in enumerate(axes):
            exact = te.cast(dims[axis], F32)
            if use["crop"] and roi is not None:
                start = te.cast(roi[at], F64)
                exact = exact * te.cast(te.cast(roi[at + len(axes)], F64) - start, F32)
            exact = te.floor(exact * number(real_item(use, 2, scales, at), F32))
            fits = te.all(exact >= te.const(0, F32), exact < te.const(MOST, F32))
            dims[axis] = te.cast(te.select(fits, exact, te.const(-1, F32)), INDEX)
        return [dims]
    wanted = items(use, 3, sizes)
    if use["policy"] == "stretch":
        for axis, size in zip(axes, wanted, strict=True):
            dims[axis] = size
        return [dims]
    ratios = [_real(size) / _real(x.shape[axis]) for axis, size in zip(axes, wanted, strict=True)]
    choose = te.min if use["policy"] == "not_larger" else te.max
    scale = choose(ratios[0], *ratios[1:]) if len(ratios) > 1 else ratios[0]
    for axis in axes:
        dims[axis] = te.cast(te.trunc(scale * _real(x.shape[axis]) + _real(0.5)), INDEX)
    return [dims]


def _affine_grid(use: Use, theta: Tensor, size: Tensor | None) -> list[Dims]:
    given = items(use, 1, size)
    return [[given[0], *given[2:], sym.const(len(given) - 2)]]


def _max_unpool(use: Use, x: Tensor, indices: Tensor, shape: Tensor | None) -> list[Dims]:
    return _as_shape(use, 2, shape)


def _col2im(use: Use, x: Tensor, image: Tensor | None, block: Tensor | None) -> list[Dims]:
    count: Expr = ONE
    for dim in items(use, 2, block):
        count = count * dim
    channels = sym.floordiv(x.shape[1], sym.maximum(count, 1))
    channels = te.select(te.eq(channels * count, x.shape[1]), channels, BAD)
    return [[x.shape[0], channels, *items(use, 1, image)]]


# ------------------------------------------------------------------------------------ signals


def _dft(use: Use, x: Tensor, length: Tensor | None, axis: Tensor | None) -> list[Dims]:
    parts = shape_of(use.outputs[0])[-1]
    (named,) = axes_of(use, 2, axis, 1, x.ndim)
    out: list[Expr] = []
    for at, dim in enumerate(x.shape[:-1]):
        count = dim
        if use.call.has(1):
            count = item(use, 1, length, 0)
        elif use["inverse"] and use["onesided"]:
            count = (dim - 1) * 2
        if use["onesided"] and not use["inverse"]:
            count = sym.floordiv(count, 2) + 1
        out.append(te.select(te.eq(named, at), count, dim))
    ((*dims, _),) = _checked([named], x.ndim - 1, [*out, parts])
    return [[*dims, parts]]


def _stft(
    use: Use, x: Tensor, step: Tensor | None, window: Tensor | None, length: Tensor | None
) -> list[Dims]:
    count = x.shape[1]
    if window is not None:
        count = window.shape[0]
    elif use.call.has(3):
        count = item(use, 3, length, 0)
    stride = item(use, 1, step, 0)
    frames = sym.floordiv(x.shape[1] - count, sym.maximum(stride, 1)) + 1
    frames = te.select(te.all(stride > 0, count > 0), sym.maximum(frames, 0), BAD)
    bins = sym.floordiv(count, 2) + 1 if use["onesided"] else count
    return [[x.shape[0], frames, bins, sym.const(2)]]


def _mel_weights(
    use: Use, bands: Tensor | None, length: Tensor | None, *rest: Tensor
) -> list[Dims]:
    count = item(use, 1, length, 0)
    return [[sym.floordiv(count, 2) + 1, item(use, 0, bands, 0)]]


def _random_bits(use: Use, shape: Tensor | None) -> list[Dims]:
    return _as_shape(use, 0, shape)


def _row_order(use: Use, pivots: Tensor, rows: Tensor | None) -> list[Dims]:
    return [[*pivots.shape[:-1], item(use, 1, rows, 0)]]


SIZE_RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "expand": _expand,
    "tile": _tile,
    "slice": _slice,
    "pad": _pad,
    "range": _range,
    **{f"reduce_{how}": _reduce for how in ("sum", "prod", "mean", "max", "min")},
    "nonzero": _nonzero,
    "unique": _unique,
    "top_k": _top_k,
    "segment_reduce": _segment_reduce,
    "list_boxes": _list_boxes,
    "resize": _resize,
    "affine_grid": _affine_grid,
    "max_unpool": _max_unpool,
    "col2im": _col2im,
    "dft": _dft,
    "stft": _stft,
    "mel_weights": _mel_weights,
    "random_bits": _random_bits,
    "row_order": _row_order,
}
