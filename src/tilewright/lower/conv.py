"""Convolutions: sums of products over windows, with zero padding.

A transposed convolution gathers: output o takes the kernel positions k with o + pad = i * stride +
k * dilation for an integer i, one in every `stride` of them, so that there are no multiplications
by inserted zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import sym, te
from tilewright.base.dtype import I32
from tilewright.lower.axes import items
from tilewright.lower.base import Lowering, Refusal, Use, group_of, split_index, static, wide
from tilewright.lower.image_layout import compute_image, image, image_shape, is_last
from tilewright.lower.linalg import less_zero
from tilewright.lower.windows import Window
from tilewright.lower.winograd import can_winograd, lower_winograd
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor


def _conv(use: Use, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Padding is a separate stage, placed by the schedule."""
    if use["winograd"] and can_winograd(use, x, w):
        return lower_winograd(use, x, w, bias)
    window = Window(use, image(use, x), w.shape[2:]).padded(te.const(0, x.dtype))
    inner = w.shape[1]

    def sums(n: Expr, m: Expr, *places: Expr) -> Expr:
        first = sym.mul(group_of(m, image_shape(use)[1], use["groups"]), inner)
        if any(static(dim) == 0 for dim in w.shape[1:]):
            return te.const(0, wide(x[(ZERO,) * x.ndim]).dtype)
        c, taps = te.reduce_axis((0, inner), name="c"), window.taps()
        seen = window.read((n, sym.add(first, c)), places, taps, te.const(0, x.dtype))
        return te.sum(wide(seen) * wide(w[(m, c, *taps)]), axis=[c, *taps])

    return _with_bias(use, sums, bias)


def _with_bias(use: Use, sums: Callable[..., Expr], bias: Tensor | None) -> Tensor:
    """Sums plus a bias per channel, rounded once."""

    def element(n: Expr, m: Expr, *places: Expr) -> Expr:
        total = sums(n, m, *places)
        if bias is not None:
            total = total + te.cast(bias[m], total.dtype)
        return te.cast(total, use.dtype)

    made: Tensor = compute_image(use, element)
    return made


