"""Reductions and cumulative operators along dynamic axes: loops and stores.

Every element of x is added to the element at its index without the reduced axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright import sym, te
from tilewright.base.dtype import INDEX, DType
from tilewright.lower.axes import axes_of, is_named, items, nth_left
from tilewright.lower.base import Use, product, static
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import If, Stmt

Combine = Callable[[Expr, Expr], Expr]


def reduced_at_run_time(
    use: Use,
    x: Tensor,
    axes: Tensor,
    combine: te.Reduction,
    of: Callable[[Expr], Expr],
) -> Tensor:
    """Reduce of(x[...]) along the axes in a tensor."""
    count = len(items(use, 1, axes))
    to = of(x[(ZERO,) * x.ndim]).dtype
    identity = combine.reducer(to).identity[0]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source, listed), (out,) = ins, outs
        gone = _gone(listed, count, x.ndim)

        def element(*index: Expr) -> Stmt:
            if use["keepdims"]:
                pairs = zip(gone, index, strict=True)
                place = [te.select(test, ZERO, at) for test, at in pairs]
            else:
                place = [nth_left(gone, index, at, ZERO) for at in range(len(use.shape))]
            # Axes that contradict the output's shape must not cause writes outside of it.
            pairs = zip(place, use.shape, strict=True)
            inside = tuple(sym.maximum(sym.minimum(at, sym.sub(dim, 1)), 0) for at, dim in pairs)
            return store(out, inside, combine(out[inside], of(source[index])))

        clear = loops(use.shape, lambda *index: store(out, index, identity), "c")
        full = [sym.lt(0, dim) for dim in use.shape if static(dim) is None]
        return seq(clear, when(full, loops(x.shape, element)))

    (made,) = procedure([use.shape], [x, axes], body, f"{use.name}_wide", [to])
    return made


def _gone(listed: BufferView, count: int, rank: int) -> list[Expr]:
    """For each axis, whether it is reduced."""
    found = [te.cast(listed[(at,) if listed.ndim else ()], INDEX) for at in range(count)]
    named = [te.select(axis < 0, axis + rank, axis) for axis in found]
    return [is_named(named, axis) for axis in range(rank)]


def count_at_run_time(use: Use, x: Tensor, axes: Tensor) -> Expr:
    """The number of elements per result."""
    named = axes_of(use, 1, axes, 0, x.ndim)
    dims = [te.select(is_named(named, axis), dim, ONE) for axis, dim in enumerate(x.shape)]
    return product(dims)


def running_at_run_time(
    use: Use, x: Tensor, axis: Tensor, combine: Combine, start: int, of: DType
) -> Tensor:
    """Elements in order: each from the previous one along the axis."""

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source, listed), (out,) = ins, outs
        along = _gone(listed, 1, x.ndim)

        def element(*index: Expr) -> Stmt:
            here = _mirrored(index, x.shape) if use["reverse"] else index
            step = -1 if use["reverse"] else 1
            pairs = list(zip(along, here, strict=True))
            before = tuple(te.select(test, at - step, at) for test, at in pairs)
            firsts = [
                te.all(test, te.eq(at, dim - 1 if use["reverse"] else ZERO))
                for (test, at), dim in zip(pairs, x.shape, strict=True)
            ]
            added = te.cast(source[before if use["exclusive"] else here], of)
            alone = te.const(start, of)
            if not use["exclusive"]:
                alone = combine(alone, te.cast(source[here], of))
            more = store(out, here, combine(out[before], added))
            return If(te.any(*firsts), store(out, here, alone), more)

        return loops(x.shape, element)

    (made,) = procedure([x.shape], [x, axis], body, f"{use.name}_sums", [of])
    return te.compute(use.shape, lambda *index: te.cast(made[index], use.dtype), name=use.name)


def _mirrored(index: Sequence[Expr], shape: Sequence[Expr]) -> tuple[Any, ...]:
    return tuple(dim - 1 - at for at, dim in zip(index, shape, strict=True))
