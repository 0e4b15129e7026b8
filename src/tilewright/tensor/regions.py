"""Regions: conservative boxes of buffers that a block accesses, and their unions over loops.

    access_regions(body, init, iters)         the reads and writes of a block, one box per buffer
    region_over(region, {i: (0, 8)}, ctx)     the box touched while `i` ranges over 0..8
    union(a, b, ctx)                          the smallest expressible box that contains both

A box may be larger than what is touched, never smaller. Where no bound can be expressed, a
dimension is taken whole. The extents of a block's regions never depend on its iterators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import ONE, ZERO, Context, Expr, Var
from tilewright.tensor.intrin import RESET, intrinsic
from tilewright.tensor.ir import (
    REDUCE,
    Block,
    Buffer,
    ExternCall,
    For,
    Iter,
    Let,
    Load,
    MaskedLoad,
    Range,
    Region,
    Stmt,
    Store,
    TensorCall,
    Update,
)

Loops = Mapping[Var, tuple[Expr, Expr]]  # var -> start, stop; inner variables last
Regions = tuple[Region, ...]


# --------------------------------------------------------------------------- single boxes


def whole(buffer: Buffer) -> Region:
    """All of a buffer."""
    return Region(buffer, tuple([Range(ZERO, dim) for dim in buffer.shape]))


def point(buffer: Buffer, index: Sequence[Expr]) -> Region:
    """One element; a dimension whose index depends on data is taken whole."""
    return Region(
        buffer,
        tuple(
            [
                Range(ZERO, dim) if is_data_dependent(at) or at.dtype.is_vector else Range(at, ONE)
                for at, dim in zip(index, buffer.shape, strict=True)
            ]
        ),
    )


_holds_load = sym.holds(lambda node: isinstance(node, (Load, MaskedLoad)))


def is_data_dependent(index: Expr) -> bool:
    """Whether the value is read from memory."""
    return type(index) is not Var and _holds_load(index)


def stop_of(r: Range) -> Expr:
    """One past the last element."""
    return r.extent if r.start is ZERO else sym.add(r.start, r.extent)


def substitute_region(region: Region, mapping: Mapping[Var, Expr]) -> Region:
    """The region with variables replaced."""
    if not mapping:
        return region
    ranges = tuple(
        [
            Range(sym.substitute(r.start, mapping), sym.substitute(r.extent, mapping))
            for r in region.ranges
        ]
    )
    return Region(region.buffer, ranges)


def region_over(region: Region, loops: Loops, ctx: Context) -> Region:
    """The box touched while the variables run over their ranges, whatever order they run in.

    A range may speak of variables that stand before it in `loops`.
    """
    if not loops:
        return region
    ranges = [
        _range_over(r, dim, loops, ctx)
        for r, dim in zip(region.ranges, region.buffer.shape, strict=True)
    ]
    return Region(region.buffer, tuple(ranges))


def range_over(region: Region, axis: int, loops: Loops, ctx: Context) -> Range:
    """One dimension of `region_over`."""
    if not loops:
        return region.ranges[axis]
    return _range_over(region.ranges[axis], region.buffer.shape[axis], loops, ctx)


def _range_over(r: Range, dim: Expr, loops: Loops, ctx: Context) -> Range:
    if not (sym.uses_var(r.start, loops) or sym.uses_var(r.extent, loops)):
        return r
    first = sym.symbolic_bounds(r.start, loops, ctx)
    if r.extent is ONE:
        last = first
    else:
        last = sym.symbolic_bounds(sym.sub(stop_of(r), 1), loops, ctx)
    if first is None or last is None:
        return Range(ZERO, dim)
    start = first[0]
    extent = sym.simplify(sym.add(sym.sub(last[1], start), 1), ctx)
    return Range(start, extent)


def clipped(region: Region, ctx: Context) -> Region:
    """The part of the box that lies inside its buffer."""
    ranges = []
    for r, dim in zip(region.ranges, region.buffer.shape, strict=True):
        start = sym.simplify(sym.maximum(r.start, 0), ctx)
        stop = sym.simplify(sym.minimum(stop_of(r), dim), ctx)
        ranges.append(Range(start, sym.simplify(sym.sub(stop, start), ctx)))
    return Region(region.buffer, tuple(ranges))


# --------------------------------------------------------------------------- two boxes


def union(a: Region, b: Region, ctx: Context) -> Region:
    """A box that holds both; a dimension where the two cannot be compared is taken whole."""
    assert a.buffer is b.buffer
    ranges = [
        _joined(x, y, dim, ctx)
        for x, y, dim in zip(a.ranges, b.ranges, a.buffer.shape, strict=True)
    ]
    return Region(a.buffer, tuple(ranges))


def _joined(a: Range, b: Range, dim: Expr, ctx: Context) -> Range:
    if a.start is b.start and a.extent is b.extent:
        return a
    start = _least(a.start, b.start, ctx)
    a_stop, b_stop = stop_of(a), stop_of(b)
    stop = None if start is None else _greatest(a_stop, b_stop, ctx)
    if start is None or stop is None:
        return Range(ZERO, dim)
    if start is a.start and stop is a_stop:
        return a
    if start is b.start and stop is b_stop:
        return b
    return Range(start, sym.simplify(sym.sub(stop, start), ctx))


def _least(a: Expr, b: Expr, ctx: Context) -> Expr | None:
    if sym.prove(sym.le(a, b), ctx):
        return a
    return b if sym.prove(sym.le(b, a), ctx) else None


def _greatest(a: Expr, b: Expr, ctx: Context) -> Expr | None:
    if sym.prove(sym.le(b, a), ctx):
        return a
    return b if sym.prove(sym.le(a, b), ctx) else None


def contains(outer: Region, inner: Region, ctx: Context) -> bool:
    """Whether `inner` certainly lies inside `outer`."""
    if outer.buffer is not inner.buffer:
        return False
    return all(
        sym.prove(sym.le(x.start, y.start), ctx) and sym.prove(sym.le(stop_of(y), stop_of(x)), ctx)
        for x, y in zip(outer.ranges, inner.ranges, strict=True)
    )


def are_disjoint(a: Region, b: Region, ctx: Context) -> bool:
    """Whether the boxes certainly share no element."""
    if a.buffer is not b.buffer:
        return True
    return any(
        sym.prove(sym.le(stop_of(x), y.start), ctx) or sym.prove(sym.le(stop_of(y), x.start), ctx)
        for x, y in zip(a.ranges, b.ranges, strict=True)
    )


# --------------------------------------------------------------------------- blocks


def access_regions(body: Stmt, init: Stmt | None, iters: Iterable[Iter]) -> tuple[Regions, Regions]:
    """What a block reads and writes: one box per buffer, in order of first access.

    Accesses of one buffer are joined where the box's extent is the same for all iterations
    (`A[i - 1], A[i + 1]` -> `A[i - 1 +: 3]`), else the dimension is taken whole. A reduction's read
    of the element it writes is not listed.
    """
    iters = tuple(iters)
    reduces = init is not None or any(it.kind == REDUCE for it in iters)
    accesses = _collect(body, own_reads=not reduces)
    if init is not None:
        accesses.add(_collect(init, own_reads=True))
    ctx = Context()
    for it in iters:
        ctx = ctx.bind(it.var, ZERO, it.extent)
    variables = {it.var for it in iters}
    return _merged(accesses.reads, variables, ctx), _merged(accesses.writes, variables, ctx)


def _merged(
    found: Mapping[Buffer, Mapping[_Box, Region]], iters: set[Var], ctx: Context
) -> Regions:
    return tuple([_joined_all([*regions.values()], iters, ctx) for regions in found.values()])


def _joined_all(regions: list[Region], iters: set[Var], ctx: Context) -> Region:
    result = regions[0]
    for region in regions[1:]:
        result = union(result, region, ctx)
    ranges = tuple(
        [
            r if r.extent is ONE or not sym.uses_var(r.extent, iters) else Range(ZERO, dim)
            for r, dim in zip(result.ranges, result.buffer.shape, strict=True)
        ]
    )
    return Region(result.buffer, ranges)


_Box = tuple[tuple[Expr, Expr], ...]  # start and extent, by dimension


class _Accesses:
    """Boxes per buffer, as they are met."""

    def __init__(self) -> None:
        self.reads: dict[Buffer, dict[_Box, Region]] = {}
        self.writes: dict[Buffer, dict[_Box, Region]] = {}

    def add(self, other: _Accesses) -> None:
        for mine, theirs in ((self.reads, other.reads), (self.writes, other.writes)):
            for buffer, regions in theirs.items():
                mine[buffer] = {**mine.get(buffer, {}), **regions}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What stands around a statement inside the block."""

    loops: dict[Var, tuple[Expr, Expr]]
    values: dict[Var, Expr]  # of lets
    ctx: Context


