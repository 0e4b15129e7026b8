"""Fourier transforms as sums of products with a table of roots of unity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import sym, te
from tilewright.base.dtype import F64, I64, INDEX, DType
from tilewright.lower.axes import axes_of, may_be
from tilewright.lower.base import Lowering, Use, front_axis, item, placed, static, wide, wide_type
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import Tensor


def _roots(length: Expr, of: DType, name: str, period: Expr | None = None) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi m / period, for m below the length, which is the default period."""
    turn = length if period is None else period

    def angle(m: Expr) -> Expr:
        return te.cast(m, F64) * te.const(2 * math.pi, F64) / te.cast(turn, F64)

    cosines = te.compute((length,), lambda m: te.cast(te.cos(angle(m)), of), name=f"{name}_cos")
    sines = te.compute((length,), lambda m: te.cast(te.sin(angle(m)), of), name=f"{name}_sin")
    return cosines, sines


def _dft(use: Use, x: Tensor, length: Tensor | None, axis: Tensor | None) -> Tensor:
    named, given = use.call.ints(2), use.call.value(1)
    if named is None or (use.call.has(1) and given is None):
        return _dft_at_run_time(use, x, length, axis)
    at, of = front_axis(named[0], x.ndim), wide_type(x.dtype)
    inverse, onesided = use["inverse"], use["onesided"]
    back = inverse and onesided
    if given is not None:
        count = given[0]
    else:
        count = use.shape[at] if back else x.shape[at]
    cosines, sines = _roots(count, of, use.name)
    is_complex = static(x.shape[-1]) != 1 and (inverse or not onesided)
    terms = sym.simplify(sym.add(sym.floordiv(count, 2), 1)) if back else count

    def part(index: tuple[Expr, ...], t: Expr, which: int) -> Expr:
        value = wide(x[(*placed(index, at, t)[:-1], sym.const(which))])
        tests = [] if terms is x.shape[at] else [sym.lt(t, x.shape[at])]
        if which and static(x.shape[-1]) is None:  # real numbers have one part
            tests.append(sym.lt(which, x.shape[-1]))
        return te.if_then_else(te.all(*tests), value, te.const(0, of)) if tests else value

    def element(*index: Expr) -> Expr:
        t = te.reduce_axis((0, terms), name="t")
        turn = sym.floormod(sym.mul(index[at], t), count)
        c = cosines[turn]
        s = -sines[turn] if inverse else sines[turn]
        real = part(index, t, 0)
        imaginary = part(index, t, 1) if is_complex else te.const(0, of)
        upper = real * c + imaginary * s  # of (real + i imaginary) (c - i s)
        if back:  # the other half of the spectrum is the conjugate mirror image
            once = te.any(te.eq(t, 0), te.eq(t * 2, count))
            value = te.select(once, upper, upper * te.const(2, of))
        else:
            value = te.select(te.eq(index[-1], 0), upper, imaginary * c - real * s)
        total = te.sum(value, axis=t)
        if inverse:
            total = total / te.cast(count, of)
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _dft_at_run_time(use: Use, x: Tensor, length: Tensor | None, axis: Tensor | None) -> Tensor:
    """Along a dynamic axis, or of dynamic length: sums up to the maximal length."""
    (named,) = axes_of(use, 2, axis, 1, x.ndim)
    axes = [at for at in range(x.ndim - 1) if may_be([named], at)]
    of, inverse, onesided = wide_type(x.dtype), use["inverse"], use["onesided"]
    back = inverse and onesided

    here = _along(named, x.shape, axes)
    if use.call.has(1):
        count = item(use, 1, length, 0)
    else:
        count = (here - 1) * 2 if back else here
    terms = sym.floordiv(count, 2) + 1 if back else count
    most: Expr = ONE
    for at in axes:
        most = sym.maximum(most, sym.maximum(x.shape[at], sym.mul(use.shape[at], 2)))
    most = sym.simplify(most)
    whole = te.compute((), lambda: te.cast(sym.maximum(count, 1), I64), name=f"{use.name}_count")
    period = sym.maximum(te.cast(whole[()], INDEX), 1)
    cosines, sines = _roots(most, of, use.name, period)
    is_complex = static(x.shape[-1]) != 1 and (inverse or not onesided)

    def part(index: tuple[Expr, ...], t: Expr, which: int) -> Expr:
        place = [te.select(te.eq(named, at), t, index[at]) for at in range(x.ndim - 1)]
        pairs = list(zip(place, x.shape, strict=False))
        inside = [sym.maximum(sym.minimum(at, sym.sub(dim, 1)), 0) for at, dim in pairs]
        tests = [sym.lt(at, dim) for at, dim in pairs]
        if which:  # real numbers have one part
            tests.append(sym.lt(which, x.shape[-1]))
        value = wide(x[(*inside, sym.const(which))])
        return te.if_then_else(te.all(*tests), value, te.const(0, of))

    def element(*index: Expr) -> Expr:
        t = te.reduce_axis((0, most), name="t")
        turn = sym.floormod(sym.mul(_along(named, index, axes), t), period)
        c, s = (_guarded([turn < most], table[turn]) for table in (cosines, sines))
        s = -s if inverse else s
        real = part(index, t, 0)
        imaginary = part(index, t, 1) if is_complex else te.const(0, of)
        upper = real * c + imaginary * s
        if back:
            once = te.any(te.eq(t, 0), te.eq(t * 2, count))
            value = te.select(once, upper, upper * te.const(2, of))
        else:
            value = te.select(te.eq(index[-1], 0), upper, imaginary * c - real * s)
        total = te.sum(value, axis=t, where=t < terms)
        if inverse:
            total = total / te.cast(period, of)
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _along(named: Expr, values: Sequence[Expr], axes: Sequence[int]) -> Expr:
    """The value for the selected axis."""
    out = values[axes[-1]]
    for at in axes[:-1]:
        out = te.select(te.eq(named, at), values[at], out)
    return out


