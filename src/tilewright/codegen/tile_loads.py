"""Sink loads of tile registers down to the first multiplication that uses them.

    load a0; load a1; load b0; load b1; c00 += a0 b0; c01 += a0 b1; c10 += a1 b0; c11 += a1 b1
    load a0; load b0; c00 += a0 b0; load b1; c01 += a0 b1; load a1; c10 += a1 b0; c11 += a1 b1

The first multiplication waits for two tiles instead of four, and rows that compete for the same
sets of L1 are not all needed at once. Multiplications touch no memory, so a load may pass them; it
stays before everything else. A tile that already holds the data is not reloaded: steps of an
unrolled loop share their tiles.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.codegen.tiles import is_tile
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Alloc, Buffer, Call, Eval, Seq, Stmt, seq
from tilewright.tensor.visit import replace_buffers

LOAD = "llvm.x86.tileload"
Tile = tuple[Buffer, tuple[Expr, ...]]


def load_late(stmt: Stmt) -> Stmt:
    """The statement with its loads of tiles where they are needed."""
    mover = _Mover()
    mover.visit(stmt)
    return seq(*mover.flushed())


class _Mover:
    """Statements in their new order, pending loads, and the contents of tiles."""

    def __init__(
        self,
        waiting: list[tuple[Tile, Stmt]] | None = None,
        held: dict[Tile, Expr] | None = None,
    ) -> None:
        self.done: list[Stmt] = []
        self.waiting = waiting or []
        self.held = {} if held is None else held  # the load that brought it

    def visit(self, stmt: Stmt) -> None:
        if isinstance(stmt, Seq):
            for child in _sharing(stmt):
                self.visit(child)
        elif isinstance(stmt, Alloc) and is_tile(stmt.buffer):
            inside = _Mover(self.waiting, self.held)
            inside.visit(stmt.body)
            own = [load for tile, load in inside.waiting if tile[0] is stmt.buffer]
            self.waiting = [each for each in inside.waiting if each[0][0] is not stmt.buffer]
            self.done.append(Alloc(stmt.buffer, seq(*inside.done, *own), stmt.loc))
        elif (tiles := _tiles(stmt)) is None:
            self.done = self.flushed()
            self.held.clear()
            inner = tuple([load_late(child) for child in stmt.children()])
            self.done.append(stmt.with_children(inner) if inner else stmt)
        elif _is_load(stmt):
            (tile,) = tiles
            if self.held.get(tile) is not _value(stmt):
                self.waiting.append((tile, stmt))
            self.held[tile] = _value(stmt)
        else:
            self.held.pop(tiles[0], None)  # where results go
            needed = [load for tile, load in self.waiting if tile in tiles]
            self.waiting = [each for each in self.waiting if each[0] not in tiles]
            self.done += [*needed, stmt]

    def flushed(self) -> list[Stmt]:
        """All statements, the loads that nothing has asked for at the end."""
        loads, self.waiting = [load for _, load in self.waiting], []
        return [*self.done, *loads]


def _sharing(stmts: Seq) -> list[Stmt]:
    """A sequence in which later statements reuse the tiles of the first, where only loads and
    multiplications are between them."""
    done: list[Stmt] = []
    for stmt in _flat(stmts):
        if isinstance(stmt, Alloc) and is_tile(stmt.buffer):
            before = len(done) - 1
            while before >= 0 and _tiles(done[before]) is not None:
                before -= 1
            first = done[before] if before >= 0 else None
            if isinstance(first, Alloc) and _is_alike(first.buffer, stmt.buffer):
                body = replace_buffers(stmt.body, {stmt.buffer: first.buffer})
                whole = seq(first.body, *done[before + 1 :], body)
                done[before:] = [Alloc(first.buffer, whole, first.loc)]
                continue
        done.append(stmt)
    return done


def _flat(stmt: Stmt) -> list[Stmt]:
    return [one for each in stmt.stmts for one in _flat(each)] if isinstance(stmt, Seq) else [stmt]


def _is_alike(one: Buffer, other: Buffer) -> bool:
    """Whether buffers take the same registers."""
    return (one.shape, one.dtype, one.memory) == (other.shape, other.dtype, other.memory)


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
    value = _value(stmt)
    assert isinstance(value, Call)
    return value.op.startswith(LOAD)


def _value(stmt: Stmt) -> Expr:
    assert isinstance(stmt, Eval)
    return stmt.value
