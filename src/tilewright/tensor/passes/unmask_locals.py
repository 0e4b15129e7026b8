"""Drop masks on accesses of local buffers where the masked lanes are never observed.

    T[ramp(0, 1, 8)] = masked(T[ramp(0, 1, 8)], m) + masked(A[..], m) where m
    T[ramp(0, 1, 8)] = T[ramp(0, 1, 8)] + masked(A[..], m)

If all accesses of a vector of a local buffer carry the same mask, which is invariant while the
buffer lives, the contents of other lanes only ever reach those same lanes, whose stores are masked.
Loads need no mask either where all lanes were stored. Without masks the vector can live in a
register. Lanes that lie beyond the buffer, or overlap its next vector, get space of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr, Lt
from tilewright.tensor.ir import (
    Address,
    Alloc,
    Broadcast,
    Buffer,
    ExternCall,
    For,
    Function,
    Let,
    Load,
    MaskedLoad,
    Ramp,
    Stmt,
    Store,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import rewrite, walk


def unmask_locals(fn: Function, ctx: PassContext) -> Function:
    free = {old: found for old, uses in _uses(fn.body).items() if (found := uses.unmasked())}
    if not free:
        return fn

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load | MaskedLoad) and expr.buffer in free:
            found = free[expr.buffer]
            return Load(found.buffer, found.moved(expr.index))
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Alloc | Store) or stmt.buffer not in free:
            return stmt
        found = free[stmt.buffer]
        if isinstance(stmt, Alloc):
            return replace(stmt, buffer=found.buffer)
        return replace(stmt, buffer=found.buffer, index=found.moved(stmt.index), mask=None)

    return replace(fn, body=rewrite(fn.body, rule, expr_rule))


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """A buffer with room for all lanes of its vectors, and the new starts of these."""

    buffer: Buffer
    places: dict[int, int]

    def moved(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        (at,) = index
        first = _first(at)
        assert isinstance(first, Const)
        place = sym.const(self.places[int(first.value)], first.dtype)
        return (Ramp(place, at.stride, at.lanes) if isinstance(at, Ramp) else place,)


def _first(at: Expr) -> Expr:
    return at.base if isinstance(at, Ramp) else at


def _reach(mask: Expr | None, lanes: int) -> int:
    """The number of leading lanes that a mask may enable."""
    if isinstance(mask, Lt) and isinstance(mask.a, Ramp) and isinstance(mask.b, Broadcast):
        first, end = mask.a.base, mask.b.value
        if isinstance(first, Const) and isinstance(end, Const) and mask.a.stride is sym.ONE:
            return min(lanes, max(1, int(end.value) - int(first.value)))
    return lanes


@dataclass(slots=True)
class _Uses:
    """The accesses of a local buffer: masks of loads and stores by first element and width."""

    alloc: Alloc
    size: int
    loads: dict[tuple[int, int], set[Expr | None]] = field(default_factory=dict)
    stores: dict[tuple[int, int], set[Expr | None]] = field(default_factory=dict)
    is_regular: bool = True  # whole vectors at constant indices

    def add(self, is_store: bool, index: tuple[Expr, ...], mask: Expr | None) -> None:
        (at,) = index
        first, lanes = _first(at), at.dtype.lanes
        is_run = isinstance(at, Const) or (isinstance(at, Ramp) and at.stride is sym.ONE)
        if not is_run or not isinstance(first, Const):
            self.is_regular = False
            return
        found = self.stores if is_store else self.loads
        found.setdefault((int(first.value), lanes), set()).add(mask)

    def unmasked(self) -> _Unmasked | None:
        """The buffer without masks, unless disabled lanes may be observed."""
        if not self.is_regular:
            return None
        buffer = self.alloc.buffer
        shared: set[Expr] = set()  # masks on all accesses of their vectors
        reached = grown = 0
        some_mask = False
        places = {}
        for first, lanes in sorted({*self.loads, *self.stores}):
            if first < reached:
                return None  # vectors that overlap
            loads = self.loads.get((first, lanes), set())
            stores = self.stores.get((first, lanes), set())
            masks = {mask for mask in loads | stores if mask is not None}
            if stores != {None}:
                if len(masks) > 1 or (masks and None in loads):
                    return None
                shared |= masks
            reached = first + max(_reach(mask, lanes) for mask in loads | stores)
            places[first] = max(first, grown)
            grown = places[first] + lanes
            some_mask = some_mask or bool(masks)
        if not some_mask or reached > self.size or _vary(shared, self.alloc.body):
            return None
        if grown > self.size:
            buffer = replace(buffer, shape=(sym.const(grown),))
        return _Unmasked(buffer, places)


def _vary(masks: set[Expr], body: Stmt) -> bool:
    """Whether masks may change within `body`."""
    if any(isinstance(node, Load | MaskedLoad) for node in sym.walk(*masks)):
        return True
    names = sym.free_vars(*masks)
    return bool(names) and any(
        isinstance(stmt, For | Let) and stmt.var in names for stmt in walk(body)
    )


def _uses(root: Stmt) -> dict[Buffer, _Uses]:
    """The uses of local buffers of constant size."""
    found: dict[Buffer, _Uses] = {}
    stmts = list(walk(root))
    for stmt in stmts:
        if isinstance(stmt, Alloc) and stmt.buffer.memory.owner is Owner.THREAD:
            size, *more = stmt.buffer.shape
            if isinstance(size, Const) and not more:  # external kernels access whole matrices
                found[stmt.buffer] = _Uses(stmt, int(size.value))
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
