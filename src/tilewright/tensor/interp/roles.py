"""Kernels with roles: each warpgroup is a coroutine, bulk copies land when they like.

A producer and its consumers do not run in lock step, so their order is what barriers make of it.
Every coroutine, and every copy under way, carries a vector clock: what it knows to have happened.
Arriving at a barrier gives that knowledge to the phase, waiting for the phase takes it. A tile that
is read without knowing that its copy has landed, or filled again without knowing that its readers
are done, is an error in whatever order things happened to run; `seed` picks that order.

Asynchronous copies of Ampere are started by the threads of every group, land between that and the
wait for them, and are known to other threads, those of the same group too, behind a barrier.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.base.tf32 import round_tf32
from tilewright.sym import Expr, Var
from tilewright.tensor.clusters import cluster_loop
from tilewright.tensor.dependent_launch import EFFECTLESS
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
from tilewright.tensor.passes.specialize_roles import GROUP_WARPS, LAG, TILE_SCOPE
from tilewright.tensor.scopes import GLOBAL
from tilewright.tensor.visit import exprs, replace_buffers, rewrite, substitute, walk

ROW_BYTES, M = 128, 64
COUNT_SCOPE = "local"  # of what a role counts, alike in all of its threads
ANYTHING = 12345  # what products read behind a low tile
SHARED_ROWS = 16  # of a tile that 128 threads copy at a time
ROLES = ("mbarrier.", "cp.async.", "mma.", "cluster.")  # of calls that threads make together
Clock = dict[object, int]
Env = dict[Var, int]
Plain = Callable[..., None]
Wait = Generator[tuple["_Barrier | _Landing", int] | None, None, None]


def has_roles(fn: Function) -> bool:
    """Whether warpgroups of the function's kernels go ways of their own."""
    return _is_role(fn.body)


def run_roles(
    fn: Function,
    arrays: Mapping[Buffer, np.ndarray[Any, Any]],
    values: Mapping[Var, int],
    seed: int,
    run: Plain,
) -> None:
    """Run a device function whose kernels have roles, on flat arrays of its parameters; `run`
    interprets what is in them without roles."""
    _run_host(fn.body, dict(values), dict(arrays), random.Random(seed), run)


def _run_host(
    stmt: Stmt,
    env: Env,
    arrays: dict[Buffer, np.ndarray[Any, Any]],
    order: random.Random,
    run: Plain,
) -> None:
    """What stands around kernels, and the kernels in it."""
    match stmt:
        case Seq(stmts=stmts):
            for each in stmts:
                _run_host(each, env, arrays, order, run)
        case Alloc(buffer=buffer, body=body):
            size = 1
            for dim in buffer.shape:
                size *= _value(dim, env)
            arrays[buffer] = np.zeros(size, buffer.dtype.numpy)
            _run_host(body, env, arrays, order, run)
        case For(kind=kind) if kind == THREAD and _is_role(stmt):
            kernel = _without_lane_lets(stmt)
            clusters = _clusters(kernel, env)
            order.shuffle(clusters)
            for cluster in clusters:
                peers: list[_Block] = []
                for rank, index in enumerate(cluster):
                    peers.append(_Block(kernel, index, arrays, order, run, peers, rank))
                _run_together(peers, order)
        case _:
            _run_plain(stmt, env, arrays, run)


def _without_lane_lets(kernel: Stmt) -> Stmt:
    """Values that differ between the threads of a warpgroup stand where they are used: what a
    warpgroup does together has one value of everything else."""
    varying: dict[Var, Expr] = {}
    lanes = {loop.var for loop in _axes(kernel, "threadIdx.x")}
    for stmt in walk(kernel):
        if isinstance(stmt, Let) and sym.uses_var(stmt.value, {*lanes, *varying}):
            varying[stmt.var] = sym.substitute(stmt.value, varying)

    def rule(stmt: Stmt) -> Stmt:
        return stmt.body if isinstance(stmt, Let) and stmt.var in varying else stmt

    return substitute(rewrite(kernel, rule), varying) if varying else kernel


def _is_role(stmt: Stmt) -> bool:
    return any(isinstance(node, Call) and node.op.startswith(ROLES) for node in exprs(stmt))


