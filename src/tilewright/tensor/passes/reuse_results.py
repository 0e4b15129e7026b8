"""Keep an intermediate buffer where the result that is computed from it will be.

    for i { alloc T; for j { T[i, j] = .. } s = .. T[i, k] ..; for j { C[i, j] = T[i, j] * s } }
    for i { for j { C[i, j] = .. } s = .. C[i, k] ..; for j { C[i, j] = C[i, j] * s } }

Stores to the result then miss the caches while there is something to compute, and less memory is
touched. The result must be written by one statement that reads the same element of the buffer and
runs after everything else that touches the buffer; the elements of an iteration must be contiguous
and those that are written to the buffer. A result that may share memory with an argument stays, as
does a buffer that is small (the option `least`, in bytes of an iteration): it stays near by itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Context, Expr, Lt, conjuncts
from tilewright.tensor.ir import (
    Alloc,
    Buffer,
    For,
    Function,
    Load,
    Range,
    Region,
    Stmt,
    Store,
)
from tilewright.tensor.passes.accesses import (
    Access,
    Place,
    collect,
    common,
    conditions_between,
    context_at,
)
from tilewright.tensor.regions import region_over
from tilewright.tensor.visit import output_buffers, replace_buffers, rewrite, walk


def reuse_results(fn: Function, ctx: PassContext) -> Function:
    results = [each for each in fn.params if isinstance(each, Buffer)]
    results = [each for each in results if each in output_buffers(fn)]
    allocs = [stmt for stmt in walk(fn.body) if isinstance(stmt, Alloc)]
    pairs = [(a.buffer, c) for a in allocs for c in results if _is_alike(a.buffer, c)]
    if not pairs:
        return fn
    accesses, least = collect(fn.body, None), ctx.option("reuse_results.least", 4096)
    given: dict[Buffer, Buffer] = {}
    for buffer, result in pairs:
        is_free = buffer not in given and result not in given.values()
        if is_free and _can_share(fn, buffer, accesses[buffer], accesses[result], least):
            given[buffer] = result
    return replace(fn, body=_replaced(fn.body, given)) if given else fn


def _is_alike(a: Buffer, b: Buffer) -> bool:
    same = len(a.shape) == len(b.shape) and all(
        x is y for x, y in zip(a.shape, b.shape, strict=True)
    )
    return same and a.dtype is b.dtype and a.scope == b.scope


def _can_share(
    fn: Function, buffer: Buffer, uses: list[Access], written: list[Access], least: int
) -> bool:
    if len(written) != 1 or any(access.is_opaque for access in uses):
        return False
    (last,) = written
    if not _is_elementwise(fn, buffer, last.place.stmt):
        return False
    home = next((each for each in last.place.ancestors() if _allocates(each, buffer)), None)
    if home is None or not all(_is_before(access, last, home) for access in uses):
        return False
    reached = _box(last, home)
    if _size_bytes(reached) < least or not _is_contiguous(reached):
        return False
    return _guards_are_bounds(last, home) and all(
        _same(_box(each, home), reached) for each in uses if each.is_write
    )


def _allocates(place: Place, buffer: Buffer) -> bool:
    return isinstance(place.stmt, Alloc) and place.stmt.buffer is buffer


def _is_elementwise(fn: Function, buffer: Buffer, store: Stmt) -> bool:
    """Whether the statement reads the buffer where it stores, and no argument like it there: that
    might share the result's memory."""
    if not isinstance(store, Store):
        return False
    loads = [node for node in sym.walk(*store.exprs()) if isinstance(node, Load)]
    own = [load for load in loads if load.buffer is buffer]
    others = [load for load in loads if load.buffer in fn.params]
    return (
        bool(own)
        and all(load.index == store.index for load in own)
        and not any(_is_alike(load.buffer, store.buffer) for load in others)
    )


def _is_before(access: Access, last: Access, home: Place) -> bool:
    """Whether an access is part of the last statement, or complete before it begins, in every
    iteration of the loops around the allocation."""
    if access.place is last.place:
        return True
    top = common(access.place, last.place)
    if any(isinstance(each.stmt, For) for each in top.below(home)):
        return False
    first, then = access.place.below(top), last.place.below(top)
    return bool(first and then) and first[0].position < then[0].position


def _box(access: Access, home: Place) -> Region:
    """What an access touches in an iteration of the loops around the allocation."""
    path = access.place.below(home)
    loops = {p.stmt.var: (p.stmt.start, p.stmt.stop) for p in path if isinstance(p.stmt, For)}
    ctx = context_at(replace(access, place=home, guards=()))
    found = region_over(Region(access.buffer, access.ranges), loops, ctx)
    clipped = partial(_clipped, ctx=ctx)
    return replace(found, ranges=tuple(map(clipped, found.ranges, access.buffer.shape)))


def _clipped(span: Range, dim: Expr, ctx: Context) -> Range:
    """A range without what is outside of the dimension."""
    start = sym.simplify(span.start, ctx)
    extent = sym.simplify(span.extent, ctx)
    is_whole = start is ZERO and sym.prove(sym.le(dim, extent), ctx)
    return Range(start, dim if is_whole else extent)


def _same(a: Region, b: Region) -> bool:
    return all(
        x.start is y.start and x.extent is y.extent for x, y in zip(a.ranges, b.ranges, strict=True)
    )


def _size_bytes(box: Region) -> int:
    """0 where it is dynamic."""
    dims = [span.extent for span in box.ranges]
    sizes = [int(dim.value) for dim in dims if isinstance(dim, Const)]
    return math.prod(sizes) * box.buffer.dtype.size_bytes if len(sizes) == len(dims) else 0


def _is_contiguous(box: Region) -> bool:
    """Single elements of outer dimensions, some of one, and all of those inside of it."""
    spans = list(zip(box.ranges, box.buffer.shape, strict=True))
    while spans and spans[0][0].extent is ONE:
        spans.pop(0)
    return all(span.extent is dim for span, dim in spans[1:])


def _guards_are_bounds(access: Access, home: Place) -> bool:
    """Whether the statement stores all elements of its box that exist."""
    bounds = {
        sym.lt(span.start, dim)
        for span, dim in zip(access.ranges, access.buffer.shape, strict=True)
    }
    ctx = context_at(replace(access, place=home, guards=()))
    known = {sym.simplify(each, ctx) for each in bounds}
    conditions = conditions_between([home, *access.place.below(home)])
    parts = [part for each in conditions for part in conjuncts(each)]
    return all(isinstance(part, Lt) and sym.simplify(part, ctx) in known for part in parts)


def _replaced(body: Stmt, given: dict[Buffer, Buffer]) -> Stmt:
    def rule(stmt: Stmt) -> Stmt:
        return stmt.body if isinstance(stmt, Alloc) and stmt.buffer in given else stmt

    made = rewrite(body, rule)
    assert made is not None
    return replace_buffers(made, given)
