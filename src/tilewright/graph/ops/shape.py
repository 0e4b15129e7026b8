"""Shape operators: reshape, reorder, slice and pad tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I64, DType
from tilewright.graph.op import ANY, INJECTIVE, INTEGER, OPAQUE, Attr, Call, Input, Known, Op
from tilewright.graph.ops.moves import check_axes, check_axis, moved, new_sizes
from tilewright.graph.ops.rules import broadcast_shapes, check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import EMPTY, ONE, ZERO, Const, Expr, const

Array = np.ndarray[Any, Any]

END = (1 << 31) - 1  # ONNX exporters write bounds from here on for the end


def _list(name: str, *, optional: bool = False) -> Input:
    return Input(name, INTEGER, optional, folds=True)


# ------------------------------------------------------------------------------------ shapes


def _shape_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(I64, (const(len(call.shape(0))),)),)


def _dims_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(call["to"], call.shape(0)),)


# ------------------------------------------------------------------------------------ reshape


def _reshape_type(call: Call) -> tuple[Type, ...]:
    of, target = call.tensor(0), call.value(1)
    if target is None:
        given = call.tensor(1).static_shape
        dims = None if given is None else new_sizes(call, given[0] if given else 0)
        return (TensorType(of.dtype, dims),)
    missing = [at for at, dim in enumerate(target) if isinstance(dim, Const) and dim.value == -1]
    if len(missing) > 1 or any(isinstance(d, Const) and d.value < -1 for d in target):
        raise call.error("TW1302", f"reshape to [{_show(target)}] does not name a shape")
    if missing and of.shape is None:
        return (TensorType(of.dtype, new_sizes(call, len(target))),)
    dims = tuple(target)
    if missing:
        at = missing[0]
        rest = quotient(call, call.shape(0), dims[:at] + dims[at + 1 :])
        dims = (*dims[:at], rest, *dims[at + 1 :])
    elif of.static_shape is not None and all(isinstance(dim, Const) for dim in dims):
        want = math.prod(int(dim.value) for dim in dims if isinstance(dim, Const))
        if want != math.prod(of.static_shape):
            raise call.error("TW1303", f"reshape of {of} to [{_show(dims)}] changes the count")
    return (TensorType(of.dtype, dims),)


def _show(dims: tuple[Expr, ...]) -> str:
    return ", ".join(str(dim) for dim in dims)


def quotient(call: Call, whole: tuple[Expr, ...], parts: tuple[Expr, ...]) -> Expr:
    """The product of `whole` divided by that of `parts`, which is exact.

    Common factors cancel: if one is 0 the quotient is ambiguous.
    """
    above, below = _factors(whole), _factors(parts)
    scale = math.prod(int(x.value) for x in above if isinstance(x, Const))
    by = math.prod(int(x.value) for x in below if isinstance(x, Const))
    if by == 0:
        raise call.error("TW1302", f"reshape to a shape with 0 and -1 of [{_show(whole)}]")
    above = [x for x in above if not isinstance(x, Const)]
    below = [x for x in below if not isinstance(x, Const)]
    for factor in list(below):
        if factor in above:
            above.remove(factor)
            below.remove(factor)
    common = math.gcd(scale, by)
    upper = product([const(scale // common), *above])
    lower = product([const(by // common), *below])
    return sym.simplify(sym.floordiv(upper, lower))


def _factors(dims: tuple[Expr, ...]) -> list[Expr]:
    out: list[Expr] = []
    stack = list(dims)
    while stack:
        dim = stack.pop()
        if isinstance(dim, sym.Mul):
            stack.extend((dim.a, dim.b))
        else:
            out.append(dim)
    return out


def product(dims: list[Expr] | tuple[Expr, ...]) -> Expr:
    """The number of elements of a shape."""
    out: Expr = ONE
    for dim in dims:
        out = sym.mul(out, dim)
    return sym.simplify(out)


def _reshape(call: Call, x: Array, shape: Array) -> Array:
    return x.reshape(tuple(int(dim) for dim in shape))


# ------------------------------------------------------------------------------------ expand, tile


def _expand_type(call: Call) -> tuple[Type, ...]:
    of, shape, target = call.tensor(0), call.shape(0), call.value(1)
    if target is not None:
        return (TensorType(of.dtype, broadcast_shapes(call, [shape, target])),)
    given = call.tensor(1).static_shape
    if given is None:
        return (TensorType(of.dtype, None),)
    rank = max(len(shape), given[0])
    dims = list(new_sizes(call, rank))
    for axis in range(-len(shape), 0):
        if -axis > given[0] or (isinstance(shape[axis], Const) and shape[axis] is not ONE):
            dims[axis] = shape[axis]
    return (TensorType(of.dtype, tuple(dims)),)


def _expand(call: Call, x: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(x.shape, tuple(int(dim) for dim in shape))
    return np.broadcast_to(x, target)


def _tile_type(call: Call) -> tuple[Type, ...]:
    of, shape, repeats = call.tensor(0), call.shape(0), call.value(1)
    if repeats is None:
        return (TensorType(of.dtype, new_sizes(call, len(shape))),)
    if len(repeats) != len(shape):
        raise call.error(
            "TW1304", f"tile needs a count per dimension: {len(shape)}, got {len(repeats)}"
        )
    dims = tuple(sym.simplify(sym.mul(d, n)) for d, n in zip(shape, repeats, strict=True))
    return (TensorType(of.dtype, dims),)


def _tile(call: Call, x: Array, repeats: Array) -> Array:
    return np.tile(x, tuple(int(n) for n in repeats))


# ------------------------------------------------------------------------------------ transpose


def _transpose_type(call: Call) -> tuple[Type, ...]:
    shape, perm = call.shape(0), call["perm"]
    if len(perm) != len(shape):
        raise call.error("TW1304", f"transpose needs {len(shape)} axes, got {len(perm)}")
    axes = check_axes(call, perm, len(shape))
    return (TensorType(call.tensor(0).dtype, tuple(shape[axis] for axis in axes)),)


def _transpose(call: Call, x: Array) -> Array:
    return np.transpose(x, call["perm"])


# ------------------------------------------------------------------------------------ concat


def concat_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    first = call.shape(0)
    axis = check_axis(call, call["axis"], len(first))
    dims = list(first)
    for at in range(1, len(call.types)):
        shape = call.shape(at)
        if len(shape) != len(first):
            raise call.error(
                "TW1304", f"concat of tensors of {len(first)} and {len(shape)} dimensions"
            )
        for other, dim in enumerate(shape):
            if other == axis:
                dims[axis] = sym.simplify(sym.add(dims[axis], dim))
            else:
                dims[other] = same_dim(call, dims[other], dim, f"dimensions {other}")
    return (TensorType(call.tensor(0).dtype, tuple(dims)),)


def _concat(call: Call, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=call["axis"])


# ------------------------------------------------------------------------------------ slice


def slice_bounds(start: Expr, end: Expr, step: int, dim: Expr) -> tuple[Expr, Expr]:
    """The start and length of a slice, with bounds normalized and clamped."""
    if step > 0:
        first = _clamped(start, dim, ZERO, dim)
        last = _clamped(end, dim, ZERO, dim)
        room = sym.sub(last, first)
    else:
        top = sym.sub(dim, 1)
        first = _clamped_start(start, dim, top)
        last = _clamped(end, dim, const(-1), top)
        room = sym.sub(first, last)
    count = sym.simplify(sym.maximum(sym.ceildiv(room, abs(step)), 0))
    return sym.simplify(first), count


def _clamped_start(start: Expr, dim: Expr, top: Expr) -> Expr:
    """The start of a slice with a negative step: clamped to the first element, unlike Python's."""
    if isinstance(start, Const) and (start.value == -1 or start.value >= END):
        return top
    return sym.simplify(sym.minimum(_clamped(start, dim, ZERO, top), top))