def _stft(
    use: Use, x: Tensor, step: Tensor | None, window: Tensor | None, length: Tensor | None
) -> Tensor:
    of = wide_type(x.dtype)
    stride, given = item(use, 1, step, 0), use.call.value(3)
    count = window.shape[0] if window is not None else given[0] if given else x.shape[1]
    is_known = window is not None or given is not None or not use.call.has(3)
    if not is_known:  # the maximal length with this number of bins
        count = use.shape[2]
        if use["onesided"]:
            count = sym.simplify(sym.maximum(sym.sub(sym.mul(use.shape[2], 2), 1), 1))
    period = count if is_known else sym.maximum(item(use, 3, length, 0), 1)
    cosines, sines = _roots(count, of, use.name, period)
    is_complex = static(x.shape[-1]) != 1 and not use["onesided"]
    is_inside = is_known and step is None

    def element(n: Expr, frame: Expr, bin: Expr, which: Expr) -> Expr:
        t = te.reduce_axis((0, count), name="t")
        place = sym.add(sym.mul(frame, stride), t)
        tests = []
        if not is_inside:
            tests = [t < period, place >= 0, place < x.shape[1]]
            place = sym.maximum(sym.minimum(place, sym.sub(x.shape[1], 1)), 0)
        seen = te.const(1, of) if window is None else te.cast(window[t], of)
        real = _guarded(tests, wide(x[n, place, ZERO])) * seen
        imaginary = te.const(0, of)
        if is_complex:
            tests = [*tests, sym.lt(1, x.shape[-1])]
            imaginary = _guarded(tests, wide(x[n, place, sym.ONE])) * seen
        turn = sym.floormod(sym.mul(bin, t), period)
        tests = [] if is_known else [turn < count]
        c, s = (_guarded(tests, table[turn]) for table in (cosines, sines))
        value = te.select(te.eq(which, 0), real * c + imaginary * s, imaginary * c - real * s)
        return te.cast(te.sum(value, axis=t), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _guarded(tests: Sequence[Expr], value: Expr) -> Expr:
    return te.if_then_else(te.all(*tests), value, te.const(0, value.dtype)) if tests else value


# ------------------------------------------------------------------------------------ mel


def _mel_weights(
    use: Use,
    bands: Tensor | None,
    length: Tensor | None,
    rate: Tensor,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """Triangular filters, evenly spaced on the mel scale, over the bins of a spectrum."""
    count, size = use.shape[1], item(use, 1, length, 0)

    def real(value: Tensor | Expr | float) -> Expr:
        if isinstance(value, Tensor):
            return te.cast(value[(0,) * value.ndim], F64)
        return te.cast(value, F64) if isinstance(value, Expr) else te.const(value, F64)

    def mel(hertz: Expr) -> Expr:
        return real(2595.0) * te.log10(real(1.0) + hertz / real(700.0))

    def edge(i: Expr) -> Expr:
        first, last = mel(real(low)), mel(real(high))
        at = first + real(i) * ((last - first) / real(count + 2))
        hertz = real(700.0) * (te.exp10(at / real(2595.0)) - real(1.0))
        return te.cast(te.floor(real(size + 1) * hertz / real(rate)), I64)

    edges = te.compute((sym.simplify(count + 2),), edge, name=f"{use.name}_edges")

    def weight(row: Expr, band: Expr) -> Expr:
        left, peak, right = (edges[band + at] for at in range(3))
        here = te.cast(row, I64)
        up = te.cast(here - left, F64) / te.cast(te.max(peak - left, te.const(1, I64)), F64)
        up = te.select(te.eq(peak, left), real(1.0), up)
        value = te.select(te.all(left <= here, here <= peak), up, real(0.0))
        down = te.cast(right - here, F64) / te.cast(te.max(right - peak, te.const(1, I64)), F64)
        value = te.select(te.all(peak <= here, here < right), down, value)
        return te.cast(value, use.dtype)

    return te.compute(use.shape, weight, name=use.name)


LOWERINGS: dict[str, Lowering] = {"dft": _dft, "stft": _stft, "mel_weights": _mel_weights}
