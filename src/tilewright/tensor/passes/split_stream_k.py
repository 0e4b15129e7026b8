"""Blocks that share the steps of all tiles evenly (stream-K), for kernels with roles.

    for tile in thread(blockIdx.x) 0..T { clear; for k in 0..K { sums += ... }; store(sums) }

    alloc partial[B, ...], signals[B, ...]
    for b in thread(blockIdx.x) 0..B {
      for piece in 0..pieces(b) {
        clear; for k in begin..end { sums += ... }
        if 0 < begin { partial[b] = sums; signal(b) }
        else { for other in b + 1..last + 1 { wait(other); sums += partial[other] }; store(sums) } }

Blocks have a tile each in all whole waves but the last. Of the T * K steps of the other tiles block
b has those from b * T * K / B on, so that no wave is left half empty. A tile whose steps
several blocks have belongs to the one with its first step; the others leave their sums in memory,
which is the first thing that they do in that wave, and signal. Who waits takes the signal back, so
that the next launch finds none. A block waits for later ones alone, which wait for nobody before
they signal. CUDA promises no order of blocks, so the launch is cooperative: all have a place at
once, or the driver refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import I32
from tilewright.base.errors import Unsupported
from tilewright.sym import ONE, ZERO, Const, Expr, Var
from tilewright.tensor.ir import (
    SERIAL,
    Address,
    Alloc,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.roles import effect
from tilewright.tensor.scopes import ARRIVALS
from tilewright.tensor.visit import exprs, rewrite, substitute

KEEP, SIGNAL, WAIT, SUM = "stream.keep", "stream.signal", "stream.wait", "stream.sum"
CALLS = (KEEP, SIGNAL, WAIT, SUM)
WARPS = 4  # of a warpgroup, each of which signals


@dataclass(frozen=True)
class Shares:
    """Which steps the blocks of a kernel have: those of whole waves, then an even share of the
    rest."""

    block: Var
    piece: Var
    blocks: int
    tiles: int
    depth: int  # steps of a tile

    @property
    def waves(self) -> int:
        """Whole ones, in which each block has a tile of its own. The rest is a wave and a part: of
        it a block has as many steps as a tile has, or more, and no tile is summed by many."""
        return max(0, self.tiles // self.blocks - 1)

    @property
    def rest(self) -> int:
        """Tiles whose steps are shared."""
        return self.tiles - self.waves * self.blocks

    @property
    def least(self) -> int:
        """Steps that every block has."""
        return self.waves * self.depth + self.rest * self.depth // self.blocks

    def _begin(self, block: Expr) -> Expr:
        return sym.floordiv(sym.mul(block, self.rest * self.depth), self.blocks)

    @property
    def begin(self) -> Expr:
        """A block's first step of the rest."""
        return self._begin(self.block)

    @property
    def first(self) -> Expr:
        """The tile of the rest that it belongs to."""
        return sym.floordiv(self.begin, self.depth)

    @property
    def pieces(self) -> Expr:
        end = sym.ceildiv(self._begin(sym.add(self.block, 1)), self.depth)
        return sym.simplify(sym.add(sym.sub(end, self.first), self.waves))

    def _either(self, whole: Expr, shared: Expr) -> Expr:
        """What a piece has that is a tile, or a share of one."""
        if not self.waves:
            return sym.simplify(shared)
        return sym.simplify(sym.select(sym.lt(self.piece, self.waves), whole, shared))

    @property
    def _left(self) -> Expr:
        """Which tile of the rest a piece is of."""
        return sym.add(self.first, sym.sub(self.piece, self.waves))

    @property
    def tile(self) -> Expr:
        own = sym.add(sym.mul(self.piece, self.blocks), self.block)
        return self._either(own, sym.add(self._left, self.waves * self.blocks))

    @property
    def steps(self) -> tuple[Expr, Expr]:
        """Of the piece's tile: from, to."""
        before = sym.mul(self._left, self.depth)
        end = self._begin(sym.add(self.block, 1))
        return (
            self._either(ZERO, sym.maximum(sym.sub(self.begin, before), 0)),
            self._either(sym.const(self.depth), sym.minimum(sym.sub(end, before), self.depth)),
        )

    @property
    def last(self) -> Expr:
        """The block that has the tile's last step."""
        shared = sym.ceildiv(sym.mul(sym.add(self._left, 1), self.blocks), self.rest)
        return self._either(self.block, sym.sub(shared, 1))

    def place_at(self, step: Expr) -> tuple[Expr, Expr]:
        """The piece that a block's step belongs to, and which step of its tile that is; steps are
        counted from the block's first one."""
        whole = self.waves * self.depth
        place = sym.add(self.begin, sym.sub(step, whole))
        piece = sym.add(sym.sub(sym.floordiv(place, self.depth), self.first), self.waves)
        depth = sym.floormod(place, self.depth)
        if not whole:
            return piece, depth
        is_whole = sym.lt(step, whole)
        return (
            sym.select(is_whole, sym.floordiv(step, self.depth), piece),
            sym.select(is_whole, sym.floormod(step, self.depth), depth),
        )