def _run_plain(
    stmt: Stmt, env: Env, arrays: Mapping[Buffer, np.ndarray[Any, Any]], run: Plain
) -> None:
    """A statement without roles: a function of the memory and the variables that it uses."""
    own = {each.buffer for each in walk(stmt) if isinstance(each, Alloc)}
    given = [buffer for buffer in _used(stmt) if buffer not in own]
    plain = {buffer: replace(buffer, scope=GLOBAL.reference) for buffer in given}
    bound = {each.var for each in walk(stmt) if isinstance(each, (For, Let))}
    free = [node for node in exprs(stmt) if isinstance(node, Var) and node not in bound]
    params: tuple[Buffer | Var, ...] = (*plain.values(), *free)
    body = replace_buffers(stmt, {old: new for old, new in plain.items() if new is not old})
    made = Function("part", params, body, stage=DEVICE)
    views = [arrays[buffer].reshape([_value(dim, env) for dim in buffer.shape]) for buffer in given]
    run(made, *views, *[env[var] for var in free])


def _used(stmt: Stmt) -> dict[Buffer, None]:
    """The buffers that a statement reads or writes."""
    used: dict[Buffer, None] = {}
    for each in walk(stmt):
        used.update((buffer, None) for buffer, _ in writes_of(each))
        used.update((buffer, None) for buffer, *_ in reads_of(each))
    return used


def _blocks(kernel: Stmt, env: Env) -> Iterator[Env]:
    """The thread blocks of a kernel, by the values of their indices."""
    loops = _axes(kernel, "blockIdx")
    spans = [range(_value(loop.start, env), _value(loop.stop, env)) for loop in loops]
    for index in product(*spans):
        yield {**env, **{loop.var: at for loop, at in zip(loops, index, strict=True)}}


def _clusters(kernel: Stmt, env: Env) -> list[list[Env]]:
    """Thread blocks that run together: those of a cluster, else each by itself."""
    along = cluster_loop(kernel)
    if along is None:
        return [[block] for block in _blocks(kernel, env)]
    found: dict[tuple[int, ...], list[Env]] = {}
    for block in _blocks(kernel, env):
        others = tuple(at for var, at in block.items() if var is not along.var)
        found.setdefault(others, []).append(block)
    return list(found.values())


def _is_plain(stmt: Stmt) -> bool:
    """Whether a statement stores, and nothing in it is done by a warpgroup together."""
    calls = any(isinstance(each, Eval) for each in walk(stmt))
    return not calls and any(isinstance(each, Store) for each in walk(stmt))


def _axes(kernel: Stmt, level: str) -> list[For]:
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


def _value(expr: Expr, env: Mapping[Var, int]) -> int:
    return int(sym.evaluate(expr, env))


def _buffer(at: Expr) -> Buffer:
    assert isinstance(at, Address)
    return at.buffer


def _join(into: Clock, other: Mapping[object, int]) -> None:
    for who, at in other.items():
        if into.get(who, 0) < at:
            into[who] = at


@dataclass(eq=False)
class _Barrier:
    """A barrier in shared memory: a phase ends with its arrivals and its bytes."""

    name: str
    arrivals: int
    pending: int
    bytes: int = 0
    phase: int = 0
    clock: Clock = field(default_factory=dict)  # of this phase, so far
    done: Clock = field(default_factory=dict)  # of the phases that are over
    copies: int = 0  # under way
    maker: tuple[_Agent, int] | None = None  # who made it, and when
    is_multicast: bool = False  # whether copies of other blocks arrive at it
    guests: dict[_Agent, int] = field(default_factory=dict)  # of other blocks, and when they came

    def is_over(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def settle(self, loc: Loc) -> None:
        """End the phase if nothing is missing."""
        early = self.is_multicast and self.pending > 0  # another block's copy may come first
        if self.pending < 0 or (self.bytes < 0 and not early):
            what = "arrivals" if self.pending < 0 else "bytes"
            raise ExecutionError(
                "TW2429",
                f"more {what} come to {self.name} than its phase expects",
                loc,
                help="expect as many bytes as the copies bring, and one arrival of each warp",
            )
        if self.pending or self.bytes:
            return
        if self.copies:
            raise ExecutionError(
                "TW2429",
                f"the phase of {self.name} ends while a copy is still under way",
                loc,
                help="expect as many bytes as the copies bring",
            )
        self.phase += 1
        self.pending = self.arrivals
        _join(self.done, self.clock)
        self.clock = {}


@dataclass(eq=False)
class _Agent:
    """A warpgroup that consumes, or the thread that produces."""

    name: str
    env: Env
    clock: Clock = field(default_factory=dict)
    sums: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    groups: list[set[Buffer]] = field(default_factory=list)  # of products started, by what they use
    steps: Wait | None = None
    waits: tuple[_Barrier | _Landing, int] | None = None
    number: int = 0
    begun: list[_Copy] = field(default_factory=list)  # since the last group
    copies: list[list[_Copy]] = field(default_factory=list)  # groups of them, not waited for
    landed: list[_Copy] = field(default_factory=list)  # waited for, not told to others yet

    def tick(self) -> int:
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]


