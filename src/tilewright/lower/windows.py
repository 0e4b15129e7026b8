"""Sliding windows over spatial axes: element positions and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright import sym, te
from tilewright.graph.ops.windows import extent
from tilewright.lower.base import Use, static
from tilewright.lower.image_layout import Image, compute_image
from tilewright.sym import ZERO, Expr


class Window:
    """The windows of an operator over the spatial axes of x."""

    def __init__(self, use: Use, x: Image, kernel: Sequence[Expr | int]) -> None:
        self.use, self.x, self.rank = use, x, x.ndim - 2
        self.kernel = [sym.as_expr(size) for size in kernel]
        self.strides, self.dilations = use["strides"], use["dilations"]
        self.begins = [sym.as_expr(pad) for pad in use["pads"][: self.rank]]
        self.ends = [sym.as_expr(pad) for pad in use["pads"][self.rank :]]
        # With rounding up, the last window may extend past the end.
        self.rounded_up = bool(use.call.attributes.get("ceil_mode", False))
        self.overhang = bool(use.call.attributes.get("overhang", False))

    def is_padded(self, axis: int) -> bool:
        """Whether windows may extend outside of the image along an axis."""
        begin, end = static(self.begins[axis]), static(self.ends[axis])
        if begin is None or end is None or begin > 0 or end > 0 or self.rounded_up:
            return True
        reach = extent(self.kernel[axis], self.dilations[axis])
        room = sym.add(self.x.shape[axis + 2], begin + end)
        return self.overhang and not sym.prove(sym.le(reach, room))

    def place(self, axis: int, window: Expr, tap: Expr) -> Expr:
        """The position of a window's kernel position along an axis."""
        moved = sym.add(sym.mul(window, self.strides[axis]), sym.mul(tap, self.dilations[axis]))
        return moved if self.begins[axis] is ZERO else sym.sub(moved, self.begins[axis])

    def read(
        self,
        lead: Sequence[Expr],
        windows: Sequence[Expr],
        taps: Sequence[Expr],
        outside: Expr,
        seen: Callable[[Expr], Expr] = lambda value: value,
    ) -> Expr:
        """The element of a window at a kernel position, mapped by `seen`; `outside` if it is not in
        the image."""
        places = [self.place(axis, windows[axis], taps[axis]) for axis in range(self.rank)]
        value = seen(self.x[(*lead, *places)])
        tests = []
        for axis, place in enumerate(places):
            if self.is_padded(axis):
                tests += [sym.le(0, place), sym.lt(place, self.x.shape[axis + 2])]
        return te.if_then_else(te.all(*tests), value, outside) if tests else value

    def padded(self, outside: Expr) -> Window:
        """The same windows over a padded copy, a stage that a schedule may compute in pieces."""
        if not any(self.is_padded(axis) for axis in range(self.rank)):
            return self
        x, begins, use = self.x, self.begins, self.use
        dims = [
            sym.simplify(sym.maximum(sym.add(sym.add(size, begin), end), 0))
            for size, begin, end in zip(x.shape[2:], begins, self.ends, strict=True)
        ]

        def element(n: Expr, c: Expr, *places: Expr) -> Expr:
            inner = [sym.sub(place, begin) for place, begin in zip(places, begins, strict=True)]
            tests = []
            for axis, place in enumerate(inner):
                if self.is_padded(axis):
                    tests += [sym.le(0, place), sym.lt(place, x.shape[axis + 2])]
            return te.if_then_else(te.all(*tests), x[(n, c, *inner)], outside)

        copy = compute_image(use, element, (*x.shape[:2], *dims), f"{use.name}_padded")
        made = Window(use, Image(copy, last=x.last), self.kernel)
        made.begins = made.ends = [ZERO] * self.rank
        return made

    def taps(self) -> list[Any]:
        """Reduction axes over the kernel."""
        return [te.reduce_axis((0, size), name=f"r{at}") for at, size in enumerate(self.kernel)]

    def combined(self, body: Callable[..., Any], combine: te.Reduction) -> Expr:
        """body(taps), reduced over the kernel."""
        taps = self.taps()
        value: Expr = combine(body(*taps), axis=taps)
        return value

    def is_whole(self, windows: Sequence[Expr]) -> Expr:
        """Whether all kernel positions of a window are in the image: loops are partitioned by such
        conditions."""
        tests: list[Expr] = []
        for axis in range(self.rank):
            if self.is_padded(axis):
                last = self.place(axis, windows[axis], sym.sub(self.kernel[axis], 1))
                tests.append(sym.le(0, self.place(axis, windows[axis], ZERO)))
                tests.append(sym.lt(last, self.x.shape[axis + 2]))
        return te.all(*tests) if tests else sym.TRUE

    def count(self, axis: int, window: Expr, *, with_pads: bool) -> Expr:
        """The number of kernel positions in the image, or in the padded image, along an axis.

        Positions are `dilation` apart: ceil((limit - first) / dilation) are below a limit.
        """
        if not self.is_padded(axis):
            return self.kernel[axis]
        first = self.place(axis, window, ZERO)
        size = self.x.shape[axis + 2]
        low = sym.sub(0, self.begins[axis]) if with_pads else ZERO
        high = sym.add(size, self.ends[axis]) if with_pads else size

        def below(limit: Expr) -> Expr:
            count = sym.ceildiv(sym.sub(limit, first), self.dilations[axis])
            return sym.maximum(sym.minimum(count, self.kernel[axis]), 0)

        return sym.maximum(sym.sub(below(high), below(low)), 0)
