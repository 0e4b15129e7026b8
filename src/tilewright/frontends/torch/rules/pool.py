"""Pooling over windows, adaptive and fractional pooling, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import sym
from tilewright.base.dtype import F32, F64, I64, DType
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.conv import each, spread
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Const, Expr


def _images(node: Context, x: Value, spatial: int) -> Value:
    """x with a batch axis."""
    return node.unsqueeze(x, 0) if len(node.shape(x)) == spatial + 1 else x


def _window(node: Context, spatial: int) -> dict[str, Any]:
    kernel = each(node.args["kernel_size"], spatial)
    strides = each(node.get("stride"), spatial) if node.get("stride") else kernel
    pads = each(node.get("padding"), spatial, 0)
    return {
        "kernel": kernel,
        "strides": strides,
        "pads": pads * 2,
        "dilations": each(node.get("dilation"), spatial),
        "ceil_mode": bool(node.get("ceil_mode", False)),
    }


def _max_pool(spatial: int) -> Rule:
    """The maximum of each window, and its position in the image."""

    def rule(node: Context) -> tuple[Value, Value | None]:
        x = _images(node, node["self"], spatial)
        wanted = 2 if node.wants(1) else 1
        made = node.emit_many("max_pool", x, outputs=wanted, **_window(node, spatial))
        best = node.reshape(made[0], node.out)
        if wanted == 1:
            return best, None
        plane = node.number(product(node.shape(x)[2:]))
        return best, node.reshape(node.emit("mod", made[1], plane), node.out)

    return rule


def _max_pool_gradient(spatial: int) -> Rule:
    """Each gradient is added at the position of its maximum."""

    def rule(node: Context) -> Value:
        g, x, places = node["grad_output"], node["self"], node["indices"]
        planes = product(node.shape(x)[:-spatial])
        count = product(node.shape(g)[-spatial:])
        zero = node.full(0, node.to, (planes, product(node.shape(x)[-spatial:])))
        flat = [node.reshape(each_, (planes, count)) for each_ in (places, g)]
        made = node.emit("scatter_elements", zero, *flat, axis=1, reduction="add")
        return node.reshape(made, node.out)

    return rule


def _avg_pool(spatial: int) -> Rule:
    def rule(node: Context) -> Value:
        x, window = _images(node, node["self"], spatial), _window(node, spatial)
        of = x.tensor.dtype
        x = x if of.is_float else node.cast(x, F64)  # truncated after the division
        include = bool(node.get("count_include_pad", True))
        by = node.get("divisor_override")
        if by is None:
            made = node.emit("avg_pool", x, include_pad=include, **window)
            return node.reshape(_cut(node, made, of), node.out)
        made = node.emit("avg_pool", x, include_pad=False, **window)
        counts = _counts(node, node.shape(x)[2:], node.out[-spatial:], window, x.tensor.dtype,
                         include=False)  # fmt: skip
        made = node.emit("div", node.emit("mul", made, counts), float(by))
        return node.reshape(_cut(node, made, of), node.out)

    return rule


def _cut(node: Context, x: Value, to: DType) -> Value:
    """Integer averages are truncated, after rounding of quotients that are integers but for
    errors."""
    if to.is_float:
        return x
    near = node.emit("round", x)
    off = node.emit("less", node.emit("abs", node.emit("sub", x, near)), 1e-9)
    return node.cast(node.emit("where", off, near, node.emit("trunc", x)), to)


def _counts(
    node: Context,
    extents: Sequence[Expr],
    outs: Sequence[Expr],
    window: dict[str, Any],
    to: DType,
    *,
    include: bool,
) -> Value:
    """The number of elements that each window averages: inside the image, or the padded image."""
    rank = len(extents)
    total = node.full(1, to, [ONE] * rank)
    for axis, (size, count) in enumerate(zip(extents, outs, strict=True)):
        begin = window["pads"][axis]
        start = node.emit("sub", node.emit("mul", node.iota(count), window["strides"][axis]), begin)
        end = node.emit("add", start, window["kernel"][axis])
        low, high = (-begin, sym.add(size, begin)) if include else (0, size)
        last = node.emit("minimum", end, node.number(sym.simplify(sym.as_expr(high))))
        length = node.emit("sub", last, node.emit("maximum", start, low))
        total = node.emit("mul", total, node.column(node.cast(length, to), axis, rank))
    return total


def _avg_pool_gradient(spatial: int) -> Rule:
    """Each gradient is distributed evenly over its window."""

    def rule(node: Context) -> Value:
        g, dims = node["grad_output"], node.dims()
        window = _window(node, spatial)
        lead, extents, outs = dims[:-spatial], dims[-spatial:], node.shape(g)[-spatial:]
        by = node.get("divisor_override")
        if by is not None:
            g = node.emit("div", g, float(by))
        else:
            include = bool(node.get("count_include_pad", True))
            g = node.emit("div", g, _counts(node, extents, outs, window, node.to, include=include))
        flat = node.reshape(g, (product(lead), ONE, *outs))
        ones = node.full(1, node.to, (1, 1, *window["kernel"]))
        pads, dilations = window["pads"][:spatial], (1,) * spatial
        made = spread(node, flat, ones, extents, window["strides"], pads, dilations, 1)
        return node.reshape(made, node.out)

    return rule


# ------------------------------------------------------------------------------------ adaptive


def shares(node: Context, size: Expr, count: Expr | int, to: DType) -> Value:
    """Weights [count, size] of adaptive averages: output i is the mean of the elements from floor(i
    * size / count) to ceil((i + 1) * size / count)."""
    outputs = node.unsqueeze(node.iota(count), 1)
    length, number = node.number(size), node.number(count)
    start = node.emit("floordiv", node.emit("mul", outputs, length), number)
    past = node.emit("mul", node.emit("add", outputs, 1), length)
    end = node.emit("floordiv", node.emit("sub", node.emit("add", past, number), 1), number)
    place = node.iota(size)
    inside = node.emit(
        "logical_and",
        node.emit("greater_equal", place, start),
        node.emit("less", place, end),
    )
    return node.emit("div", node.cast(inside, to), node.cast(node.emit("sub", end, start), to))


def _even(extents: Sequence[Expr], outs: Sequence[Expr]) -> tuple[int, ...] | None:
    """The sides of windows that tile the input, if there are such."""
    sides = []
    for size, count in zip(extents, outs, strict=True):
        if not isinstance(size, Const) or not isinstance(count, Const) or not count.value:
            return None
        if size.value % count.value:
            return None
        sides.append(int(size.value) // int(count.value))
    return tuple(sides) if all(sides) else None


def _adaptive_avg(spatial: int) -> Rule:
    """A global mean, windows that tile the image, or a matrix of weights along each axis."""

    def rule(node: Context) -> Value:
        x = node["self"]
        rank = node.rank()
        axes = tuple(range(rank - spatial, rank))
        extents, outs = node.dims()[-spatial:], node.out[-spatial:]
        if all(count is ONE for count in outs):
            return node.emit("reduce_mean", x, axes=axes, keepdims=True)
        sides = _even(extents, outs)
        if sides is not None:
            made = node.emit(
                "avg_pool",
                _images(node, x, spatial),
                kernel=sides,
                strides=sides,
                pads=(0,) * (2 * spatial),
                dilations=(1,) * spatial,
            )
            return node.reshape(made, node.out)
        for axis, size, count in zip(axes, extents, outs, strict=True):
            x = mixed(node, x, axis, shares(node, size, count, x.tensor.dtype))
        return x

    return rule


def mixed(node: Context, x: Value, axis: int, matrix: Value) -> Value:
    """x with each vector along an axis multiplied by a matrix."""
    rank = len(node.shape(x))
    last = [at for at in range(rank) if at != axis] + [axis]
    turned = node.emit("matmul", transpose(node, x, last), transpose(node, matrix, (1, 0)))
    back = sorted(range(rank), key=lambda at: last[at])
    return transpose(node, turned, back)


def _adaptive_avg_gradient(spatial: int) -> Rule:
    def rule(node: Context) -> Value:
        g, rank = node["grad_output"], node.rank()
        for axis in range(rank - spatial, rank):
            size, count = node.dims()[axis], node.shape(node["grad_output"])[axis]
            g = mixed(node, g, axis, transpose(node, shares(node, size, count, node.to), (1, 0)))
        return g

    return rule


def _adaptive_max(spatial: int) -> Rule:
    """Windows that tile the image; a global maximum is one window."""

    def rule(node: Context) -> tuple[Value, Value | None]:
        x = _images(node, node["self"], spatial)
        extents, outs = node.dims()[-spatial:], node.out[-spatial:]
        sides = _even(extents, outs)
        if sides is None:
            return _uneven_max(node, spatial)
        made = node.emit_many(
            "max_pool",
            x,
            outputs=2,
            kernel=sides,
            strides=sides,
            pads=(0,) * (2 * spatial),
            dilations=(1,) * spatial,
        )
        plane = node.number(product(node.shape(x)[2:]))
        places = node.cast(node.emit("mod", made[1], plane), I64)
        return node.reshape(made[0], node.out), node.reshape(places, node.out)

    return rule


def _uneven_max(node: Context, spatial: int) -> tuple[Value, Value]:
    """The maximum of uneven windows along each axis."""
    first = node.rank() - spatial
    covered = [
        node.emit("greater", shares(node, size, count, F32), 0.0)  # [count, size]
        for size, count in zip(node.dims()[first:], node.out[first:], strict=True)
    ]
    return _greatest_of(node, node["self"], covered)


def _greatest_of(node: Context, x: Value, covered: Sequence[Value]) -> tuple[Value, Value]:
    """Separable maximum with positions, from the last axis on.

    For each of the last axes, [..., count, size] is a mask of the elements that an output covers.
    """
    rank = len(node.shape(x))
    best, dims = x, node.shape(x)
    place: Value | None = None  # flat position within the axes done
    stride: Expr = ONE
    for axis, inside in zip(range(rank - 1, -1, -1), reversed(covered), strict=False):
        lead = list(range(rank))
        lead.append(lead.pop(axis))
        wide = node.unsqueeze(transpose(node, best, lead), rank - 1)  # [..., 1, size]
        seen = node.emit("where", inside, wide, node.like(best, best.tensor.dtype.min))
        chosen = node.emit("arg_max", seen, axis=rank, keepdims=False)
        best = _back(node, node.emit("reduce_max", seen, axes=(rank,), keepdims=False), axis)
        along = node.emit("mul", chosen, node.number(stride))
        if place is not None:
            inner = node.unsqueeze(transpose(node, place, lead), rank - 1)
            spread = node.emit("expand", inner, shape=items_of(node.shape(seen)))
            picked = node.emit("gather_elements", spread, node.unsqueeze(chosen, rank), axis=rank)
            along = node.emit("add", along, node.reshape(picked, node.shape(along)))
        place = _back(node, along, axis)
        stride = sym.simplify(sym.mul(stride, dims[axis]))
    assert place is not None
    return best, place


def _fractional_max(spatial: int) -> Rule:
    """Windows with random starts per plane: floor((i + u) * a) - floor(u * a) with a = (size -
    kernel) / (count - 1), the last one at the end."""

    def rule(node: Context) -> tuple[Value, Value]:
        x = _images(node, node["self"], spatial)
        kernel, drawn = each(node.args["kernel_size"], spatial), node["random_samples"]
        planes = node.shape(drawn)[:2]
        covered = []
        for axis in range(spatial):
            size, count = node.shape(x)[2 + axis], node.out[axis - spatial]
            of = spatial - 1 - axis if spatial == 2 else axis  # index of the random number
            u = slice_axis(node, drawn, 2, of, of + 1)  # [n, c, 1]
            last = node.number(sym.simplify(sym.sub(size, kernel[axis])))
            steps = node.emit("maximum", node.number(sym.simplify(sym.sub(count, 1))), 1)
            to = u.tensor.dtype
            by = node.emit("div", node.cast(last, to), node.cast(steps, to))
            at = node.iota(count)
            moved = node.emit("mul", node.emit("add", node.cast(at, to), u), by)
            begin = node.emit(
                "sub",
                node.cast(node.emit("floor", moved), I64),
                node.cast(node.emit("floor", node.emit("mul", u, by)), I64),
            )
            ends = node.emit("equal", at, node.number(sym.simplify(sym.sub(count, 1))))
            begin = node.emit("where", ends, last, begin)
            begin = node.reshape(begin, (*planes, *[ONE] * (spatial - 1), count, ONE))
            place = node.iota(size)
            inside = node.emit(
                "logical_and",
                node.emit("greater_equal", place, begin),
                node.emit("less", place, node.emit("add", begin, kernel[axis])),
            )
            covered.append(inside)
        best, where = _greatest_of(node, x, covered)
        return node.reshape(best, node.out), node.reshape(where, node.out)

    return rule


def _back(node: Context, x: Value, axis: int) -> Value:
    """x with its last axis moved back."""
    rank = len(node.shape(x))
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return transpose(node, x, order)


def _max_unpool(spatial: int) -> Rule:
    """Elements at the positions that max_pool took them from, zeros elsewhere."""

    def rule(node: Context) -> Value:
        x, places = node["self"], node["indices"]
        planes = product(node.dims()[:-spatial])
        count = product(node.dims()[-spatial:])
        zero = node.full(0, node.to, (planes, product(node.out[-spatial:])))
        flat = [node.reshape(each_, (planes, count)) for each_ in (places, x)]
        return node.reshape(node.emit("scatter_elements", zero, *flat, axis=1), node.out)

    return rule


def _col2im(node: Context) -> Value:
    x = _images(node, node["self"], 1)
    made = node.emit(
        "col2im",
        x,
        image_shape=items_of(node.args["output_size"]),
        block_shape=items_of(node.args["kernel_size"]),
        strides=each(node.args["stride"], 2),
        pads=each(node.args["padding"], 2, 0) * 2,
        dilations=each(node.args["dilation"], 2),
    )
    return node.reshape(made, node.out)


RULES: dict[str, Rule] = {
    **{f"aten.max_pool{n}d_with_indices": _max_pool(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    "aten.adaptive_avg_pool1d": _adaptive_avg(1),
    "aten._adaptive_avg_pool2d": _adaptive_avg(2),
    "aten._adaptive_avg_pool3d": _adaptive_avg(3),
    **{f"aten.adaptive_max_pool{n}d": _adaptive_max(n) for n in (1, 2, 3)},
    **{f"aten.fractional_max_pool{n}d": _fractional_max(n) for n in (2, 3)},
    **{f"aten.max_unpool{n}d": _max_unpool(n) for n in (2, 3)},
    **{
        f"aten.{name}{n}d{form}_backward": _max_pool_gradient(n)
        for name, form in (
            *(("max_pool", "_with_indices"), ("adaptive_max_pool", "")),
            ("fractional_max_pool", ""),
        )
        for n in (2, 3)
    },
    **{f"aten.avg_pool{n}d_backward": _avg_pool_gradient(n) for n in (2, 3)},
    **{f"aten._adaptive_avg_pool{n}d_backward": _adaptive_avg_gradient(n) for n in (2, 3)},
    "aten.col2im": _col2im,
}
