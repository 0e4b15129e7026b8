"""Winograd convolution: small square kernels with fewer multiplications.

m x m results are computed at once, from a = m + r - 1 inputs along each axis for kernels of size r,
as a batch of a x a GEMMs:

    V[i, j, tile, c] = B^T d B      tiles of the image, overlapping by r - 1
    U[i, j, c, o]    = G g G^T      weights, transformed before the first call
    M[i, j, tile, o] = sum over c of V * U      c of the group of o
    Y                = A^T M A      tiles of the result

B follows from a alone: from the interpolation points 0, 1 (a = 3), 0, 1, -1 (a = 4) and 0, p, -p,
q, -q (a = 6), at which G evaluates a kernel's polynomial, and infinity. Axes are transformed one at
a time. Stages are annotated `winograd` with their roles, which the schedule uses. The counted work
is that of the direct convolution.

A result is the sum over products i of A[k, i] M[i], each with an error proportional to its
magnitude, |B[i]| |G[i]|: the error grows by the root of the sum over i of (A[k, i] |B[i]| |G[i]|)^2
/ 3 along an axis. Among points with few digits, so that no factor is rounded, p and q minimize the
largest growth: 2.7, while 1 and 2 have 5.6.

For bytes, with m = 2 and r = 3, everything is exact: 2 G has no fractions, V and U are i16, and
sums of their products, in i32, are four times the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, I16, I32, DType
from tilewright.graph.winograd import (
    COLUMNS,
    HALF,
    IMAGE,
    INTEGERS,
    PADDED,
    PRODUCT,
    RESULT,
    ROLE,
    WEIGHTS,
    Form,
)
from tilewright.lower.base import Use, group_of, split_index, static
from tilewright.lower.image_layout import Image, compute_image, image, image_shape, is_last
from tilewright.sym import Expr
from tilewright.te import Tensor
from tilewright.tensor.flops import STANDS_FOR

Transform = Callable[[Sequence[Expr]], list[Expr]]
P, Q = 11 / 16, 3 / 2  # interpolation points for tiles of six inputs


def _times(value: Expr, factor: float) -> Expr:
    return value * te.const(factor, value.dtype)


def _image3(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[1], d[1], d[2] - d[1]]


def _image4(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _image6(d: Sequence[Expr]) -> list[Expr]:
    """Pairs share subexpressions, which are computed once."""
    a, b = d[4] - _times(d[2], Q**2), _times(d[3] - _times(d[1], Q**2), P)
    e, f = d[4] - _times(d[2], P**2), _times(d[3] - _times(d[1], P**2), Q)
    first, last = (
        x - _times(y, P**2 + Q**2) + _times(z, P**2 * Q**2)
        for x, y, z in ((d[4], d[2], d[0]), (d[5], d[3], d[1]))
    )
    return [first, a + b, a - b, e + f, e - f, last]


def _weights3(g: Sequence[Expr]) -> list[Expr]:
    return [g[0], g[0] + g[1], g[1]]


def _weights4(g: Sequence[Expr]) -> list[Expr]:
    ends = g[0] + g[2]
    return [g[0], _times(ends + g[1], 0.5), _times(ends - g[1], 0.5), g[2]]


def _doubled_weights4(g: Sequence[Expr]) -> list[Expr]:
    ends = g[0] + g[2]
    return [g[0] + g[0], ends + g[1], ends - g[1], g[2] + g[2]]


def _weights6(g: Sequence[Expr]) -> list[Expr]:
    made = [_times(g[0], 1 / (P * Q) ** 2)]
    for point, other in ((P, Q), (Q, P)):
        scale = 1 / (2 * point**2 * (point**2 - other**2))
        ends = _times(g[0], scale) + _times(g[2], point**2 * scale)
        middle = _times(g[1], point * scale)
        made += [ends + middle, ends - middle]
    return [*made, g[2]]


def _result3(m: Sequence[Expr]) -> list[Expr]:
    return [m[0] + m[1], m[1] + m[2]]


def _result4(m: Sequence[Expr]) -> list[Expr]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _result6(m: Sequence[Expr]) -> list[Expr]:
    even = m[1] + m[2], m[3] + m[4]
    odd = m[1] - m[2], m[3] - m[4]
    return [
        m[0] + even[0] + even[1],
        _times(odd[0], P) + _times(odd[1], Q),
        _times(even[0], P**2) + _times(even[1], Q**2),
        _times(odd[0], P**3) + _times(odd[1], Q**3) + m[5],
    ]


TRANSFORMS: dict[Form, tuple[Transform, Transform, Transform]] = {
    Form(2, 2): (_image3, _weights3, _result3),
    Form(2, 3): (_image4, _weights4, _result4),
    Form(4, 3): (_image6, _weights6, _result6),
}
OF_INTEGERS = (_image4, _doubled_weights4, _result4)
DOUBLINGS = 2  # of integer weights: along each axis


def _role(name: str, work: int = 0) -> dict[str, str | int]:
    """The role of a stage, and the operations attributed to it."""
    return {ROLE: name, STANDS_FOR: work}


def _pick(at: Expr, values: Sequence[Expr]) -> Expr:
    """Select the value at a position; constant in unrolled schedules."""
    found = values[-1]
    for position in reversed(range(len(values) - 1)):
        found = te.select(te.eq(at, position), values[position], found)
    return found


def can_winograd(use: Use, x: Tensor, w: Tensor) -> bool:
    """Whether the method applies: square kernels with stride 1, in f32 or bytes."""
    plain = use["strides"] == (1, 1) and use["dilations"] == (1, 1)
    plain &= use["groups"] == 1 or is_last(use)
    windows = {static(dim) for dim in w.shape[2:]}
    if not plain or len(w.shape) != 4 or len(windows) != 1:
        return False
    (window,) = windows
    if w.dtype is F32:
        return Form(use["winograd"], window or 0) in TRANSFORMS
    return window == 3 and INTEGERS.serves(x.dtype, w.dtype, use["winograd"], static(w.shape[1]))


def lower_winograd(use: Use, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution of square kernels with stride 1, in tiles of m x m."""
    m: int = use["winograd"]
    window = static(w.shape[-1]) or 0
    n, o, height, width = image_shape(use)
    inner, name, groups = w.shape[1], use.name, use["groups"]
    channels = sym.simplify(sym.mul(inner, groups))
    is_exact = w.dtype is not F32
    sums = I32 if is_exact else F32
    on_image, on_weights, on_result = OF_INTEGERS if is_exact else TRANSFORMS[Form(m, window)]
    overlap = window - 1
    a = m + overlap
    tiles = [sym.simplify(sym.ceildiv(dim, m)) for dim in (height, width)]
    source = _padded(use, x, [sym.simplify(sym.add(sym.mul(t, m), overlap)) for t in tiles])

    def half(n: Expr, ty: Expr, tx: Expr, i: Expr, j: Expr, c: Expr) -> Expr:
        column = sym.add(sym.mul(tx, m), j)
        seen = [source[n, c, ty * m + k, column] for k in range(a)]
        return _pick(i, on_image([te.cast(each, I16) for each in seen] if is_exact else seen))

    grid = _Grid(n, tiles[0], tiles[1], is_last(use))
    rows = grid.tiles(HALF, (a, a), channels, half, f"{name}_half")

    def whole(i: Expr, j: Expr, place: Place, c: Expr) -> Expr:
        n, ty, tx = grid.tile_at(place)
        return _pick(j, on_image([rows(n, ty, tx, i, k, c) for k in range(a)]))

    v = grid.stack(IMAGE, a, channels, whole, f"{name}_image")
    u = _transformed(w, on_weights, a, name, (I16, I16) if is_exact else (F64, w.dtype))

    def product(i: Expr, j: Expr, place: Place, o: Expr) -> Expr:
        c = te.reduce_axis((0, inner), name="c")
        channel = sym.add(sym.mul(group_of(o, image_shape(use)[1], groups), inner), c)
        return te.sum(te.cast(v(i, j, place, channel), sums) * te.cast(u[i, j, c, o], sums), axis=c)

    products = grid.stack(PRODUCT, a, o, product, f"{name}_product")

    def column(n: Expr, ty: Expr, tx: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        place = grid.place_of(n, ty, tx)
        return _pick(i, on_result([products(k, j, place, o) for k in range(a)]))

    columns = grid.tiles(COLUMNS, (m, a), o, column, f"{name}_columns")

    def element(n: Expr, o: Expr, y: Expr, x: Expr) -> Expr:
        ty, tx, i, j = y // m, x // m, y % m, x % m
        total = _pick(j, on_result([columns(n, ty, tx, i, k, o) for k in range(a)]))
        if is_exact:
            total = te.shift_right(total, te.const(DOUBLINGS, I32))
        return total if bias is None else total + bias[o]

    # Separate kernels are attributed their actual work: compute-bound ones must not start early.
    stands_for = 2 * window**2 * (static(inner) or 0) if grid.last else 0
    made: Tensor = compute_image(use, element, attrs=_role(RESULT, stands_for))
    return made


MAX_FILLED = 32  # limit of the multiple of tiles per matrix
Element = Callable[..., Expr]
Place = tuple[Expr, ...]


@dataclass(frozen=True)
class _Grid:
    """Tiles of images, and tensors of them: channels last, or channels before a flat tile index, so
    that GEMMs are on plain matrices."""

    n: Expr
    tiles_h: Expr
    tiles_w: Expr
    last: bool

    def tiles(
        self, role: str, sides: tuple[int, int], channels: Expr, element: Element, name: str
    ) -> Element:
        """A matrix per tile: element(n, ty, tx, i, j, channel)."""
        if self.last:
            shape = (self.n, self.tiles_h, self.tiles_w, *sides, channels)
            made = te.compute(shape, element, name=name, attrs=_role(role))
            return lambda *index: made[index]
        first = te.compute(
            (self.n, channels, self.tiles_h, self.tiles_w, *sides),
            lambda n, c, ty, tx, i, j: element(n, ty, tx, i, j, c),
            name=name,
            attrs=_role(role),
        )
        return lambda n, ty, tx, i, j, c: first[n, c, ty, tx, i, j]

    def stack(self, role: str, a: int, channels: Expr, element: Element, name: str) -> Element:
        """A matrix per position in a tile: element(i, j, tile index, channel)."""
        if self.last:
            made = te.compute(
                (a, a, self.n, self.tiles_h, self.tiles_w, channels),
                lambda i, j, n, ty, tx, c: element(i, j, (n, ty, tx), c),
                name=name,
                attrs=_role(role),
            )
            return lambda i, j, place, c: made[(i, j, *place, c)]
        first = te.compute(
            (a, a, channels, self._stored),
            lambda i, j, c, t: element(i, j, (t,), c),
            name=name,
            attrs={ROLE: role} if role == PRODUCT else _role(role),
        )
        return lambda i, j, place, c: first[(i, j, c, *place)]

    @property
    def _count(self) -> Expr:
        return sym.simplify(sym.mul(self.n, sym.mul(self.tiles_h, self.tiles_w)))

    @property
    def _stored(self) -> Expr:
        """The number of tiles of a matrix, rounded up to whole blocks: the extra ones repeat the
        image's last."""
        known = static(self._count)
        if known is None:
            return self._count
        side = min(MAX_FILLED, 1 << (known - 1).bit_length())
        return sym.const(-(-known // side) * side)

    def place_of(self, n: Expr, ty: Expr, tx: Expr) -> Place:
        """The flat index of a tile."""
        if self.last:
            return n, ty, tx
        row = sym.add(sym.mul(n, self.tiles_h), ty)
        return (sym.simplify(sym.add(sym.mul(row, self.tiles_w), tx)),)

    def tile_at(self, place: Place) -> Place:
        """The image, row and column of a flat tile index."""
        if self.last:
            return place
        there = sym.minimum(place[0], sym.sub(self._count, 1))
        exact = self._stored is self._count
        return split_index(place[0] if exact else there, (self.n, self.tiles_h, self.tiles_w))


def _padded(use: Use, x: Tensor, dims: Sequence[Expr]) -> Image:
    """The zero-padded image, as large as whole tiles need."""
    seen, begins = image(use, x), use["pads"][:2]

    def element(n: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        places = [sym.sub(at, begin) for at, begin in zip((y, x), begins, strict=True)]
        tests = [
            test
            for place, size in zip(places, seen.shape[2:], strict=True)
            for test in (sym.le(0, place), sym.lt(place, size))
        ]
        return te.if_then_else(te.all(*tests), seen[(n, c, *places)], te.const(0, seen.dtype))

    shape = (*seen.shape[:2], *dims)
    made = compute_image(use, element, shape, f"{use.name}_padded", _role(PADDED))
    return Image(made, last=is_last(use))


def _transformed(
    w: Tensor, transform: Transform, a: int, name: str, dtypes: tuple[DType, DType]
) -> Tensor:
    """Weights converted at the end: in f64 they are rounded once."""
    within, to = dtypes
    o, inner = w.shape[:2]
    window = range(static(w.shape[-1]) or 0)
    half = te.compute(
        (a, len(window), inner, o),
        lambda i, j, c, o: _pick(i, transform([te.cast(w[o, c, k, j], within) for k in window])),
        name=f"{name}_half_weights",
        attrs=_role(WEIGHTS),
    )
    made: Tensor = te.compute(
        (a, a, inner, o),
        lambda i, j, c, o: te.cast(_pick(j, transform([half[i, k, c, o] for k in window])), to),
        name=f"{name}_weights",
        attrs=_role(WEIGHTS),
    )
    return made