def _clamped(bound: Expr, dim: Expr, low: Expr, high: Expr) -> Expr:
    """Normalize a bound and clamp it to [low, high]."""
    if isinstance(bound, Const):
        value = int(bound.value)
        if value >= END:
            return high
        if value < -END:
            return low
        if value >= 0:
            return sym.simplify(sym.minimum(bound, high))
        return sym.simplify(sym.maximum(sym.add(dim, bound), low))
    if bound is dim:
        return high
    if not sym.prove(sym.le(0, bound), EMPTY):
        bound = sym.select(sym.lt(bound, 0), sym.add(bound, dim), bound)
    return sym.simplify(sym.maximum(sym.minimum(bound, high), low))


def _slice_type(call: Call) -> tuple[Type, ...]:
    of, shape = call.tensor(0), call.shape(0)
    if any(call.has(at) and call.tensor(at).rank == 0 for at in range(1, 5)):
        raise call.error("TW1304", "slice takes lists, not one start, end, axis or step by itself")
    starts, ends, axes, steps = call.value(1), call.value(2), call.ints(3), call.ints(4)
    given = call.tensor(1).static_shape
    if (call.has(3) and axes is None) or given is None:
        return (TensorType(of.dtype, new_sizes(call, len(shape))),)
    axes = check_axes(call, tuple(range(given[0])) if axes is None else axes, len(shape))
    if not call.has(4):
        steps = (1,) * len(axes)
    if steps is not None and 0 in steps:
        raise call.error("TW1305", "slice with a step of 0")
    for items in (starts, ends, steps):
        if items is not None and len(items) != len(axes):
            raise call.error("TW1304", "slice needs a start, an end and a step for each axis")
    dims = list(shape)
    for at, axis in enumerate(axes):
        if starts is None or ends is None or steps is None:
            dims[axis] = sym.size(f"slice_{axis}")
        else:
            _, dims[axis] = slice_bounds(starts[at], ends[at], steps[at], shape[axis])
    return (TensorType(of.dtype, tuple(dims)),)


