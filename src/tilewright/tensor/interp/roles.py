"""Warp-specialized kernels: each warpgroup is a coroutine, and bulk copies complete asynchronously.

A producer and its consumers are ordered by barriers only. Every coroutine, and every copy in
flight, carries a vector clock: the events it knows to have happened. Arriving at a barrier merges
that knowledge into the phase, waiting for the phase acquires it. Reading a tile without knowing
that its copy has completed, or refilling it without knowing that its readers are done, is an error,
in whatever order things happened to run; `seed` selects that order.

Asynchronous copies of Ampere are started by the threads of every group, complete before the wait
for them, and become visible to other threads, even of the same group, after a barrier.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.sym import Expr, Var
from tilewright.tensor.clusters import cluster_loop
from tilewright.tensor.interp.role_block import (
    Block,
    Plain,
    PlainStatements,
    Prepare,
    axes_of,
)
from tilewright.tensor.interp.role_state import Agent, Barrier, Copy, Env, join, value_of
from tilewright.tensor.ir import THREAD, Alloc, Buffer, Call, For, Function, Let, Seq, Stmt
from tilewright.tensor.passes.pipeline_loops import ASYNC_COPY
from tilewright.tensor.passes.split_stream_k import CALLS as SHARING
from tilewright.tensor.visit import exprs, rewrite, substitute, walk

# Of calls that threads make together.
ROLES = ("mbarrier.", ASYNC_COPY, "mma.", "cluster.")


def has_roles(fn: Function) -> bool:
    """Whether warpgroups of the function's kernels go ways of their own."""
    return _is_role(fn.body)


def run_roles(
    fn: Function,
    arrays: Mapping[Buffer, np.ndarray[Any, Any]],
    values: Mapping[Var, int],
    seed: int,
    prepare: Prepare,
) -> None:
    """Run a device function whose kernels have roles, on flat arrays of its parameters; what
    `prepare` gives interprets what is in them without roles."""
    _run_host(fn.body, dict(values), dict(arrays), random.Random(seed), prepare)


def _run_host(
    stmt: Stmt,
    env: Env,
    arrays: dict[Buffer, np.ndarray[Any, Any]],
    order: random.Random,
    prepare: Prepare,
) -> None:
    """What stands around kernels, and the kernels in it."""
    match stmt:
        case Seq(stmts=stmts):
            for each in stmts:
                _run_host(each, env, arrays, order, prepare)
        case Alloc(buffer=buffer, body=body):
            size = 1
            for dim in buffer.shape:
                size *= value_of(dim, env)
            arrays[buffer] = np.zeros(size, buffer.dtype.numpy)
            _run_host(body, env, arrays, order, prepare)
        case For(kind=kind) if kind == THREAD and _is_role(stmt):
            kernel = _without_lane_lets(stmt)
            plain = PlainStatements(kernel, prepare)
            clusters = _clusters(kernel, env)
            order.shuffle(clusters)
            for cluster in clusters:
                peers: list[Block] = []
                for rank, index in enumerate(cluster):
                    peers.append(Block(kernel, index, arrays, order, plain, peers, rank))
                _run_together(peers, order)
        case _:
            Plain(stmt, prepare).run(env, arrays)


def _without_lane_lets(kernel: Stmt) -> Stmt:
    """Values that differ between the threads of a warpgroup stand where they are used: what a
    warpgroup does together has one value of everything else."""
    varying: dict[Var, Expr] = {}
    lanes = {loop.var for loop in axes_of(kernel, "threadIdx.x")}
    for stmt in walk(kernel):
        if isinstance(stmt, Let) and sym.uses_var(stmt.value, {*lanes, *varying}):
            varying[stmt.var] = sym.substitute(stmt.value, varying)

    def rule(stmt: Stmt) -> Stmt:
        return stmt.body if isinstance(stmt, Let) and stmt.var in varying else stmt

    return substitute(rewrite(kernel, rule), varying) if varying else kernel


def _is_role(stmt: Stmt) -> bool:
    return any(isinstance(node, Call) and node.op.startswith(ROLES) for node in exprs(stmt))


def _blocks(kernel: Stmt, env: Env) -> Iterator[Env]:
    """The thread blocks of a kernel, by the values of their indices."""
    loops = axes_of(kernel, "blockIdx")
    spans = [range(value_of(loop.start, env), value_of(loop.stop, env)) for loop in loops]
    for index in product(*spans):
        yield {**env, **{loop.var: at for loop, at in zip(loops, index, strict=True)}}


def _clusters(kernel: Stmt, env: Env) -> list[list[Env]]:
    """Thread blocks that run together: those of a cluster, those that share steps, else each by
    itself."""
    if any(isinstance(node, Call) and node.op in SHARING for node in exprs(kernel)):
        return [list(_blocks(kernel, env))]
    along = cluster_loop(kernel)
    if along is None:
        return [[block] for block in _blocks(kernel, env)]
    found: dict[tuple[int, ...], list[Env]] = {}
    for block in _blocks(kernel, env):
        others = tuple(at for var, at in block.items() if var is not along.var)
        found.setdefault(others, []).append(block)
    return list(found.values())


def _run_together(blocks: list[Block], order: random.Random) -> None:
    """Let everything happen that can, one thing at a time, in an order by chance."""
    left = [(block, agent) for block in blocks for agent in block.agents]
    while left:
        ready: list[tuple[Block, Agent | Copy]] = [each for each in left if _is_ready(each[1])]
        ready += [(block, copy) for block in blocks for copy in block.copies]
        if not ready:
            _deadlock([agent for _, agent in left])
        block, chosen = order.choice(ready)
        if isinstance(chosen, Copy):
            block.land(chosen)
            continue
        if chosen.waits is not None:
            barrier, _ = chosen.waits
            join(chosen.clock, barrier.done)
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
    blocks[0].exchange.ends()


def _is_ready(agent: Agent) -> bool:
    return agent.waits is None or agent.waits[0].is_over(agent.waits[1])


def _deadlock(left: list[Agent]) -> None:
    for agent in left:
        assert agent.waits is not None
        barrier = agent.waits[0]
        if isinstance(barrier, Barrier) and barrier.bytes and not barrier.copies:
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
