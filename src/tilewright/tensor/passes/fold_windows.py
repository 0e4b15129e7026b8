"""Implicit im2col: bulk copies read windows from the image instead of stored rows.

    block R(m, k) { R[m, k] = select(inside, X[n(m), y(m) + ky(k) - 1, x(m) + kx(k) - 1, c(k)], 0) }
    call tma_load(R[m0 +: 128, k0 +: 64], T)

    eval tma.window(T, X, 128, barrier, c, x, y, n, kx, ky, ...)

A row of the matrix is an output position, its columns are kernel positions and channels, channels
last. A box covers some channels of one kernel position, over consecutive output positions, across
image rows and images. Out-of-bounds pixels are zero-filled. Of a grouped convolution there is a
matrix for each group of channels: R[g, m, k].

`fold_windows` removes the block that would store the rows, which become a parameter, and records
their geometry; `read_windows`, once copies have barriers, makes them read the image and removes the
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr, Select, Var, conjuncts
from tilewright.tensor.ir import (
    Address,
    Block,
    Buffer,
    Call,
    Eval,
    Function,
    Load,
    Stmt,
    Store,
    annotated,
)
from tilewright.tensor.passes.fold_padding import is_only_copied
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.visit import rewrite, walk

WINDOWS = "windows"  # an attribute: (parameter of rows, parameter of image, geometry) of each
COPY, WINDOW = "tma.load", "tma.window"
CORNER, STEP, OFFSET = 127, 8, 255  # the limits of the hardware's im2col mode


@dataclass(frozen=True)
class Geometry:
    """Extents of image, result and kernel; strides, dilations and padding."""

    images: int
    height: int
    width: int
    channels: int  # of a group
    rows: int  # output height
    columns: int
    kernel_y: int
    kernel_x: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    pad_y: int  # before the first row
    pad_x: int
    groups: int = 1

    @property
    def fits(self) -> bool:
        """Whether the hardware's im2col mode supports these sizes."""
        corners = (self.pad_y, self.pad_x, *(-upper for upper in self.upper))
        steps = (self.stride_y, self.stride_x)
        reach = max(self.dilation_y * (self.kernel_y - 1), self.dilation_x * (self.kernel_x - 1))
        return (
            all(-CORNER <= corner <= CORNER for corner in corners)
            and all(1 <= step <= STEP for step in steps)
            and reach <= OFFSET
        )

    @property
    def upper(self) -> tuple[int, int]:
        """The upper corner of the bounding box: where the last windows begin, from the end of each
        axis."""
        last_y = (self.rows - 1) * self.stride_y - self.pad_y
        last_x = (self.columns - 1) * self.stride_x - self.pad_x
        return last_y - (self.height - 1), last_x - (self.width - 1)


@dataclass(frozen=True)
class Windows:
    """An im2col block, the rows it writes and the image it reads."""

    block: Block
    rows: Buffer
    image: Buffer
    geometry: Geometry


def fold_windows(fn: Function, ctx: PassContext) -> Function:
    found = [made for stmt in walk(fn.body) if (made := windows_of(stmt, fn)) is not None]
    kept = [made for made in found if is_only_copied(fn, made.block, made.rows, (COPY,))]
    if not kept:
        return fn
    gone = {made.block.name for made in kept}

    def rule(stmt: Stmt) -> Stmt | None:
        return None if isinstance(stmt, Block) and stmt.name in gone else stmt

    rows = [made.rows for made in kept]
    noted = [
        (len(fn.params) + at, fn.params.index(made.image), *astuple(made.geometry))
        for at, made in enumerate(kept)
    ]
    return replace(
        fn,
        params=(
            *fn.params,
            *rows,
        ),  # until no copy reads them: nothing writes them, so they are inputs
        body=rewrite(fn.body, rule),
        allocs=tuple([buffer for buffer in fn.allocs if buffer not in rows]),
        attrs=annotated(fn.attrs, WINDOWS, tuple(noted)),
    )


