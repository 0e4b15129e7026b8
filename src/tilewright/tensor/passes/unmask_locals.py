"""Drops masks on accesses of local buffers where nobody can see the lanes they protect.

    T[ramp(0, 1, 8)] = masked(T[ramp(0, 1, 8)], m) + masked(A[..], m) where m
    T[ramp(0, 1, 8)] = T[ramp(0, 1, 8)] + masked(A[..], m)

If all accesses of a vector of a local buffer carry the same mask, what its other lanes hold only
ever reaches those same lanes, and stores that mask them. Nor are masks of loads needed where all
lanes were stored. So the vector can live in a register, which a masked access of memory could not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import (
    Address,
    Alloc,
    Buffer,
    ExternCall,
    Function,
    Load,
    MaskedLoad,
    Ramp,
    Stmt,
    Store,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import rewrite, walk


def unmask_locals(fn: Function, ctx: PassContext) -> Function:
    uses = _uses(fn.body)
    free = {buffer for buffer, found in uses.items() if found.is_maskable()}
    if not free:
        return fn

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, MaskedLoad) and expr.buffer in free:
            return Load(expr.buffer, expr.index)
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in free and stmt.mask is not None:
            return replace(stmt, mask=None)
        return stmt

    return replace(fn, body=rewrite(fn.body, rule, expr_rule))


@dataclass(slots=True)
class _Uses:
    """The accesses of a local buffer: the masks of loads and stores, by first element and width."""

    size: int
    loads: dict[tuple[int, int], set[Expr | None]] = field(default_factory=dict)
    stores: dict[tuple[int, int], set[Expr | None]] = field(default_factory=dict)
    is_regular: bool = True  # at constant places, whole vectors at a time

    def add(self, is_store: bool, index: tuple[Expr, ...], mask: Expr | None) -> None:
        (at,) = index
        first, lanes = (at.base, at.lanes) if isinstance(at, Ramp) else (at, 1)
        is_run = isinstance(at, Const) or (isinstance(at, Ramp) and at.stride is sym.ONE)
        if not is_run or not isinstance(first, Const) or first.value + lanes > self.size:
            self.is_regular = False
            return
        found = self.stores if is_store else self.loads
        found.setdefault((int(first.value), lanes), set()).add(mask)

    def is_maskable(self) -> bool:
        if not self.is_regular:
            return False
        reached = 0
        some_mask = False
        for first, lanes in sorted({*self.loads, *self.stores}):
            if first < reached:
                return False  # vectors that overlap
            reached = first + lanes
            loads = self.loads.get((first, lanes), set())
            stores = self.stores.get((first, lanes), set())
            masks = (loads | stores) - {None}
            if stores != {None} and (len(masks) > 1 or (masks and None in loads)):
                return False
            some_mask = some_mask or bool(masks)
        return some_mask


def _uses(root: Stmt) -> dict[Buffer, _Uses]:
    """The uses of local buffers of constant size."""
    found: dict[Buffer, _Uses] = {}
    stmts = list(walk(root))
    for stmt in stmts:
        if isinstance(stmt, Alloc) and stmt.buffer.memory.owner is Owner.THREAD:
            size, *more = stmt.buffer.shape
            if isinstance(size, Const) and not more:  # external kernels take whole matrices
                found[stmt.buffer] = _Uses(int(size.value))
        elif isinstance(stmt, ExternCall):
            for region in stmt.regions:
                found.pop(region.buffer, None)
        elif isinstance(stmt, Store) and stmt.buffer in found:
            found[stmt.buffer].add(True, stmt.index, stmt.mask)
    if not found:
        return found
    for node in sym.walk(*(expr for stmt in stmts for expr in stmt.exprs())):
        if isinstance(node, (Load, MaskedLoad, Address)) and node.buffer in found:
            if isinstance(node, Address):
                found[node.buffer].is_regular = False
            else:
                mask = node.mask if isinstance(node, MaskedLoad) else None
                found[node.buffer].add(False, node.index, mask)
    return found