@dataclass(frozen=True)
class Exchange:
    """Memory through which blocks give each other their sums."""

    partial: Buffer
    signals: Buffer

    def around(self, kernel: Stmt) -> Stmt:
        return Alloc(self.partial, Alloc(self.signals, kernel))


def split_stream_k(
    nest: list[For], body: Stmt, ring: For, blocks: int, groups: int, among: Expr
) -> tuple[list[For], Stmt, Shares, Exchange]:
    """The loops of a kernel over blocks that share its steps, what they do, and their memory."""
    (loop,) = [each for each in nest if each.thread == "blockIdx.x"]
    tiles, depth = sym.simplify(loop.extent), sym.simplify(ring.extent)
    sums = {node.args[0]: node for node in exprs(ring) if isinstance(node, Call) and _adds(node)}
    known = isinstance(tiles, Const) and isinstance(depth, Const)
    enough = known and _number(tiles) * _number(depth) >= blocks
    if not enough or len(sums) != 1:
        raise Unsupported(
            "TW2260",
            f"{blocks} blocks cannot share the steps of {tiles} tiles of {depth} each",
            ring.loc,
            help="share steps of one product, of sizes that are known, among no more blocks than "
            "there are steps",
        )
    block = sym.var(loop.var.name)
    shares = Shares(block, sym.var("piece"), blocks, _number(tiles), _number(depth))
    ((tile, product),) = sums.items()
    exchange = _exchange(tile, blocks, groups)
    begin, end = shares.steps

    def rule(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Seq) or ring not in stmt.stmts:
            return stmt
        at = stmt.stmts.index(ring)
        part = replace(ring, start=begin, stop=end)
        after = _finished(stmt.stmts[at + 1 :], tile, product, shares, exchange, among)
        return seq(*stmt.stmts[:at], part, after)

    made = rewrite(body, rule)
    assert made is not None
    made = substitute(made, {loop.var: sym.add(shares.tile, loop.start)})
    pieces = For(shares.piece, ZERO, shares.pieces, made, SERIAL, "", (), loop.loc)
    stays = replace(loop, var=block, start=ZERO, stop=sym.const(blocks))
    return [stays if each is loop else each for each in nest], pieces, shares, exchange


def _number(expr: Expr) -> int:
    assert isinstance(expr, Const)
    return int(expr.value)


def _adds(node: Call) -> bool:
    return node.op == "wgmma.tile"


def _exchange(tile: Expr, blocks: int, groups: int) -> Exchange:
    assert isinstance(tile, Address)
    rows, width = tile.buffer.shape[-2:]
    partial = (sym.const(blocks), sym.const(groups), rows, width)
    signals = (sym.const(blocks), sym.const(groups), sym.const(WARPS))
    return Exchange(
        Buffer("partial", partial, tile.buffer.dtype, "global"),
        Buffer("signals", signals, I32, ARRIVALS.name),
    )


def _finished(
    after: tuple[Stmt, ...],
    tile: Expr,
    product: Call,
    shares: Shares,
    exchange: Exchange,
    among: Expr,
) -> Stmt:
    """What happens to the sums of a piece: others wait for them, or they are those of a tile."""
    begin, _ = shares.steps
    width = product.args[3]

    def places(block: Expr) -> tuple[Expr, Expr]:
        kept = Address(exchange.partial, (block, among, ZERO, ZERO))
        return kept, Address(exchange.signals, (block, among, ZERO))

    kept, signal = places(shares.block)
    given = seq(effect(KEEP, tile, kept, width), effect(SIGNAL, signal))
    other = sym.var("other")
    kept, signal = places(other)
    taken = seq(effect(WAIT, signal), effect(SUM, tile, kept, width))
    first, last = sym.add(shares.block, ONE), sym.add(shares.last, 1)
    gathered = For(other, first, last, taken, SERIAL)
    return If(sym.lt(ZERO, begin), given, seq(gathered, *after))
