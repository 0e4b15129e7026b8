"""Convolutions and pooling, by structure: windows that slide over spatial axes.

    Y[n, y, x, o] = sum over c, i, j of
        X[n, y * stride + i * dilation, x * stride + j * dilation, group(o) + c] * W[o, c, i, j]

    Y[n, y, x, o] = sum, or another reduction, over i, j of
        f(X[n, y * stride + i * dilation, x * stride + j * dilation, o])

Any number of spatial axes. The input may be a padded copy that the program makes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.rules.match.contraction import operands
from tilewright.rules.match.nest import Nest
from tilewright.sym import ONE, ZERO, Add, Const, Expr, FloorDiv, Var
from tilewright.tensor.ir import Load, Update
from tilewright.tensor.visit import exprs


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A reduction over windows of an image; iterators are named by their position in the block."""

    nest: Nest
    x: Load
    batch: int
    out_spatial: tuple[int, ...]  # spatial iterators of the result
    out_channels: int
    kernel_spatial: tuple[int, ...]  # kernel positions, one iterator per spatial axis
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def size(self, at: int) -> int | None:
        """An extent, where it is static."""
        found = self.nest.extent(at)
        return int(found.value) if isinstance(found, Const) else None

    def assumed(self, at: int, unknown: int) -> int:
        """An extent, or what is assumed of a dynamic one."""
        return self.nest.assumed(at, unknown)

    def positions(self, at: int) -> int:
        """An extent of the image, or what is assumed of a dynamic one."""
        return self.nest.positions(at)

    @property
    def depth(self) -> int | None:
        """The number of terms of the reduction, where it is static."""
        total = 1
        for at in self.nest.reduce:
            size = self.size(at)
            if size is None:
                return None
            total *= size
        return total


@dataclass(frozen=True, kw_only=True)
class Convolution(Windows):
    """A convolution: windows times weights, summed."""

    w: Load
    in_channels: int  # the iterator over input channels of a group
    out_channels_per_group: int  # 0: there is one group
    is_padded: bool = False  # the input is a padded copy with no other reader

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads one input channel of its own."""
        return self.out_channels_per_group == 1 and self.nest.extent(self.in_channels) is ONE

    @property
    def is_pointwise(self) -> bool:
        """Whether the kernel is 1 x 1."""
        return all(self.nest.extent(at) is ONE for at in self.kernel_spatial)

    @property
    def is_of_lines(self) -> bool:
        """Whether windows of one channel are contiguous: a 1D convolution that is a GEMM of
        overlapping rows."""
        *outer, last = self.kernel_spatial
        alone = all(self.nest.extent(at) is ONE for at in (self.in_channels, *outer))
        plain = self.out_channels_per_group == 0 and self.dilations[-1] == 1
        return alone and plain and self.nest.extent(last) is not ONE

    def read_index(self, load: Load) -> int:
        """Which of the block's reads an operand is."""
        return next(i for i, r in enumerate(self.nest.block.reads) if r.buffer is load.buffer)


def convolution(nest: Nest) -> Convolution | None:
    """The convolution that a nest computes; None if it is none."""
    found = _written(nest)
    if found is None:
        return None
    loads, (batch, *places, out) = found
    for x, w in (loads, loads[::-1]):
        made = _of_operands(nest, x, w, batch, places, out)
        if made is not None:
            return made
    return None


def planes_of(nest: Nest) -> Convolution | None:
    """The depthwise convolution, channels first, that a nest computes; None if it is none."""
    found = _written(nest)
    if found is None or len(found[0][0].index) < 3:
        return None
    loads, (batch, out, *places) = found
    for x, w in (loads, loads[::-1]):
        if len(x.index) == 2 + len(places):
            moved = Load(x.buffer, (x.index[0], *x.index[2:], x.index[1]))
            made = _of_operands(nest, moved, w, batch, places, out)
            if made is not None and made.is_depthwise:
                return replace(made, x=x)
    return None


def pool(nest: Nest) -> Windows | None:
    """The per-channel reduction of windows that a nest computes, channels last; None if it is
    none."""
    return _pool(nest, -1)


def pool_planes(nest: Nest) -> Windows | None:
    """`pool` with channels first."""
    return _pool(nest, 1)


