"""Image resampling.

Positions and weights are computed once per axis, in f64, as small tensors; an image is then resized
axis by axis, each by a weighted sum of few elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, I32, I64, INDEX, DType
from tilewright.lower.base import (
    STORED,
    Lowering,
    Requirement,
    Use,
    item,
    placed,
    product,
    read_at,
    real_item,
    static,
    unless_empty,
    unless_none,
    wide,
    wide_type,
)
from tilewright.sym import Const, Expr
from tilewright.te import Tensor
from tilewright.tensor.interp.values import evaluate

MAX_SHORT = 1 << 30  # of sizes for which positions, plus a few elements, fit in 32 bits


def _real(value: Expr | float) -> Expr:
    return te.cast(value, F64) if isinstance(value, Expr) else te.const(value, F64)


def _inside(at: Expr, size: Expr) -> Expr:
    """Clamp a position to a dimension."""
    if at.dtype is I32:
        last = te.cast(sym.sub(size, 1), I32)
        return te.cast(te.max(te.min(at, last), te.const(0, I32)), INDEX)
    return sym.maximum(sym.minimum(at, sym.sub(size, 1)), 0)


def _position_type(size: Expr) -> DType:
    """The type of positions in memory: 32 bits if possible, for more lanes per vector."""
    known = static(size)
    return I32 if known is not None and known <= MAX_SHORT else INDEX


# ------------------------------------------------------------------------------------ resize


class Resize:
    """One use of resize: input positions along each axis."""

    def __init__(
        self,
        use: Use,
        x: Tensor,
        roi: Tensor | None,
        scales: Tensor | None,
        sizes: Tensor | None,
    ) -> None:
        self.use, self.x, self.roi, self.scales, self.sizes = use, x, roi, scales, sizes

    def factor(self, at: int) -> Expr:
        """The scale of the axis number `at` in the list of axes."""
        use, axes = self.use, self.use["axes"]
        if use.call.has(2):
            return _real(real_item(use, 2, self.scales, at))

        def ratio(place: int) -> Expr:
            before = self.x.shape[axes[place]]
            wanted = _real(item(use, 3, self.sizes, place)) / _real(sym.maximum(before, 1))
            return te.select(sym.lt(0, before), wanted, _real(1.0))

        if use["policy"] == "stretch":
            return ratio(at)
        choose = te.min if use["policy"] == "not_larger" else te.max
        ratios = [ratio(place) for place in range(len(axes))]
        out: Expr = choose(ratios[0], *ratios[1:]) if len(ratios) > 1 else ratios[0]
        return out

    def places(self, at: int) -> Tensor:
        """The input position of each output element along an axis."""
        axis = self.use["axes"][at]
        name = f"{self.use.name}_places{axis}"
        return te.compute((self.use.shape[axis],), partial(self.place, at), name=name)

    def place(self, at: int, i: Expr) -> Expr:
        """The input position of one element."""
        axis = self.use["axes"][at]
        before, after = self.x.shape[axis], self.use.shape[axis]
        scale = self.factor(at)
        place = self._place(at, _real(i), _real(before), after, scale)
        if self.use["crop"] or (isinstance(scale, Const) and scale.value != 1.0):
            return place
        same = te.all(te.eq(before, after), te.eq(scale, _real(1.0)))
        return te.select(same, _real(i), place)

    def nearest(self, at: int, places: Tensor) -> Callable[[Expr], Expr]:
        """The source of each element along an axis, without interpolation."""
        axis = self.use["axes"][at]
        size, after = self.x.shape[axis], self.use.shape[axis]
        times = self._repeats(at)
        if times:
            return lambda i: sym.floordiv(i, times)

        of, nearest = _position_type(size), _NEAREST[self.use["nearest"]]

        def source(i: Expr) -> Expr:
            found = te.cast(nearest(te, places[i], _real(0.5)), INDEX)
            return te.cast(_inside(found, size), of)

        sources = te.compute((after,), source, name=f"{self.use.name}_sources{axis}", attrs=STORED)
        return lambda i: _inside(sources[i], size)

    def _repeats(self, at: int) -> int:
        """The number of repetitions of every element along an axis, if constant; else 0."""
        axis = self.use["axes"][at]
        before, after = self.x.shape[axis], self.use.shape[axis]
        size, count = static(before), static(after)
        if size and count and count % size == 0:
            times = count // size
        else:
            # Halves, quarters ... are exact, so positions are periodic: this period and that of the
            # nearest elements, twice as long, represent all.
            scale = self.factor(at)
            if not isinstance(scale, Const) or scale.value < 1.0 or scale.value % 1.0:
                return 0
            times = int(scale.value)
            if times.bit_count() > 1 or not sym.equal(after, sym.mul(before, times)):
                return 0
            size, count = 2, 2 * times
        i = sym.var("i")
        place = sym.simplify(self.place(at, i))
        if not all(node is i or isinstance(node, _ARITHMETIC) for node in sym.walk(place)):
            return 0
        each = np.arange(count)
        found = _NEAREST[self.use["nearest"]](np, evaluate(place, {i: each}), 0.5)
        # For a dynamic size, the first elements say nothing about clamping at the end.
        found = np.clip(found, 0, size - 1) if static(before) else found
        return times if np.all(found == each // times) else 0

    def _place(self, at: int, x: Expr, before: Expr, after: Expr, scale: Expr) -> Expr:
        half, one, zero = _real(0.5), _real(1.0), _real(0.0)
        mode, several = self.use["coordinates"], sym.lt(1, after)
        if mode == "half_pixel":
            return (x + half) / scale - half
        if mode == "pytorch_half_pixel":
            return te.select(several, (x + half) / scale - half, zero)
        if mode == "half_pixel_symmetric":
            offset = before / _real(2.0) * (one - _real(after) / (scale * before))
            return offset + (x + half) / scale - half
        if mode == "align_corners":
            corner = scale * before - one
            return te.select(corner > zero, x * (before - one) / corner, zero)
        if mode == "asymmetric":
            return x / scale
        if mode == "tf_half_pixel_for_nn":
            return (x + half) / scale
        assert mode == "tf_crop_and_resize", mode
        start, length = self._crop(at)
        last = before - one
        spread = start * last + x * length * last / _real(sym.maximum(sym.sub(after, 1), 1))
        return te.select(several, spread, (start + length / _real(2.0)) * last)

    def _crop(self, at: int) -> tuple[Expr, Expr]:
        """Start and length of the region along an axis, relative to the axis."""
        if self.roi is None:
            return _real(0.0), _real(1.0)
        start = _real(self.roi[at])
        return start, _real(self.roi[len(self.use["axes"]) + at]) - start

    def is_kept(self, at: int) -> bool:
        """Whether an axis is known to be unchanged."""
        axis = self.use["axes"][at]
        before, after = (sym.simplify(of[axis]) for of in (self.x.shape, self.use.shape))
        if self.use.call.has(2):
            is_same = real_item(self.use, 2, self.scales, at) == 1.0
        else:
            is_same = self.use["policy"] == "stretch"
        return before is after and is_same and not self.use["crop"]

    def order(self) -> list[int]:
        """The resized axes, in the order that reads least.

        The last axis is gathered by lanes; along the others, whole vectors are contiguous. So these
        come before it where they shrink, and after it where they grow.
        """
        axes, last = self.use["axes"], self.x.ndim - 1
        left = [at for at in range(len(axes)) if not self.is_kept(at)]
        growth = {at: self._growth(at) for at in left}

        def rank(at: int) -> tuple[int, float, int]:
            is_last = axes[at] == last
            return (0 if is_last else 1 if growth[at] >= 1.0 else -1, growth[at], -axes[at])

        return sorted(left, key=rank)

    def _growth(self, at: int) -> float:
        """The new size of an axis over the old one; 1 where neither sizes nor scales are known."""
        axis = self.use["axes"][at]
        before, after = static(self.x.shape[axis]), static(self.use.shape[axis])
        if before and after:
            return after / before
        scale = self.factor(at) if self.use.call.has(2) else None
        return float(scale.value) if isinstance(scale, Const) else 1.0

    def along(self, x: Tensor, at: int, places: Tensor, of: DType, *, is_last: bool) -> Tensor:
        """Resize along one axis: the weighted sum of each position's taps.

        Weights and sources of all positions are contiguous: a vector of positions reads a vector. A
        constant number of taps is unrolled: the last axis fuses with its consumers.
        """
        use = self.use
        axis = use["axes"][at]
        before, after = x.shape[axis], use.shape[axis]
        reach = 1 if use["mode"] == "linear" else 2
        taps: Expr = sym.const(reach)
        if use["antialias"]:
            # reach / scale taps on each side; the scale is at least (after - 1/2) / before.
            wide_taps = sym.ceildiv(sym.mul(before, 2 * reach), sym.maximum(after * 2 - 1, 1))
            taps = sym.simplify(sym.maximum(wide_taps, reach))
        count = sym.simplify(sym.mul(taps, 2))
        name = f"{use.name}_{axis}"

        def step(k: Expr) -> Expr:
            return sym.sub(sym.add(k, 1), taps)

        def weight(k: Expr, i: Expr) -> Expr:
            place = places[i]
            low = te.floor(place)
            distance = _real(step(k)) - (place - low)
            if use["antialias"]:
                distance = distance * te.min(self.factor(at), _real(1.0))
            value = _weight(use["mode"], distance, use["cubic_a"])
            if use["exclude_outside"]:
                index = te.cast(low, INDEX) + step(k)
                value = te.select(te.all(index >= 0, index < before), value, _real(0.0))
            return value

        weights = te.compute((count, after), weight, name=f"{name}_weights")
        total: Tensor | None = None
        if use["exclude_outside"] or use["antialias"]:
            k = te.reduce_axis((0, count), name="k")
            raw = weights
            total = te.compute((after,), lambda i: te.sum(raw[k, i], axis=k), name=f"{name}_total")

        def share(k: Expr, i: Expr) -> Expr:
            return te.cast(weights[k, i] if total is None else weights[k, i] / total[i], of)

        shares = te.compute((count, after), share, name=f"{name}_shares", attrs=STORED)
        near = _position_type(before)
        lows = te.compute(
            (after,),
            lambda i: te.cast(_near(te.cast(te.floor(places[i]), INDEX), before, taps), near),
            name=f"{name}_lows",
            attrs=STORED,
        )

        def tap(index: tuple[Expr, ...], k: Expr) -> Expr:
            i = index[axis]
            source = _inside(lows[i] + te.cast(step(k), near), before)
            return te.cast(x[placed(index, axis, source)], of) * shares[k, i]

        def element(*index: Expr) -> Expr:
            known = static(count)
            if known is None or use["antialias"]:
                k = te.reduce_axis((0, count), name="k")
                return te.sum(unless_empty(x, (axis,), tap(index, k)), axis=k)
            first, *others = [tap(index, sym.const(k)) for k in range(known)]
            return unless_empty(x, (axis,), sum(others, first))

        attrs = None if is_last else STORED  # elements that the next axis reads several times
        return te.compute(placed(x.shape, axis, after), element, name=name, attrs=attrs)


def _near(low: Expr, size: Expr, taps: Expr) -> Expr:
    """Clamp a position to the taps' reach: elements beyond are equal."""
    return sym.maximum(sym.minimum(low, sym.add(size, taps)), sym.mul(sym.add(taps, 1), -1))


