"""Pooling of image regions, with bins of data-dependent size."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, INDEX
from tilewright.graph.ops.layout import channels_last
from tilewright.lower.base import Lowering, Use, wide, wide_type
from tilewright.lower.image_layout import image, image_shape, is_last
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, Stmt

FAR = 1 << 40  # no image is larger


def _real(value: Expr | float) -> Expr:
    return te.cast(value, F64) if isinstance(value, Expr) else te.const(value, F64)


def _whole(value: Expr) -> Expr:
    """A rounded number as an index; far outside positions stay outside."""
    far = te.const(FAR, value.dtype)
    return te.cast(te.max(te.min(value, far), te.const(0, value.dtype) - far), INDEX)


def _kept(index: Expr, size: Expr) -> Expr:
    return sym.maximum(sym.minimum(index, sym.sub(size, 1)), 0)


# ------------------------------------------------------------------------------------ align


class _Span:
    """A region along one axis, with its sample positions."""

    def __init__(self, use: Use, low: Expr, high: Expr, bins: int) -> None:
        shift = 0.5 if use["half_pixel"] else 0.0
        scale = _real(use["scale"])
        self.start = _real(low) * scale - _real(shift)
        length = _real(high) * scale - _real(shift) - self.start
        if not use["half_pixel"]:
            length = te.max(length, _real(1.0))
        self.step = length / _real(float(bins))
        ratio = use["sampling_ratio"]
        self.each = sym.const(ratio) if ratio > 0 else sym.maximum(_whole(te.ceil(self.step)), 0)

    def place(self, bin: Expr, sample: Expr) -> Expr:
        """The position of a sample of a bin: samples are evenly spaced."""
        inside = (_real(sample) + _real(0.5)) / _real(sym.maximum(self.each, 1))
        return self.start + self.step * (_real(bin) + inside)


def _neighbours(place: Expr, size: Expr) -> list[tuple[Expr, Expr]]:
    """The two elements around a position with their weights; zero far outside."""
    near = te.all(place >= _real(-1.0), place <= _real(size))
    inside = te.min(te.max(place, _real(0.0)), _real(size) - _real(1.0))
    low = te.floor(inside)
    part = te.select(near, inside - low, _real(0.0))
    rest = te.select(near, _real(1.0) - (inside - low), _real(0.0))
    first = _kept(_whole(low), size)
    return [(first, rest), (_kept(first + 1, size), part)]


def _roi_align(use: Use, x: Tensor, rois: Tensor, images: Tensor) -> Tensor:
    """ONNX takes the maximum over the weighted corners.

    Positions and weights of a sample are equal for all channels. With channels last, a work item is
    a bin with all channels, the innermost loop, which LLVM vectorizes; with channels first it is
    one element, for many threads.
    """
    of, largest = wide_type(x.dtype), use["mode"] == "max"
    rows, columns = use["size"]
    regions_count, channels, *_ = image_shape(use)
    seen = image(use, x)

    def body(ins: list[BufferView], outs: list[BufferView], *index: Expr) -> Stmt:
        (source, regions, which), (out, total) = ins, outs
        region, row, column = (index[at] for at in (0, -2, -1))
        number = _kept(te.cast(which[region], INDEX), seen.shape[0])
        edge = [wide(regions[region, sym.const(at)]) for at in range(4)]
        down = _Span(use, edge[1], edge[3], rows)
        across = _Span(use, edge[0], edge[2], columns)
        i, j = sym.var("down"), sym.var("across")
        corners = [
            (y, x_, te.cast(tall * broad, of))
            for y, tall in _neighbours(down.place(row, i), seen.shape[2])
            for x_, broad in _neighbours(across.place(column, j), seen.shape[3])
        ]
        count = te.cast(sym.maximum(down.each * across.each, 1), of)

        def at(channel: Expr, first: Expr, *place: Expr) -> tuple[Expr, ...]:
            placed = (first, channel, *place)
            return channels_last(placed) if is_last(use) else placed

        def of_channels(make: Callable[[Expr], Stmt]) -> Stmt:
            return loops([channels], make, "channel") if is_last(use) else make(index[1])

        def start(channel: Expr) -> Stmt:
            return store(total, at(channel, region, row, column), te.const(0, of))

        def sample(channel: Expr) -> Stmt:
            values = [wide(source[at(channel, number, y, x_)]) * w for y, x_, w in corners]
            place = at(channel, region, row, column)
            if largest:
                is_first = te.all(te.eq(i, 0), te.eq(j, 0))
                value = te.max(*values)
                value = te.select(is_first, value, te.max(total[place], value))
            else:
                value = total[place] + ((values[0] + values[1]) + (values[2] + values[3]))
            return store(total, place, value)

        def finish(channel: Expr) -> Stmt:
            place = at(channel, region, row, column)
            found = total[place] if largest else total[place] / count
            return store(out, place, te.cast(found, use.dtype))

        samples = For(i, ZERO, down.each, For(j, ZERO, across.each, of_channels(sample)))
        full = [sym.lt(0, dim) for dim in (seen.shape[0], *seen.shape[2:])]
        return seq(of_channels(start), when(full, samples), of_channels(finish))

    shapes, types = [use.shape, use.shape], [use.dtype, of]
    bins = (regions_count, sym.const(rows), sym.const(columns))
    over = bins if is_last(use) else use.shape
    return procedure(shapes, [x, rois, images], body, use.name, types, over)[0]


# ------------------------------------------------------------------------------------ pool


def _bin(use: Use, low: Expr, high: Expr, at: Expr, bins: int, limit: Expr) -> tuple[Expr, Expr]:
    """The range of pixels in a bin along an axis, end exclusive."""
    scale, half = te.const(use["scale"], F32), te.const(0.5, F32)
    start, last = (_whole(te.floor(te.cast(edge, F32) * scale + half)) for edge in (low, high))
    step = _real(sym.maximum(last - start + 1, 1)) / _real(float(bins))
    first = _whole(te.floor(_real(at) * step)) + start
    end = _whole(te.ceil(_real(at + 1) * step)) + start
    inside = [sym.maximum(sym.minimum(edge, limit), 0) for edge in (first, end)]
    return inside[0], inside[1]


def _max_roi_pool(use: Use, x: Tensor, rois: Tensor) -> Tensor:
    rows, columns = use["size"]

    def body(ins: list[BufferView], outs: list[BufferView], *index: Expr) -> Stmt:
        (source, regions), (out, best) = ins, outs
        edge = [wide(regions[index[0], sym.const(at)]) for at in range(5)]
        image = _kept(_whole(te.trunc(edge[0])), x.shape[0])
        top, bottom = _bin(use, edge[2], edge[4], index[2], rows, x.shape[2])
        left, right = _bin(use, edge[1], edge[3], index[3], columns, x.shape[3])
        y, x_ = sym.var("y"), sym.var("x")
        seen = source[image, index[1], y, x_]
        is_first = te.all(te.eq(y, top), te.eq(x_, left))
        more = te.any(wide(seen) > wide(best[index]), *_is_nan(wide(seen)))
        found = when([te.any(is_first, more)], store(best, index, seen))
        window = For(y, top, bottom, For(x_, left, right, found))
        return seq(
            store(best, index, te.const(0, x.dtype)),
            when([sym.lt(0, x.shape[0])], window),
            store(out, index, best[index]),
        )

    shapes, types = [use.shape, use.shape], [x.dtype, x.dtype]
    return procedure(shapes, [x, rois], body, use.name, types, use.shape)[0]


def _is_nan(value: Expr) -> list[Expr]:
    return [te.isnan(value)] if value.dtype.is_float else []


LOWERINGS: dict[str, Lowering] = {"roi_align": _roi_align, "max_roi_pool": _max_roi_pool}
