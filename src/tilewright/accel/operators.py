"""Operators of the accelerator as tensor expressions, on packed tensors.

An image (n, c, h, w) is stored in DRAM as (n / batch, c / out, h, w, batch, out): entries of
results, which equal entries of operands if `block_in` equals `block_out`, and contain `ratio` of
them if it is smaller. Weights are packed for the array. What a unit copies, computes and stores is
a separate stage, named after its memory:

    inp, wgt   operands of GEMM      a, b   8-bit operands of the ALU, widened      par   parameters
    acc        sums                  out    requantized                             y     results

A convolution may end in a residual sum: then `a` is its result in 8 bits, `b` the other operand,
`sum` their sum, and `scale` the parameters of the convolution itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilewright import te
from tilewright.accel.intrin import byte_at, low_byte
from tilewright.accel.isa.table import REQUANT_ENTRIES
from tilewright.base.geometry import Geometry
from tilewright.lower.quantize import requantized
from tilewright.sym import const
from tilewright.tensor import Function
from tilewright.tensor.ir import Block, Region, Stmt, Store
from tilewright.tensor.visit import rewrite

Limits = tuple[int, int, int]  # zero point, minimum and maximum of requantization
LIMITS: Limits = (0, -128, 127)


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a window operator."""

    size: int
    kernel: int = 1
    stride: int = 1
    front: int = 0
    behind: int = 0
    dilation: int = 1
    skips: bool = False  # kernels of one position: load only the positions that are used

    @property
    def is_point(self) -> bool:
        return self.kernel == 1 and self.skips

    @property
    def reach(self) -> int:
        """Input positions of one window."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def out(self) -> int:
        return (self.size + self.front + self.behind - self.reach) // self.stride + 1

    @property
    def copied(self) -> int:
        """Positions to load."""
        return self.out if self.is_point else (self.out - 1) * self.stride + self.reach

    def source(self, at: Any) -> Any:
        """The position in the image of a loaded position."""
        return at * self.stride - self.front if self.is_point else at - self.front

    def tap(self, at: Any, k: Any) -> Any:
        """The loaded position of a window's kernel position."""
        return at if self.is_point else at * self.stride + k * self.dilation

    @property
    def is_padded(self) -> bool:
        """Whether windows extend outside of the image."""
        last = self.source(self.copied - 1)
        return self.front > 0 or last >= self.size

    def inside(self, at: Any) -> list[Any]:
        found = [self.source(at) >= 0] if self.front else []
        return found + ([self.source(at) < self.size] if self.is_padded else [])


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual sum: the result times a, plus another tensor times b."""

    a: int
    b: int
    limits: Limits = LIMITS


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution in blocks: images, groups, blocks of channels per group, and the two axes."""

    images: int
    groups: int
    in_blocks: int
    out_blocks: int
    rows: Axis
    columns: Axis
    pad: int = 0  # padding value: the zero point of the input
    limits: Limits = LIMITS
    residual: Residual | None = None
    weight_bits: int = 8  # or 4, which halves the loads


def ratio_of(geometry: Geometry) -> int:
    """Entries of `inp` per entry of `out`."""
    return geometry.block_out // geometry.block_in


def _windows(x: Any, rows: Axis, columns: Axis, at: Any, pad: int, to: str) -> Any:
    """x at a position that may be outside; `at(h, w)` is the index."""
    h, w = at[0], at[1]
    value = x(rows.source(h), columns.source(w))
    value = value if to == "i8" else te.cast(value, to)
    inside = [*rows.inside(h), *columns.inside(w)]
    return te.if_then_else(te.all(*inside), value, te.const(pad, to)) if inside else value


def _requantized(acc: Any, q: Any, limits: Limits, channel: Any, name: str) -> Any:
    """An element in 8 bits; `channel(index)` is the block of channels for its parameters."""
    par = te.compute(q.shape, lambda *at: q[at], name=name)

    def step(*at: Any) -> Any:
        *_outer, b, o = at
        block = channel(at)
        bias, multiplier, shift = (par[block, k, b, o] for k in range(REQUANT_ENTRIES))
        return requantized(acc[at], bias, multiplier, shift, limits)

    return step


def _finish(acc: Any, q: Any, limits: Limits, channel: Any) -> Any:
    """Requantize and store."""
    out = te.compute(acc.shape, _requantized(acc, q, limits, channel, "par"), name="out")
    return te.compute(acc.shape, lambda *at: out[at], name="y")


