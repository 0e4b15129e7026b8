"""Tile order of persistent blocks, and step order of pipelined loops."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.sym import ZERO, Expr
from tilewright.tensor.ir import SERIAL, For, Stmt
from tilewright.tensor.passes.stagger_attention import ATTEND, calls_of
from tilewright.tensor.roles import rings, role_plan
from tilewright.tensor.visit import rewrite, substitute

WAVES = "waves"  # annotation of a loop over waves of tiles: blocks per wave


def persistent(nest: list[For], body: Stmt, blocks: int) -> tuple[list[For], Stmt]:
    """Persistent blocks: fewer blocks than tiles, each taking tile after tile, so that loads of the
    next tile overlap the stores of the last. Where tiles differ in steps, the order of blocks
    alternates between waves, to balance their load."""
    made = []
    for loop in nest:
        if loop.thread == "blockIdx.x":
            stay, wave = sym.var(loop.var.name), sym.var("wave")
            place: Expr = stay
            last: Expr = stay
            if any(sym.uses_var(ring.extent, {loop.var}) for ring in rings(body)):
                back = sym.sub(blocks - 1, stay)
                place = _alternating(wave, stay, back)
                last = _alternating(sym.floordiv(loop.extent, blocks), stay, back)
            tile = sym.add(sym.mul(wave, blocks), place)
            left = sym.sub(sym.add(loop.extent, blocks - 1), last)
            body = substitute(body, {loop.var: sym.add(tile, loop.start)})
            told = ((WAVES, blocks),)
            body = For(wave, ZERO, sym.floordiv(left, blocks), body, SERIAL, "", told, loop.loc)
            loop = replace(loop, var=stay, start=ZERO, stop=sym.const(blocks))
        made.append(loop)
    return made, body


def longest_first(nest: list[For], body: Stmt) -> tuple[list[For], Stmt]:
    """Reverse the blocks where later ones have more work, as under a causal mask, to avoid a long
    tail."""
    steps = [ring.extent for ring in rings(body)]
    blocks = [loop for loop in nest if loop.thread == "blockIdx.x"]
    if len(blocks) != 1 or not any(sym.uses_var(extent, {blocks[0].var}) for extent in steps):
        return nest, body
    loop = blocks[0]
    place = sym.sub(sym.add(loop.start, loop.stop), sym.add(loop.var, 1))
    return nest, substitute(body, {loop.var: place})


def backwards(body: Stmt) -> Stmt:
    """Attention starts with the last keys: the ones that the mask cuts through, so that the other
    steps, a loop of their own, need no mask."""

    def rule(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For) or not role_plan(stmt).slots or not calls_of(stmt, ATTEND):
            return stmt
        place = sym.sub(sym.add(stmt.start, stmt.stop), sym.add(stmt.var, 1))
        return replace(stmt, body=substitute(stmt.body, {stmt.var: place}))

    made = rewrite(body, rule)
    assert made is not None
    return made


def _alternating(wave: Expr, even: Expr, odd: Expr) -> Expr:
    return sym.select(sym.eq(sym.floormod(wave, 2), ZERO), even, odd)
