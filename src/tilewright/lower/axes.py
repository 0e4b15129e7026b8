"""Axes, and bounds along them, that may be dynamic."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym, te
from tilewright.lower.base import Use, front_axis, item, static
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.te import Tensor

FAR = sym.const(1 << 62)


def items(use: Use, at: int, tensor: Tensor | None) -> list[Expr]:
    """The elements of a list of known length: numbers, or read from memory."""
    shape = use.call.shape(at)
    count = static(shape[0]) if shape else 1
    assert count is not None, use.call  # lists of dynamic length are rejected by lower/native.py
    return [item(use, at, tensor, place) for place in range(count)]


def axes_of(use: Use, at: int, tensor: Tensor | None, count: int, rank: int) -> list[Expr]:
    """The axes given by input `at`, normalized; by default the first `count`."""
    if not use.call.has(at):
        return [sym.const(axis) for axis in range(count)]
    found: list[Expr] = []
    for axis in items(use, at, tensor):
        if isinstance(axis, Const):
            found.append(sym.const(front_axis(int(axis.value), rank)))
        else:
            found.append(te.select(axis < 0, axis + rank, axis))
    return found


def at_axis(named: Sequence[Expr], values: Sequence[Expr], axis: int, other: Expr) -> Expr:
    """The element for an axis in a list parallel to the axes."""
    out = other
    for name, value in zip(named, values, strict=True):
        if isinstance(name, Const):
            out = value if name.value == axis else out
        else:
            out = te.select(te.eq(name, axis), value, out)
    return out


def may_be(named: Sequence[Expr], axis: int) -> bool:
    """Whether an axis is, or may turn out to be, one of the given ones."""
    return any(not isinstance(name, Const) or name.value == axis for name in named)


def is_named(named: Sequence[Expr], axis: int) -> Expr:
    """Whether an axis is one of the given ones."""
    return te.any(*(te.eq(name, axis) for name in named)) if named else te.const(False, "bool")


def nth_left(gone: Sequence[Expr], values: Sequence[Expr], place: int, other: Expr) -> Expr:
    """The value of axis number `place` among the remaining ones."""
    out, before = other, sym.as_expr(0)
    for test, value in zip(gone, values, strict=True):
        here = te.all(te.logical_not(test), te.eq(before, place))
        out = te.select(here, value, out)
        before = before + te.select(test, ZERO, ONE)
    return out


def first_of(start: Expr, step: Expr, dim: Expr) -> Expr:
    """The start of a slice: negative bounds count from the end, clamped."""
    high = te.select(step > 0, dim, dim - 1)
    front = te.select(start < 0, start + dim, start)
    return sym.minimum(sym.maximum(front, 0), high)


def last_of(end: Expr, step: Expr, dim: Expr) -> Expr:
    """The exclusive end of a slice; -1 is before the first."""
    low = te.select(step > 0, ZERO, sym.const(-1))
    high = te.select(step > 0, dim, dim - 1)
    front = te.select(end < 0, end + dim, end)
    return sym.maximum(sym.minimum(front, high), low)


def slice_count(start: Expr, end: Expr, step: Expr, dim: Expr) -> Expr:
    """The length of a slice; -1 for a step of 0."""
    if start is ZERO and end is dim and step is ONE:
        return dim
    stride = sym.maximum(sym.minimum(step, FAR), ZERO - FAR)
    first, last = first_of(start, stride, dim), last_of(end, stride, dim)
    room = te.select(stride > 0, last - first, first - last)
    width = sym.maximum(te.select(stride > 0, stride, ZERO - stride), 1)
    count = sym.maximum(sym.floordiv(room + width - 1, width), 0)
    return te.select(te.eq(step, 0), sym.const(-1), count)
