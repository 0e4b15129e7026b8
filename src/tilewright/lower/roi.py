"""Regions of images pooled to one size: how many pixels a bin covers only the data tells."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, INDEX
from tilewright.lower.base import Lowering, Use, wide, wide_type
from tilewright.lower.statements import procedure, seq, store, when
from tilewright.sym import ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, Stmt

FAR = 1 << 40  # no image is larger


def _real(value: Expr | float) -> Expr:
    return te.cast(value, F64) if isinstance(value, Expr) else te.const(value, F64)


def _whole(value: Expr) -> Expr:
    """A rounded number as an index; what is far outside stays outside."""
    far = te.const(FAR, value.dtype)
    return te.cast(te.max(te.min(value, far), te.const(0, value.dtype) - far), INDEX)


def _kept(index: Expr, size: Expr) -> Expr:
    return sym.maximum(sym.minimum(index, sym.sub(size, 1)), 0)


# ------------------------------------------------------------------------------------ align


class _Span:
    """A region along one axis: where its samples lie."""

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
        """Where a sample of a bin lies: samples are evenly spaced."""
        inside = (_real(sample) + _real(0.5)) / _real(sym.maximum(self.each, 1))
        return self.start + self.step * (_real(bin) + inside)


def _neighbours(place: Expr, size: Expr) -> list[tuple[Expr, Expr]]:
    """The two elements around a place, each with its weight; far outside none has any."""
    near = te.all(place >= _real(-1.0), place <= _real(size))
    inside = te.min(te.max(place, _real(0.0)), _real(size) - _real(1.0))
    low = te.floor(inside)
    part = te.select(near, inside - low, _real(0.0))
    rest = te.select(near, _real(1.0) - (inside - low), _real(0.0))
    first = _kept(_whole(low), size)
    return [(first, rest), (_kept(first + 1, size), part)]


def _roi_align(use: Use, x: Tensor, rois: Tensor, images: Tensor) -> Tensor:
    """The greatest is of the weighted corners, as ONNX has it."""
    of, largest = wide_type(x.dtype), use["mode"] == "max"
    rows, columns = use["size"]

    def body(ins: list[BufferView], outs: list[BufferView], *index: Expr) -> Stmt:
        (source, regions, which), (out, total) = ins, outs

        def corners(y: Expr, x_: Expr) -> list[Expr]:
            image = _kept(te.cast(which[index[0]], INDEX), x.shape[0])
            return [
                wide(source[image, index[1], row, column]) * te.cast(tall * broad, of)
                for row, tall in _neighbours(y, x.shape[2])
                for column, broad in _neighbours(x_, x.shape[3])
            ]

        edge = [wide(regions[index[0], sym.const(at)]) for at in range(4)]
        down = _Span(use, edge[1], edge[3], rows)
        across = _Span(use, edge[0], edge[2], columns)
        i, j = sym.var("down"), sym.var("across")
        seen = corners(down.place(index[2], i), across.place(index[3], j))
        value = te.max(*seen) if largest else (seen[0] + seen[1]) + (seen[2] + seen[3])
        if largest:
            is_first = te.all(te.eq(i, 0), te.eq(j, 0))
            value = te.select(is_first, value, te.max(total[index], value))
        else:
            value = total[index] + value
        inner = For(i, ZERO, down.each, For(j, ZERO, across.each, store(total, index, value)))
        found = total[index]
        if not largest:
            found = found / te.cast(sym.maximum(down.each * across.each, 1), of)
        full = [sym.lt(0, dim) for dim in (x.shape[0], *x.shape[2:])]
        return seq(
            store(total, index, te.const(0, of)),
            when(full, inner),
            store(out, index, te.cast(found, use.dtype)),
        )

    shapes, types = [use.shape, use.shape], [use.dtype, of]
    return procedure(shapes, [x, rois, images], body, use.name, types, use.shape)[0]


# ------------------------------------------------------------------------------------ pool


def _bin(use: Use, low: Expr, high: Expr, at: Expr, bins: int, limit: Expr) -> tuple[Expr, Expr]:
    """The pixels that a bin covers along an axis: from, and without, to."""
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