def windows_of(stmt: Stmt, fn: Function) -> Windows | None:
    """The im2col block that a statement is, if any."""
    if not isinstance(stmt, Block) or not isinstance(stmt.body, Store) or len(stmt.iters) < 2:
        return None
    body = stmt.body
    plain = tuple([it.var for it in stmt.iters])
    if body.index != plain or body.buffer not in fn.allocs:
        return None
    cond: Expr | None = None
    value = body.value
    if isinstance(value, Select):
        cond, value, zero = value.children()
        if not isinstance(zero, Const) or zero.value != 0:
            return None
    if not isinstance(value, Load) or value.buffer.rank != 4 or value.buffer not in fn.params:
        return None
    if any(map(is_data_dependent, value.index)):
        return None
    sizes = [sym.simplify(dim) for dim in (*value.buffer.shape, *(it.extent for it in stmt.iters))]
    if not all(isinstance(size, Const) for size in sizes):
        return None
    known = [int(size.value) for size in sizes if isinstance(size, Const)]
    image, (*outer, m, k) = known[:4], known[4:]
    groups = math.prod(outer)
    if sum(size != 1 for size in outer) > 1:
        return None
    extents = dict(zip(plain, outer, strict=False))
    places = _Places(value, plain[-2], plain[-1], extents)
    geometry = places.geometry((image[0], image[1], image[2], image[3]), m, k, groups)
    if geometry is None or not geometry.fits or not places.are_those_of(geometry, m, k, cond):
        return None
    return Windows(stmt, body.buffer, value.buffer, geometry)


