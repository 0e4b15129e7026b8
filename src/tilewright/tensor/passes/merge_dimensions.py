"""Merge neighbouring dimensions of an intermediate that are indexed as parts of one number.

    T[f // 197, f % 197]    ->    T[f]        everywhere, where T: [8, 197] becomes [1576]

Loops over several axes that are fused, then split so that a block has some of their iterations,
index intermediates by quotients and remainders. What a block has of them is no box of the two
dimensions, but it is one of the merged dimension, to which `compact_buffers` shrinks it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, Const, Expr, FloorDiv, FloorMod
from tilewright.tensor.ir import (
    Alloc,
    Buffer,
    For,
    Function,
    Load,
    MaskedLoad,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.passes.accesses import Access, collect
from tilewright.tensor.visit import rewrite, walk


def merge_dimensions(fn: Function, ctx: PassContext) -> Function:
    buffers = [stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, Alloc)]
    found = collect(fn.body, [buffer for buffer in buffers if len(buffer.shape) > 1])
    merged = {buffer: at for buffer, uses in found.items() if (at := _mergeable(buffer, uses))}
    return replace(fn, body=_merged(fn.body, merged)) if merged else fn


def _mergeable(buffer: Buffer, accesses: list[Access]) -> tuple[int, ...]:
    """The dimensions that every access indexes by a quotient, the next one by its remainder."""
    if any(a.is_opaque or isinstance(a.place.stmt, TensorCall) for a in accesses):
        return ()
    dims: tuple[int, ...] = tuple(range(len(buffer.shape) - 1 if accesses else 0))
    for access in accesses:
        if not dims:
            return ()
        index = _without_single_loops(access)
        dims = tuple([at for at in dims if _are_parts(index[at], index[at + 1], buffer, at)])
    return dims


def _are_parts(outer: Expr, inner: Expr, buffer: Buffer, at: int) -> bool:
    """Whether two indices are quotient and remainder of one number by the second's extent."""
    size = buffer.shape[at + 1]
    return (
        isinstance(size, Const)
        and isinstance(outer, FloorDiv)
        and isinstance(inner, FloorMod)
        and outer.b is inner.b is size
        and outer.a is inner.a
    )


def _without_single_loops(access: Access) -> list[Expr]:
    """The indices of an access, with loops of one iteration at their start."""
    loops = [place.stmt for place in access.place.ancestors() if isinstance(place.stmt, For)]
    first = {loop.var: loop.start for loop in loops if loop.extent is ONE}
    return [sym.simplify(sym.substitute(each.start, first)) for each in access.ranges]


def _merged(body: Stmt, dims: dict[Buffer, tuple[int, ...]]) -> Stmt:
    made = {
        buffer: replace(buffer, shape=_product(buffer.shape, at)) for buffer, at in dims.items()
    }

    def moved(buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        found = [index[0]]
        for at, each in enumerate(index[1:]):
            if at in dims[buffer]:
                found[-1] = sym.simplify(sym.add(sym.mul(found[-1], buffer.shape[at + 1]), each))
            else:
                found.append(each)
        return tuple(found)

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in made:
            return Load(made[expr.buffer], moved(expr.buffer, expr.index))
        if isinstance(expr, MaskedLoad) and expr.buffer in made:
            return MaskedLoad(made[expr.buffer], moved(expr.buffer, expr.index), expr.mask)
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in made:
            index = moved(stmt.buffer, stmt.index)
            return replace(stmt, buffer=made[stmt.buffer], index=index)
        if isinstance(stmt, Alloc) and stmt.buffer in made:
            return replace(stmt, buffer=made[stmt.buffer])
        return stmt

    return rewrite(body, rule, expr_rule)


def _product(shape: tuple[Expr, ...], dims: tuple[int, ...]) -> tuple[Expr, ...]:
    found = [shape[0]]
    for at, each in enumerate(shape[1:]):
        if at in dims:
            found[-1] = sym.mul(found[-1], each)
        else:
            found.append(each)
    return tuple(found)
