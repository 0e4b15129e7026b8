"""Sliding windows over the spatial axes of a tensor, shared by convolution and pooling.

Tensors are [batch, channels, *spatial]. A window has a kernel size, stride, dilation and pads per
spatial axis; `pads` lists all beginnings, then all ends, and may contain expressions of sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.op import Attr, Call
from tilewright.sym import ONE, Expr, ExprLike

Array = np.ndarray[Any, Any]

STRIDES = Attr("strides", tuple, required=True)
PADS = Attr("pads", tuple, required=True)
DILATIONS = Attr("dilations", tuple, required=True)


def check_window(call: Call, spatial: int) -> None:
    """Check that attributes cover all spatial axes, with positive strides and dilations."""
    if spatial < 1:
        raise call.error("TW1204", f"{call.op} needs at least one spatial axis")
    for name, count in (("strides", spatial), ("dilations", spatial), ("pads", 2 * spatial)):
        values = call[name]
        if len(values) != count:
            raise call.error(
                "TW1204", f"{name} of {call.op} needs {count} values, got {len(values)}"
            )
        if name != "pads" and any(value < 1 for value in values):
            raise call.error("TW1204", f"{name} of {call.op} must be positive, got {values}")


def extent(kernel: ExprLike, dilation: int) -> Expr:
    """The extent of a dilated window: (kernel - 1) * dilation + 1."""
    return sym.add(sym.mul(sym.sub(kernel, 1), dilation), 1)


def window_counts(
    call: Call,
    spatial: Sequence[ExprLike],
    kernel: Sequence[ExprLike],
    *,
    ceil_mode: bool = False,
    overhang: bool = False,
) -> tuple[Expr, ...]:
    """The number of windows along each axis.

    Rounding up includes a window that extends past the end, unless it starts after the last
    element: at most ceil((size + begin) / stride) windows. `overhang` rounds up only if no window
    fits.
    """
    out: list[Expr] = []
    rank = len(spatial)
    for axis, (size, k) in enumerate(zip(spatial, kernel, strict=True)):
        stride, dilation = call["strides"][axis], call["dilations"][axis]
        begin, end = call["pads"][axis], call["pads"][axis + rank]
        from_begin = sym.add(sym.as_expr(size), begin)
        room = sym.sub(sym.add(from_begin, end), extent(k, dilation))
        if ceil_mode:
            count = sym.add(sym.ceildiv(room, stride), 1)
            count = sym.minimum(count, sym.ceildiv(from_begin, stride))
        else:
            count = sym.add(sym.floordiv(room, stride), 1)
        if overhang and not ceil_mode:
            # For a nonempty image, at least one if a stride covers the window.
            covered = sym.prove(sym.le(sym.sub(extent(k, dilation), sym.add(begin, end)), stride))
            least = ONE if covered else sym.minimum(sym.add(sym.ceildiv(room, stride), 1), 1)
            count = sym.maximum(count, least)
        out.append(sym.simplify(sym.maximum(count, 0)))
    return tuple(out)


def same_pads(
    spatial: Sequence[ExprLike],
    kernel: Sequence[ExprLike],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    lower: bool,
) -> tuple[Expr | int, ...]:
    """Pads that give ceil(size / stride) windows; with `lower` the beginning gets the larger
    one."""
    begins: list[Expr | int] = []
    ends: list[Expr | int] = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        count = sym.ceildiv(sym.as_expr(size), stride)
        covered = sym.add(sym.mul(sym.sub(count, 1), stride), extent(k, dilation))
        total = sym.maximum(sym.sub(covered, size), 0)
        half = sym.floordiv(sym.add(total, 1) if lower else total, 2)
        begins.append(as_number(half))
        ends.append(as_number(sym.sub(total, half)))
    return (*begins, *ends)


def as_number(expr: Expr) -> Expr | int:
    """An expression, or its value if constant."""
    made = sym.simplify(expr)
    return int(made.value) if isinstance(made, sym.Const) else made


def pad_spatial(x: Array, pads: Sequence[int], fill: Any = 0) -> Array:
    """x with elements added (or, for negative pads, removed) around the spatial axes."""
    spatial = x.ndim - 2
    begins, ends = pads[:spatial], pads[spatial:]
    added = [(0, 0), (0, 0)]
    added += [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)]
    out = np.pad(x, added, constant_values=fill)
    kept = [slice(None), slice(None)]
    for axis, (b, e) in enumerate(zip(begins, ends, strict=True)):
        size = out.shape[axis + 2]
        kept.append(slice(max(0, -b), size - max(0, -e)))
    return out[tuple(kept)]


def taps(
    kernel: Sequence[int], counts: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """For each position in the kernel, an index of the elements of all windows there."""
    for tap in itertools.product(*map(range, kernel)):
        where = [
            slice(t * d, t * d + (n - 1) * s + 1 if n else 0, s)
            for t, d, n, s in zip(tap, dilations, counts, strides, strict=True)
        ]
        yield tap, (slice(None), slice(None), *where)