class _Places:
    """Evaluates the index of the image for given rows and columns."""

    def __init__(self, load: Load, m: Var, k: Var, outer: dict[Var, int]) -> None:
        self.m, self.k = m, k
        self.zeros: dict[Var, Expr] = {var: sym.ZERO for var, size in outer.items() if size == 1}
        self.groups = {var: size for var, size in outer.items() if size != 1}
        self.index = [sym.substitute(at, self.zeros) for at in load.index]

    def _at(self, m: int, k: int) -> tuple[int, ...]:
        env = {self.m: m, self.k: k, **dict.fromkeys(self.groups, 0)}
        return tuple([int(sym.evaluate(at, env)) for at in self.index])

    def geometry(
        self, image: tuple[int, int, int, int], m: int, k: int, groups: int
    ) -> Geometry | None:
        """The geometry that the first elements suggest; to be verified."""
        if set(sym.free_vars(*self.index)) - {self.m, self.k, *self.groups}:
            return None
        images, height, width, channels = image
        if channels % groups or k % (channels // groups):
            return None
        channels //= groups
        n, y, x, c = self._at(0, 0)
        taps = k // channels
        columns = _first(1, m, lambda at: self._at(at, 0)[:2] != (n, y))
        lines = m // columns
        rows = _first(1, lines, lambda at: self._at(at * columns, 0)[0] != n)
        kernel_x = _first(1, taps, lambda at: self._at(0, at * channels)[1] != y)
        kernel_y = taps // kernel_x
        if (c, n) != (0, 0) or images * rows * columns != m or kernel_y * kernel_x != taps:
            return None
        return Geometry(
            images,
            height,
            width,
            channels,
            rows,
            columns,
            kernel_y,
            kernel_x,
            self._at(columns, 0)[1] - y if rows > 1 else 1,
            self._at(1, 0)[2] - x if columns > 1 else 1,
            self._at(0, kernel_x * channels)[1] - y if kernel_y > 1 else 1,
            self._at(0, channels)[2] - x if kernel_x > 1 else 1,
            -y,
            -x,
            groups,
        )

    def are_those_of(self, g: Geometry, m: int, k: int, cond: Expr | None) -> bool:
        """Whether all indices match the geometry, and out-of-bounds elements are zero."""
        ctx = sym.EMPTY.bind_all(
            {
                var: (sym.ZERO, sym.const(size))
                for var, size in ((self.m, m), (self.k, k), *self.groups.items())
            }
        )
        group = next(iter(self.groups), sym.ZERO)
        n, y, x, ky, kx, c = places_of(g, group, self.m, self.k)
        wanted = [n, sym.add(y, ky), sym.add(x, kx), c]
        if not all(sym.prove(sym.eq(a, b), ctx) for a, b in zip(self.index, wanted, strict=True)):
            return False
        limits = [(self.index[1], g.height), (self.index[2], g.width)]
        tests = [test for at, size in limits for test in (sym.le(0, at), sym.lt(at, size))]
        inside = {sym.simplify(test, ctx) for test in tests} - {sym.TRUE}
        given = (
            set()
            if cond is None
            else {sym.simplify(sym.substitute(test, self.zeros), ctx) for test in conjuncts(cond)}
            - {sym.TRUE}
        )
        return given == inside


def _first(start: int, stop: int, holds: Callable[[int], bool]) -> int:
    """The first number from `start` on for which a predicate holds, or `stop`."""
    return next((at for at in range(start, stop) if holds(at)), stop)


def places_of(g: Geometry, group: Expr, m: Expr, k: Expr) -> tuple[Expr, ...]:
    """Image, line and column where a row's window begins, and the kernel offset and channel of a
    column."""
    n = sym.floordiv(m, g.rows * g.columns)
    y = sym.floormod(sym.floordiv(m, g.columns), g.rows)
    x = sym.floormod(m, g.columns)
    ky = sym.floordiv(k, g.kernel_x * g.channels)
    kx = sym.floormod(sym.floordiv(k, g.channels), g.kernel_x)
    return (
        n,
        sym.sub(sym.mul(y, g.stride_y), g.pad_y),
        sym.sub(sym.mul(x, g.stride_x), g.pad_x),
        sym.mul(ky, g.dilation_y),
        sym.mul(kx, g.dilation_x),
        sym.add(sym.mul(group, g.channels), sym.floormod(k, g.channels)),
    )


def read_windows(fn: Function, ctx: PassContext) -> Function:
    noted = dict(fn.attrs).get(WINDOWS)
    if not isinstance(noted, tuple):
        return fn
    rows: dict[Buffer | Var, tuple[Buffer, Geometry]] = {}
    for each in noted:
        assert isinstance(each, tuple)
        at, image, *sizes = (int(str(number)) for number in each)
        source = fn.params[image]
        assert isinstance(source, Buffer)
        rows[fn.params[at]] = source, Geometry(*sizes)

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Eval) and isinstance(stmt.value, Call) and stmt.value.op == COPY:
            source = stmt.value.args[1]
            assert isinstance(source, Address)
            if source.buffer in rows:
                return _window(stmt, source, *rows[source.buffer])
        return stmt

    attrs = tuple([(key, value) for key, value in fn.attrs if key != WINDOWS])
    params = tuple([param for param in fn.params if param not in rows])
    return replace(fn, params=params, body=rewrite(fn.body, rule), attrs=attrs)


def _window(stmt: Eval, source: Address, image: Buffer, g: Geometry) -> Stmt:
    assert isinstance(stmt.value, Call)
    tile, _, pixels, _, barrier, _, row, _ = stmt.value.args
    outer = zip(source.index[:-2], source.buffer.shape, strict=False)
    group = next((at for at, extent in outer if extent is not sym.ONE), sym.ZERO)
    n, y, x, ky, kx, c = places_of(g, group, row, source.index[-1])
    start = Address(image, (sym.ZERO,) * image.rank)
    corners = (g.pad_y, g.pad_x, *g.upper)
    sizes = (g.height, g.width, g.channels * g.groups, *corners, g.stride_y, g.stride_x)
    args = (tile, start, pixels, barrier, c, x, y, n, kx, ky, *(sym.const(at) for at in sizes))
    return Eval(Call(WINDOW, args, stmt.value.dtype), stmt.loc)