@dataclass(eq=False)
class _Tile:
    """One box in shared memory: who wrote it last, who has read it since."""

    copy: object = None
    is_clear: bool = False  # zeros since before the roles parted, and no copy's
    reads: dict[_Agent, int] = field(default_factory=dict)


@dataclass(eq=False)
class _Part:
    """What one warpgroup keeps for the other blocks of its cluster."""

    values: np.ndarray[Any, Any]
    writer: _Agent
    when: int
    reads: dict[_Agent, int] = field(default_factory=dict)


@dataclass(eq=False)
class _Copy:
    """A bulk copy under way."""

    buffer: Buffer
    first: int
    values: np.ndarray[Any, Any]
    barrier: _Barrier | None  # that it arrives at
    clock: Clock
    loc: Loc
    is_under_way: bool = True


@dataclass(eq=False)
class _Landing:
    """What is over when copies have landed."""

    copies: list[_Copy]
    name: str = "copies of its own"
    done: Clock = field(default_factory=dict)

    def is_over(self, parity: int) -> bool:
        return not any(copy.is_under_way for copy in self.copies)


def _run_together(blocks: list[_Block], order: random.Random) -> None:
    """Let everything happen that can, one thing at a time, in an order by chance."""
    left = [(block, agent) for block in blocks for agent in block.agents]
    while left:
        ready: list[tuple[_Block, _Agent | _Copy]] = [each for each in left if _is_ready(each[1])]
        ready += [(block, copy) for block in blocks for copy in block.copies]
        if not ready:
            _deadlock([agent for _, agent in left])
        block, chosen = order.choice(ready)
        if isinstance(chosen, _Copy):
            block.land(chosen)
            continue
        if chosen.waits is not None:
            barrier, _ = chosen.waits
            _join(chosen.clock, barrier.done)
            chosen.waits = None
        assert chosen.steps is not None
        try:
            chosen.waits = next(chosen.steps)
        except StopIteration:
            left.remove((block, chosen))
            if not any(other is block for other, _ in left):
                block.ends()
    for block in blocks:
        while block.copies:
            block.land(block.copies[0])


def _is_ready(agent: _Agent) -> bool:
    return agent.waits is None or agent.waits[0].is_over(agent.waits[1])


def _deadlock(left: list[_Agent]) -> None:
    for agent in left:
        assert agent.waits is not None
        barrier = agent.waits[0]
        if isinstance(barrier, _Barrier) and barrier.bytes and not barrier.copies:
            raise ExecutionError(
                "TW2429",
                f"{agent.name} waits for {barrier.bytes} more bytes at {barrier.name} that no "
                "copy brings",
                help="expect as many bytes as the copies bring",
            )
    shown = "; ".join(f"{a.name} waits at {a.waits[0].name}" for a in left if a.waits)
    raise ExecutionError(
        "TW2430",
        f"nobody can go on: {shown}",
        help="every wait needs its arrivals, and phases alternate once per round of the ring",
    )