def _slice(
    call: Call,
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    where = [slice(None)] * x.ndim
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where[axis] = slice(*_python_bounds(int(start), int(end), int(step), x.shape[axis]))
    return x[tuple(where)]


def _python_bounds(start: int, end: int, step: int, dim: int) -> tuple[int, int | None, int]:
    """Bounds for a Python slice, where -1 after clamping would mean the last element."""
    low, high = (0, dim) if step > 0 else (-1, dim - 1)
    first = min(max(start + dim if start < 0 else start, 0), high)
    last = min(max(end + dim if end < 0 else end, low), high)
    if step < 0 and first < 0:
        return 0, 0, step
    return first, None if last < 0 else last, step


# ------------------------------------------------------------------------------------ pad

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad_type(call: Call) -> tuple[Type, ...]:
    of, shape, pads = call.tensor(0), call.shape(0), call.value(1)
    if call["mode"] not in PAD_MODES:
        raise call.error("TW1306", f"pad has no mode {call['mode']!r}", help=f"use {PAD_MODES}")
    axes = call.ints(3)
    if pads is None or (call.has(3) and axes is None):
        return (TensorType(of.dtype, new_sizes(call, len(shape))),)
    axes = check_axes(call, tuple(range(len(shape))) if axes is None else axes, len(shape))
    if len(pads) != 2 * len(axes):
        raise call.error("TW1304", f"pad needs {2 * len(axes)} amounts, got {len(pads)}")
    dims = list(shape)
    for at, axis in enumerate(axes):
        both = sym.add(pads[at], pads[at + len(axes)])
        dims[axis] = sym.simplify(sym.maximum(sym.add(shape[axis], both), 0))
    return (TensorType(of.dtype, tuple(dims)),)


def _pad(
    call: Call, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None
) -> Array:
    rank = x.ndim
    before, after = [0] * rank, [0] * rank
    named = range(rank) if axes is None else [int(axis) for axis in axes]
    for at, axis in enumerate(named):
        before[axis], after[axis] = int(pads[at]), int(pads[at + len(named)])
    kept = [
        slice(max(0, -b), max(0, -b, n - max(0, -a)))
        for b, a, n in zip(before, after, x.shape, strict=True)
    ]
    x = x[tuple(kept)]
    added = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    if call["mode"] != "constant":
        return np.pad(x, added, mode=call["mode"])
    fill = np.zeros((), x.dtype) if value is None else np.asarray(value).reshape(())
    out = np.full([n + b + a for n, (b, a) in zip(x.shape, added, strict=True)], fill, x.dtype)
    out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, added, strict=True))] = x
    return out


# ------------------------------------------------------------------------------------ range


def _range_type(call: Call) -> tuple[Type, ...]:
    to: DType = call["to"]
    start, limit, delta = (call.value(at) for at in range(3))
    numbers = [call.array(at) for at in range(3)]
    if start is not None and limit is not None and delta is not None:
        step = delta[0]
        if isinstance(step, Const):
            if step.value == 0:
                raise call.error("TW1305", "range with a step of 0")
            gap = sym.sub(limit[0], start[0]) if step.value > 0 else sym.sub(start[0], limit[0])
            count = sym.ceildiv(gap, abs(int(step.value)))
            return (TensorType(to, (sym.simplify(sym.maximum(count, 0)),)),)
    elif all(number is not None for number in numbers):
        return (TensorType(to, (const(range_count(*numbers)),)),)  # type: ignore[arg-type]
    return (TensorType(to, (sym.size("range"),)),)


