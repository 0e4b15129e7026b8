"""Stream-K: blocks split the steps of all tiles evenly, in warp-specialized kernels.

    for tile in thread(blockIdx.x) 0..T { clear; for k in 0..K { sums += ... }; store(sums) }

    alloc partial[B, ...], signals[B, ...]
    for b in thread(blockIdx.x) 0..B {
      for piece in 0..pieces(b) {
        clear; for k in begin..end { sums += ... }
        if 0 < begin { partial[b] = sums; signal(b) }
        else { for other in b + 1..last + 1 { wait(other); sums += partial[other] }; store(sums) } }

Blocks take whole tiles in all waves but the last full one. The T * K steps of the remaining tiles
are split evenly: block b starts at step b * T * K / B. A tile with several blocks is finished by
the one with its first step; the others store their partial sums, first thing in that wave, and
signal. The waiting block resets the signal for the next launch. A block waits only for later
blocks, which signal without waiting. CUDA guarantees no order of blocks, so the launch is
cooperative: all blocks are resident, or the driver refuses.
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
WARPS = 4  # per warpgroup, each of which signals


@dataclass(frozen=True)
class Shares:
    """The assignment of steps to blocks: whole waves, then an even split of the rest."""

    block: Var
    piece: Var
    blocks: int
    tiles: int
    depth: int  # steps per tile

    @property
    def waves(self) -> int:
        """Full waves of whole tiles. At least one wave's worth of steps is left to split, so that a
        block has no fewer steps than a tile and few blocks share one."""
        return max(0, self.tiles // self.blocks - 1)

    @property
    def rest(self) -> int:
        """Tiles whose steps are split."""
        return self.tiles - self.waves * self.blocks

    @property
    def least(self) -> int:
        """Steps that every block has at least."""
        return self.waves * self.depth + self.rest * self.depth // self.blocks

    def _begin(self, block: Expr) -> Expr:
        return sym.floordiv(sym.mul(block, self.rest * self.depth), self.blocks)

    @property
    def begin(self) -> Expr:
        """A block's first step among the split ones."""
        return self._begin(self.block)

    @property
    def first(self) -> Expr:
        """The split tile of that step."""
        return sym.floordiv(self.begin, self.depth)

    @property
    def pieces(self) -> Expr:
        end = sym.ceildiv(self._begin(sym.add(self.block, 1)), self.depth)
        return sym.simplify(sym.add(sym.sub(end, self.first), self.waves))

    def _either(self, whole: Expr, shared: Expr) -> Expr:
        """A value for pieces that are whole tiles, or for those that are split."""
        if not self.waves:
            return sym.simplify(shared)
        return sym.simplify(sym.select(sym.lt(self.piece, self.waves), whole, shared))

    @property
    def _left(self) -> Expr:
        """The index of a piece among the split tiles."""
        return sym.add(self.first, sym.sub(self.piece, self.waves))

    @property
    def tile(self) -> Expr:
        own = sym.add(sym.mul(self.piece, self.blocks), self.block)
        return self._either(own, sym.add(self._left, self.waves * self.blocks))

    @property
    def steps(self) -> tuple[Expr, Expr]:
        """First and last step of the piece's tile."""
        before = sym.mul(self._left, self.depth)
        end = self._begin(sym.add(self.block, 1))
        return (
            self._either(ZERO, sym.maximum(sym.sub(self.begin, before), 0)),
            self._either(sym.const(self.depth), sym.minimum(sym.sub(end, before), self.depth)),
        )

    @property
    def last(self) -> Expr:
        """The block with the tile's last step."""
        shared = sym.ceildiv(sym.mul(sym.add(self._left, 1), self.blocks), self.rest)
        return self._either(self.block, sym.sub(shared, 1))

    def place_at(self, step: Expr) -> tuple[Expr, Expr]:
        """The piece that a block's n-th step belongs to, and the step within that tile."""
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
    """Global memory through which blocks exchange partial sums."""

    partial: Buffer
    signals: Buffer

    def around(self, kernel: Stmt) -> Stmt:
        return Alloc(self.partial, Alloc(self.signals, kernel))


def split_stream_k(
    nest: list[For], body: Stmt, ring: For, blocks: int, groups: int, among: Expr
) -> tuple[list[For], Stmt, Shares, Exchange]:
    """Returns the kernel's loops over blocks, their body, the assignment, and the exchange
    memory."""
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
    """The end of a piece: store partial sums and signal, or collect those of others and store the
    tile."""
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
