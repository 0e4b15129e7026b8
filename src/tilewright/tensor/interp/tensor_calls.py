"""Expansion of a tensor call into statements: the declared behaviour over the caller's tiles.

compute runs the behaviour; reset runs only the init of its reduction; update runs it without init,
accumulating into the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.sym import ONE, Const, Expr, Var
from tilewright.tensor.intrin import COMPUTE, RESET, UPDATE, TensorIntrin, intrinsic
from tilewright.tensor.ir import (
    SERIAL,
    SPATIAL,
    VECTOR,
    Alloc,
    Block,
    Buffer,
    For,
    Load,
    MaskedLoad,
    Range,
    Region,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.visit import blocks, rewrite, substitute


def expand_tensor_call(stmt: TensorCall) -> Stmt:
    """The statements that carry out one call."""
    intrin = intrinsic(stmt.intrin, stmt.arguments, stmt.loc)
    tiles = _match_tiles(intrin, stmt)
    sizes = {
        dim: r.extent
        for buffer, tile in tiles.items()
        for dim, r in zip(buffer.shape, tile.inner, strict=True)
        if isinstance(dim, Var)
    }
    body = _phase(intrin, stmt)
    body = rewrite(body, lambda s: _moved_stmt(s, tiles), lambda e: _moved_expr(e, tiles, sizes))
    for buffer in reversed(intrin.behavior.allocs):
        body = Alloc(buffer, body)
    return body


_FEWEST = 128  # elements of a result that lanes are worth making for


def spread(body: Stmt) -> Stmt:
    """Loops over the elements of a large result as outer vector loops, the others inside.

    Instances of a block that differ in spatial iterators do not depend on each other.
    """
    loops: list[For] = []
    inner = body
    while isinstance(inner, For) and inner.kind == SERIAL:
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, Block):
        return body
    spatial = {
        binding
        for it, binding in zip(inner.iters, inner.bindings, strict=True)
        if it.kind == SPATIAL
    }
    elements = [loop for loop in loops if loop.var in spatial]
    extents = [loop.extent for loop in elements]
    fixed = all(isinstance(x, Const) for loop in loops for x in (loop.start, loop.stop))
    if not fixed or math.prod(int(str(n)) for n in extents) < _FEWEST:
        return body
    result: Stmt = inner
    for loop in reversed([loop for loop in loops if loop.var not in spatial]):
        result = replace(loop, body=result)
    for loop in reversed(elements):
        result = replace(loop, body=result, kind=VECTOR)
    return result


class _Tile:
    """A region seen as a buffer: `inner` are the ranges that the behaviour's indices run over."""

    def __init__(self, region: Region, rank: int) -> None:
        self.region = region
        spare = len(region.ranges) - rank
        self.fixed: list[bool] = []  # dimensions of extent one that the behaviour does not have
        for r in region.ranges:
            drop = spare > 0 and r.extent is ONE
            spare -= drop
            self.fixed.append(drop)
        self.matches = spare == 0
        self.inner = [r for r, fixed in zip(region.ranges, self.fixed, strict=True) if not fixed]

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The caller's index of an element."""
        inner = iter(index)
        return tuple(
            r.start if fixed else sym.add(r.start, next(inner))
            for r, fixed in zip(self.region.ranges, self.fixed, strict=True)
        )

    def ranges(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        inner = iter(ranges)
        moved = []
        for r, fixed in zip(self.region.ranges, self.fixed, strict=True):
            if fixed:
                moved.append(r)
            else:
                part = next(inner)
                moved.append(Range(sym.add(r.start, part.start), part.extent))
        return tuple(moved)


def _match_tiles(intrin: TensorIntrin, stmt: TensorCall) -> dict[Buffer, _Tile]:
    params = intrin.behavior.buffers
    if stmt.phase == RESET and len(stmt.regions) == len(intrin.outputs):
        params = intrin.outputs  # nothing else is touched
    if len(params) != len(stmt.regions):
        raise ExecutionError(
            "TW2313",
            f"{intrin.name} takes {len(params)} regions, the call gives {len(stmt.regions)}",
            stmt.loc,
        )
    tiles = {}
    for buffer, region in zip(params, stmt.regions, strict=True):
        tile = tiles[buffer] = _Tile(region, buffer.rank)
        if not tile.matches or not all(
            dim is r.extent or not isinstance(dim, Const)
            for dim, r in zip(buffer.shape, tile.inner, strict=True)
        ):
            extents = ", ".join(str(r.extent) for r in region.ranges)
            shape = ", ".join(str(dim) for dim in buffer.shape)
            raise ExecutionError(
                "TW2313",
                f"{intrin.name} takes {buffer.dtype}[{shape}] for %{buffer.name}, the call gives "
                f"a tile of [{extents}] of %{region.buffer.name}",
                stmt.loc,
                help="only dimensions of extent one may be left out",
            )
    return tiles


def without_blocks(stmt: Stmt) -> Stmt:
    """What blocks do, by the loops around them."""

    def rule(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Block):
            return stmt
        values = dict(zip((it.var for it in stmt.iters), stmt.bindings, strict=True))
        return substitute(stmt.body, values)

    return rewrite(stmt, rule)


def _phase(intrin: TensorIntrin, stmt: TensorCall) -> Stmt:
    body = intrin.behavior.body
    if stmt.phase == COMPUTE:
        return body
    if not any(block.init is not None for block in blocks(body)):
        raise ExecutionError(
            "TW2313", f"{intrin.name} is no reduction: it has no phase {stmt.phase}", stmt.loc
        )

    def only_init(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block) and stmt.init is not None:
            return replace(stmt, body=stmt.init, init=None)
        return stmt

    def without_init(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block) and stmt.init is not None:
            return replace(stmt, init=None)
        return stmt

    return rewrite(body, {RESET: only_init, UPDATE: without_init}[stmt.phase])


def _moved_expr(expr: Expr, tiles: Mapping[Buffer, _Tile], sizes: Mapping[Var, Expr]) -> Expr:
    if isinstance(expr, Load) and expr.buffer in tiles:
        tile = tiles[expr.buffer]
        return Load(tile.region.buffer, tile.index(expr.index))
    if isinstance(expr, MaskedLoad) and expr.buffer in tiles:
        tile = tiles[expr.buffer]
        return MaskedLoad(tile.region.buffer, tile.index(expr.index), expr.mask)
    if isinstance(expr, Var):
        return sizes.get(expr, expr)
    return expr


def _moved_stmt(stmt: Stmt, tiles: Mapping[Buffer, _Tile]) -> Stmt:
    if isinstance(stmt, Store) and stmt.buffer in tiles:
        tile = tiles[stmt.buffer]
        return replace(stmt, buffer=tile.region.buffer, index=tile.index(stmt.index))
    if isinstance(stmt, Update) and stmt.buffers[0] in tiles:
        moved = [tiles[buffer] for buffer in stmt.buffers]
        return replace(
            stmt,
            buffers=tuple(tile.region.buffer for tile in moved),
            index=moved[0].index(stmt.index),
        )
    if isinstance(stmt, Block):
        return replace(
            stmt, reads=_moved_regions(stmt.reads, tiles), writes=_moved_regions(stmt.writes, tiles)
        )
    return stmt


def _moved_regions(
    regions: tuple[Region, ...], tiles: Mapping[Buffer, _Tile]
) -> tuple[Region, ...]:
    return tuple(
        Region(tiles[r.buffer].region.buffer, tiles[r.buffer].ranges(r.ranges))
        if r.buffer in tiles
        else r
        for r in regions
    )
