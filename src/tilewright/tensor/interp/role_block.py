"""Execution of one thread block with warp roles: statements and instructions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.base.tf32 import round_tf32
from tilewright.sym import Expr, Var
from tilewright.tensor.dependent_launch import EFFECTLESS
from tilewright.tensor.interp.role_products import (
    ROW_BYTES,
    M,
    attend,
    check_made,
    multiply,
    pack_powers,
    start,
    sums_of,
    weigh,
)
from tilewright.tensor.interp.role_state import (
    Agent,
    Barrier,
    Clear,
    Clock,
    Copy,
    Env,
    Exchange,
    Landing,
    Part,
    Tile,
    Visible,
    Wait,
    buffer_of,
    join,
    value_of,
)
from tilewright.tensor.ir import (
    CLUSTER_AXIS,
    DEVICE,
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
)
from tilewright.tensor.passes.accesses import reads_of, writes_of
from tilewright.tensor.proxies import CLEAR, FENCE, INIT, INIT_FENCE
from tilewright.tensor.roles import GROUP_THREADS, GROUP_WARPS, LAG, PREFETCH, TILE_SCOPE
from tilewright.tensor.scopes import GLOBAL, Owner, memory_of
from tilewright.tensor.visit import exprs, replace_buffers, walk

COUNT_SCOPE = "local"  # of what a role counts, alike in all of its threads
SHARING = (Owner.BLOCK, Owner.CLUSTER)  # of memory with one copy for all roles
ANYTHING = 12345  # what products read behind a low tile
SHARED_ROWS = 16  # of a tile that 128 threads copy at a time
Prepare = Callable[[Function], Callable[..., None]]  # what runs a function without roles


class Plain:
    """A statement without roles: a function of the memory and the variables that it uses."""

    def __init__(self, stmt: Stmt, prepare: Prepare) -> None:
        own = {each.buffer for each in walk(stmt) if isinstance(each, Alloc)}
        self.used = used_buffers(stmt)
        self.given = [buffer for buffer in self.used if buffer not in own]
        plain = {buffer: replace(buffer, scope=GLOBAL.reference) for buffer in self.given}
        bound = {each.var for each in walk(stmt) if isinstance(each, (For, Let))}
        named = [node for node in exprs(stmt) if isinstance(node, Var) and node not in bound]
        # No array tells a size that its extents only compute with, 64 * b.
        sizes = sym.free_vars(*(dim for buffer in self.given for dim in buffer.shape))
        self.free = list(dict.fromkeys([*named, *sizes]))
        params: tuple[Buffer | Var, ...] = (*plain.values(), *self.free)
        body = replace_buffers(stmt, {old: new for old, new in plain.items() if new is not old})
        self.function = prepare(Function("part", params, body, stage=DEVICE))

    def run(self, env: Env, arrays: Mapping[Buffer, np.ndarray[Any, Any]]) -> None:
        views = [
            arrays[buffer].reshape([value_of(dim, env) for dim in buffer.shape])
            for buffer in self.given
        ]
        self.function(*views, *[env[var] for var in self.free])


def used_buffers(stmt: Stmt) -> dict[Buffer, None]:
    """The buffers that a statement reads or writes."""
    used: dict[Buffer, None] = {}
    for each in walk(stmt):
        used.update((buffer, None) for buffer, _ in writes_of(each))
        used.update((buffer, None) for buffer, *_ in reads_of(each))
    return used


def is_plain(stmt: Stmt) -> bool:
    """Whether a statement stores more than a role's count, and nothing in it is done by a warpgroup
    together."""
    calls = any(isinstance(each, Eval) for each in walk(stmt))
    own = {each.buffer for each in walk(stmt) if isinstance(each, Alloc)}
    stored = [each.buffer for each in walk(stmt) if isinstance(each, Store)]
    return not calls and any(each in own or each.scope != COUNT_SCOPE for each in stored)


def axes_of(kernel: Stmt, level: str) -> list[For]:
    found = []
    stmt = kernel
    while isinstance(stmt, (For, Alloc)):
        if isinstance(stmt, For):
            if stmt.kind != THREAD:
                break
            if stmt.thread.startswith(level):
                found.append(stmt)
        stmt = stmt.body
    return found


class PlainStatements:
    """The statements of a kernel that threads run each for itself, made ready once for all its
    blocks."""

    def __init__(self, kernel: Stmt, prepare: Prepare) -> None:
        (self.lanes,) = axes_of(kernel, "threadIdx.x")
        self.prepare = prepare
        self.found: dict[Stmt, Plain | None] = {}

    def of(self, stmt: Stmt) -> Plain | None:
        """The statement for all lanes; None if a warpgroup does something of it together."""
        if stmt not in self.found:
            whole = replace(self.lanes, body=stmt)
            self.found[stmt] = Plain(whole, self.prepare) if is_plain(stmt) else None
        return self.found[stmt]


class Block:
    """One thread block."""

    def __init__(
        self,
        kernel: Stmt,
        env: Env,
        arrays: Mapping[Buffer, np.ndarray[Any, Any]],
        order: random.Random,
        plain: PlainStatements,
        peers: list[Block],
        rank: int,
    ) -> None:
        self.arrays, self.order, self.plain = arrays, order, plain
        self.peers, self.rank = peers, rank  # blocks of the cluster, and which this one is
        self.parts: dict[tuple[Buffer, int], Part] = {}  # of sums, that peers read
        self.exchange: Exchange = peers[0].exchange if peers else Exchange()
        self.is_over = False
        self.memory: dict[Buffer, np.ndarray[Any, Any]] = {}
        self.barriers: dict[tuple[Buffer, int], Barrier] = {}
        self.tiles: dict[tuple[Buffer, int], Tile] = {}
        self.low: dict[Buffer, int] = {}  # left operands with fewer rows than products have
        self.copies: list[Copy] = []
        (rows,) = axes_of(kernel, "threadIdx.y")
        (lanes,) = axes_of(kernel, "threadIdx.x")
        count = value_of(rows.extent, env)
        self.meeting = Barrier("the block's barrier", count, count)
        whole = peers[0].assembly if peers else Barrier("the cluster's barrier", 0, 0)
        self.assembly: Barrier = whole
        self.assembly.arrivals += count
        self.assembly.pending += count
        self.agents = []
        for at in range(count):
            agent = Agent(f"warpgroup {at}", {**env, rows.var: at, lanes.var: 0}, number=at)
            agent.steps = self._run(kernel, agent)
            self.agents.append(agent)

    def ends(self) -> None:
        """Its shared memory is gone: nobody may be reading it."""
        self.is_over = True
        clock: Clock = {}
        for agent in self.agents:
            join(clock, agent.clock)
        for (buffer, _), part in self.parts.items():
            self._check_read(buffer, part, clock, UNKNOWN)
        for barrier in self.barriers.values():
            late = [agent for agent, when in barrier.guests.items() if clock.get(agent, 0) < when]
            if late:
                raise ExecutionError(
                    "TW2494",
                    f"block {self.rank} of a cluster ends while {late[0].name} of another one may "
                    f"still arrive at its {barrier.name}",
                    help="let all blocks of a cluster meet before they end: barrier.cluster",
                )

    # ------------------------------------------------------------------ statements

    def _run(self, stmt: Stmt, agent: Agent) -> Wait:
        env = agent.env
        if isinstance(stmt, Store) and stmt.buffer.scope == COUNT_SCOPE:
            place = value_of(stmt.index[0], env)
            agent.sums[stmt.buffer][place] = self._number(stmt.value, agent)
            return
        plain = self.plain.of(stmt)
        if plain is not None:
            for buffer in plain.used:
                check_made(buffer, agent, stmt.loc)
            plain.run(env, {**self.arrays, **agent.sums})
            yield None
            return
        match stmt:
            case Seq(stmts=stmts):
                for each in stmts:
                    yield from self._run(each, agent)
            case For(kind=kind, body=body) if kind == THREAD:
                yield from self._run(body, agent)
            case For(var=var, start=start, stop=stop, body=body):
                for at in range(self._number(start, agent), self._number(stop, agent)):
                    env[var] = at
                    yield from self._run(body, agent)
            case If(cond=cond, then=then, otherwise=otherwise):
                if self._number(cond, agent):
                    yield from self._run(then, agent)
                elif otherwise is not None:
                    yield from self._run(otherwise, agent)
            case Let(var=var, value=value, body=body):
                env[var] = self._number(value, agent)
                yield from self._run(body, agent)
            case Alloc(buffer=buffer, body=body):
                self._allocate(buffer, agent)
                yield from self._run(body, agent)
            case Eval(value=Call() as call):
                yield from self._call(call, agent, stmt.loc)
            case _:
                raise ExecutionError(
                    "TW2430", f"a role cannot run {type(stmt).__name__} statements", stmt.loc
                )

    def _number(self, expr: Expr, agent: Agent) -> int:
        """The value of an expression that may read what the role counts, or global memory."""
        return value_of(self._read(expr, agent), agent.env)

    def _read(self, expr: Expr, agent: Agent) -> Expr:
        """The expression with what it reads."""

        def rule(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            own = agent.sums.get(node.buffer)
            array = self.arrays[node.buffer] if own is None else own
            return sym.const(int(array[value_of(node.index[0], agent.env)]))

        return sym.rewrite(expr, rule)

    def _allocate(self, buffer: Buffer, agent: Agent) -> None:
        size = 1
        for dim in buffer.shape:
            size *= value_of(dim, agent.env)
        if memory_of(buffer.scope).owner in SHARING:
            if buffer not in self.memory:
                self.memory[buffer] = np.zeros(size, buffer.dtype.numpy)
        else:
            unset = np.nan if buffer.dtype.is_float else 0
            agent.sums[buffer] = np.full(size, unset, buffer.dtype.numpy)

    def _call(self, call: Call, agent: Agent, loc: Loc) -> Wait:
        args, env = tuple(self._read(arg, agent) for arg in call.args), agent.env
        agent.read.clear()
        match call.op:
            case "barrier.shared":
                phase = self.meeting.phase
                self._release(agent)
                join(self.meeting.clock, agent.clock)
                self.meeting.pending -= 1
                self.meeting.settle(loc)
                yield (self.meeting, phase % 2)
            case "barrier.cluster":
                phase = self.assembly.phase
                self._release(agent)
                self._arrive(self.assembly, agent, 1, loc)
                yield (self.assembly, phase % 2)
            case op if op == INIT:
                self._init(args, agent)
            case op if op == INIT_FENCE:
                own = () if agent.number else self.barriers.values()
                agent.clock.update((Visible(each), 1) for each in own)
            case op if op == FENCE.op:
                agent.fenced += agent.written
                agent.written.clear()
            case "mbarrier.arrive.cluster":
                for peer in self._peers(args[1], agent, loc):
                    barrier = peer.barrier_for(args[0], agent, loc)
                    tells = bool(value_of(args[2], env))
                    count = GROUP_THREADS if tells else GROUP_WARPS
                    self._arrive(barrier, agent, count, loc, tells)
                    barrier.guests[agent] = agent.clock[agent]
            case "cluster.keep":
                self._keep(args, agent, loc)
            case "cluster.sum":
                self._gather(args, agent, loc)
            case "stream.keep":
                self._give(args, agent, loc)
            case "stream.signal":
                self._arrive(self.exchange.signal(args[0], env), agent, 1, loc)
            case "stream.wait":
                signal = self.exchange.signal(args[0], env)
                yield (signal, 0)
                signal.phase += 1
            case "stream.sum":
                self._take(args, agent, loc)
            case "mbarrier.wait.cluster":
                yield (self._barrier(args[0], agent, loc), value_of(args[1], env))
            case "mbarrier.wait":
                barrier, before = self._barrier(args[0], agent, loc), dict(agent.clock)
                yield (barrier, value_of(args[1], env))
                if barrier.guests:
                    self._forget_parts(agent, before)
            case "mbarrier.expect":
                barrier = self._barrier(args[0], agent, loc)
                barrier.bytes += value_of(args[1], env)
                self._arrive(barrier, agent, 1, loc)
            case "mbarrier.arrive":
                self._arrive(self._barrier(args[0], agent, loc), agent, GROUP_WARPS, loc)
            case op if op == CLEAR:
                self._clear(args, agent)
            case "tile.low":
                self.low[buffer_of(args[0])] = value_of(args[1], env)
            case "tma.load":
                self._load(args, agent, loc)
            case "tma.multicast":
                self._load_all(args, agent, loc)
            case "tma.window":
                self._load_window(args, agent, loc)
            case "wgmma.clear":
                sums_of(args[0], args[1], agent)[...] = 0
            case "cp.async.tile":
                self._share(args, agent, loc)
            case "cp.async.commit":
                agent.copies.append(agent.begun)
                agent.begun = []
            case "cp.async.wait":
                done = agent.copies[: max(0, len(agent.copies) - value_of(args[0], env))]
                copies = [copy for group in done for copy in group]
                yield (Landing(copies), 0)
                agent.landed += copies
                agent.written += copies
                del agent.copies[: len(done)]
            case "mma.tile":
                multiply(args, agent, loc, self._loaded)
            case "wgmma.tile":
                multiply(args, agent, loc, self._operand)
            case "wgmma.start":
                start(args, agent, loc, self._operand)
            case "wgmma.wait":
                agent.retire(value_of(args[2], env))
            case "wgmma.round":
                self._round(args, agent)
            case "wgmma.rows":
                sums_of(args[1], args[2], agent)[...] = sums_of(args[0], args[2], agent)
            case "wgmma.forget":
                top, total, sums = (sums_of(at, args[3], agent) for at in args[:3])
                top[...], total[...], sums[...] = -np.inf, 0, 0
            case "wgmma.attend":
                attend(args, agent, loc, self._operand)
            case "wgmma.powers":
                pack_powers(args, agent)
            case "wgmma.weigh":
                weigh(args, agent, loc, self._operand)
            case op if not op.startswith("registers.") and op not in (
                LAG,
                PREFETCH,
                *EFFECTLESS,
            ):
                raise ExecutionError("TW2430", f"a role cannot run {op}", loc)
        agent.is_starting = call.op == "wgmma.start"
        yield None

    # ------------------------------------------------------------------ barriers

    def _init(self, args: tuple[Expr, ...], agent: Agent) -> None:
        base, env = args[0], agent.env
        assert isinstance(base, Address)
        if agent.number:  # the block's first thread does
            return
        for slot in range(value_of(args[1], env)):
            count = value_of(args[2], env)
            name = f"%{base.buffer.name}[{slot}]"
            made = Barrier(name, count, count, maker=(agent, agent.tick()))
            self.barriers[base.buffer, slot] = made

    def barrier_for(self, at: Expr, agent: Agent, loc: Loc) -> Barrier:
        """The barrier of this block, for an agent of another one, who must know that it is made."""
        assert isinstance(at, Address)
        found = self.barriers.get((at.buffer, value_of(at.index[0], agent.env)))
        if found is None or not _knows(agent, found) or self.is_over:
            what = "is gone" if self.is_over else "may not be made yet"
            raise ExecutionError(
                "TW2494",
                f"{agent.name} arrives at %{at.buffer.name} of block {self.rank} of its cluster, "
                f"which {what}",
                loc,
                help="let all blocks of a cluster meet behind the making: barrier.cluster",
            )
        return found

    def _barrier(self, at: Expr, agent: Agent, loc: Loc) -> Barrier:
        """A barrier of this block, which is initialized for all who use it."""
        assert isinstance(at, Address)
        found = self.barriers.get((at.buffer, value_of(at.index[0], agent.env)))
        if found is None or not _knows(agent, found):
            raise ExecutionError(
                "TW2432",
                f"{agent.name} uses %{at.buffer.name}, which may not be initialized yet",
                loc,
                help="let all threads of the block meet behind the initialization: barrier.shared",
            )
        return found

    def _release(self, agent: Agent) -> None:
        """All threads meet, and see what those of a warpgroup did."""
        agent.tick()
        agent.clock.update((copy, 1) for copy in agent.landed)
        agent.clock.update((Visible(each), 1) for each in agent.fenced)
        agent.landed.clear()
        agent.fenced.clear()

    def _arrive(
        self, barrier: Barrier, agent: Agent, count: int, loc: Loc, tells: bool = True
    ) -> None:
        """`tells` that others see what the agent wrote for them."""
        agent.tick()
        if tells:
            agent.clock.update((part, 1) for part in agent.kept)
            agent.kept.clear()
        join(barrier.clock, agent.clock)
        barrier.pending -= count
        barrier.settle(loc)

    # ------------------------------------------------------------------ copies

    def _load(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        target, source, rows, apart, barrier_at, high, first_row, _ = args
        box = self._box(source, rows, apart, high, first_row, agent.env)
        barrier = self._barrier(barrier_at, agent, loc)
        self.begin(target, 0, box, agent, barrier, loc)
        barrier.copies += 1

    def _load_all(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """A part of a tile into every block of the cluster, each when it likes."""
        target, source, rows, apart, barrier_at, high, first_row, _, blocks = args
        box = self._box(source, rows, apart, high, first_row, agent.env)
        for peer in self._peers(blocks, agent, loc):
            barrier = peer.barrier_for(barrier_at, agent, loc)
            peer.begin(target, 0, box, agent, barrier, loc)
            barrier.copies += 1
            barrier.is_multicast = True

    def _box(
        self, source: Expr, rows: Expr, apart: Expr, high: Expr, first_row: Expr, env: Env
    ) -> np.ndarray[Any, Any]:
        """Rows of a matrix, from its first column on; what lies outside is zero."""
        assert isinstance(source, Address)
        count, top = value_of(rows, env), value_of(first_row, env)
        columns = ROW_BYTES // source.buffer.dtype.size_bytes
        height, width = value_of(high, env), value_of(apart, env)
        which, left = divmod(value_of(source.index[0], env), height * width)
        left %= width  # as code tells columns
        matrix = self.arrays[source.buffer].reshape(-1, height, width)[which]
        box = np.zeros((count, columns), matrix.dtype)
        inside = matrix[top : top + count, left : left + columns]
        box[: inside.shape[0], : inside.shape[1]] = inside
        return box

    def _load_window(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """One kernel position of windows that follow each other, along lines and images."""
        target, source, pixels, barrier_at, *numbers = args
        assert isinstance(target, Address)
        assert isinstance(source, Address)
        c, x, y, n, kx, ky, height, width, channels, *corners = (
            value_of(number, agent.env) for number in numbers
        )
        pad_y, pad_x, upper_y, upper_x, step_y, step_x = corners
        columns = ROW_BYTES // source.buffer.dtype.size_bytes
        images = self.arrays[source.buffer].reshape(-1, height, width, channels)
        box = np.zeros((value_of(pixels, agent.env), columns), images.dtype)
        for row in box:
            if n < images.shape[0] and 0 <= y + ky < height and 0 <= x + kx < width:
                row[:] = images[n, y + ky, x + kx, c : c + columns]
            x += step_x
            if x > width - 1 + upper_x:
                x, y = -pad_x, y + step_y
            if y > height - 1 + upper_y:
                y, n = -pad_y, n + 1
        barrier = self._barrier(barrier_at, agent, loc)
        self.begin(target, 0, box, agent, barrier, loc)
        barrier.copies += 1

    def begin(
        self,
        target: Expr,
        row: int,
        box: np.ndarray[Any, Any],
        agent: Agent,
        barrier: Barrier | None,
        loc: Loc,
    ) -> Copy:
        """A copy into a tile, from one of its rows on, which nobody may use meanwhile."""
        assert isinstance(target, Address)
        if barrier is not None:
            self._check_visible(barrier, barrier.name, agent, loc)
        first = value_of(target.index[0], agent.env) + row * box.shape[1]
        for tile in self._touched(target.buffer, first, box.shape[0]):
            self._check_clear(tile, target.buffer, first, agent, loc, barrier is not None)
            for reader, when in tile.reads.items():
                if agent.clock.get(reader, 0) < when:
                    raise ExecutionError(
                        "TW2428",
                        f"%{target.buffer.name} is filled again at element {first} while "
                        f"{reader.name} may still read it",
                        loc,
                        help="wait until the slot's readers are done before the copy",
                    )
            tile.reads.clear()
            tile.clears.clear()
        agent.tick()
        made = Copy(target.buffer, first, box.reshape(-1), barrier, dict(agent.clock), loc)
        for tile in self._touched(target.buffer, first, box.shape[0]):
            if tile.copy is not None and agent.clock.get(tile.copy, 0) < 1:
                raise ExecutionError(
                    "TW2428",
                    f"%{target.buffer.name} is filled again at element {first} before the copy "
                    "that filled it has landed",
                    loc,
                    help="wait until the slot's readers are done before the copy",
                )
            tile.copy = made
        self.copies.append(made)
        return made

    def _share(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """A group's part of a copy by all threads: sixteen rows of 128 threads at a time."""
        target, source, rows, apart, high, first_row, *_ = args
        box = self._box(source, rows, apart, high, first_row, agent.env)
        for row in range(agent.number * SHARED_ROWS, len(box), len(self.agents) * SHARED_ROWS):
            part = box[row : row + SHARED_ROWS]
            agent.begun.append(self.begin(target, row, part, agent, None, loc))

    def _clear(self, args: tuple[Expr, ...], agent: Agent) -> None:
        """Rows behind those that copies fill are zero, in every box of a ring."""
        start, *numbers = args
        assert isinstance(start, Address)
        filled, rows, boxes, _ = (value_of(number, agent.env) for number in numbers)
        columns = ROW_BYTES // start.buffer.dtype.size_bytes
        self.memory[start.buffer].reshape(boxes, rows, columns)[:, filled:] = 0
        made = Clear(agent.tick())
        agent.written.append(made)
        for box in range(boxes):
            first = (box * rows + filled) * columns
            for tile in self._touched(start.buffer, first, rows - filled):
                tile.clears[agent] = made

    def _touched(self, buffer: Buffer, first: int, rows: int) -> list[Tile]:
        """The groups of eight rows, the unit of a swizzle, that a region covers."""
        columns = ROW_BYTES // buffer.dtype.size_bytes
        row = first // columns
        last = (row + rows) // 8
        return [self.tiles.setdefault((buffer, at), Tile()) for at in range(row // 8, last)]

    def land(self, copy: Copy) -> None:
        self.copies.remove(copy)
        self.memory[copy.buffer][copy.first : copy.first + copy.values.size] = copy.values
        copy.is_under_way = False
        if copy.barrier is None:
            return
        copy.clock[copy] = 1
        join(copy.barrier.clock, copy.clock)
        copy.barrier.copies -= 1
        copy.barrier.bytes -= copy.values.nbytes
        copy.barrier.settle(copy.loc)

    # ------------------------------------------------------------------ products

    def _operand(self, at: Expr, rows: int, agent: Agent, loc: Loc) -> np.ndarray[Any, Any]:
        """What an asynchronous product reads."""
        return self._read_tile(at, rows, agent, loc, True)

    def _loaded(self, at: Expr, rows: int, agent: Agent, loc: Loc) -> np.ndarray[Any, Any]:
        """What threads load for a product."""
        return self._read_tile(at, rows, agent, loc, False)

    def _check_visible(self, written: object, name: str, agent: Agent, loc: Loc) -> None:
        """Asynchronous instructions of this agent see what threads wrote."""
        if Visible(written) in agent.clock:
            return
        is_barrier = isinstance(written, Barrier)
        made, fence = ("initialized", INIT_FENCE) if is_barrier else ("wrote", FENCE.op)
        raise ExecutionError(
            "TW2431",
            f"{agent.name} starts an asynchronous instruction on {name}, which threads {made} "
            "without a fence behind it",
            loc,
            help=f"execute a fence before the threads meet: {fence}",
        )

    def _check_clear(
        self, tile: Tile, buffer: Buffer, first: int, agent: Agent, loc: Loc, is_async: bool
    ) -> bool:
        """Whether a tile is zeros; if so, all threads have stored their part of them."""
        for each in self.agents if tile.clears else ():
            made = tile.clears.get(each)
            if made is None or agent.clock.get(each, 0) < made.when:
                raise ExecutionError(
                    "TW2427",
                    f"{agent.name} uses %{buffer.name} at element {first} while {each.name} may "
                    "still write zeros there",
                    loc,
                    help="let all threads of the block meet behind the zeros: barrier.shared",
                )
            if is_async:
                self._check_visible(made, f"%{buffer.name}", agent, loc)
        return bool(tile.clears)

    def _read_tile(
        self, at: Expr, rows: int, agent: Agent, loc: Loc, is_async: bool
    ) -> np.ndarray[Any, Any]:
        assert isinstance(at, Address)
        assert at.buffer.scope == TILE_SCOPE
        columns = ROW_BYTES // at.buffer.dtype.size_bytes
        first = value_of(at.index[0], agent.env)
        more = rows - min(rows, self.low.get(at.buffer, rows))
        rows -= more
        for tile in self._touched(at.buffer, first, rows):
            if self._check_clear(tile, at.buffer, first, agent, loc, is_async):
                continue
            if tile.copy is None or agent.clock.get(tile.copy, 0) < 1:
                raise ExecutionError(
                    "TW2427",
                    f"{agent.name} reads %{at.buffer.name} at element {first} without having "
                    "waited for the copy that fills it",
                    loc,
                    help="wait for the slot's full barrier, in the right phase, before the tile",
                )
            if is_async and tile.copy.barrier is None:
                self._check_visible(tile.copy, f"%{at.buffer.name}", agent, loc)
            tile.reads[agent] = agent.clock.get(agent, 0) + 1
            agent.read.append(tile)
        found = self.memory[at.buffer][first : first + rows * columns]
        wide = np.int32 if found.dtype.kind in "iu" else np.float32
        read = found.reshape(rows, columns).astype(wide)
        read = np.pad(read, ((0, more), (0, 0)), constant_values=ANYTHING)
        return round_tf32(read) if found.dtype == np.float32 else read

    # ------------------------------------------------------------------ clusters

    def _peers(self, blocks: Expr, agent: Agent, loc: Loc) -> list[Block]:
        """The blocks of the cluster, which are as many as an instruction says."""
        count = value_of(blocks, agent.env)
        if count != len(self.peers):
            raise ExecutionError(
                "TW2494",
                f"{agent.name} speaks to {count} blocks, its cluster has {len(self.peers)}",
                loc,
                help=f"blocks along {CLUSTER_AXIS} are a cluster where they meet: barrier.cluster",
            )
        return self.peers

    def _keep(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """Sums go where other blocks read them."""
        sums = sums_of(args[0], args[3], agent)
        place = args[1]
        assert isinstance(place, Address)
        size = math.prod(value_of(dim, agent.env) for dim in place.buffer.shape) // len(self.peers)
        owner, first = divmod(value_of(place.index[0], agent.env), size)
        if owner != self.rank:
            raise ExecutionError(
                "TW2494",
                f"block {self.rank} of a cluster writes %{place.buffer.name} of block {owner}",
                loc,
                help="the first index of such memory is the block that writes it",
            )
        old = self.parts.get((place.buffer, first))
        if old is not None:
            self._check_read(place.buffer, old, agent.clock, loc)
        agent.kept.append(Part(sums.copy(), agent))
        self.parts[place.buffer, first] = agent.kept[-1]

    def _forget_parts(self, agent: Agent, before: Clock) -> None:
        """Whoever waits for its own block alone does not see what other blocks wrote."""
        for each in list(agent.clock):
            if isinstance(each, Part) and each.writer not in self.agents and each not in before:
                del agent.clock[each]

    def _check_read(self, buffer: Buffer, part: Part, clock: Clock, loc: Loc) -> None:
        """Whoever has read a part is known to be done."""
        for reader, when in part.reads.items():
            if clock.get(reader, 0) < when:
                raise ExecutionError(
                    "TW2428",
                    f"%{buffer.name} of block {self.rank} is given up while {reader.name} of "
                    "another block may still read it",
                    loc,
                    help="wait until all blocks of the cluster have read it",
                )

    def _gather(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """The sum of what all blocks keep of some columns."""
        sums = sums_of(args[0], args[5], agent)
        place = args[1]
        assert isinstance(place, Address)
        apart, width = (value_of(number, agent.env) for number in args[2:4])
        row, column = divmod(value_of(place.index[0], agent.env), width)
        for peer in self._peers(args[4], agent, loc):
            part = peer.parts.get((place.buffer, row * width % apart))
            known = part is not None and (part in agent.clock or part.writer is agent)
            if part is None or not known or peer.is_over:
                raise ExecutionError(
                    "TW2427",
                    f"{agent.name} of block {self.rank} reads %{place.buffer.name} of block "
                    f"{peer.rank} without knowing that it is there",
                    loc,
                    help="wait until all blocks of the cluster have kept their parts",
                )
            part.reads[agent] = agent.clock.get(agent, 0) + 1
            sums += part.values[:, column : column + sums.shape[1]]

    # ------------------------------------------------------------------ steps that blocks share

    def _give(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        """Sums of some steps of a tile go where the block with its first step reads them."""
        place = args[1]
        assert isinstance(place, Address)
        key = place.buffer, value_of(place.index[0], agent.env)
        old = self.exchange.parts.get(key)
        if old is not None:
            self._check_read(place.buffer, old, agent.clock, loc)
        sums = sums_of(args[0], args[2], agent)
        self.exchange.parts[key] = Part(sums.copy(), agent, agent.tick())

    def _take(self, args: tuple[Expr, ...], agent: Agent, loc: Loc) -> None:
        place = args[1]
        assert isinstance(place, Address)
        part = self.exchange.parts.get((place.buffer, value_of(place.index[0], agent.env)))
        if part is None or agent.clock.get(part.writer, 0) < part.when:
            raise ExecutionError(
                "TW2427",
                f"{agent.name} of block {self.rank} reads %{place.buffer.name} of another block "
                "without knowing that it is there",
                loc,
                help="wait for the signal of the block that writes it",
            )
        part.reads[agent] = agent.clock.get(agent, 0) + 1
        sums_of(args[0], args[2], agent)[...] += part.values

    def _round(self, args: tuple[Expr, ...], agent: Agent) -> None:
        sums = sums_of(args[0], args[3], agent)
        memory = args[1]
        assert isinstance(memory, Address)
        array = self.arrays[memory.buffer].reshape(-1)
        first, stride = value_of(memory.index[0], agent.env), value_of(args[2], agent.env)
        for row in range(M):
            at = first + row * stride
            array[at : at + sums.shape[1]] = sums[row].astype(array.dtype)


def _knows(agent: Agent, barrier: Barrier) -> bool:
    """Whether a barrier is initialized, and an agent knows it."""
    assert barrier.maker is not None
    maker, when = barrier.maker
    return agent.clock.get(maker, 0) >= when
