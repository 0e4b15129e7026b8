"""Fourier transforms as sums of products with one table of roots of unity."""

from __future__ import annotations

import math

from tilewright import sym, te
from tilewright.base.dtype import F64, DType
from tilewright.lower.base import Lowering, Use, front_axis, placed, static, wide, wide_type
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor


def _roots(length: Expr, of: DType, name: str) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi m / length, for m below the length."""

    def angle(m: Expr) -> Expr:
        return te.cast(m, F64) * te.const(2 * math.pi, F64) / te.cast(length, F64)

    cosines = te.compute((length,), lambda m: te.cast(te.cos(angle(m)), of), name=f"{name}_cos")
    sines = te.compute((length,), lambda m: te.cast(te.sin(angle(m)), of), name=f"{name}_sin")
    return cosines, sines


def _dft(use: Use, x: Tensor, length: Tensor | None, axis: Tensor | None) -> Tensor:
    named, given = use.call.ints(2), use.call.value(1)
    if named is None or (use.call.has(1) and given is None):
        raise use.unsupported("along an axis or of a length known only at run time")
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
        if back:  # the other half of the spectrum is the mirror image of this one
            once = te.any(te.eq(t, 0), te.eq(t * 2, count))
            value = te.select(once, upper, upper * te.const(2, of))
        else:
            value = te.select(te.eq(index[-1], 0), upper, imaginary * c - real * s)
        total = te.sum(value, axis=t)
        if inverse:
            total = total / te.cast(count, of)
        return te.cast(total, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _stft(
    use: Use, x: Tensor, step: Tensor | None, window: Tensor | None, length: Tensor | None
) -> Tensor:
    stride, given, of = use.call.value(1), use.call.value(3), wide_type(x.dtype)
    if stride is None or (window is None and use.call.has(3) and given is None):
        raise use.unsupported("of a step or a length known only at run time")
    count = window.shape[0] if window is not None else given[0] if given else x.shape[1]
    cosines, sines = _roots(count, of, use.name)
    is_complex = static(x.shape[-1]) != 1 and not use["onesided"]

    def element(n: Expr, frame: Expr, bin: Expr, which: Expr) -> Expr:
        t = te.reduce_axis((0, count), name="t")
        place = sym.add(sym.mul(frame, stride[0]), t)
        seen = te.const(1, of) if window is None else te.cast(window[t], of)
        real = wide(x[n, place, ZERO]) * seen
        imaginary = te.const(0, of)
        if is_complex:
            second = wide(x[n, place, sym.ONE]) * seen
            imaginary = te.if_then_else(sym.lt(1, x.shape[-1]), second, imaginary)
        turn = sym.floormod(sym.mul(bin, t), count)
        c, s = cosines[turn], sines[turn]
        value = te.select(te.eq(which, 0), real * c + imaginary * s, imaginary * c - real * s)
        return te.cast(te.sum(value, axis=t), use.dtype)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {"dft": _dft, "stft": _stft}