def conv(shape: Conv, geometry: Geometry) -> Function:
    """x, w, q, (z, r) -> y: convolution by GEMM, requantized; then the residual sum with z."""
    g, s, r = geometry, shape, ratio_of(geometry)
    rows, columns = s.rows, s.columns
    entry = (g.batch, g.block_in)
    x = te.placeholder(
        (s.images, s.groups, s.in_blocks, rows.size, columns.size, r, *entry), "i8", name="x"
    )
    taps = (rows.kernel, columns.kernel)
    w = te.placeholder(
        (s.groups, s.out_blocks, s.in_blocks, r, *taps, g.block_out, g.block_in),
        f"i{s.weight_bits}",
        name="w",
    )
    q = te.placeholder(
        (s.groups * s.out_blocks, REQUANT_ENTRIES, g.batch, g.block_out), "i32", name="q"
    )
    inp = te.compute(
        (s.images, s.groups, s.in_blocks, rows.copied, columns.copied, r, *entry),
        lambda n, u, c, i, j, k, b, e: _windows(
            lambda v, z: x[n, u, c, v, z, k, b, e], rows, columns, (i, j), s.pad, "i8"
        ),
        name="inp",
    )
    is_wide = s.weight_bits == 8
    wgt = te.compute(w.shape, lambda *at: w[at] if is_wide else te.cast(w[at], "i8"), name="wgt")
    c, k = te.reduce_axis((0, s.in_blocks), "c"), te.reduce_axis((0, r), "k")
    kh, kw = (
        te.reduce_axis((0, extent), name) for extent, name in zip(taps, ("kh", "kw"), strict=False)
    )
    e = te.reduce_axis((0, g.block_in), "e")
    acc = te.compute(
        (s.images, s.groups, s.out_blocks, rows.out, columns.out, g.batch, g.block_out),
        lambda n, u, o, i, j, b, f: te.sum(
            te.cast(inp[n, u, c, rows.tap(i, kh), columns.tap(j, kw), k, b, e], "i32")
            * te.cast(wgt[u, o, c, k, kh, kw, f, e], "i32"),
            axis=[c, k, kh, kw, e],
        ),
        name="acc",
    )

    def channel(at: Any) -> Any:
        return at[1] * s.out_blocks + at[2]

    if s.residual is None:
        return te.function([x, w, q, _finish(acc, q, s.limits, channel)], name="vta_conv")
    z = te.placeholder(acc.shape, "i8", name="z")
    after = te.placeholder((1, *q.shape[1:]), "i32", name="r")
    small = _requantized(acc, q, s.limits, channel, "scale")
    a = te.compute(acc.shape, lambda *at: te.cast(small(*at), "i32"), name="a")
    b = te.compute(acc.shape, lambda *at: te.cast(z[at], "i32"), name="b")
    total = _blended(a, b, s.residual.a, s.residual.b, "sum")
    y = _finish(total, after, s.residual.limits, lambda at: 0)
    return te.function([x, w, q, z, after, y], name="vta_residual")


def _blended(a: Any, b: Any, of_a: int, of_b: int, name: str) -> Any:
    return te.compute(
        a.shape, lambda *at: low_byte(a[at]) * of_a + low_byte(b[at]) * of_b, name=name
    )


@dataclass(frozen=True, slots=True)
class Windows:
    """A depthwise convolution or max pool: one block of channels at a time, on the ALU."""

    images: int
    blocks: int
    rows: Axis
    columns: Axis
    kind: str  # "mac" or "max"
    pad: int = 0
    limits: Limits = LIMITS


def taps_of(shape: Windows, geometry: Geometry) -> int:
    """Kernel positions per step."""
    return geometry.taps if shape.kind == "mac" else 1