class _Block:
    """One thread block."""

    def __init__(
        self,
        kernel: Stmt,
        env: Env,
        arrays: Mapping[Buffer, np.ndarray[Any, Any]],
        order: random.Random,
        run: Plain,
        peers: list[_Block],
        rank: int,
    ) -> None:
        self.arrays, self.order, self.run_plain = arrays, order, run
        self.peers, self.rank = peers, rank  # blocks of the cluster, and which this one is
        self.parts: dict[tuple[Buffer, int], _Part] = {}  # of sums, that peers read
        self.is_over = False
        self.memory: dict[Buffer, np.ndarray[Any, Any]] = {}
        self.barriers: dict[tuple[Buffer, int], _Barrier] = {}
        self.tiles: dict[tuple[Buffer, int], _Tile] = {}
        self.low: dict[Buffer, int] = {}  # left operands with fewer rows than products have
        self.copies: list[_Copy] = []
        self.plain: dict[Stmt, bool] = {}  # whether threads run a statement each for itself
        (rows,) = _axes(kernel, "threadIdx.y")
        (lanes,) = _axes(kernel, "threadIdx.x")
        self.lanes = lanes
        count = _value(rows.extent, env)
        self.meeting = _Barrier("the block's barrier", count, count)
        whole = peers[0].assembly if peers else _Barrier("the cluster's barrier", 0, 0)
        self.assembly: _Barrier = whole
        self.assembly.arrivals += count
        self.assembly.pending += count
        self.agents = []
        for at in range(count):
            agent = _Agent(f"warpgroup {at}", {**env, rows.var: at, lanes.var: 0}, number=at)
            agent.steps = self._run(kernel, agent)
            self.agents.append(agent)

    def ends(self) -> None:
        """Its shared memory is gone: nobody may be reading it."""
        self.is_over = True
        clock: Clock = {}
        for agent in self.agents:
            _join(clock, agent.clock)
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

    def _run(self, stmt: Stmt, agent: _Agent) -> Wait:
        env = agent.env
        if isinstance(stmt, Store) and stmt.buffer.scope == COUNT_SCOPE:
            place = _value(stmt.index[0], env)
            agent.sums[stmt.buffer][place] = self._number(stmt.value, agent)
            return
        if stmt not in self.plain:
            self.plain[stmt] = _is_plain(stmt)
        if self.plain[stmt]:
            for buffer in _used(stmt):
                self._check_made(buffer, agent, stmt.loc)
            whole = replace(self.lanes, body=stmt)
            _run_plain(whole, env, {**self.arrays, **agent.sums}, self.run_plain)
            yield None
            return
        match stmt:
            case Seq(stmts=stmts):
                for each in stmts:
                    yield from self._run(each, agent)
            case For(kind=kind, body=body) if kind == THREAD:
                yield from self._run(body, agent)
            case For(var=var, start=start, stop=stop, body=body):
                for at in range(_value(start, env), _value(stop, env)):
                    env[var] = at
                    yield from self._run(body, agent)
            case If(cond=cond, then=then, otherwise=otherwise):
                if sym.evaluate(cond, env):
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

    def _number(self, expr: Expr, agent: _Agent) -> int:
        """The value of an expression that may read what the role counts."""

        def rule(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            return sym.const(int(agent.sums[node.buffer][_value(node.index[0], agent.env)]))

        return _value(sym.rewrite(expr, rule), agent.env)

    def _allocate(self, buffer: Buffer, agent: _Agent) -> None:
        size = 1
        for dim in buffer.shape:
            size *= _value(dim, agent.env)
        if buffer.scope.startswith("shared"):
            if buffer not in self.memory:
                self.memory[buffer] = np.zeros(size, buffer.dtype.numpy)
        else:
            unset = np.nan if buffer.dtype.is_float else 0
            agent.sums[buffer] = np.full(size, unset, buffer.dtype.numpy)

    def _call(self, call: Call, agent: _Agent, loc: Loc) -> Wait:
        args, env = call.args, agent.env
        match call.op:
            case "barrier.shared":
                phase = self.meeting.phase
                agent.tick()
                agent.clock.update((copy, 1) for copy in agent.landed)
                agent.landed.clear()
                _join(self.meeting.clock, agent.clock)
                self.meeting.pending -= 1
                self.meeting.settle(loc)
                yield (self.meeting, phase % 2)
            case "barrier.cluster":
                phase = self.assembly.phase
                self._arrive(self.assembly, agent, 1, loc)
                yield (self.assembly, phase % 2)
            case "mbarrier.init":
                self._init(args, agent)
            case "mbarrier.arrive.cluster":
                for peer in self._peers(args[1], agent, loc):
                    barrier = peer.barrier_for(args[0], agent, loc)
                    self._arrive(barrier, agent, GROUP_WARPS, loc)
                    barrier.guests[agent] = agent.clock[agent]
            case "cluster.keep":
                self._keep(args, agent, loc)
            case "cluster.sum":
                self._gather(args, agent, loc)
            case "mbarrier.wait" | "mbarrier.wait.cluster":
                yield (self._barrier(args[0], env), _value(args[1], env))
            case "mbarrier.expect":
                barrier = self._barrier(args[0], env)
                barrier.bytes += _value(args[1], env)
                self._arrive(barrier, agent, 1, loc)
            case "mbarrier.arrive":
                self._arrive(self._barrier(args[0], env), agent, GROUP_WARPS, loc)
            case "tile.clear":
                self._clear(args, agent)
            case "tile.low":
                self.low[_buffer(args[0])] = _value(args[1], env)
            case "tma.load":
                self._load(args, agent, loc)
            case "tma.multicast":
                self._load_all(args, agent, loc)
            case "tma.window":
                self._load_window(args, agent, loc)
            case "wgmma.clear":
                self._sums(args[0], args[1], agent)[...] = 0
            case "cp.async.tile":
                self._share(args, agent, loc)
            case "cp.async.commit":
                agent.copies.append(agent.begun)
                agent.begun = []
            case "cp.async.wait":
                done = agent.copies[: max(0, len(agent.copies) - _value(args[0], env))]
                copies = [copy for group in done for copy in group]
                yield (_Landing(copies), 0)
                agent.landed += copies
                del agent.copies[: len(done)]
            case "wgmma.tile" | "mma.tile":
                self._tile(args, agent, loc)
            case "wgmma.start":
                self._start(args, agent, loc)
            case "wgmma.wait":
                del agent.groups[: len(agent.groups) - _value(args[2], env)]
            case "wgmma.round":
                self._round(args, agent)
            case "wgmma.rows":
                self._sums(args[1], args[2], agent)[...] = self._sums(args[0], args[2], agent)
            case "wgmma.forget":
                top, total, sums = (self._sums(at, args[3], agent) for at in args[:3])
                top[...], total[...], sums[...] = -np.inf, 0, 0
            case "wgmma.attend":
                self._attend(args, agent, loc)
            case "wgmma.powers":
                self._left(args, agent)
            case "wgmma.weigh":
                self._weigh(args, agent, loc)
            case op if not op.startswith("registers.") and op not in (LAG, *EFFECTLESS):
                raise ExecutionError("TW2430", f"a role cannot run {op}", loc)
        yield None

    # ------------------------------------------------------------------ barriers

    def _init(self, args: tuple[Expr, ...], agent: _Agent) -> None:
        base, env = args[0], agent.env
        assert isinstance(base, Address)
        for slot in range(_value(args[1], env)):
            if (base.buffer, slot) not in self.barriers:
                count = _value(args[2], env)
                name = f"%{base.buffer.name}[{slot}]"
                made = _Barrier(name, count, count, maker=(agent, agent.tick()))
                self.barriers[base.buffer, slot] = made

    def barrier_for(self, at: Expr, agent: _Agent, loc: Loc) -> _Barrier:
        """The barrier of this block, for an agent of another one, who must know that it is made."""
        assert isinstance(at, Address)
        found = self.barriers.get((at.buffer, _value(at.index[0], agent.env)))
        maker = None if found is None else found.maker
        known = maker is not None and agent.clock.get(maker[0], 0) >= maker[1]
        if found is None or not known or self.is_over:
            what = "is gone" if self.is_over else "may not be made yet"
            raise ExecutionError(
                "TW2494",
                f"{agent.name} arrives at %{at.buffer.name} of block {self.rank} of its cluster, "
                f"which {what}",
                loc,
                help="let all blocks of a cluster meet behind the making: barrier.cluster",
            )
        return found

    def _barrier(self, at: Expr, env: Env) -> _Barrier:
        assert isinstance(at, Address)
        return self.barriers[at.buffer, _value(at.index[0], env)]

    def _arrive(self, barrier: _Barrier, agent: _Agent, count: int, loc: Loc) -> None:
        agent.tick()
        _join(barrier.clock, agent.clock)
        barrier.pending -= count
        barrier.settle(loc)

    # ------------------------------------------------------------------ copies

    def _load(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        target, source, rows, apart, barrier_at, high, first_row = args
        box = self._box(source, rows, apart, high, first_row, agent.env)
        barrier = self._barrier(barrier_at, agent.env)
        self.begin(target, 0, box, agent, barrier, loc)
        barrier.copies += 1

    def _load_all(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """A part of a tile into every block of the cluster, each when it likes."""
        target, source, rows, apart, barrier_at, high, first_row, blocks = args
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
        count, top = _value(rows, env), _value(first_row, env)
        columns = ROW_BYTES // source.buffer.dtype.size_bytes
        height, width = _value(high, env), _value(apart, env)
        which, left = divmod(_value(source.index[0], env), height * width)
        left %= width  # as code tells columns
        matrix = self.arrays[source.buffer].reshape(-1, height, width)[which]
        box = np.zeros((count, columns), matrix.dtype)
        inside = matrix[top : top + count, left : left + columns]
        box[: inside.shape[0], : inside.shape[1]] = inside
        return box

    def _load_window(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """One kernel position of windows that follow each other, along lines and images."""
        target, source, pixels, barrier_at, *numbers = args
        assert isinstance(target, Address)
        assert isinstance(source, Address)
        c, x, y, n, kx, ky, height, width, channels, *corners = (
            _value(number, agent.env) for number in numbers
        )
        pad_y, pad_x, upper_y, upper_x, step_y, step_x = corners
        columns = ROW_BYTES // source.buffer.dtype.size_bytes
        images = self.arrays[source.buffer].reshape(-1, height, width, channels)
        box = np.zeros((_value(pixels, agent.env), columns), images.dtype)
        for row in box:
            if n < images.shape[0] and 0 <= y + ky < height and 0 <= x + kx < width:
                row[:] = images[n, y + ky, x + kx, c : c + columns]
            x += step_x
            if x > width - 1 + upper_x:
                x, y = -pad_x, y + step_y
            if y > height - 1 + upper_y:
                y, n = -pad_y, n + 1
        barrier = self._barrier(barrier_at, agent.env)
        self.begin(target, 0, box, agent, barrier, loc)
        barrier.copies += 1

    def begin(
        self,
        target: Expr,
        row: int,
        box: np.ndarray[Any, Any],
        agent: _Agent,
        barrier: _Barrier | None,
        loc: Loc,
    ) -> _Copy:
        """A copy into a tile, from one of its rows on, which nobody may use meanwhile."""
        assert isinstance(target, Address)
        first = _value(target.index[0], agent.env) + row * box.shape[1]
        for tile in self._touched(target.buffer, first, box.shape[0]):
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
            tile.is_clear = False
        agent.tick()
        made = _Copy(target.buffer, first, box.reshape(-1), barrier, dict(agent.clock), loc)
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

    def _share(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """A group's part of a copy by all threads: sixteen rows of 128 threads at a time."""
        target, source, rows, apart, high, first_row, *_ = args
        box = self._box(source, rows, apart, high, first_row, agent.env)
        for row in range(agent.number * SHARED_ROWS, len(box), len(self.agents) * SHARED_ROWS):
            part = box[row : row + SHARED_ROWS]
            agent.begun.append(self.begin(target, row, part, agent, None, loc))

    def _clear(self, args: tuple[Expr, ...], agent: _Agent) -> None:
        """Rows behind those that copies fill are zero, in every box of a ring."""
        start, *numbers = args
        assert isinstance(start, Address)
        filled, rows, boxes, _ = (_value(number, agent.env) for number in numbers)
        columns = ROW_BYTES // start.buffer.dtype.size_bytes
        self.memory[start.buffer].reshape(boxes, rows, columns)[:, filled:] = 0
        for box in range(boxes):
            first = (box * rows + filled) * columns
            for tile in self._touched(start.buffer, first, rows - filled):
                tile.is_clear = True

    def _touched(self, buffer: Buffer, first: int, rows: int) -> list[_Tile]:
        """The groups of eight rows, the unit of a swizzle, that a region covers."""
        columns = ROW_BYTES // buffer.dtype.size_bytes
        row = first // columns
        last = (row + rows) // 8
        return [self.tiles.setdefault((buffer, at), _Tile()) for at in range(row // 8, last)]

    def land(self, copy: _Copy) -> None:
        self.copies.remove(copy)
        self.memory[copy.buffer][copy.first : copy.first + copy.values.size] = copy.values
        copy.is_under_way = False
        if copy.barrier is None:
            return
        copy.clock[copy] = 1
        _join(copy.barrier.clock, copy.clock)
        copy.barrier.copies -= 1
        copy.barrier.bytes -= copy.values.nbytes
        copy.barrier.settle(copy.loc)

    # ------------------------------------------------------------------ products

    def _check_made(self, buffer: Buffer, agent: _Agent, loc: Loc = UNKNOWN) -> None:
        """No product under way uses a buffer."""
        if any(buffer in group for group in agent.groups):
            raise ExecutionError(
                "TW2196",
                f"{agent.name} uses %{buffer.name} while products that it belongs to are under way",
                loc,
                help="wait for the products first: wgmma.wait",
            )

    def _start(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """A product that is awaited later, in the group of those of the same sums."""
        sums = _buffer(args[0])
        if agent.groups and sums in agent.groups[-1]:
            agent.groups.pop()
        self._tile(args, agent, loc)
        agent.groups.append({sums})

    def _sums(self, at: Expr, n: Expr, agent: _Agent) -> np.ndarray[Any, Any]:
        assert isinstance(at, Address)
        self._check_made(at.buffer, agent)
        width, first = _value(n, agent.env), _value(at.index[0], agent.env)
        found: np.ndarray[Any, Any] = agent.sums[at.buffer][first : first + M * width]
        return found.reshape(M, width)

    def _operand(self, at: Expr, rows: int, agent: _Agent, loc: Loc) -> np.ndarray[Any, Any]:
        assert isinstance(at, Address)
        assert at.buffer.scope == TILE_SCOPE
        columns = ROW_BYTES // at.buffer.dtype.size_bytes
        first = _value(at.index[0], agent.env)
        more = rows - min(rows, self.low.get(at.buffer, rows))
        rows -= more
        for tile in self._touched(at.buffer, first, rows):
            if tile.is_clear:
                continue
            if tile.copy is None or agent.clock.get(tile.copy, 0) < 1:
                raise ExecutionError(
                    "TW2427",
                    f"{agent.name} reads %{at.buffer.name} at element {first} without having "
                    "waited for the copy that fills it",
                    loc,
                    help="wait for the slot's full barrier, in the right phase, before the tile",
                )
            tile.reads[agent] = agent.clock.get(agent, 0) + 1
        found = self.memory[at.buffer][first : first + rows * columns]
        wide = np.int32 if found.dtype.kind in "iu" else np.float32
        read = found.reshape(rows, columns).astype(wide)
        read = np.pad(read, ((0, more), (0, 0)), constant_values=ANYTHING)
        return round_tf32(read) if found.dtype == np.float32 else read

    def _tile(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        sums = self._sums(args[0], args[3], agent)
        a = self._operand(args[1], M, agent, loc)
        if not _value(args[4], agent.env):
            sums += a @ self._operand(args[2], sums.shape[1], agent, loc).T
            return
        depth, n = a.shape[1], sums.shape[1]  # boxes of columns, one behind the other
        boxes = self._operand(args[2], depth * (n // depth), agent, loc)
        sums += a @ boxes.reshape(-1, depth, depth).swapaxes(0, 1).reshape(depth, n)

    def _attend(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        scores, values, top, total, sums, keys, features, *scale = args
        left = self._powers((scores, top, total, sums, keys, features, *scale), agent)
        self._weighed(sums, left, values, features, agent, loc)

    def _left(self, args: tuple[Expr, ...], agent: _Agent) -> None:
        """Powers for a product that follows. Scores are there; all else under way is awaited."""
        scores, top, total, sums, packed, keys, features, *scale = args
        self._sums(scores, keys, agent)
        agent.groups.clear()
        left = self._sums(packed, keys, agent)
        left[...] = self._powers((scores, top, total, sums, keys, features, *scale), agent)

    def _weigh(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        sums, packed, values, keys, features, waits = args
        left = self._sums(packed, keys, agent)
        self._weighed(sums, left, values, features, agent, loc)
        agent.groups.append({_buffer(sums), _buffer(packed)})
        if _value(waits, agent.env):
            agent.groups.clear()

    def _powers(self, args: tuple[Expr, ...], agent: _Agent) -> np.ndarray[Any, Any]:
        """A step of attention up to its product: scores, greatest scores, sums, weighted values."""
        scores = self._sums(args[0], args[4], agent)
        top, total, sums = (self._sums(at, args[5], agent) for at in args[1:4])
        new = np.maximum(top[:, :1], scores.max(1, keepdims=True))
        below = np.where(np.isneginf(new), 0, new)
        scale = np.float32(sym.evaluate(args[6], agent.env) if args[6:] else 1)
        powers: np.ndarray[Any, Any] = np.exp((scores - below) * scale)
        fade = np.exp((top[:, :1] - below) * scale)
        top[...] = new
        total[...] = total * fade + powers.sum(1, keepdims=True)
        sums[...] = sums * fade
        return powers

    def _weighed(
        self,
        at: Expr,
        left: np.ndarray[Any, Any],
        values: Expr,
        features: Expr,
        agent: _Agent,
        loc: Loc,
    ) -> None:
        """Sums += powers, rounded to the type of the values, times those."""
        assert isinstance(values, Address)
        sums, keys = self._sums(at, features, agent), left.shape[1]
        columns = ROW_BYTES // values.buffer.dtype.size_bytes
        boxes = self._operand(values, keys * (sums.shape[1] // columns), agent, loc)
        weighted = boxes.reshape(-1, keys, columns).swapaxes(0, 1).reshape(keys, -1)
        sums += left.astype(values.buffer.dtype.numpy).astype(np.float32) @ weighted

    # ------------------------------------------------------------------ clusters

    def _peers(self, blocks: Expr, agent: _Agent, loc: Loc) -> list[_Block]:
        """The blocks of the cluster, which are as many as an instruction says."""
        count = _value(blocks, agent.env)
        if count != len(self.peers):
            raise ExecutionError(
                "TW2494",
                f"{agent.name} speaks to {count} blocks, its cluster has {len(self.peers)}",
                loc,
                help=f"blocks along {CLUSTER_AXIS} are a cluster where they meet: barrier.cluster",
            )
        return self.peers

    def _keep(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """Sums go where other blocks read them."""
        sums = self._sums(args[0], args[3], agent)
        place = args[1]
        assert isinstance(place, Address)
        size = math.prod(_value(dim, agent.env) for dim in place.buffer.shape) // len(self.peers)
        owner, first = divmod(_value(place.index[0], agent.env), size)
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
        self.parts[place.buffer, first] = _Part(sums.copy(), agent, agent.tick())

    def _check_read(self, buffer: Buffer, part: _Part, clock: Clock, loc: Loc) -> None:
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

    def _gather(self, args: tuple[Expr, ...], agent: _Agent, loc: Loc) -> None:
        """The sum of what all blocks keep of some columns."""
        sums = self._sums(args[0], args[5], agent)
        place = args[1]
        assert isinstance(place, Address)
        apart, width = (_value(number, agent.env) for number in args[2:4])
        row, column = divmod(_value(place.index[0], agent.env), width)
        for peer in self._peers(args[4], agent, loc):
            part = peer.parts.get((place.buffer, row * width % apart))
            known = part is not None and agent.clock.get(part.writer, 0) >= part.when
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

    def _round(self, args: tuple[Expr, ...], agent: _Agent) -> None:
        sums = self._sums(args[0], args[3], agent)
        memory = args[1]
        assert isinstance(memory, Address)
        array = self.arrays[memory.buffer].reshape(-1)
        first, stride = _value(memory.index[0], agent.env), _value(args[2], agent.env)
        for row in range(M):
            at = first + row * stride
            array[at : at + sums.shape[1]] = sums[row].astype(array.dtype)
