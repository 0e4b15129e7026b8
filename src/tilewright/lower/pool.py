"""Pooling over windows."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX
from tilewright.lower.base import (
    Lowering,
    Use,
    flat_index,
    number,
    product,
    split_index,
    static,
    wide,
    wide_type,
)
from tilewright.lower.image_layout import compute_image, image
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.lower.windows import Window
from tilewright.sym import Expr
from tilewright.te import Tensor
from tilewright.tensor.ir import Stmt


def _max_pool(use: Use, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    window = Window(use, image(use, x), use["kernel"])
    least = te.const(x.dtype.min, x.dtype)

    def element(n: Expr, c: Expr, *places: Expr) -> Expr:
        greatest = window.combined(
            lambda *taps: wide(window.read((n, c), places, taps, least)), te.max
        )
        return te.cast(greatest, use.dtype)

    made: Tensor = compute_image(use, element)
    return (made, _greatest_at(use, window, made)) if use.call.outputs > 1 else made


def _greatest_at(use: Use, window: Window, made: Tensor) -> Tensor:
    """Positions of the maxima in the whole tensor: the first kernel position with the maximum,
    converted to an index; the first of its image for a window of padding only. Unlike a running
    pair of index and value this is vectorized."""
    none = te.const(I32.max, I32)
    found = image(use, made)

    def first(n: Expr, c: Expr, *places: Expr) -> Expr:
        greatest = found[(n, c, *places)]

        def tap(*taps: Expr) -> Expr:
            at = te.cast(flat_index(taps, window.kernel), I32)

            def here(value: Expr) -> Expr:
                same = te.eq(value, greatest)
                same = te.any(same, te.isnan(value)) if value.dtype.is_float else same
                return te.select(same, at, none)

            return window.read((n, c), places, taps, none, here)

        return window.combined(tap, te.min)

    first_tap = image(use, compute_image(use, first, name=f"{use.name}_tap"))
    spatial = window.x.shape[2:]

    def position(n: Expr, c: Expr, *places: Expr) -> Expr:
        tap = first_tap[(n, c, *places)]
        chosen = split_index(te.cast(tap, INDEX), window.kernel)
        where = [window.place(axis, places[axis], chosen[axis]) for axis in range(window.rank)]
        order = list(reversed(range(window.rank))) if use["column_major"] else range(window.rank)
        flat = flat_index([where[axis] for axis in order], [spatial[axis] for axis in order])
        image = sym.add(sym.mul(n, window.x.shape[1]), c)
        inside = te.select(te.eq(tap, none), te.const(0, I64), te.cast(flat, I64))
        return inside + te.cast(sym.mul(image, product(spatial)), I64)

    at: Tensor = compute_image(use, position, name=f"{use.name}_indices")
    return at


def _avg_pool(use: Use, x: Tensor) -> Tensor:
    window, of = Window(use, image(use, x), use["kernel"]), wide_type(x.dtype)

    def element(n: Expr, c: Expr, *places: Expr) -> Expr:
        total = window.combined(
            lambda *taps: wide(window.read((n, c), places, taps, te.const(0, x.dtype))), te.sum
        )
        counts = [
            window.count(axis, at, with_pads=use["include_pad"]) for axis, at in enumerate(places)
        ]
        count = product(counts)
        if static(count) is not None:
            return te.cast(total / number(count, of), use.dtype)
        some = number(sym.maximum(count, 1), of)
        whole = number(product(window.kernel), of)
        return te.cast(total / te.select(window.is_whole(places), whole, some), use.dtype)

    made: Tensor = compute_image(use, element)
    return made


def _lp_pool(use: Use, x: Tensor) -> Tensor:
    window, of, p = Window(use, image(use, x), use["kernel"]), wide_type(x.dtype), use["p"]

    def power(value: Expr) -> Expr:
        size = te.abs(wide(value))
        return size if p == 1 else size * size if p == 2 else te.pow(size, te.const(p, of))

    def element(n: Expr, c: Expr, *places: Expr) -> Expr:
        total = window.combined(
            lambda *taps: power(window.read((n, c), places, taps, te.const(0, x.dtype))), te.sum
        )
        root = te.sqrt(total) if p == 2 else te.pow(total, te.const(1 / p, of))
        return te.cast(total if p == 1 else root, use.dtype)

    made: Tensor = compute_image(use, element)
    return made


def _max_unpool(use: Use, x: Tensor, indices: Tensor, shape: Tensor | None) -> Tensor:
    """Indices refer to the shape that was pooled to x; a larger shape is zero-padded."""
    natural = list(x.shape[:2])
    rank = x.ndim - 2
    for axis in range(rank):
        reach = (use["kernel"][axis] - 1) * use["dilations"][axis] + 1
        grown = sym.add(sym.mul(sym.sub(x.shape[axis + 2], 1), use["strides"][axis]), reach)
        pads = sym.add(sym.as_expr(use["pads"][axis]), use["pads"][axis + rank])
        natural.append(sym.simplify(sym.sub(grown, pads)))

    def body(ins: list[te.BufferView], outs: list[te.BufferView]) -> Stmt:
        (source, places), (out,) = ins, outs
        zeros = loops(use.shape, lambda *index: store(out, index, te.const(0, x.dtype)))

        def put(*index: Expr) -> Stmt:
            flat = te.cast(places[index], INDEX)
            where = split_index(flat, natural)
            pairs = zip(where, use.shape, strict=True)
            tests = [sym.le(0, flat), *(sym.lt(at, dim) for at, dim in pairs)]
            return when(tests, store(out, where, source[index]))

        return seq(zeros, loops(x.shape, put, "u"))

    (out,) = procedure([use.shape], [x, indices], body, use.name, [x.dtype])
    return out


LOWERINGS: dict[str, Lowering] = {
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "lp_pool": _lp_pool,
    "max_unpool": _max_unpool,
}
