"""`wgmma` and the steps of attention, in warp-specialized kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.sym import Expr
from tilewright.tensor.interp.role_state import Agent, Products, Tile, buffer_of, value_of
from tilewright.tensor.ir import Address, Buffer

ROW_BYTES, M = 128, 64  # of a tile's row, and rows of a product
Operand = Callable[[Expr, int, Agent, Loc], np.ndarray[Any, Any]]  # a tile that copies have filled


def check_made(buffer: Buffer, agent: Agent, loc: Loc = UNKNOWN) -> None:
    """No product under way uses a buffer."""
    if any(buffer in group.uses for group in agent.groups):
        raise ExecutionError(
            "TW2196",
            f"{agent.name} uses %{buffer.name} while products that it belongs to are under way",
            loc,
            help="wait for the products first: wgmma.wait",
        )


def start(args: tuple[Expr, ...], agent: Agent, loc: Loc, operand: Operand) -> None:
    """A product that is awaited later; one right behind another of the same sums joins its group.
    Products of the same sums follow each other without a wait."""
    sums = buffer_of(args[0])
    groups = agent.groups
    joins = agent.is_starting and bool(groups) and sums in groups[-1].uses
    agent.groups = [group for group in groups if sums not in group.uses]
    multiply(args, agent, loc, operand)
    agent.groups = groups
    if not joins:
        groups.append(Products({sums}, []))
    groups[-1].tiles += held(agent)


def held(agent: Agent) -> list[Tile]:
    """The tiles of a product that was started: until it is awaited nobody may fill them."""
    for tile in agent.read:
        tile.reads[agent] = math.inf
    return list(agent.read)


def sums_of(at: Expr, n: Expr, agent: Agent) -> np.ndarray[Any, Any]:
    """The accumulators of a warpgroup that an instruction names, as rows."""
    assert isinstance(at, Address)
    check_made(at.buffer, agent)
    width, first = value_of(n, agent.env), value_of(at.index[0], agent.env)
    found: np.ndarray[Any, Any] = agent.sums[at.buffer][first : first + M * width]
    return found.reshape(M, width)


def multiply(args: tuple[Expr, ...], agent: Agent, loc: Loc, operand: Operand) -> None:
    """Sums += A B, B as rows of columns or, turned, as boxes of columns; A may be turned too."""
    sums = sums_of(args[0], args[3], agent)
    a = operand(args[1], M, agent, loc)
    if any(value_of(along_m, agent.env) for along_m in args[5:]):
        a = a.T
    if not value_of(args[4], agent.env):
        sums += a @ operand(args[2], sums.shape[1], agent, loc).T
        return
    depth, n = a.shape[1], sums.shape[1]  # boxes of columns, one behind the other
    boxes = operand(args[2], depth * (n // depth), agent, loc)
    sums += a @ boxes.reshape(-1, depth, depth).swapaxes(0, 1).reshape(depth, n)


def attend(args: tuple[Expr, ...], agent: Agent, loc: Loc, operand: Operand) -> None:
    """A whole step of attention: powers of scores, and values weighed by them."""
    scores, values, top, total, sums, keys, features, *scale = args
    left = _powers((scores, top, total, sums, keys, features, *scale), agent)
    _weighed(sums, left, values, features, agent, loc, operand)


def pack_powers(args: tuple[Expr, ...], agent: Agent) -> None:
    """Powers for a product that follows. Scores are there; all else under way is awaited."""
    scores, top, total, sums, packed, keys, features, *scale = args
    sums_of(scores, keys, agent)
    agent.retire()
    left = sums_of(packed, keys, agent)
    left[...] = _powers((scores, top, total, sums, keys, features, *scale), agent)


def weigh(args: tuple[Expr, ...], agent: Agent, loc: Loc, operand: Operand) -> None:
    """The product of powers and values, awaited later unless the call says so."""
    sums, packed, values, keys, features, waits = args
    left = sums_of(packed, keys, agent)
    _weighed(sums, left, values, features, agent, loc, operand)
    agent.groups.append(Products({buffer_of(sums), buffer_of(packed)}, held(agent)))
    if value_of(waits, agent.env):
        agent.retire()


def _powers(args: tuple[Expr, ...], agent: Agent) -> np.ndarray[Any, Any]:
    """A step of attention up to its product: scores, greatest scores, sums, weighted values."""
    scores = sums_of(args[0], args[4], agent)
    top, total, sums = (sums_of(at, args[5], agent) for at in args[1:4])
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
    at: Expr,
    left: np.ndarray[Any, Any],
    values: Expr,
    features: Expr,
    agent: Agent,
    loc: Loc,
    operand: Operand,
) -> None:
    """Sums += powers, rounded to the type of the values, times those."""
    assert isinstance(values, Address)
    sums, keys = sums_of(at, features, agent), left.shape[1]
    columns = ROW_BYTES // values.buffer.dtype.size_bytes
    boxes = operand(values, keys * (sums.shape[1] // columns), agent, loc)
    weighted = boxes.reshape(-1, keys, columns).swapaxes(0, 1).reshape(keys, -1)
    sums += left.astype(values.buffer.dtype.numpy).astype(np.float32) @ weighted
