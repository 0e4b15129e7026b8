"""Softmax and normalization: stages of reductions and element-wise operations.

Statistics are f32 (f64 for f64) between stages; results are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym, te
from tilewright.base.dtype import I64
from tilewright.lower.base import (
    Lowering,
    Use,
    flat_index,
    number,
    product,
    read_broadcast,
    static,
    wide,
    wide_type,
)
from tilewright.lower.image_layout import compute_image, image, is_last
from tilewright.lower.reduction import best, reduced
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import Tensor


def _axes(use: Use, x: Tensor) -> list[int]:
    return list(use["axes"]) if x.ndim else []


def _along(index: Sequence[Expr], axes: Sequence[int]) -> tuple[Expr, ...]:
    """The index into a reduction with kept axes."""
    return tuple(ZERO if axis in axes else at for axis, at in enumerate(index))


def _powers(use: Use, x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum, exp(x - maximum), and their sums, along axes."""
    name = use.name
    top = reduced(x, axes, te.max, keep=True, name=f"{name}_max")
    powers = te.compute(
        x.shape,
        lambda *i: te.exp_nonpositive(wide(x[i]) - top[_along(i, axes)]),
        name=f"{name}_exp",
    )
    return top, powers, reduced(powers, axes, te.sum, keep=True, name=f"{name}_sum")


def _softmax(use: Use, x: Tensor) -> Tensor:
    axes = _axes(use, x)
    _, powers, total = _powers(use, x, axes)
    # One division per sum; multiplying by the inverse adds a rounding error of half a ULP.
    inverse = te.compute(
        total.shape, lambda *i: te.const(1, total.dtype) / total[i], name=f"{use.name}_inverse"
    )
    return te.compute(
        use.shape,
        lambda *i: te.cast(powers[i] * inverse[_along(i, axes)], use.dtype),
        name=use.name,
    )