def range_count(start: Array, limit: Array, delta: Array) -> int:
    """The number of elements from start to limit in steps of delta."""
    if start.dtype.kind in "iu":
        return len(range(int(start), int(limit), int(delta)))
    return max(0, math.ceil((float(limit) - float(start)) / float(delta)))


def _range(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    to: DType = call["to"]
    start, limit, delta = (np.asarray(x).reshape(()) for x in (start, limit, delta))
    steps = np.arange(range_count(start, limit, delta))
    if to.is_float:
        steps = steps.astype(np.float64)
        start, delta = start.astype(np.float64), delta.astype(np.float64)
    return np.asarray(start + steps * delta).astype(to.numpy)


def _range_contents(call: Call) -> Known | None:
    (of,) = _range_type(call)
    start, delta = call.value(0), call.value(2)
    assert isinstance(of, TensorType)
    if of.static_shape is None or start is None or delta is None or of.static_shape[0] > 1024:
        return None
    steps = range(of.static_shape[0])
    return tuple(sym.simplify(sym.add(start[0], sym.mul(delta[0], i))) for i in steps)


OPS = (
    Op(
        "shape",
        "The dimensions of x.",
        (Input("x", ANY),),
        _shape_type,
        lambda call, x: np.array(x.shape, np.int64),
        OPAQUE,
        evaluate=lambda call: call.shape(0),
    ),
    Op(
        "dims",
        "A scalar or list of expressions of sizes.",
        (_list("values"),),
        _dims_type,
        lambda call, values: values.astype(call["to"].numpy),
        OPAQUE,
        (Attr("to", DType, I64),),
        evaluate=lambda call: call.value(0),
    ),
    Op(
        "reshape",
        "The elements of x, in order, in another shape; one dimension may be -1: it is inferred.",
        (Input("x"), _list("shape")),
        _reshape_type,
        _reshape,
        INJECTIVE,
        evaluate=moved(_reshape, 0),
    ),
    Op(
        "expand",
        "x broadcast along leading and unit dimensions, as in NumPy.",
        (Input("x"), _list("shape")),
        _expand_type,
        _expand,
        INJECTIVE,
        evaluate=moved(_expand, 0),
    ),
    Op(
        "tile",
        "x repeated as a whole along each axis.",
        (Input("x"), _list("repeats")),
        _tile_type,
        _tile,
        INJECTIVE,
        evaluate=moved(_tile, 0),
    ),
    Op(
        "transpose",
        "x with its axes permuted.",
        (Input("x"),),
        _transpose_type,
        _transpose,
        INJECTIVE,
        (Attr("perm", tuple, required=True),),
        evaluate=moved(_transpose, 0),
    ),
    Op(
        "concat",
        "Tensors concatenated along an axis.",
        (Input("parts", variadic=True),),
        concat_type,
        _concat,
        INJECTIVE,
        (Attr("axis", int, required=True),),
        evaluate=moved(_concat, variadic=True),
    ),
    Op(
        "slice",
        "x[start:end:step] along each of the axes; negative bounds count from the end, and bounds "
        "are clamped.",
        (
            Input("x"),
            _list("starts"),
            _list("ends"),
            _list("axes", optional=True),
            _list("steps", optional=True),
        ),
        _slice_type,
        _slice,
        INJECTIVE,
        evaluate=moved(_slice, 0),
    ),
    Op(
        "pad",
        "x with elements added around it (removed where negative): all amounts before, then all "
        "after. They are filled with the value, or as the mode says.",
        (Input("x"), _list("pads"), Input("value", optional=True), _list("axes", optional=True)),
        _pad_type,
        _pad,
        INJECTIVE,
        (Attr("mode", str, "constant"),),
        evaluate=moved(_pad, 0, 2),
    ),
    Op(
        "range",
        "start, start + delta, ... up to, but excluding, the limit.",
        (
            Input("start", "number", folds=True),
            Input("limit", "number", folds=True),
            Input("delta", "number", folds=True),
        ),
        _range_type,
        _range,
        INJECTIVE,
        (Attr("to", DType, required=True),),
        evaluate=_range_contents,
    ),
)
