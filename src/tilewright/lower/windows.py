"""Windows that slide over spatial axes: where they look, and what of it is inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright import sym, te
from tilewright.lower.base import Use, static
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor


class Window:
    """The windows of one operator over the spatial axes of x."""

    def __init__(self, use: Use, x: Tensor, kernel: Sequence[Expr | int]) -> None:
        self.x, self.rank = x, x.ndim - 2
        self.kernel = [sym.as_expr(size) for size in kernel]
        self.strides, self.dilations = use["strides"], use["dilations"]
        self.begins = [sym.as_expr(pad) for pad in use["pads"][: self.rank]]
        self.ends = [sym.as_expr(pad) for pad in use["pads"][self.rank :]]
        # A last window that only rounding up admits may run past the end.
        self.rounded_up = bool(use.call.attributes.get("ceil_mode", False))

    def is_padded(self, axis: int) -> bool:
        """Whether a window may see anything outside the image along an axis."""
        begin, end = static(self.begins[axis]), static(self.ends[axis])
        return begin is None or end is None or begin > 0 or end > 0 or self.rounded_up

    def place(self, axis: int, window: Expr, tap: Expr) -> Expr:
        """Where a window has a tap along an axis."""
        moved = sym.add(sym.mul(window, self.strides[axis]), sym.mul(tap, self.dilations[axis]))
        return moved if self.begins[axis] is ZERO else sym.sub(moved, self.begins[axis])

    def read(
        self, lead: Sequence[Expr], windows: Sequence[Expr], taps: Sequence[Expr], outside: Expr
    ) -> Expr:
        """The element a window sees at a tap; `outside` where that is not in the image."""
        places = [self.place(axis, windows[axis], taps[axis]) for axis in range(self.rank)]
        value = self.x[(*lead, *places)]
        tests = []
        for axis, place in enumerate(places):
            if self.is_padded(axis):
                tests += [sym.le(0, place), sym.lt(place, self.x.shape[axis + 2])]
        return te.if_then_else(te.all(*tests), value, outside) if tests else value

    def taps(self) -> list[Any]:
        """Reduction axes over the kernel."""
        return [te.reduce_axis((0, size), name=f"r{at}") for at, size in enumerate(self.kernel)]

    def combined(self, body: Callable[..., Any], combine: te.Reduction) -> Expr:
        """body(taps) over the whole kernel."""
        taps = self.taps()
        value: Expr = combine(body(*taps), axis=taps)
        return value

    def count(self, axis: int, window: Expr, *, with_pads: bool) -> Expr:
        """How many taps of a window lie inside, or inside with the pads, along an axis.

        Taps are `dilation` apart: those below a limit number ceil((limit - first) / dilation).
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