def _weight(mode: str, distance: Expr, a: float) -> Expr:
    """The weight of an element at a distance from the position; `a` is the parameter of Keys' cubic
    kernel."""
    x, one, zero = te.abs(distance), _real(1.0), _real(0.0)
    if mode == "linear":
        return te.max(one - x, zero)
    near = (_real(a + 2) * x - _real(a + 3)) * x * x + one
    far = ((_real(a) * x - _real(5 * a)) * x + _real(8 * a)) * x - _real(4 * a)
    return te.select(x <= one, near, te.select(x < _real(2.0), far, zero))


_ARITHMETIC = (sym.Const, sym.Cast, sym.Add, sym.Sub, sym.Mul, sym.Div)

_NEAREST: Mapping[str, Callable[[Any, Any, Any], Any]] = {  # in te or np, of a position and 1/2
    "round_prefer_floor": lambda by, x, half: by.ceil(x - half),
    "round_prefer_ceil": lambda by, x, half: by.floor(x + half),
    "floor": lambda by, x, half: by.floor(x),
    "ceil": lambda by, x, half: by.ceil(x),
    "round_even": lambda by, x, half: by.round(x),
}


def _resize(
    use: Use, x: Tensor, roi: Tensor | None, scales: Tensor | None, sizes: Tensor | None
) -> Tensor:
    resize, axes = Resize(use, x, roi, scales, sizes), use["axes"]
    places = [resize.places(at) for at in range(len(axes))]
    made, of = x, wide_type(x.dtype) if x.dtype.is_float else F32
    nearest: list[Callable[[Expr], Expr]] = []
    if use["mode"] == "nearest":
        nearest = [resize.nearest(at, places[at]) for at in range(len(axes))]
    else:
        order = resize.order()
        for at in order:
            made = resize.along(made, at, places[at], of, is_last=at == order[-1])

    def element(*index: Expr) -> Expr:
        source, outside = list(index), []
        for at, axis in enumerate(axes):
            place, size = places[at][index[axis]], x.shape[axis]
            if use["mode"] == "nearest":
                source[axis] = nearest[at](index[axis])
            outside += [place < _real(0.0), place > _real(size) - _real(1.0)]
        value = read_at(made, source, *(axes if use["mode"] == "nearest" else ()))
        if use["crop"] and outside:
            fill = te.const(use["extrapolation"], value.dtype)
            value = te.select(te.any(*outside), fill, value)
        return te.cast(value, use.dtype)

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ sampling