def _log_softmax(use: Use, x: Tensor) -> Tensor:
    axes = _axes(use, x)
    top, _, total = _powers(use, x, axes)
    logs = te.compute(total.shape, lambda *i: te.log(total[i]), name=f"{use.name}_log")

    def element(*i: Expr) -> Expr:
        rest = _along(i, axes)
        return te.cast(wide(x[i]) - top[rest] - logs[rest], use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _hardmax(use: Use, x: Tensor) -> Tensor:
    axes = list(use["axes"])
    dims = [x.shape[axis] for axis in axes]
    rest = [sym.ONE if axis in axes else dim for axis, dim in enumerate(x.shape)]
    choose = best(greatest=True, last=False)

    def found(*index: Expr) -> tuple[Expr, ...]:
        ks = [te.reduce_axis((0, dim), name=f"k{at}") for at, dim in enumerate(dims)]
        full = list(index)
        for axis, k in zip(axes, ks, strict=True):
            full[axis] = k
        made = choose((te.cast(flat_index(ks, dims), I64), wide(x[tuple(full)])), axis=ks)
        return tuple(made)

    position, _ = te.compute(rest, found, name=f"{use.name}_best")

    def element(*index: Expr) -> Expr:
        here = te.cast(flat_index([index[axis] for axis in axes], dims), I64)
        chosen = te.eq(position[_along(index, axes)], here)
        return te.select(chosen, te.const(1, use.dtype), te.const(0, use.dtype))

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ statistics


def _mean(x: Tensor, axes: list[int], name: str) -> Tensor:
    total = reduced(x, axes, te.sum, keep=True, name=f"{name}_sum")
    count = number(product([x.shape[axis] for axis in axes]), total.dtype)
    return te.compute(total.shape, lambda *i: total[i] / count, name=name)


def _centred(x: Tensor, mean: Tensor, axes: list[int], name: str) -> Tensor:
    return te.compute(x.shape, lambda *i: wide(x[i]) - mean[_along(i, axes)], name=name)


def _spread(x: Tensor, axes: list[int], name: str) -> Tensor:
    """The mean of squares along axes."""
    total = reduced(x, axes, te.sum, keep=True, name=f"{name}_sum", of=lambda v: wide(v) * wide(v))
    count = number(product([x.shape[axis] for axis in axes]), total.dtype)
    return te.compute(total.shape, lambda *i: total[i] / count, name=name)


def _inverse(use: Use, spread: Tensor, name: str) -> Tensor:
    """The inverse root of each variance: multiplication is cheaper than division."""
    epsilon = te.const(use["epsilon"], spread.dtype)
    return te.compute(
        spread.shape, lambda *i: te.rsqrt(spread[i] + epsilon), name=f"{name}_inverse"
    )


def _layer_norm(
    use: Use, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> Tensor | tuple[Tensor, ...]:
    axes, name = list(range(use["axis"], x.ndim)), use.name
    mean = _mean(x, axes, f"{name}_mean")
    centred = _centred(x, mean, axes, f"{name}_centred")
    spread = _spread(centred, axes, f"{name}_spread")
    inverse = _inverse(use, spread, name)

    def element(*i: Expr) -> Expr:
        value = centred[i] * inverse[_along(i, axes)]
        for operand, combine in ((scale, sym.mul), (bias, sym.add)):
            if operand is not None:
                value = combine(value, te.cast(read_broadcast(operand, x.shape, i), value.dtype))
        return te.cast(value, use.dtype)

    out = te.compute(use.shape, element, name=name)
    if use.call.outputs == 1:
        return out
    kept = tuple(
        te.compute(stat.shape, lambda *i, stat=stat: te.cast(stat[i], "f32"), name=f"{name}_{what}")
        for what, stat in (("means", mean), ("inverses", inverse))
    )
    return (out, *kept)[: use.call.outputs]


def _rms_norm(use: Use, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(use["axis"], x.ndim))
    spread = _spread(x, axes, f"{use.name}_spread")
    inverse = _inverse(use, spread, use.name)

    def element(*i: Expr) -> Expr:
        value = wide(x[i]) * inverse[_along(i, axes)]
        factor = wide(read_broadcast(scale, x.shape, i))
        of = value.dtype if value.dtype.bits >= factor.dtype.bits else factor.dtype
        return te.cast(te.cast(value, of) * te.cast(factor, of), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _group_norm(use: Use, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Over groups of channels: x is viewed as [batch, group, channel in group, *spatial]."""
    groups = sym.as_expr(use["groups"])
    seen = image(use, x)
    size = sym.simplify(sym.floordiv(seen.shape[1], groups))
    name, last = use.name, is_last(use)
    spatial = list(seen.shape[2:])
    # Channels last: [batch, *spatial, group, channel in group].
    shape = [x.shape[0], *spatial, groups, size] if last else [x.shape[0], groups, size, *spatial]
    group_axis = len(shape) - 2 if last else 1
    axes = [axis for axis in range(1, len(shape)) if axis != group_axis]

    def member(n: Expr, *i: Expr) -> Expr:
        (*at, g, c) = i if last else (*i[2:], *i[:2])
        return wide(seen[(n, sym.add(sym.mul(g, size), c), *at)])

    grouped = te.compute(shape, member, name=f"{name}_grouped")
    mean = _mean(grouped, axes, f"{name}_mean")
    centred = _centred(grouped, mean, axes, f"{name}_centred")
    spread = _spread(centred, axes, f"{name}_spread")
    inverse = _inverse(use, spread, name)

    def element(n: Expr, c: Expr, *i: Expr) -> Expr:
        # A single group needs no division.
        alone = groups is ONE
        group = ZERO if alone else sym.floordiv(c, size)
        within = c if alone else sym.floormod(c, size)
        place = (n, *i, group, within) if last else (n, group, within, *i)
        value = centred[place] * inverse[_along(place, axes)]
        value = value * te.cast(scale[c], value.dtype) + te.cast(bias[c], value.dtype)
        return te.cast(value, use.dtype)

    made: Tensor = compute_image(use, element, name=name)
    return made


def _batch_norm(
    use: Use, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    of = wide_type(x.dtype)

    def factor(c: Expr) -> Expr:
        spread = wide(variance[c])
        root = te.sqrt(spread + te.const(use["epsilon"], spread.dtype))
        return te.cast(wide(scale[c]), of) / te.cast(root, of)

    factors = te.compute(scale.shape, factor, name=f"{use.name}_factor")

    def element(*i: Expr) -> Expr:
        c = i[-1 if is_last(use) else 1] if x.ndim > 1 else _only(scale, i[0])
        centred = wide(x[i]) - te.cast(mean[c], of)
        return te.cast(centred * factors[c] + te.cast(bias[c], of), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _only(scale: Tensor, at: Expr) -> Expr:
    """The index of a channel's scale: 0 if there is only one channel."""
    return ZERO if static(scale.shape[0]) == 1 else at


def _lrn(use: Use, x: Tensor) -> Tensor:
    size, of = use["size"], wide_type(x.dtype)
    seen = image(use, x)
    before, channels = (size - 1) // 2, seen.shape[1]

    def total(n: Expr, c: Expr, *i: Expr) -> Expr:
        k = te.reduce_axis((0, size), name="k")
        at = sym.sub(sym.add(c, k), before)
        value = wide(seen[(n, at, *i)])
        inside = te.all(sym.le(0, at), sym.lt(at, channels))
        return te.sum(te.if_then_else(inside, value * value, te.const(0, of)), axis=k)

    sums = compute_image(use, total, name=f"{use.name}_squares")

    def element(*i: Expr) -> Expr:
        base = te.const(use["bias"], of) + te.const(use["alpha"] / size, of) * sums[i]
        return te.cast(wide(x[i]) / _power(base, use["beta"]), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _power(base: Expr, exponent: float) -> Expr:
    """A power; common exponents are computed by roots."""
    if exponent == 1:
        return base
    root = te.sqrt(base)
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return root * te.sqrt(root)
    return te.pow(base, te.const(exponent, base.dtype))


LOWERINGS: dict[str, Lowering] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "hardmax": _hardmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "lrn": _lrn,
}
