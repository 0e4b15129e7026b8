"""Loads of tile registers move down to the first product that uses them.

    load a0; load a1; load b0; load b1; c00 += a0 b0; c01 += a0 b1; c10 += a1 b0; c11 += a1 b1
    load a0; load b0; c00 += a0 b0; load b1; c01 += a0 b1; load a1; c10 += a1 b0; c11 += a1 b1

The first product waits for two tiles instead of four, and tiles of rows that compete for the same
places of the first cache are not all there at once. Products touch no memory, so a load may pass
them; it stays in front of everything else.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.codegen.tiles import is_tile
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Alloc, Buffer, Call, Eval, Seq, Stmt, seq

LOAD = "llvm.x86.tileload"
Tile = tuple[Buffer, tuple[Expr, ...]]


def load_late(stmt: Stmt) -> Stmt:
    """The statement with its loads of tiles where they are needed."""
    mover = _Mover()
    mover.visit(stmt)
    return seq(*mover.flushed())


class _Mover:
    """Statements in their new order, and loads that are still to come."""

    def __init__(self, waiting: list[tuple[Tile, Stmt]] | None = None) -> None:
        self.done: list[Stmt] = []
        self.waiting = waiting or []

    def visit(self, stmt: Stmt) -> None:
        if isinstance(stmt, Seq):
            for child in stmt.stmts:
                self.visit(child)
        elif isinstance(stmt, Alloc) and is_tile(stmt.buffer):
            inside = _Mover(self.waiting)
            inside.visit(stmt.body)
            own = [load for tile, load in inside.waiting if tile[0] is stmt.buffer]
            self.waiting = [each for each in inside.waiting if each[0][0] is not stmt.buffer]
            self.done.append(Alloc(stmt.buffer, seq(*inside.done, *own), stmt.loc))
        elif (tiles := _tiles(stmt)) is None:
            self.done = self.flushed()
            inner = tuple([load_late(child) for child in stmt.children()])
            self.done.append(stmt.with_children(inner) if inner else stmt)
        elif _is_load(stmt):
            self.waiting.append((tiles[0], stmt))
        else:
            needed = [load for tile, load in self.waiting if tile in tiles]
            self.waiting = [each for each in self.waiting if each[0] not in tiles]
            self.done += [*needed, stmt]

    def flushed(self) -> list[Stmt]:
        """All statements, the loads that nothing has asked for at the end."""
        loads, self.waiting = [load for _, load in self.waiting], []
        return [*self.done, *loads]


def _tiles(stmt: Stmt) -> list[Tile] | None:
    """The tiles of an instruction that loads or multiplies; None of every other statement."""
    if not isinstance(stmt, Eval) or not isinstance(stmt.value, Call):
        return None
    places = [arg for arg in stmt.value.args if isinstance(arg, Address)]
    found = [
        (place.buffer, tuple([sym.simplify(at) for at in place.index]))
        for place in places
        if is_tile(place.buffer)
    ]
    is_known = len(found) == len(places) or _is_load(stmt)
    return found if found and is_known else None


def _is_load(stmt: Stmt) -> bool:
    assert isinstance(stmt, Eval)
    assert isinstance(stmt.value, Call)
    return stmt.value.op.startswith(LOAD)