def _grid_sample(use: Use, x: Tensor, grid: Tensor) -> Tensor:
    """Positions and weights are equal for all channels: they are a separate stage."""
    rank = x.ndim - 2
    of = wide_type(x.dtype) if x.dtype.is_float else F64

    def places(n: Expr, *index: Expr) -> tuple[Expr, ...]:
        found: list[Expr] = []
        for axis in range(rank):
            size = x.shape[axis + 2]
            at = _real(wide(grid[(n, *index, sym.const(rank - 1 - axis))]))
            if use["align_corners"]:
                at = (at + _real(1.0)) / _real(2.0) * (_real(size) - _real(1.0))
            else:
                at = ((at + _real(1.0)) * _real(size) - _real(1.0)) / _real(2.0)
            for near, weight in _sample_taps(use, at, size):
                found += [te.cast(near, I64), te.cast(weight, of)]
        return tuple(found)

    made = te.compute((x.shape[0], *use.shape[2:]), places, name=f"{use.name}_places")
    count = len(made) // (2 * rank)

    def element(n: Expr, c: Expr, *index: Expr) -> Expr:
        here = (n, *index)
        axes = []
        for axis in range(rank):
            pairs = [made[2 * at : 2 * at + 2] for at in range(axis * count, (axis + 1) * count)]
            size = x.shape[axis + 2]
            axes.append([(_inside(te.cast(s[here], INDEX), size), w[here]) for s, w in pairs])
        total: Expr = te.const(0, of)
        for taps in itertools.product(*axes):
            weight: Expr = te.const(1, of)
            for _, part in taps:
                weight = weight * part
            seen = te.cast(x[(n, c, *(near for near, _ in taps))], of)
            total = total + seen * weight
        return te.cast(unless_empty(x, range(2, x.ndim), total), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _sample_taps(use: Use, at: Expr, size: Expr) -> list[tuple[Expr, Expr]]:
    """The taps of a position along an axis, with weights."""
    if use["mode"] == "nearest":
        found = [(te.round(at), _real(1.0))]
    else:
        steps = range(2) if use["mode"] == "linear" else range(-1, 3)
        spots = [te.floor(at) + _real(float(step)) for step in steps]
        found = [(spot, _weight(use["mode"], spot - at, -0.75)) for spot in spots]
    return [_outside(use, spot, weight, size) for spot, weight in found]


def _outside(use: Use, spot: Expr, weight: Expr, size: Expr) -> tuple[Expr, Expr]:
    """Map taps outside of the image according to the padding mode."""
    if use["padding"] == "zeros":
        inside = te.all(spot >= _real(0.0), spot < _real(size))
        weight = te.select(inside, weight, _real(0.0))
    elif use["padding"] == "reflection":
        spot = _reflected(spot, size, align_corners=use["align_corners"])
    return _inside(te.cast(spot, INDEX), size), weight


def _reflected(spot: Expr, size: Expr, *, align_corners: bool) -> Expr:
    """Reflect positions outside at the borders, repeatedly if necessary."""
    low = _real(0.0 if align_corners else -0.5)
    span = _real(size) - (_real(1.0) if align_corners else _real(0.0))
    turn = span * _real(2.0)
    offset = spot - low
    folded = offset - turn * te.floor(offset / turn)
    mirrored = low + te.select(folded > span, turn - folded, folded)
    return te.select(span > _real(0.0), mirrored, _real(0.0))


def _affine_grid(use: Use, theta: Tensor, size: Tensor | None) -> Tensor:
    spatial = use.shape[1:-1]
    rank = len(spatial)

    def line(axis: int, at: Expr) -> Expr:
        count, step = spatial[axis], _real(at) * _real(2.0)
        if not use["align_corners"]:
            return (step + _real(1.0)) / _real(count) - _real(1.0)
        last = _real(sym.maximum(sym.sub(count, 1), 1))
        return te.select(sym.lt(1, count), step / last - _real(1.0), _real(0.0))

    def element(n: Expr, *index: Expr) -> Expr:
        row = index[-1]
        total = _real(0.0)
        for column in range(rank):  # innermost axis first
            axis = rank - 1 - column
            total = total + line(axis, index[axis]) * _real(theta[n, row, sym.const(column)])
        return te.cast(total + _real(theta[n, row, sym.const(rank)]), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _resizes_something(use: Use) -> list[Expr]:
    """An empty axis cannot be resized, except by scales that keep it empty."""
    if not use.call.has(3):
        return []
    before, after = use.call.shape(0), use.shape
    return [cond for axis in use["axes"] for cond in unless_none(after[axis], before[axis])]


def _samples_something(use: Use) -> list[Expr]:
    count = product(use.shape)
    return [cond for dim in use.call.shape(0)[2:] for cond in unless_none(count, dim)]


REQUIREMENTS: dict[str, Requirement] = {
    "resize": _resizes_something,
    "grid_sample": _samples_something,
}
LOWERINGS: dict[str, Lowering] = {
    "resize": _resize,
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
}
