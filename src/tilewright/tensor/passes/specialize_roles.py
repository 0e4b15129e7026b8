"""Warp specialization: a producer warp issues a loop's bulk copies, consumer warpgroups do the
rest.

    for t in thread(threadIdx.y) 0..2 { for k [specialize = (4, 0)] { copy(S, k); use(S) } }

    alloc S[4, ...], full[4], empty[4]
    for t in thread(threadIdx.y) 0..3 {
      if t < 2 { for k { wait(full[k % 4]);  use(S[k % 4]);       arrive(empty[k % 4]) } }
      else     { for k { wait(empty[k % 4]); copy(S[k % 4], k, full[k % 4])            } } }

A tile becomes a ring of slots. Slot s is full when the bytes of all its copies have arrived, and
empty when every consumer warp has released it. A slot's barriers flip their phase once per round of
the ring, so both sides compute the phase from their iteration count; the producer starts with all
slots empty, one phase behind. A tile that is copied once for all iterations, outside of the loop,
has its own pair of barriers, `ready` and `free`. Persistent blocks may have several slots for it,
so that the next one is in flight while this one is in use.

Rows of a tile that no copy fills, since the matrix has fewer, are zeroed once before the roles
start: zero-filling copies would take longer. The left operand of a `wgmma` does not need even that:
the rows behind it give sums that are never stored, so its tile is only as high as the matrix.

Copies of weights into the slots of the first round are issued before anything else: they wait for
nothing, not even for preceding kernels. Some of the next round's are prefetched to L2.

Where the blocks of a cluster split a tile's k, consumers synchronize across blocks: at `kept` when
every partial sum is readable, at `read` when none is read any more.

A tile that all blocks of a cluster share is multicast in parts, one per block (`tma.multicast`). A
slot is then empty when the consumers of all blocks have released it.

With ping-pong scheduling, each warpgroup has its own tile: one stores results while the other uses
the tensor cores.

Of two consumers that do more than multiply, the second starts half a step behind the first, so that
one uses the tensor cores while the other processes its scores; in lockstep they would stay so.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright import sym
from tilewright.base.dtype import INDEX, U64
from tilewright.base.errors import Unsupported
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Expr, Var
from tilewright.tensor.bulk_copies import called, copied_bytes, heights, is_copy, target_of
from tilewright.tensor.clusters import CLUSTER_BARRIER
from tilewright.tensor.dependent_launch import weights_of
from tilewright.tensor.ir import (
    CLUSTER_AXIS,
    SERIAL,
    THREAD,
    Address,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Let,
    Load,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.tensor.passes.insert_barriers import BARRIER
from tilewright.tensor.passes.order_tiles import backwards, longest_first, persistent
from tilewright.tensor.passes.overlap_products import overlapped
from tilewright.tensor.passes.rewriter import rewrite_kernels
from tilewright.tensor.passes.split_stream_k import Shares, split_stream_k
from tilewright.tensor.passes.stagger_attention import (
    ATTEND,
    calls_of,
    can_stagger,
    staggered,
)
from tilewright.tensor.proxies import INIT_FENCE
from tilewright.tensor.roles import (
    GROUP_THREADS,
    GROUP_WARPS,
    LAG,
    MULTICAST,
    PREFETCH,
    SWIZZLED,
    TILE_SCOPE,
    consumer_registers,
    effect,
    producer_registers,
    rings,
    role_plan,
)
from tilewright.tensor.visit import fresh_copy, rewrite, substitute, walk

PRODUCT = "wgmma.tile"
KEEP, GATHER = "cluster.keep", "cluster.sum"
LAG_CYCLES = 1200  # about half a step of attention, of 128 keys and as many features


def specialize_roles(fn: Function, ctx: PassContext) -> Function:
    if not rings(fn.body):
        return fn
    weights, near_bytes = weights_of(fn), multiprocessor_of(ctx.target).near_bytes

    def change(kernel: For) -> Stmt:
        return _specialized(kernel, weights, near_bytes) if rings(kernel) else kernel

    return replace(fn, body=rewrite_kernels(fn.body, change))


def _specialized(kernel: For, weights: set[Buffer], near_bytes: int) -> Stmt:
    nest: list[For] = []
    body: Stmt = kernel
    while isinstance(body, For) and body.kind == THREAD:
        nest.append(body)
        body = body.body
    axes = {loop.thread: loop for loop in nest}
    _check(kernel, body, axes)
    blocks = max(role_plan(stmt).blocks for stmt in walk(body))
    body = backwards(body)
    groups = axes.get("threadIdx.y")
    count = int(str(sym.simplify(groups.extent))) if groups is not None else 1
    among = groups.var if groups is not None else sym.var("group")
    turns = 1 + max(role_plan(stmt).pingpong for stmt in walk(body))
    if turns > 1 and groups is not None:  # ping-pong: each works as if it were the only one
        body, among = substitute(body, {groups.var: groups.start}), sym.var(groups.var.name)
    lane = axes["threadIdx.x"].var if "threadIdx.x" in axes else sym.var("lane")
    shares: Shares | None = None
    shared = [ring for ring in rings(body) if role_plan(ring).stream_k]
    if shared:
        nest, body, shares, exchange = split_stream_k(nest, body, shared[0], blocks, count, among)
    elif blocks:
        nest, body = persistent(nest, body, blocks)
    else:
        nest, body = longest_first(nest, body)
    spans = {loop.var: (loop.start, loop.stop) for loop in nest}
    cluster = axes.get(CLUSTER_AXIS)
    roles = _Roles(kernel, body, count * turns, spans, weights, cluster, shares, near_bytes)
    made = roles.program(among, lane)
    inner = For(
        among, ZERO, sym.const(count * turns + 1), made, THREAD, "threadIdx.y", (), kernel.loc
    )
    result: Stmt = For(
        lane, ZERO, sym.const(GROUP_THREADS), inner, THREAD, "threadIdx.x", (), kernel.loc
    )
    for loop in reversed(nest):
        if loop.thread.startswith("blockIdx"):
            result = replace(loop, body=result)
    return exchange.around(result) if shares is not None else result


def _check(kernel: For, body: Stmt, axes: dict[str, For]) -> None:
    """Check that the kernel has the form that can be specialized."""
    lanes = axes.get("threadIdx.x")
    wide = lanes is not None and sym.simplify(lanes.extent) is not sym.const(GROUP_THREADS)
    shared = [
        stmt.buffer
        for stmt in walk(body)
        if isinstance(stmt, Alloc) and stmt.buffer.scope == "shared"
    ]
    if wide or shared or "threadIdx.z" in axes:
        what = f"%{shared[0].name} is in shared memory" if shared else "its threads are bound"
        raise Unsupported(
            "TW2207",
            f"the kernel cannot be specialized: {what}, and roles have barriers of their own",
            kernel.loc,
            help="let bulk copies bring all tiles, and bind only the warpgroups, to threadIdx.y",
        )


class _Roles:
    """Builds the producer's and the consumers' programs of a kernel."""

    def __init__(
        self,
        kernel: For,
        body: Stmt,
        groups: int,
        spans: dict[Var, tuple[Expr, Expr]],
        weights: set[Buffer],
        cluster: For | None,
        shares: Shares | None,
        near_bytes: int,
    ) -> None:
        loops = _path_to_ring(body)
        if loops is None:
            raise Unsupported(
                "TW2207",
                "the kernel cannot be specialized: the loop is not inside plain loops",
                kernel.loc,
                help="specialize a loop around bulk copies and what uses their tiles",
            )
        self.body, self.groups, self.weights, self.shares = body, groups, weights, shares
        self.loops, self.ring = loops, loops[-1]
        self.slots, self.turns = role_plan(self.ring).slots, 1 + role_plan(self.ring).pingpong
        ctx = sym.EMPTY.bind_all(spans)
        self.maybe = [  # enclosing loops that may be empty
            loop.extent
            for loop in loops
            if not sym.prove(sym.le(ONE, sym.simplify(loop.extent)), ctx)
        ]
        self.ahead, self.near_bytes = self._steps_ahead(), near_bytes
        tiles = [
            stmt.buffer
            for stmt in walk(body)
            if isinstance(stmt, Alloc) and stmt.buffer.scope == TILE_SCOPE
        ]
        inside = {target_of(stmt) for stmt in walk(self.ring) if is_copy(stmt)}
        self.low = self._low_tiles()
        self.tiles = {
            tile: Buffer(tile.name, self._ring_shape(tile), tile.dtype, tile.scope)
            for tile in tiles
            if tile in inside
        }
        self.beside = role_plan(self.ring).beside
        self.kept = {
            tile: Buffer(tile.name, (sym.const(self.beside), *tile.shape), tile.dtype, tile.scope)
            if self.beside > 1
            else tile
            for tile in tiles
            if tile not in inside
        }
        self.short: dict[
            Buffer, tuple[int, int]
        ] = {}  # tiles with rows to zero: their filled and total rows
        self.early = _copies_outside(body, self.ring)
        self.ready = Buffer("ready", (sym.const(self.beside),), U64, "shared")
        self.free = Buffer("free", (sym.const(self.beside),), U64, "shared")
        self.full = Buffer("full", (sym.const(self.slots),), U64, "shared")
        self.empty = Buffer("empty", (sym.const(self.slots),), U64, "shared")
        self.cluster = ONE if cluster is None else sym.simplify(cluster.extent)
        self.rank: Expr = ZERO if cluster is None else cluster.var
        self.shares_sums = bool(calls_of(body, KEEP))
        self.multicasts = bool(calls_of(body, MULTICAST))
        self.nth = sym.var("turn")  # the tile number of a ping-pong warpgroup
        self.order = Buffer("order", (sym.const(self.turns),), U64, "shared")
        self.parted = Buffer("kept", (ONE,), U64, "shared")
        self.read = Buffer("read", (ONE,), U64, "shared")
        step: Expr = ZERO
        for loop in loops:
            if loop is self.ring:
                self.tile = sym.simplify(sym.floormod(step, 2))
                self.place = sym.simplify(sym.floormod(step, self.beside))
                self.turn = sym.simplify(sym.floormod(sym.floordiv(step, self.beside), 2))
            step = sym.add(sym.mul(step, loop.extent), sym.sub(loop.var, loop.start))
        self.before: Var | None = None  # iterations of the ring's loop in earlier runs of it
        if sym.uses_var(self.ring.extent, {loop.var for loop in loops}):
            self.before = sym.var("before")
            step = sym.add(self.before, sym.sub(self.ring.var, self.ring.start))
        self.step = step
        self.slot = sym.simplify(sym.floormod(step, self.slots))
        self.phase = sym.simplify(sym.floormod(sym.floordiv(step, self.slots), 2))

    def program(self, among: Var, lane: Var) -> Stmt:
        """Barriers are initialized by one thread, then each warpgroup branches to its role."""
        resident = role_plan(self.ring).resident
        take = effect("registers.take", sym.const(int(consumer_registers(self.groups, resident))))
        give = effect("registers.give", sym.const(int(producer_registers(resident))))
        alone = If(sym.lt(lane, 1), self._producer(), None, self.ring.loc)
        consumers = seq(take, self._consumer(among))
        arrivals = sym.const(GROUP_WARPS * self.groups // self.turns)
        many = sym.simplify(sym.mul(arrivals, self.cluster))
        beside = sym.const(self.beside)
        early = [
            effect("mbarrier.init", Address(self.ready, (ZERO,)), beside, ONE),
            effect("mbarrier.init", Address(self.free, (ZERO,)), beside, arrivals),
        ]
        threads = sym.const(GROUP_THREADS * self.groups)  # arrivals of all consumer threads
        met = [
            effect("mbarrier.init", Address(each, (ZERO,)), ONE, sym.mul(threads, self.cluster))
            for each in (self.parted, self.read)
        ]
        order = effect(
            "mbarrier.init", Address(self.order, (ZERO,)), sym.const(self.turns), arrivals
        )
        meet = [Eval(CLUSTER_BARRIER, self.ring.loc)] if self.shares_sums or self.multicasts else []
        empty = many if self.multicasts else arrivals
        result = seq(
            effect("mbarrier.init", Address(self.full, (ZERO,)), sym.const(self.slots), ONE),
            effect("mbarrier.init", Address(self.empty, (ZERO,)), sym.const(self.slots), empty),
            *(early if self.early else ()),
            *(met if self.shares_sums else ()),
            *([order] if self.turns > 1 else ()),
            effect(INIT_FENCE),
            *(meet if self.multicasts else ()),
            *self._weights_ahead(among, lane),
            *(() if self.multicasts else meet),
            *self._clears(),
            Eval(BARRIER, self.ring.loc),
            *self._weights_near(among, lane),
            If(sym.lt(among, self.groups), consumers, seq(give, alone), self.ring.loc),
            *meet,  # keep shared memory alive until the cluster is done with it
        )
        barriers = [self.full, self.empty]
        barriers += [self.ready, self.free] if self.early else []
        barriers += [self.parted, self.read] if self.shares_sums else []
        barriers += [self.order] if self.turns > 1 else []
        for buffer in (*self.kept.values(), *self.tiles.values(), *barriers):
            result = Alloc(buffer, result)
        return result

    def _low_tiles(self) -> dict[Buffer, int]:
        """Left operands with fewer rows than a `wgmma` has, and their rows."""
        lefts = {node.args[1] for node in calls_of(self.ring, PRODUCT)}
        lows = {left.buffer for left in lefts if isinstance(left, Address)}
        found: dict[Buffer, int] = {}
        for stmt in walk(self.ring) if self.groups == 1 else ():
            if is_copy(stmt) and target_of(stmt) in lows:
                height, rows = heights(stmt)
                if height is not None and _swizzled(height) < rows:
                    found[target_of(stmt)] = _swizzled(height)
        return found

    def _ring_shape(self, tile: Buffer) -> tuple[Expr, ...]:
        """The shape of a ring: slots, and behind the last one the rows that a `wgmma` overreads."""
        if tile not in self.low:
            return (sym.const(self.slots), *tile.shape)
        *boxes, rows, width = (int(str(sym.simplify(dim))) for dim in tile.shape)
        slot = math.prod(boxes) * self.low[tile]
        slots = self.slots - (-(rows - self.low[tile]) // slot)
        return tuple([sym.const(dim) for dim in (slots, *boxes, self.low[tile], width)])

    def _clears(self) -> list[Stmt]:
        """Zero the rows of all slots that no copy fills."""
        made = [
            effect(
                "tile.low", Address(self.tiles[tile], (ZERO,) * (tile.rank + 1)), sym.const(rows)
            )
            for tile, rows in self.low.items()
        ]
        for tile, (filled, rows) in self.short.items():
            boxes: Expr = ONE
            for dim in tile.shape[:-2]:
                boxes = sym.mul(boxes, dim)
            start = Address(tile, (ZERO,) * tile.rank)
            threads = GROUP_THREADS * (self.groups + 1)
            sizes = (sym.const(filled), sym.const(rows), sym.simplify(boxes), sym.const(threads))
            made.append(effect("tile.clear", start, *sizes))
        return made

    def _lag(self, among: Var) -> list[Stmt]:
        """Delay the second consumer behind the first, in each tile of several steps."""
        steps = calls_of(self.ring, ATTEND)
        if not steps or self.groups != 2 or sym.simplify(self.ring.extent) is ONE:
            return []
        scale = sym.mul(*steps[0].args[5:7])
        cycles = sym.simplify(sym.floordiv(sym.mul(scale, LAG_CYCLES), 128 * 128))
        return [If(sym.eq(among, 1), effect(LAG, cycles), None, self.ring.loc)]

    def _consumer(self, among: Var) -> Stmt:
        lag, count = self._lag(among), _Count(self.before, self.ring)

        def rule(stmt: Stmt) -> Stmt | None:
            if isinstance(stmt, Alloc) and (stmt.buffer in self.tiles or stmt.buffer in self.kept):
                return stmt.body
            if isinstance(stmt, Eval) and (is_copy(stmt) or stmt.value is BARRIER):
                return None
            if self.shares_sums and isinstance(stmt, Eval):
                return self._cluster_sync(stmt)
            if isinstance(stmt, For) and stmt.var is self.ring.var:
                wait = effect("mbarrier.wait", Address(self.full, (self.slot,)), self.phase)
                done = self._release()
                ring: Stmt = replace(stmt, body=seq(wait, stmt.body, done), annotations=())
                if can_stagger(stmt, self.slots):
                    ring = staggered(stmt, wait, done, self._versioned)
                elif self.turns > 1:
                    ring = overlapped(stmt, wait, done, *self._order(among))
                if not self.early:
                    return count.after(seq(*lag, ring))
                ready = effect("mbarrier.wait", Address(self.ready, (self.place,)), self.turn)
                over = effect("mbarrier.arrive", Address(self.free, (self.place,)))
                return count.after(seq(ready, *lag, ring, over))
            return stmt

        body = rewrite(self.body, rule, self._versioned)
        assert body is not None
        return count.around(self._pingpong(self._all_read(body), among))

    def _order(self, among: Var) -> tuple[Stmt, Stmt]:
        """Order ping-pong warpgroups: before its first `wgmma` one waits until the other has issued
        all of its own, then signals. So both count a slot's phases alike, though each sees only
        some."""
        parity = sym.floormod(sym.sub(sym.add(self.nth, 1), among), 2)
        mine, other = Address(self.order, (among,)), Address(self.order, (sym.sub(ONE, among),))
        return effect("mbarrier.wait", mine, parity), effect("mbarrier.arrive", other)

    def _pingpong(self, body: Stmt, among: Var) -> Stmt:
        """Distribute the block's tiles over ping-pong warpgroups: while one stores its tile, the
        other uses the tensor cores."""
        if self.turns == 1:
            return body
        tiles = self.loops[0]
        if self.before is not None or len(self.loops) != 2 or tiles.start is not ZERO:
            raise Unsupported(
                "TW2207",
                "the kernel cannot be specialized: warpgroups take turns at tiles that blocks stay "
                "for, of equal numbers of steps",
                self.ring.loc,
                help="let blocks stay, and share no steps",
            )
        mine = sym.add(sym.mul(self.nth, self.turns), among)
        left = sym.sub(sym.add(tiles.extent, self.turns - 1), among)
        count = sym.floordiv(left, self.turns)

        def rule(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, For) or stmt.var is not tiles.var:
                return stmt
            body = substitute(stmt.body, {stmt.var: mine})
            return For(self.nth, ZERO, count, body, SERIAL, "", (), stmt.loc)

        made = rewrite(body, rule)
        assert made is not None
        return made

    def _release(self) -> Stmt:
        """Release a slot, at all blocks of the cluster that fill it."""
        empty = Address(self.empty, (self.slot,))
        if self.multicasts:
            return effect("mbarrier.arrive.cluster", empty, self.cluster, ZERO)
        return effect("mbarrier.arrive", empty)

    def _cluster_sync(self, stmt: Eval) -> Stmt:
        """Synchronize with the other blocks of the cluster around keeping and reading partial
        sums."""
        kept, read = (Address(each, (ZERO,)) for each in (self.parted, self.read))
        if called(stmt) == KEEP:
            return seq(stmt, effect("mbarrier.arrive.cluster", kept, self.cluster, ONE))
        if called(stmt) == GATHER:
            wait = effect("mbarrier.wait.cluster", kept, self.tile)
            return seq(wait, stmt, effect("mbarrier.arrive.cluster", read, self.cluster, ONE))
        return stmt

    def _all_read(self, body: Stmt) -> Stmt:
        """A tile's statements, followed by a wait until all blocks of the cluster have read its
        partial sums."""
        if not self.shares_sums:
            return body
        wait = effect("mbarrier.wait.cluster", Address(self.read, (ZERO,)), self.tile)
        if len(self.loops) == 1:
            return seq(body, wait)
        tile = self.loops[-2].var

        def rule(stmt: Stmt) -> Stmt:
            is_tile = isinstance(stmt, For) and stmt.var is tile
            return stmt.with_children((seq(*stmt.children(), wait),)) if is_tile else stmt

        made = rewrite(body, rule)
        assert made is not None
        return made

    def _versioned(self, expr: Expr) -> Expr:
        if isinstance(expr, Address) and expr.buffer in self.tiles:
            return Address(self.tiles[expr.buffer], (self.slot, *expr.index))
        if isinstance(expr, Address) and self.beside > 1 and expr.buffer in self.kept:
            return Address(self.kept[expr.buffer], (self.place, *expr.index))
        return expr

    def _steps_ahead(self) -> int:
        """The number of first iterations whose weights are copied before the roles start."""
        copies = [stmt for stmt in walk(self.ring) if is_copy(stmt)]
        plain = not any(isinstance(stmt, (If, Let)) for stmt in walk(self.ring))
        weights = any(self._is_weight(stmt) for stmt in copies)
        if not plain or not weights:
            return 0
        if self.shares is not None:
            return min(self.slots, self.shares.least)
        steps = sym.simplify(self.ring.extent)
        return min(self.slots, int(steps.value)) if isinstance(steps, Const) else 0

    def _is_weight(self, stmt: Stmt) -> bool:
        assert isinstance(stmt, Eval)
        assert isinstance(stmt.value, Call)
        source = stmt.value.args[1]
        assert isinstance(source, Address)
        return source.buffer in self.weights

    def _weights_ahead(self, among: Var, lane: Var) -> list[Stmt]:
        """Copies of weights for the first iterations, by the thread that initializes the
        barriers."""
        if not self.ahead:
            return []
        first = sym.var("first")
        size = copied_bytes(self._copied(self.ring.body))
        expect = effect("mbarrier.expect", Address(self.full, (self.slot,)), sym.const(size))
        weights = seq(expect, self._copied(self.ring.body, weights=True))
        body = fresh_copy(substitute(weights, self._places(first)))
        loop = For(first, ZERO, sym.const(self.ahead), body, SERIAL, "", (), self.ring.loc)
        some = [sym.lt(ZERO, extent) for extent in self.maybe] if self.shares is None else []
        alone = sym.all_of(sym.lt(among, 1), sym.lt(lane, 1), *some)
        return [If(alone, loop, None, self.ring.loc)]

    def _weights_near(self, among: Var, lane: Var) -> list[Stmt]:
        """Prefetches of weights of the next round to L2, by an idle thread."""
        steps = sym.simplify(self.ring.extent)
        if not self.ahead or self.shares is not None or not isinstance(steps, Const):
            return []
        weights = self._copied(self.ring.body, weights=True)
        last = min(int(steps.value), self.ahead + self.near_bytes // copied_bytes(weights))
        if last == self.ahead:
            return []
        later, brought = sym.var("later"), rewrite(weights, _to_l2)
        body = fresh_copy(substitute(brought, self._places(later)))
        begin, end = sym.const(self.ahead), sym.const(last)
        loop = For(later, begin, end, body, SERIAL, "", (), self.ring.loc)
        some = [sym.lt(ZERO, extent) for extent in self.maybe]
        idle = sym.all_of(
            sym.le(self.groups, among), sym.eq(lane, GROUP_THREADS // GROUP_WARPS), *some
        )
        return [If(idle, loop, None, self.ring.loc)]

    def _places(self, step: Expr) -> dict[Var, Expr]:
        """The loop variables of a block's first steps."""
        if self.shares is None:
            starts: dict[Var, Expr] = {loop.var: loop.start for loop in self.loops}
            starts[self.ring.var] = sym.add(self.ring.start, step)
            return starts
        piece, place = self.shares.place_at(step)
        begin = sym.substitute(self.ring.start, {self.shares.piece: piece})
        assert self.before is not None
        counted = sym.sub(step, sym.sub(place, begin))  # with the slot of the step
        return {self.shares.piece: piece, self.ring.var: place, self.before: counted}

    def _producer(self) -> Stmt:
        self.count = _Count(self.before, self.ring)
        kept = self._copies(self.body)
        assert kept is not None
        return fresh_copy(self.count.around(kept))

    def _copied(self, stmt: Stmt, weights: bool | None = None) -> Stmt:
        """A statement's copies: those of weights, all others, or all."""
        made = self._try_copied(stmt, weights)
        assert made is not None
        return made

    def _try_copied(self, stmt: Stmt, weights: bool | None) -> Stmt | None:
        """The same, or None without any, as where both operands are weights."""

        def rule(each: Stmt) -> Stmt | None:
            other = is_copy(each) and weights is not None and self._is_weight(each) != weights
            return None if other else each

        return self._copies(rewrite(stmt, rule))

    def _copies(self, stmt: Stmt) -> Stmt | None:
        """The statement reduced to its copies, with the loops and conditions around them."""
        if isinstance(stmt, Eval):
            if not is_copy(stmt):
                return None
            return self._copy(stmt, None if target_of(stmt) in self.tiles else self.ready)
        if isinstance(stmt, Alloc):
            return self._copies(stmt.body)
        if isinstance(stmt, Seq):
            kept: list[Stmt] = []
            for each in stmt.stmts:
                if self.early and each is self.early[0]:
                    kept += self._expect_early()
                part = self._copies(each)
                if part is not None:
                    kept.append(part)
            return seq(*kept) if kept else None
        if isinstance(stmt, If):
            then = self._copies(stmt.then)
            return None if then is None else If(stmt.cond, then, None, stmt.loc)
        if isinstance(stmt, (For, Let)):
            body = self._copies(stmt.body)
            if body is None:
                return None
            if isinstance(stmt, For) and stmt.var is self.ring.var:
                size = copied_bytes(body)
                other = sym.sub(ONE, self.phase)
                wait = effect("mbarrier.wait", Address(self.empty, (self.slot,)), other)
                expect = effect(
                    "mbarrier.expect", Address(self.full, (self.slot,)), sym.const(size)
                )
                if self.ahead:
                    weights = seq(wait, expect, self._copied(stmt.body, weights=True))
                    again = If(sym.le(sym.const(self.ahead), self.step), weights, None, stmt.loc)
                    others = self._try_copied(stmt.body, weights=False)
                    body = again if others is None else seq(again, others)
                    return self.count.after(replace(stmt, body=body, annotations=()))
                ring = replace(stmt, body=seq(wait, expect, body), annotations=())
                return self.count.after(ring)
            return stmt.with_children((body,))
        return None

    def _expect_early(self) -> list[Stmt]:
        """Wait until the tile that is copied once is free, and expect its bytes."""
        size = sum(copied_bytes(each) for each in self.early)
        free, ready = (Address(each, (self.place,)) for each in (self.free, self.ready))
        wait = effect("mbarrier.wait", free, sym.sub(ONE, self.turn))
        return [wait, effect("mbarrier.expect", ready, sym.const(size))]

    def _copy(self, stmt: Eval, ready: Buffer | None) -> Stmt:
        call = stmt.value
        assert isinstance(call, Call)
        target, source, rows, stride, policy = call.args
        assert isinstance(source, Address)
        assert isinstance(stride, Call)
        axis = stride.args[1]
        assert isinstance(axis, Const)
        # Only known before buffers are flattened: the rows of the matrix, and the start of the box,
        # which may be beyond its last row.
        at = int(axis.value)
        height, row = sym.simplify(source.buffer.shape[at]), source.index[at]
        known, asked = heights(stmt)
        if ready is None and known is not None:
            rows = self._filled(target, known, asked)
        more: tuple[Expr, ...] = ()
        if call.op == MULTICAST:
            rows = self._part(stmt, rows)
            begin = sym.mul(self.rank, rows)
            row, target = sym.add(row, begin), _below(target, begin)
            more = (self.cluster,)
        first = tuple([ZERO if i == at else place for i, place in enumerate(source.index)])
        args = (
            self._versioned(target),
            Address(source.buffer, first),
            rows,
            stride,
            Address(self.full, (self.slot,)) if ready is None else Address(ready, (self.place,)),
            height,
            row,
            policy,
            *more,
        )
        return Eval(Call(call.op, args, call.dtype), stmt.loc)

    def _part(self, stmt: Eval, rows: Expr) -> Expr:
        """The rows of a tile that one block multicasts to the cluster."""
        assert isinstance(rows, Const)
        assert isinstance(self.cluster, Const)
        source = stmt.value.children()[1]
        part, rest = divmod(int(rows.value), int(self.cluster.value))
        differs = isinstance(self.rank, Var) and sym.uses_var(source, {self.rank})
        if rest or part % SWIZZLED or differs or self.cluster is ONE:
            what = "they differ" if differs else f"{rows} rows are no {self.cluster} parts"
            raise Unsupported(
                "TW2295",
                f"tiles of blocks along {CLUSTER_AXIS} cannot be brought by all of them: {what}",
                stmt.loc,
                help=f"multicast tiles of {SWIZZLED} rows of each block, which do not depend on "
                f"{CLUSTER_AXIS}",
            )
        return sym.const(part)

    def _filled(self, target: Expr, height: int, rows: int) -> Expr:
        """The rows that a copy fills, in whole swizzle atoms of eight."""
        filled = _swizzled(height)
        if filled >= rows:
            return sym.const(rows)
        assert isinstance(target, Address)
        if target.buffer not in self.low:
            self.short[self.tiles[target.buffer]] = filled, rows
        return sym.const(filled)