def windows(shape: Windows, geometry: Geometry) -> Function:
    """x, (w,) q -> y: windows of every channel, requantized; a step's weights are one number."""
    g, s, taps = geometry, shape, taps_of(shape, geometry)
    rows, columns = s.rows, s.columns
    entry = (g.batch, g.block_out)
    x = te.placeholder((s.images, s.blocks, rows.size, columns.size, *entry), "i8", name="x")
    q = te.placeholder((s.blocks, REQUANT_ENTRIES, *entry), "i32", name="q")
    groups = columns.kernel // taps
    assert groups * taps == columns.kernel, columns
    w = te.placeholder(
        (s.blocks, rows.kernel, groups, *entry), "i8" if taps == 1 else "i32", name="w"
    )
    a = te.compute(
        (s.images, s.blocks, rows.copied, columns.copied, *entry),
        lambda n, o, i, j, b, f: _windows(
            lambda v, z: x[n, o, v, z, b, f], rows, columns, (i, j), s.pad, "i32"
        ),
        name="a",
    )
    weights = te.compute(
        w.shape, lambda *at: te.cast(w[at], "i32") if taps == 1 else w[at], name="b"
    )
    kh, kw = te.reduce_axis((0, rows.kernel), "kh"), te.reduce_axis((0, groups), "kw")
    t = te.reduce_axis((0, taps), "t")

    def step(n: Any, o: Any, i: Any, j: Any, b: Any, f: Any) -> Any:
        at = kw * taps + t if taps > 1 else kw
        seen = a[n, o, rows.tap(i, kh), columns.tap(j, at), b, f]
        if s.kind == "max":
            return te.max(seen, axis=[kh, kw])
        weight = weights[o, kh, kw, b, f]
        if taps > 1:
            return te.sum(low_byte(seen) * byte_at(weight, t), axis=[kh, kw, t])
        return te.sum(low_byte(seen) * low_byte(weight), axis=[kh, kw])

    acc = te.compute((s.images, s.blocks, rows.out, columns.out, *entry), step, name="acc")
    y = _finish(acc, q, s.limits, lambda at: at[1])
    given = [x, q] if s.kind == "max" else [x, w, q]
    return te.function([*given, y], name=f"vta_{s.kind}")


@dataclass(frozen=True, slots=True)
class Blend:
    """x * a + z * b, element-wise: residual sums."""

    entries: int
    a: int
    b: int
    limits: Limits = LIMITS


def blend(shape: Blend, geometry: Geometry) -> Function:
    """x, z, q -> y"""
    g, s = geometry, shape
    extents = (1, 1, 1, s.entries, g.batch, g.block_out)
    x, z = (te.placeholder(extents, "i8", name=name) for name in ("x", "z"))
    q = te.placeholder((1, REQUANT_ENTRIES, g.batch, g.block_out), "i32", name="q")
    a, b = (
        te.compute(extents, lambda *at, t=t: te.cast(t[at], "i32"), name=name)
        for t, name in ((x, "a"), (z, "b"))
    )
    acc = _blended(a, b, s.a, s.b, "acc")
    y = _finish(acc, q, s.limits, lambda at: 0)
    return te.function([x, z, q, y], name="vta_blend")


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy rows of entries into a tensor with possibly longer rows, at another scale."""

    rows: int
    entries: int
    width: int  # row length of the destination
    at: int = 0  # offset in destination rows
    limits: Limits = LIMITS


def copy(shape: Copy, geometry: Geometry) -> Function:
    """x, q -> y"""
    g, s = geometry, shape
    x = te.placeholder((1, 1, s.rows, s.entries, g.batch, g.block_out), "i8", name="x")
    q = te.placeholder((1, REQUANT_ENTRIES, g.batch, g.block_out), "i32", name="q")
    a = te.compute(x.shape, lambda *at: te.cast(x[at], "i32"), name="a")
    made = te.function([x, q, _finish(a, q, s.limits, lambda at: 0)], name="vta_copy")
    return made if s.width == s.entries else _within(made, s)


def _within(fn: Function, shape: Copy) -> Function:
    """The same function, with the result as a part of every row."""
    (old,) = (one for one in fn.buffers if one.name == "y")
    new = replace(old, shape=(*old.shape[:3], const(shape.width), *old.shape[4:]))

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer is old:
            index = (*stmt.index[:3], stmt.index[3] + shape.at, *stmt.index[4:])
            return replace(stmt, buffer=new, index=index)
        if isinstance(stmt, Block) and stmt.writes[0].buffer is old:
            ranges = stmt.writes[0].ranges
            moved = replace(ranges[3], start=ranges[3].start + shape.at)
            return replace(stmt, writes=(Region(new, (*ranges[:3], moved, *ranges[4:])),))
        return stmt

    params = tuple([new if one is old else one for one in fn.params])
    return replace(fn, params=params, body=rewrite(fn.body, rule))


Operator = Conv | Windows | Blend | Copy
FUNCTIONS: dict[type, Callable[[Any, Geometry], Function]] = {
    Conv: conv, Windows: windows, Blend: blend, Copy: copy,
}  # fmt: skip


def function_of(operator: Operator, geometry: Geometry) -> Function:
    return FUNCTIONS[type(operator)](operator, geometry)