def _collect(root: Stmt, *, own_reads: bool) -> _Accesses:
    """Every access below `root`, loops and lets inside eliminated.

    `own_reads`: whether a load of the very element that the same statement stores to counts.
    """
    found = _Accesses()
    stack: list[tuple[Stmt, _Scope]] = [(root, _Scope({}, {}, Context()))]
    while stack:
        stmt, scope = stack.pop()
        _collect_one(stmt, scope, found, own_reads)
        if not isinstance(stmt, Block):  # a block inside says itself what it touches
            inner = _inside(stmt, scope)
            stack.extend((child, inner) for child in reversed(stmt.children()))
    return found


def _inside(stmt: Stmt, scope: _Scope) -> _Scope:
    if isinstance(stmt, For):
        start = sym.substitute(stmt.start, scope.values)
        stop = sym.substitute(stmt.stop, scope.values)
        loops = {**scope.loops, stmt.var: (start, stop)}
        return _Scope(loops, scope.values, scope.ctx.bind(stmt.var, start, stop))
    if isinstance(stmt, Let):
        value = sym.substitute(stmt.value, scope.values)
        return _Scope(scope.loops, {**scope.values, stmt.var: value}, scope.ctx)
    return scope


def _collect_one(stmt: Stmt, scope: _Scope, found: _Accesses, own_reads: bool) -> None:
    def note(into: dict[Buffer, dict[_Box, Region]], region: Region) -> None:
        region = region_over(substitute_region(region, scope.values), scope.loops, scope.ctx)
        box = tuple([(r.start, r.extent) for r in region.ranges])
        into.setdefault(region.buffer, {}).setdefault(box, region)

    if isinstance(stmt, Block):
        bound = {it.var: at for it, at in zip(stmt.iters, stmt.bindings, strict=True)}
        for region in stmt.reads:
            note(found.reads, substitute_region(region, bound))
        for region in stmt.writes:
            note(found.writes, substitute_region(region, bound))
        return
    own: tuple[Buffer, tuple[Expr, ...]] | None = None
    if isinstance(stmt, Store):
        note(found.writes, point(stmt.buffer, stmt.index))
        own = None if own_reads else (stmt.buffer, stmt.index)
    elif isinstance(stmt, Update):
        for buffer in stmt.buffers:
            note(found.writes, point(buffer, stmt.index))
    elif isinstance(stmt, (TensorCall, ExternCall)):
        inputs, outputs = called_regions(stmt)
        for region in inputs:
            note(found.reads, region)
        for region in outputs:
            note(found.writes, region)
    for node in sym.walk(*stmt.exprs()):
        if isinstance(node, (Load, MaskedLoad)) and (node.buffer, node.index) != own:
            note(found.reads, point(node.buffer, node.index))


def called_regions(stmt: TensorCall | ExternCall) -> tuple[Regions, Regions]:
    """The regions a call reads and those it writes.

    An update's accumulator counts as written only, like a reduction's; a reset reads nothing.
    """
    if isinstance(stmt, ExternCall):
        first_output = len(stmt.regions) - stmt.outputs
    else:
        first_output = len(stmt.regions) - len(intrinsic(stmt.intrin, stmt.arguments).outputs)
    inputs, outputs = stmt.regions[:first_output], stmt.regions[first_output:]
    if isinstance(stmt, TensorCall) and stmt.phase == RESET:
        inputs = ()
    return inputs, outputs