def _pool(nest: Nest, channel: int) -> Windows | None:
    """A pool whose channel is that dimension of input and result."""
    spatial = _indexed_by(nest)
    loads = [expr for expr in exprs(nest.block.body) if isinstance(expr, Load)]
    if spatial is None or len(loads) != 1 or len(nest.block.writes) != 1:
        return None
    (x,) = loads
    if len(x.index) != len(spatial):
        return None
    seen = list(x.index)
    out, read = spatial.pop(channel), seen.pop(channel)
    (batch, *places), (image, *seen) = spatial, seen
    taps = [_tap(nest, at) for at in seen]
    known = [at for at in taps if at is not None]
    if len(nest.reduce) != len(places) or sorted(known) != nest.reduce:
        return None
    if image is not nest.var(batch) or read is not nest.var(out):
        return None
    steps = _all_steps(nest, seen, places, known)
    if steps is None:
        return None
    strides, dilations = steps
    return Windows(
        nest=nest,
        x=x,
        batch=batch,
        out_spatial=tuple(places),
        out_channels=out,
        kernel_spatial=tuple(known),
        strides=strides,
        dilations=dilations,
    )


def _tap(nest: Nest, expr: Expr) -> int | None:
    """The only reduction iterator in an expression."""
    found = [at for at in nest.reduce if sym.uses_var(expr, {nest.var(at)})]
    return found[0] if len(found) == 1 else None


def _written(nest: Nest) -> tuple[tuple[Load, Load], list[int]] | None:
    """The operands of a sum of products, and the iterators that index its result."""
    loads, spatial = operands(nest.block), _indexed_by(nest)
    if loads is None or spatial is None or len(loads[0].index) < 3:
        return None
    return loads, spatial


def _indexed_by(nest: Nest) -> list[int] | None:
    """The iterators that index the result of a reduction: all spatial ones, at least three."""
    if not isinstance(nest.block.body, Update):
        return None
    places = [_position(nest, at) for at in nest.block.body.index]
    spatial = [at for at in places if at is not None]
    if len(spatial) != len(places) or sorted(spatial) != nest.spatial or len(spatial) < 3:
        return None
    return spatial


def _position(nest: Nest, expr: Expr) -> int | None:
    """The position of the iterator that an expression is."""
    for at in nest.loops:
        if nest.var(at) is expr:
            return at
    return None


def _of_operands(
    nest: Nest, x: Load, w: Load, batch: int, places: list[int], out: int
) -> Convolution | None:
    rank = len(places)
    if len(x.index) != rank + 2 or len(w.index) != rank + 2:
        return None
    weights = [_position(nest, at) for at in w.index]
    known = [at for at in weights if at is not None]
    if len(known) != rank + 2 or known[0] != out or sorted(known[1:]) != nest.reduce:
        return None
    inner, *taps = known[1:]
    if x.index[0] is not nest.var(batch):
        return None
    steps = _all_steps(nest, x.index[1:-1], places, taps)
    per_group = _per_group(x.index[-1], nest, out, inner)
    if steps is None or per_group is None:
        return None
    strides, dilations = steps
    return Convolution(
        nest=nest,
        x=x,
        w=w,
        batch=batch,
        out_spatial=tuple(places),
        out_channels=out,
        in_channels=inner,
        kernel_spatial=tuple(taps),
        strides=strides,
        dilations=dilations,
        out_channels_per_group=per_group,
    )


def _all_steps(
    nest: Nest, seen: Sequence[Expr], places: list[int], taps: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Strides and dilations of all spatial axes, from the input's indices."""
    steps = [
        _steps(at, nest.var(place), nest.var(tap))
        for at, place, tap in zip(seen, places, taps, strict=True)
    ]
    known = [each for each in steps if each is not None]
    if len(known) != len(steps):
        return None
    return tuple(stride for stride, _ in known), tuple(dilation for _, dilation in known)


def _steps(expr: Expr, place: Var, tap: Var) -> tuple[int, int] | None:
    """The stride and dilation of an index; what remains must be constant."""
    found = sym.linear(expr, (place, tap))
    if found is None:
        return None
    factors, rest = found
    stride, dilation = factors.get(place, ZERO), factors.get(tap, ZERO)
    if not isinstance(rest, Const) or not isinstance(stride, Const):
        return None
    if not isinstance(dilation, Const) or int(stride.value) < 1 or int(dilation.value) < 1:
        return None
    return int(stride.value), int(dilation.value)


def _per_group(expr: Expr, nest: Nest, out: int, inner: int) -> int | None:
    """Output channels per group, from the index of the input channel; 0 for one group, None if it
    is of another form."""
    c, o = nest.var(inner), nest.var(out)
    if expr is c:
        return 0
    if not isinstance(expr, Add):
        return None
    first = expr.a if expr.b is c else expr.b if expr.a is c else None
    if first is None:
        return None
    if first is o:
        return 1 if nest.extent(inner) is ONE else None
    for part in _parts(first):
        if isinstance(part, FloorDiv) and part.a is o and isinstance(part.b, Const):
            return int(part.b.value)
    return None


def _parts(expr: Expr) -> list[Expr]:
    found, stack = [], [expr]
    while stack:
        item = stack.pop()
        found.append(item)
        stack.extend(item.children())
    return found