def _conv_integer(
    use: Use,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Padding is the zero point, so that its contribution is zero."""
    if use["winograd"] and x_zero is None and w_zero is None and can_winograd(use, x, w):
        return lower_winograd(use, x, w, bias)
    window = Window(use, image(use, x), w.shape[2:])
    if is_last(use) and x_zero is None:
        window = window.padded(te.const(0, x.dtype))
    inner = w.shape[1]

    def point(zero: Tensor | None, channel: Expr) -> Expr | None:
        if zero is None:
            return None
        return zero[tuple(channel if dim is not sym.ONE else ZERO for dim in zero.shape)]

    def sums(n: Expr, m: Expr, *places: Expr) -> Expr:
        first = sym.mul(group_of(m, image_shape(use)[1], use["groups"]), inner)
        c, taps = te.reduce_axis((0, inner), name="c"), window.taps()
        zero = te.const(0, x.dtype) if x_zero is None else x_zero[(ZERO,) * x_zero.ndim]
        seen = window.read((n, sym.add(first, c)), places, taps, zero)
        left = less_zero(seen, None if x_zero is None else zero)
        return te.sum(left * less_zero(w[(m, c, *taps)], point(w_zero, m)), axis=[c, *taps])

    assert use.dtype is I32
    return _with_bias(use, sums, bias)


def _patches(use: Use, x: Tensor) -> Tensor:
    """The elements of each window; window origins do not depend on padding."""
    rank, strides, dilations = x.ndim - 2, use["strides"], use["dilations"]

    def element(n: Expr, *rest: Expr) -> Expr:
        places, taps, channel = rest[:rank], rest[rank:-1], rest[-1]
        at = [
            sym.add(sym.mul(place, stride), sym.mul(tap, step))
            for place, tap, stride, step in zip(places, taps, strides, dilations, strict=True)
        ]
        return x[(n, *at, channel)]

    return te.compute(use.shape, element, name=use.name)


def _conv_transpose(use: Use, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    groups, strides, dilations = use["groups"], use["strides"], use["dilations"]
    seen = image(use, x)
    per_group, rank = w.shape[1], x.ndim - 2
    inner = sym.simplify(sym.floordiv(seen.shape[1], groups))

    def sums(n: Expr, m: Expr, *places: Expr) -> Expr:
        group = group_of(m, image_shape(use)[1], groups)
        within = m if groups == 1 else sym.sub(m, sym.mul(group, per_group))
        c = te.reduce_axis((0, inner), name="c")
        axes, tests, taps, sources = [c], [], [], []
        for axis in range(rank):
            o = sym.add(places[axis], use["pads"][axis])
            step, first, fits = _phase(o, strides[axis], dilations[axis])
            kernel = w.shape[axis + 2]
            count = sym.simplify(sym.ceildiv(kernel, step))
            j = te.reduce_axis((0, count), name=f"r{axis}")
            tap = sym.simplify(sym.add(first, sym.mul(j, step)))
            source = sym.floordiv(sym.sub(o, sym.mul(tap, dilations[axis])), strides[axis])
            tests += [*fits, sym.lt(tap, kernel), sym.le(0, source)]
            tests.append(sym.lt(source, seen.shape[axis + 2]))
            axes.append(j)
            taps.append(tap)
            sources.append(source)
        channel = sym.add(sym.mul(group, inner), c)
        term = wide(seen[(n, channel, *sources)]) * wide(w[(channel, within, *taps)])
        return te.sum(te.if_then_else(te.all(*tests), term, te.const(0, term.dtype)), axis=axes)

    return _with_bias(use, sums, bias)


def _phase(o: Expr, stride: int, dilation: int) -> tuple[int, Expr, list[Expr]]:
    """The kernel positions k with o - k * dilation a multiple of the stride: every `step`th from
    `first` on.

    With g = gcd(stride, dilation) there are some only if g divides o; then k = o / g * (dilation /
    g)^-1 modulo stride / g.
    """
    common = math.gcd(stride, dilation)
    step = stride // common
    fits = [te.eq(sym.floormod(o, common), 0)] if common > 1 else []
    inverse = pow(dilation // common, -1, step) if step > 1 else 0
    first = sym.floormod(sym.mul(sym.floordiv(o, common), inverse), step)
    return step, sym.simplify(first), fits


def _col2im(use: Use, x: Tensor, image: Tensor | None, block: Tensor | None) -> Tensor:
    """Every element sums the elements of columns that cover it."""
    kernel, size = items(use, 2, block), use.shape[2:]
    strides, dilations = use["strides"], use["dilations"]
    rank, of = len(kernel), wide(x[ZERO, ZERO, ZERO]).dtype
    counts = []
    for axis in range(rank):
        padded = sym.add(sym.add(size[axis], use["pads"][axis]), use["pads"][axis + rank])
        reach = sym.add(sym.mul(sym.sub(kernel[axis], 1), dilations[axis]), 1)
        counts.append(sym.add(sym.floordiv(sym.sub(padded, reach), strides[axis]), 1))
    is_known = block is None
    each = sym.simplify(sym.floordiv(x.shape[1], sym.maximum(use.shape[1], 1)))

    def element(n: Expr, m: Expr, *places: Expr) -> Expr:
        if is_known:
            axes = [te.reduce_axis((0, k), name=f"r{at}") for at, k in enumerate(kernel)]
            taps: list[Expr] = list(axes)
        else:  # a flat range of kernel positions
            axes = [te.reduce_axis((0, each), name="r")]
            taps = list(split_index(axes[0], [sym.maximum(k, 1) for k in kernel]))
        channel: Expr = m
        column: Expr = ZERO
        tests: list[Expr] = []
        for axis in range(rank):
            moved = sym.sub(
                sym.add(places[axis], use["pads"][axis]), sym.mul(taps[axis], dilations[axis])
            )
            window = sym.floordiv(moved, strides[axis])
            if strides[axis] > 1:
                tests.append(te.eq(sym.floormod(moved, strides[axis]), 0))
            tests += [sym.le(0, window), sym.lt(window, counts[axis])]
            channel = sym.add(sym.mul(channel, kernel[axis]), taps[axis])
            column = sym.add(sym.mul(column, counts[axis]), window)
        if not is_known:
            channel = sym.minimum(sym.add(sym.mul(m, each), axes[0]), sym.sub(x.shape[1], 1))
        column = sym.maximum(sym.minimum(column, sym.sub(x.shape[2], 1)), 0)
        tests += [sym.lt(0, x.shape[2])] if static(x.shape[2]) is None else []
        seen = wide(x[n, channel, column])
        total = te.sum(te.if_then_else(te.all(*tests), seen, te.const(0, of)), axis=axes)
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _refuses_conv_integer(use: Use) -> str:
    per_channel = use.call.has(2) and any(static(dim) != 1 for dim in use.call.shape(2))
    return "with a zero point per channel of x" if per_channel else ""


REFUSALS: dict[str, Refusal] = {"conv_integer": _refuses_conv_integer}
LOWERINGS: dict[str, Lowering] = {
    "conv": _conv,
    "conv_integer": _conv_integer,
    "conv_transpose": _conv_transpose,
    "col2im": _col2im,
    "patches": _patches,
}