def _to_l2(stmt: Stmt) -> Stmt:
    """A copy turned into a prefetch to L2."""
    if not is_copy(stmt):
        return stmt
    assert isinstance(stmt, Eval)
    call = stmt.value
    assert isinstance(call, Call)
    return Eval(Call(PREFETCH, call.args, call.dtype), stmt.loc)


def _below(tile: Expr, rows: Expr) -> Expr:
    """The address `rows` rows below."""
    assert isinstance(tile, Address)
    *outer, row, column = tile.index
    return Address(tile.buffer, (*outer, sym.add(row, rows), column))


def _swizzled(height: int) -> int:
    """A height rounded up to whole swizzle atoms."""
    return -(-height // SWIZZLED) * SWIZZLED


class _Count:
    """A role's iteration count, kept in memory where the extent varies between tiles."""

    def __init__(self, before: Var | None, ring: For) -> None:
        self.before, self.ring = before, ring
        self.steps = Buffer("steps", (ONE,), INDEX, "local")

    def after(self, loop: Stmt) -> Stmt:
        """The loop, followed by the update of the count."""
        if self.before is None:
            return loop
        more = sym.add(self.before, self.ring.extent)
        counted = seq(loop, Store(self.steps, (ZERO,), more))
        return Let(self.before, Load(self.steps, (ZERO,)), counted)

    def around(self, body: Stmt) -> Stmt:
        if self.before is None:
            return body
        return Alloc(self.steps, seq(Store(self.steps, (ZERO,), ZERO), body))


def _path_to_ring(body: Stmt) -> list[For] | None:
    """The loops from the body down to the specialized one."""
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(body, ())]
    while stack:
        stmt, loops = stack.pop()
        if isinstance(stmt, For):
            if stmt.kind != SERIAL:
                continue
            loops = (*loops, stmt)
            if role_plan(stmt).slots:
                return list(loops)
        stack.extend((child, loops) for child in stmt.children())
    return None


def _copies_outside(body: Stmt, ring: For) -> list[Stmt]:
    """Statements outside of the specialized loop that copy as well."""
    for stmt in walk(body):
        if isinstance(stmt, Seq) and any(ring in walk(each) for each in stmt.stmts):
            return [
                each
                for each in stmt.stmts
                if ring not in walk(each) and any(is_copy(inner) for inner in walk(each))
            ]
    return []
